"""A `Chain`: nodes one after the other, run on a span of a source or on rows that come from anywhere.

    Span ──► source ──► node ──► node ──► rows          forward(Span(at, take))
    rows ─────────────► node ──► node ──► rows          forward(batch): the same nodes, without the source

Every node answers with as many rows as it got; that is checked, since a row's coordinate is what names it. A key names
the result for a span without computing it: a digest of the source's version, of the fingerprints of all nodes, and of
the span's two numbers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

from o41td.counted import kind_text
from o41td.errors import ChangedDataError, ConfigError, CorruptDataError
from o41td.nodes.fingerprint import digest_parts
from o41td.nodes.node import Node
from o41td.nodes.span import Span

if TYPE_CHECKING:
    import os

    from o41td.nodes.store import NodeStore

__all__ = ["Chain"]

_DIGEST_BYTES = 16


class Chain:
    """Nodes in a row. Made by `>>`.

    Args:
        nodes: The nodes; only the first may be a source.
        name: The chain's own name; its source's if None.
        weight: Its share in a mix; its source's if None.
    """

    def __init__(self, nodes: Sequence[Node], *, name: str | None = None, weight: float | None = None) -> None:
        self.nodes = tuple(nodes)
        self._name = name
        self._weight = weight
        self._prefixes: tuple[str | None, list[Any]] = (None, [])  # by node, of all but the span
        if not self.nodes:
            raise ConfigError("a chain has no nodes")
        given: tuple[object, ...] = self.nodes
        for node in given:
            if isinstance(node, type) and issubclass(node, Node):
                raise ConfigError(
                    f"a chain goes on with the class {node.__name__}, and not with a node of it",
                    advice=f"Call it: {node.__name__}(…)",
                )
        for number, node in enumerate(self.nodes):
            if not isinstance(node, Node):
                raise ConfigError(
                    f"a chain goes on with {kind_text(node)}, which is no Node",
                    advice="A node is an object of a class that is derived from Node and has `forward`",
                )
            if number and node.is_source:
                raise ConfigError(
                    f"{node.label} is a source and stands behind {self.nodes[number - 1].label}",
                    advice="A source comes first; several sources are several entries of a stage",
                )

    # ---- running it ------------------------------------------------------------------------------------------------

    def forward(self, rows: Any) -> Any:
        """Returns what comes of a span of the source, or of rows that are handed in.

        Args:
            rows: A `Span`; or a `pyarrow.RecordBatch` or `Table` as the source would have answered.

        Returns:
            A `pyarrow.RecordBatch` of as many rows.

        Raises:
            ChangedDataError: The source is frozen and has another version now.
            CorruptDataError: A node answered with another number of rows, or with no rows at all.
            Exception: What a node raised, with a note that names the node.

        Blocks: on the source, on stores, and for the nodes.
        """
        if isinstance(rows, Span):
            source, span = self._source_of_spans(), rows
            self.refuse_changes()
            return self.answer(
                lambda: source.forward(span),
                num_rows=span.take,
                key_of=lambda number: self.key_at(number, self.pinned_version, span),
                failure=partial(_noted, f"rows [{span.at}, {span.stop})"),
            )
        batch = _record_batch_of(rows, "forward")
        return self._run(0 if self.source is None else 1, batch, None, partial(_noted, f"{batch.num_rows} rows"))

    def answer(
        self,
        read: Callable[[], Any],
        *,
        num_rows: int,
        key_of: Callable[[int], str],
        failure: Callable[[Node, Exception], Exception],
    ) -> Any:
        """Returns what comes of rows of the source, however these are had.

        Args:
            read: Gives the source's rows; not called where a result of theirs is kept.
            num_rows: How many they are.
            key_of: Names the result of a node, by its number.
            failure: Says what to raise for what a node raised.

        Raises:
            CorruptDataError: A node answered with another number of rows, or with no rows at all.
            Exception: What `failure` says.
        """
        source = self.nodes[0]
        for number in range(len(self.nodes) - 1, -1, -1):  # the last result that is kept spares all before it
            batch = self._kept(number, key_of, num_rows)
            if batch is not None:
                return self._run(number + 1, batch, key_of, failure)
        try:
            answer = read()
        except Exception as error:  # noqa: BLE001 - what it raises is told by `failure`
            _fail(failure(source, error), error)
        batch = self._checked(source, answer, num_rows)
        self._keep(0, key_of, batch)
        return self._run(1, batch, key_of, failure)

    def _run(
        self,
        first: int,
        batch: Any,
        key_of: Callable[[int], str] | None,
        failure: Callable[[Node, Exception], Exception],
    ) -> Any:
        for number, node in enumerate(self.nodes[first:], first):
            try:
                answer = node.forward(batch) if not node.settings.is_mapped else self._mapped(number, batch)
            except Exception as error:  # noqa: BLE001 - as above
                _fail(failure(node, error), error)
            batch = self._checked(node, answer, batch.num_rows)
            if key_of is not None:
                self._keep(number, key_of, batch)
        return batch

    def _mapped(self, number: int, batch: Any) -> Any:
        """A node's result row by row: those whose content is known from its store, the others from the node."""
        import pyarrow as pa

        from o41td.nodes.row_keys import row_keys

        node = self.nodes[number]
        store = node.settings.store
        keys = row_keys(batch, self._fingerprints[number])
        first_row = {key: row for row, key in reversed(list(enumerate(keys)))}
        known = {} if store is None else {key: store.get(key) for key in first_row}
        found = {key: kept for key, kept in known.items() if kept is not None and kept.num_rows == 1}
        lacking = [key for key in first_row if key not in found]
        if lacking:
            rows = batch.take(pa.array([first_row[key] for key in lacking]))
            answer = self._checked(node, node.forward(rows), len(lacking))
            for row, key in enumerate(lacking):
                found[key] = answer.slice(row, 1)
                if store is not None:
                    store.put(key, found[key])
        if not keys:
            return node.forward(batch)
        return pa.Table.from_batches([found[key] for key in keys])

    @staticmethod
    def _checked(node: Node, answer: Any, num_rows: int) -> Any:
        batch = _record_batch_of(answer, f"node {node.label!r}")
        if batch.num_rows != num_rows:
            raise CorruptDataError(
                f"node {node.label!r} answered {num_rows} rows with {batch.num_rows}",
                advice="A node gives as many rows as it gets, in their order",
            )
        return batch

    # ---- names for results -----------------------------------------------------------------------------------------

    @property
    def source(self) -> Node | None:
        """The node that answers spans; None where this chain starts from rows."""
        return self.nodes[0] if self.nodes[0].is_source else None

    @property
    def version(self) -> str | None:
        """The version of its source's content, read of nothing but names, sizes, times and row counts."""
        return None if self.source is None else self.source.version

    @property
    def num_rows(self) -> int:
        """The rows of its source."""
        return int(self._source_of_spans().num_rows)  # type: ignore[attr-defined]

    @property
    def name(self) -> str | None:
        """Its name, or its source's; None where nobody gave one."""
        return self._name or self.nodes[0].settings.name

    @property
    def weight(self) -> float:
        """Its share in a mix."""
        weight = self._weight if self._weight is not None else self.nodes[0].settings.weight
        return 1.0 if weight is None else weight

    @property
    def place(self) -> str | None:
        """Where it runs: what the last of its nodes that says so says; a chain is not divided between places."""
        return next((node.settings.place for node in reversed(self.nodes) if node.settings.place), None)

    def key(self, span: Span) -> str:
        """A name for the result of a span: another one for any other rows, data, node or parameter.

        Costs the same whatever the rows weigh: a digest of some fifty bytes. Versions and fingerprints are looked up
        once, when the first key is asked for.

        Raises:
            ConfigError: The source has no version, or this is no span.
        """
        if not isinstance(span, Span):
            raise ConfigError(f"a key is of a Span, not of {kind_text(span)}", advice="Give Span(at, take)")
        return self.key_at(len(self.nodes) - 1, self.pinned_version, span)

    def key_at(self, number: int, version: str, span: Span) -> str:
        """As `key`, of the result of one node, for rows of something that has this version."""
        known, prefixes = self._prefixes
        if known != version:
            digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            digest_parts(digest, version.encode("utf-8", "surrogateescape"))
            prefixes = []
            for fingerprint in self._fingerprints:
                digest_parts(digest, fingerprint.encode())
                prefixes.append(digest.copy())
            self._prefixes = version, prefixes
        digest = prefixes[number].copy()
        digest.update(struct.pack("<qq", span.at, span.take))
        name: str = digest.hexdigest()
        return name

    @cached_property
    def _fingerprints(self) -> list[str]:
        return [node.fingerprint() for node in self.nodes]

    @cached_property
    def pinned_version(self) -> str:
        """The version that keys are made of: the one the source was frozen to, or had when first asked.

        Raises:
            ConfigError: It has none.
            ChangedDataError: It was frozen to another one.
        """
        source = self._source_of_spans()
        version = source.version
        if version is None:
            raise ConfigError(
                f"source {source.label!r} has no version, so nothing that comes of it has a name",
                advice="Give the node a `version` that differs when its content does",
            )
        expected = source.settings.frozen_version
        if expected is not None and expected != version:
            raise ChangedDataError(
                f"the source is frozen to version {expected} and has version {version} now", source=self.name
            )
        return version

    def refuse_changes(self) -> None:
        """Refuses a frozen source that is no longer what it was, and results kept by place of one that may change.

        Raises:
            ChangedDataError: The source is frozen and has another version now.
            ConfigError: It is frozen and has none; or results are kept by place and it is not frozen.
        """
        source = self._source_of_spans()
        if source.settings.is_frozen:
            if source.version != self.pinned_version:
                raise ChangedDataError(
                    f"the source is frozen to version {self.pinned_version} and has version {source.version} now",
                    source=self.name,
                )
            return
        for node in self.nodes:
            if _is_kept_by_place(node):
                raise ConfigError(
                    f"results of node {node.label!r} are kept by place, but source {source.label!r} may change",
                    advice="Say `.frozen()` of the source, or keep them by content with `.mapped(store)`",
                )

    def _source_of_spans(self) -> Node:
        if self.source is None:
            raise ConfigError(
                f"a span was asked of {self.nodes[0].label!r}, which is no source",
                advice="Hand it rows, or put a source before it: a node with `num_rows`, such as Parquet(files)",
            )
        return self.source

    def _kept(self, number: int, key_of: Callable[[int], str], num_rows: int) -> Any:
        settings = self.nodes[number].settings
        batch = None if settings.store is None or settings.is_mapped else settings.store.get(key_of(number))
        return batch if batch is not None and batch.num_rows == num_rows else None

    def _keep(self, number: int, key_of: Callable[[int], str], batch: Any) -> None:
        settings = self.nodes[number].settings
        if settings.store is not None and not settings.is_mapped:
            settings.store.put(key_of(number), batch)

    def __getstate__(self) -> dict[str, Any]:
        kept: dict[str, Any] = {
            "nodes": self.nodes,
            "_name": self._name,
            "_weight": self._weight,
            "_prefixes": (None, []),
        }
        if "pinned_version" in vars(self):
            kept["pinned_version"] = self.pinned_version
        return kept

    # ---- saying more of it -----------------------------------------------------------------------------------------

    def __rshift__(self, then: Node | Chain) -> Chain:
        more = then.nodes if isinstance(then, Chain) else (then,)
        return Chain((*self.nodes, *more), name=self._name, weight=self._weight)

    def named(self, name: str) -> Chain:
        """This chain under a name."""
        return Chain(self.nodes, name=self.nodes[0].named(name).settings.name, weight=self._weight)

    def weighted(self, weight: float) -> Chain:
        """This chain with a share in the mix of its stage."""
        return Chain(self.nodes, name=self._name, weight=self.nodes[0].weighted(weight).settings.weight)

    def frozen(self, version: str | None = None) -> Chain:
        """This chain with its source frozen."""
        return self._with(0, self.nodes[0].frozen(version))

    def cached(self, store: NodeStore | str | os.PathLike[str] | None = None) -> Chain:
        """This chain with its last node's results kept."""
        return self._with(-1, self.nodes[-1].cached(store))

    def mapped(self, store: NodeStore | str | os.PathLike[str] | None = None) -> Chain:
        """This chain with its last node's results kept by content."""
        return self._with(-1, self.nodes[-1].mapped(store))

    def at(self, place: str) -> Chain:
        """This chain with all its nodes run where `place` names."""
        return Chain([node.at(place) for node in self.nodes], name=self._name, weight=self._weight)

    def _with(self, number: int, node: Node) -> Chain:
        nodes = list(self.nodes)
        nodes[number] = node
        return Chain(nodes, name=self._name, weight=self._weight)

    def __repr__(self) -> str:
        return " >> ".join(map(repr, self.nodes))


def _noted(rows: str, node: Node, error: Exception) -> Exception:
    error.add_note(f"raised by node {node.label!r} for {rows}")
    return error


def _fail(instead: Exception, error: Exception) -> NoReturn:
    """Raises `instead`, from `error` unless it is that."""
    if instead is error:
        raise error
    raise instead from error


def _is_kept_by_place(node: Node) -> bool:
    return node.settings.store is not None and not node.settings.is_mapped


def _record_batch_of(rows: Any, whose: str) -> Any:
    """Rows as one `pyarrow.RecordBatch`."""
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return rows
    if not isinstance(rows, pa.Table):
        raise CorruptDataError(
            f"{whose} gave {kind_text(rows)}, not a pyarrow.RecordBatch or Table",
            advice="pyarrow.RecordBatch.from_pydict makes one of columns",
        )
    batches = rows.combine_chunks().to_batches()
    if len(batches) > 1:
        raise CorruptDataError(f"{whose} gave rows that are too large for one batch of Arrow's")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
