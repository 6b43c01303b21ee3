"""Every error a user of o41td can meet: one tree under `O41Error`, each with fields, each picklable.

A message is one paragraph built from the fields: what went wrong, where, and what to do. Some classes also inherit the
builtin that a user would catch (`FileNotFoundError`, `ValueError`, `MemoryError`, `OSError`).

Errors cross process borders as plain records (`error_records`), never as pickles.

    O41Error
    ├─ ConfigError (ValueError)              what the user typed does not make sense
    ├─ DataError                             source, shard, row_group, row, column
    │  ├─ MissingShardError (FileNotFoundError)
    │  ├─ BadDataBudgetError
    │  ├─ CorruptDataError
    │  ├─ ChangedDataError
    │  ├─ SchemaError
    │  ├─ ValueRefusedError (ValueError)
    │  ├─ NodeError                          what a node raised, and by inheritance that exception's class
    │  └─ WorkerCrashError                   a block that killed its workers
    ├─ CheckpointError (ValueError)
    ├─ MemoryBoundError (MemoryError)
    ├─ SharedMemoryError (OSError)
    ├─ StorageError (OSError)
    ├─ CoordinatorError
    ├─ DatasetConflictError                  what is published already says otherwise
    ├─ ConnectError                          no loader of that name, or its rank is taken
    └─ StreamClosedError
"""

import errno
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

from o41td.sizes import human_bytes

__all__ = [
    "BadDataBudgetError",
    "ChangedDataError",
    "CheckpointError",
    "ConfigError",
    "ConnectError",
    "CoordinatorError",
    "CorruptDataError",
    "DataError",
    "DatasetConflictError",
    "MemoryBoundError",
    "MissingShardError",
    "NodeError",
    "O41Error",
    "SchemaError",
    "SharedMemoryError",
    "StorageError",
    "StreamClosedError",
    "ValueRefusedError",
    "WorkerCrashError",
    "rebuilt_error",
]

_SHOWN_CHARACTERS = 120


class O41Error(Exception):
    """The root of every error that o41td raises on purpose.

    Args:
        detail: What went wrong, as a phrase or sentence.
        where: The place, where no more exact field names it.
        advice: What to do about it; None takes the class's own `default_advice`.
    """

    field_names: ClassVar[tuple[str, ...]] = ("detail", "where", "advice")
    default_advice: ClassVar[str | None] = None

    def __init__(self, detail: str, *, where: str | None = None, advice: str | None = None) -> None:
        self.detail = str(detail)
        self.where = _text(where)
        self.advice = self.default_advice if advice is None else str(advice)
        super().__init__(self.paragraph())

    def paragraph(self) -> str:
        """The paragraph shown to a person, built from the fields: what (where). What to do."""
        place = self.place()
        what = self.detail.strip().rstrip(".")
        sentences = [f"{what} ({place})" if place else what]
        if self.advice:
            sentences.append(self.advice.strip().rstrip("."))
        return " ".join(s if s.endswith(("?", "!", ":")) else f"{s}." for s in sentences)

    def place(self) -> str:
        """The place named in the message, or an empty string."""
        return self.where or ""

    def fields(self) -> dict[str, Any]:
        """The keyword arguments that build an equal error: a new dict of plain values."""
        return {name: _plain(getattr(self, name)) for name in self.field_names}

    def __str__(self) -> str:
        return self.paragraph()

    def __reduce__(self) -> tuple[Callable[..., "O41Error"], tuple[Any, ...]]:
        return rebuilt_error, (type(self), self.fields(), tuple(getattr(self, "__notes__", ())))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Builds an error from what `fields` gave; keys this class does not know are left out."""
        known = {name: fields[name] for name in cls.field_names if name in fields}
        known.setdefault("detail", cls.__name__)
        return cls(**known)


class ConfigError(O41Error, ValueError):
    """What the user typed (config, rank, argument) does not make sense.

    Args:
        detail: What is wrong; several problems are joined from `problems`.
        where: The file or object that holds the setting.
        problems: (path to the key as typed, what is wrong with it) for each problem.
        advice: What to do.
    """

    field_names: ClassVar[tuple[str, ...]] = ("detail", "where", "problems", "advice")

    def __init__(
        self,
        detail: str = "the config does not make sense",
        *,
        where: str | None = None,
        problems: Iterable[Sequence[str]] = (),
        advice: str | None = None,
    ) -> None:
        self.problems = tuple((str(path), str(problem)) for path, problem in problems)
        super().__init__(detail, where=where, advice=advice)

    def paragraph(self) -> str:
        """The detail, then each problem on a line of its own where there are several."""
        if not self.problems:
            return super().paragraph()
        lines = [f"`{path}`: {problem}" if path else problem for path, problem in self.problems]
        what = f"{self.detail} ({self.where})" if self.where else self.detail
        advice = f" {self.advice.strip().rstrip('.')}." if self.advice else ""
        lines = [line if line.endswith("?") else f"{line}." for line in lines]
        if len(lines) == 1:
            return f"{what}: {lines[0]}{advice}"
        return f"{what}, {len(lines)} problems:" + "".join(f"\n  {line}" for line in lines) + advice


class DataError(O41Error):
    """The data is not what it should be; the fields say where.

    Args:
        detail: What is wrong.
        source: The source's name.
        shard: The shard's path or URI.
        row_group: The row group's number in the shard.
        row: The row's number in the shard (not in the row group).
        column: The column's name in the shard.
        advice: What to do.
    """

    field_names: ClassVar[tuple[str, ...]] = ("detail", "source", "shard", "row_group", "row", "column", "advice")

    def __init__(
        self,
        detail: str,
        *,
        source: str | None = None,
        shard: str | os.PathLike[str] | None = None,
        row_group: int | None = None,
        row: int | None = None,
        column: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.source = _text(source)
        self.shard = _text(shard)
        self.row_group = _whole(row_group)
        self.row = _whole(row)
        self.column = _text(column)
        super().__init__(detail, advice=advice)

    def place(self) -> str:
        """The source, shard, row group, row and column that are known."""
        named = (
            ("source", self.source and repr(self.source)),
            ("shard", self.shard),
            ("row group", self.row_group),
            ("row", self.row),
            ("column", self.column and repr(self.column)),
        )
        return ", ".join(f"{word} {value}" for word, value in named if value is not None)


class MissingShardError(DataError, FileNotFoundError):
    """A shard is not there. `errno` and `filename` are set as for any FileNotFoundError."""

    default_advice = "Check the path, and that this host can see it"

    def __init__(self, detail: str = "the shard does not exist", **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.errno = errno.ENOENT
        self.filename = self.shard


class CorruptDataError(DataError):
    """A shard cannot be read as what it claims to be: damaged, cut short, encrypted, not Parquet."""

    default_advice = "Replace the shard, or take it out of the source"


class ChangedDataError(DataError):
    """A shard is no longer the one that was indexed or checkpointed."""

    default_advice = "Put the old shard back, or start a new stream over the new data"


class SchemaError(DataError):
    """A shard's columns do not give the fields that were asked for."""

    default_advice = "Change the field's source or dtype, or take the shard out of the source"


class ValueRefusedError(DataError, ValueError):
    """A value does not fit its field; `value` is its text."""

    field_names: ClassVar[tuple[str, ...]] = (
        "detail",
        "source",
        "shard",
        "row_group",
        "row",
        "column",
        "value",
        "advice",
    )

    def __init__(self, detail: str, *, value: object = None, **fields: Any) -> None:
        self.value = _text(value)
        super().__init__(detail, **fields)


class NodeError(DataError):
    """A node of a source's chain raised, in a worker.

    Where this process knows the class that was raised, the error is one of that class as well, so that
    `except MyError` takes it. The worker's traceback is its note.

    Args:
        detail: What the exception says.
        node: The node's name.
        exception: The class of the exception, as `module:qualified name`.
        row_stop: One past the last row that the node was given; `row` is the first.
        **fields: As for `DataError`.
    """

    field_names: ClassVar[tuple[str, ...]] = (*DataError.field_names, "node", "exception", "row_stop")

    def __init__(
        self,
        detail: str,
        *,
        node: str | None = None,
        exception: str | None = None,
        row_stop: int | None = None,
        **fields: Any,
    ) -> None:
        self.node = _text(node)
        self.exception = _text(exception)
        self.row_stop = _whole(row_stop)
        super().__init__(detail, **fields)

    def paragraph(self) -> str:
        """What was raised, by which node, for which rows."""
        kind = (self.exception or "an exception").rpartition(":")[2]
        return f"node {self.node!r} raised {kind}: {self.detail.strip()} ({self.place()})"

    def place(self) -> str:
        """The source, the shard and the rows."""
        rows = None if self.row_stop is None else f"rows {self.row} to {self.row_stop - 1}"
        named = (("source", self.source and repr(self.source)), ("shard", self.shard), ("", rows))
        return ", ".join(f"{word} {value}".strip() for word, value in named if value is not None)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """As of every error, of a class that is also the one that was raised where this process has imported it."""
        module, _, name = str(fields.get("exception") or "").partition(":")
        raised: Any = sys.modules.get(module)
        for part in name.split("."):
            raised = getattr(raised, part, None)
        if isinstance(raised, type) and issubclass(raised, Exception) and not issubclass(cls, raised):
            both: Any
            with suppress(TypeError):  # its layout, or what it is built from, may not go together with ours
                both = type(cls.__name__, (cls, raised), {"__module__": cls.__module__, "__doc__": cls.__doc__})
                error: Self = both(**{name: fields[name] for name in cls.field_names if name in fields})
                return error
        return super().from_fields(fields)

    def __reduce__(self) -> tuple[Callable[..., "O41Error"], tuple[Any, ...]]:
        return rebuilt_error, (NodeError, self.fields(), tuple(getattr(self, "__notes__", ())))


class BadDataBudgetError(DataError):
    """More rows of a source cannot be had than `bad_data_budget` lets others stand in for."""

    default_advice = "Look at the quarantine file; mend the shards or leave them out, or raise bad_data_budget"


class WorkerCrashError(DataError):
    """A block whose decoding ended its workers again and again.

    Args:
        detail: What happened.
        signal: The signal that ended the last worker, where one did.
        exit_code: The last worker's exit code, where it left by itself.
        attempts: How many workers were lost on the block.
        **fields: As for `DataError`.
    """

    field_names: ClassVar[tuple[str, ...]] = (*DataError.field_names, "signal", "exit_code", "attempts")
    default_advice = (
        "If memory ran out, which signal 9 usually means: give the job more, or lower `threads`; "
        "else the shard is likely damaged"
    )

    def __init__(
        self,
        detail: str,
        *,
        signal: int | None = None,
        exit_code: int | None = None,
        attempts: int | None = None,
        **fields: Any,
    ) -> None:
        self.signal = _whole(signal)
        self.exit_code = _whole(exit_code)
        self.attempts = _whole(attempts)
        super().__init__(detail, **fields)

    def place(self) -> str:
        """The place of a `DataError`, then how the last worker ended."""
        ends = (("signal", self.signal), ("exit code", self.exit_code), ("attempts", self.attempts))
        told = ", ".join(f"{word} {value}" for word, value in ends if value is not None)
        return ", ".join(part for part in (super().place(), told) if part)


class CheckpointError(O41Error, ValueError):
    """A checkpoint cannot be read, or does not fit.

    Args:
        detail: What is wrong.
        path: The file it came from.
        differences: (path to the field, value in the checkpoint, value now) of each field that differs.
        advice: What to do.
    """

    field_names: ClassVar[tuple[str, ...]] = ("detail", "path", "differences", "advice")

    def __init__(
        self,
        detail: str,
        *,
        path: str | os.PathLike[str] | None = None,
        differences: Iterable[Sequence[Any]] = (),
        advice: str | None = None,
    ) -> None:
        self.path = _text(path)
        self.differences = tuple((str(key), _plain(old), _plain(new)) for key, old, new in differences)
        super().__init__(detail, advice=advice)

    def paragraph(self) -> str:
        """The detail, the fields that differ with both values, and what to do."""
        if not self.differences:
            return super().paragraph()
        told = "; ".join(f"`{key}` was {_shown(old)}, is {_shown(new)}" for key, old, new in self.differences[:20])
        more = len(self.differences) - 20
        place = f" ({self.path})" if self.path else ""
        advice = f" {self.advice.strip().rstrip('.')}." if self.advice else ""
        return f"{self.detail.rstrip('.:')}{place}: {told}{f'; and {more} more' if more > 0 else ''}.{advice}"

    def place(self) -> str:
        """The file."""
        return self.path or ""


class MemoryBoundError(O41Error, MemoryError):
    """The stream would need more memory than it may use; nothing was decoded.

    Args:
        detail: What is too large.
        needed_bytes: The whole bound.
        limit_bytes: What may be used.
        terms: The bound's terms by name, in bytes.
        advice: The setting that would make it fit.
    """

    field_names: ClassVar[tuple[str, ...]] = ("detail", "needed_bytes", "limit_bytes", "terms", "advice")

    def __init__(
        self,
        detail: str,
        *,
        needed_bytes: int | None = None,
        limit_bytes: int | None = None,
        terms: Mapping[str, int] | None = None,
        advice: str | None = None,
    ) -> None:
        self.needed_bytes = _whole(needed_bytes)
        self.limit_bytes = _whole(limit_bytes)
        self.terms = {str(name): int(value) for name, value in (terms or {}).items()}
        super().__init__(detail, advice=advice)

    def place(self) -> str:
        """The sum, term by term, and the limit."""
        told = [f"{name} {human_bytes(value)}" for name, value in self.terms.items()]
        needed = [] if self.needed_bytes is None else [f"needed {human_bytes(self.needed_bytes)}"]
        limit = [] if self.limit_bytes is None else [f"limit {human_bytes(self.limit_bytes)}"]
        return ", ".join([*needed, *limit, *told])


class SharedMemoryError(O41Error, OSError):
    """Shared memory could not be had. `needed_bytes` and `free_bytes` say how much was missing."""

    field_names: ClassVar[tuple[str, ...]] = ("detail", "where", "needed_bytes", "free_bytes", "advice")

    def __init__(
        self,
        detail: str,
        *,
        where: str | None = None,
        needed_bytes: int | None = None,
        free_bytes: int | None = None,
        advice: str | None = None,
    ) -> None:
        self.needed_bytes = _whole(needed_bytes)
        self.free_bytes = _whole(free_bytes)
        super().__init__(detail, where=where, advice=advice)

    def place(self) -> str:
        """The place, the bytes needed and the bytes free."""
        needed = None if self.needed_bytes is None else f"needed {human_bytes(self.needed_bytes)}"
        free = None if self.free_bytes is None else f"free {human_bytes(self.free_bytes)}"
        return ", ".join(part for part in (self.where, needed, free) if part)


class StorageError(O41Error, OSError):
    """A store (file system, object store) did not answer as it should; `uri` names the object."""

    field_names: ClassVar[tuple[str, ...]] = ("detail", "uri", "advice")

    def __init__(self, detail: str, *, uri: str | os.PathLike[str] | None = None, advice: str | None = None) -> None:
        self.uri = _text(uri)
        super().__init__(detail, advice=advice)

    def place(self) -> str:
        """The object."""
        return self.uri or ""


class CoordinatorError(O41Error):
    """The loader's coordinator could not be started or kept running; `log_tail` is the end of its log."""

    field_names: ClassVar[tuple[str, ...]] = ("detail", "where", "log_tail", "advice")

    def __init__(
        self, detail: str, *, where: str | None = None, log_tail: str | None = None, advice: str | None = None
    ) -> None:
        self.log_tail = _text(log_tail)
        super().__init__(detail, where=where, advice=advice)

    def paragraph(self) -> str:
        """The paragraph, then the log's last lines where there are any."""
        tail = (self.log_tail or "").rstrip()
        return f"{super().paragraph()}\nThe loader's last words:\n{tail}" if tail else super().paragraph()


class DatasetConflictError(O41Error):
    """A shard, a registration or a manifest is there already, and says something else than what was to be written."""


class ConnectError(O41Error):
    """A loader cannot be joined: there is none of that name, or not for that rank, or it is not the same any more."""


class StreamClosedError(O41Error):
    """The stream was closed, by `close` or by leaving its `with` block."""

    default_advice = "Open a new stream; a checkpoint taken before goes on from there"

    def __init__(
        self, detail: str = "the stream is closed", *, where: str | None = None, advice: str | None = None
    ) -> None:
        super().__init__(detail, where=where, advice=advice)


def rebuilt_error(cls: type[O41Error], fields: Mapping[str, Any], notes: Iterable[str]) -> O41Error:
    """The error of a class from its fields; also what unpickling calls."""
    error = cls.from_fields(fields)
    for note in notes:
        error.add_note(note)
    return error


def _text(value: object) -> str | None:
    """A field's text; paths lose their class."""
    return None if value is None else str(value)


def _whole(value: int | None) -> int | None:
    """A plain int from any integer type (NumPy's too)."""
    return None if value is None else int(value)


def _shown(value: Any) -> str:
    """A value as a message shows it, the beginning of a long one."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _plain(value: Any) -> Any:
    """A copy in types that msgpack and JSON carry."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
