"""Which remote objects a source's entries name, by the rules that hold for local files (`o41td.listing`).

* A URI that is an object's is that object, letter by letter, even if it contains `*`, `?`, `[`, `#`, `%20` or `//`.
* One that is none but has wildcards is a glob: `*` and `?` stay within a name, `**` crosses slashes.
* Any other stands for every shard below it. Web servers list nothing: there only the first of these rules holds.

Both of the latter list in sorted order and leave out hidden names, names that begin with `_`, and "folder" markers.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from o41td.encodings import suffixes_of
from o41td.errors import ConfigError, MissingShardError, O41Error
from o41td.folder_walk import is_data_name
from o41td.listing import refuse_splits
from o41td.workers.object_store import ObjectInfo, scheme_of
from o41td.workers.ranges import ByteRange
from o41td.workers.storage import Storage

__all__ = ["RemoteListing", "glob_pattern"]

_WILD = "*?["
_IN_ONE_PROCESS = ("memory",)
_LIST_NOTHING = ("http", "https")
_MANY = 16
"""So many objects of one folder are looked at by listing it."""

Found = tuple[str, ObjectInfo]


class RemoteListing:
    """Lists objects, looks at them, and reads them whole.

    Called by: a worker's main thread. Blocks: on the store.
    """

    def __init__(self, storage: Storage) -> None:
        """Asks through `storage`."""
        self._storage = storage

    def matches(self, entries: Sequence[str], *, source: str, encoding: str | None) -> list[list[Found]]:
        """Returns the objects that each entry names, all looked up side by side.

        Args:
            entries: URIs, prefixes and globs.
            source: The source's name, for errors.
            encoding: What the objects below a prefix are to be; None takes every shard.

        Raises:
            MissingShardError: A named object does not exist.
            ConfigError: Nothing matches.
            StorageError: The store does not say.
        """

        async def together() -> list[list[Found]]:
            known = await self._seen_in_folders(entries)
            works = (self._matches(entry, known, source, suffixes_of(encoding)) for entry in entries)
            return await asyncio.gather(*works)

        return self._storage.result_of(self._storage.start(together()))

    def infos(self, uris: Sequence[str], *, source: str) -> list[ObjectInfo]:
        """Returns what each object is, all looked at side by side.

        Raises:
            MissingShardError: One does not exist.
            StorageError: The store does not say.
        """

        async def together() -> list[ObjectInfo]:
            known = await self._seen_in_folders(uris)
            return await asyncio.gather(*(self._look(uri, known, source) for uri in uris))

        return self._storage.result_of(self._storage.start(together()))

    def read(self, uri: str, max_bytes: int) -> bytes:
        """Returns an object whole, or its first `max_bytes` where there are more.

        Raises:
            MissingShardError: There is none.
            StorageError: The store does not give it.
        """

        async def whole() -> bytes:
            info = await self._storage.stat(uri)
            return bytes(await self._storage.fetch(uri, ByteRange(0, min(info.size_bytes, max_bytes)), info))

        return self._storage.result_of(self._storage.start(whole()))

    async def _seen_in_folders(self, uris: Sequence[str]) -> dict[str, ObjectInfo]:
        """Looks at many objects of one folder with a few requests: what a list of its names brings; {} of others."""
        folders = Counter(uri[: uri.rfind("/") + 1] for uri in uris if scheme_of(uri) not in _LIST_NOTHING)
        known: dict[str, ObjectInfo] = {}
        for folder, count in folders.items():
            if count >= _MANY:
                with contextlib.suppress(O41Error):  # whoever may not list may still look at each
                    known.update(await self._storage.listed(folder, 2 * count))
        return known

    async def _look(self, uri: str, known: Mapping[str, ObjectInfo], source: str) -> ObjectInfo:
        try:
            return known[uri] if uri in known else await self._storage.stat(uri)
        except MissingShardError as error:
            error.source = source
            raise

    async def _matches(
        self, entry: str, known: Mapping[str, ObjectInfo], source: str, suffixes: tuple[str, ...]
    ) -> list[Found]:
        if scheme_of(entry) in _IN_ONE_PROCESS:
            raise ConfigError(
                f"source {source!r}: {entry} is of this process alone",
                advice="A loader reads in processes of its own; write the shards to a folder, /dev/shm if you like",
            )
        scheme, _, path = entry.partition("://")
        try:
            if path.rstrip("/") == path and "/" in path:
                return [(entry, await self._look(entry, known, source))]
        except MissingShardError:
            if scheme in _LIST_NOTHING and "*" not in path:
                raise
        wild = min((path.find(sign) for sign in _WILD if sign in path), default=None)
        root = path.rstrip("/") + "/" if wild is None else path[:wild]
        listed = await self._storage.listed(f"{scheme}://{root}")
        fixed = len(f"{scheme}://{root[: root.rfind('/') + 1]}")
        names = re.compile(glob_pattern(entry)) if wild is not None else None
        if names is None:
            refuse_splits((uri[fixed:] for uri, _info in listed), entry, source)
        found = sorted(
            (uri, info)
            for uri, info in listed
            if not uri.endswith("/")
            and is_data_name(uri[fixed:].split("/"))
            and (uri.lower().endswith(suffixes) if names is None else names.fullmatch(uri))
        )
        if not found and wild is None and not listed:
            raise MissingShardError("the store has no such object, and none below it", source=source, shard=entry)
        if not found:
            raise ConfigError(
                f"source {source!r}: {entry!r} matches no object",
                advice=(
                    "Check the URI. Hidden names and names that begin with '_' are left out, and a prefix stands for "
                    f"the objects below it that end in {', '.join(suffixes)}"
                ),
            )
        return found


def glob_pattern(glob: str) -> str:
    """Returns the regular expression of the whole URIs that a glob matches."""
    segments = glob.split("/")
    last = segments.pop()
    pattern = "".join("(?:[^/]*/)*" if segment == "**" else _name_pattern(segment) + "/" for segment in segments)
    return pattern + (".+" if last == "**" else _name_pattern(last))


def _name_pattern(glob: str) -> str:
    """The same of what lies between two slashes; a `[` that nothing closes stands for itself."""
    pattern, at = "", 0
    while at < len(glob):
        sign, at = glob[at], at + 1
        close = glob.find("]", at + 1 + glob.startswith("!", at)) if sign == "[" else -1
        if sign in "*?":
            pattern += "[^/]*" if sign == "*" else "[^/]"
        elif close > 0:
            chosen, at = glob[at:close], close + 1
            inside = chosen.removeprefix("!").replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
            pattern += f"[^/{inside}]" if chosen.startswith("!") else f"[{inside}]"
        else:
            pattern += re.escape(sign)
    return pattern
