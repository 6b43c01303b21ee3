"""Records as bytes into Arrow tables of the projected keys, and those tables into a slot.

    bytes ─ msgspec ─► Python values of the projected keys ─ column_of ─► Arrow table(s) ─ Projector ─► slot

A field's source is a record's key of exactly that name; in a record without it, a dotted path into objects. Of a key
that stands twice the last counts. A key that is missing is a null.

Measured on records of 850 tokens and of 31 columns, 16 of them wanted (µs a record and core): msgspec into a struct of
the wanted keys 66 and 3.8 from JSON, 53 and 2.9 from MessagePack; orjson 68 and 6.6; pyarrow.json 115 and 6.3; msgpack
68 and 9.9; pysimdjson, whose arrays go into a buffer without Python values, 26 and 8.4. msgspec leaves out what nobody
wants, keeps integers of any size, and does both formats; pysimdjson would be 1.5 to 1.9 times as fast on long lists of
integers with all else counted, slower on anything else, and flattens nested lists without a word.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.encodings import JSON_LINES
from o41td.errors import CorruptDataError, DataError, SchemaError, ValueRefusedError
from o41td.fields import FieldPlan
from o41td.projection import plan_projection
from o41td.workers.project import Projector, RefusedRows
from o41td.workers.record_values import Misfit, column_of

__all__ = ["DecodedRecords", "RecordDecoder", "RecordProjector"]


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Consecutive records decoded: those before the first that cannot be had, and why that one cannot.

    Each part is (rows, a table for each of the decoder's `layers`).
    """

    parts: list[tuple[int, list[Any]]]
    error: DataError | None = None

    @property
    def num_rows(self) -> int:
        """Records decoded."""
        return sum(rows for rows, _tables in self.parts)

    @property
    def nbytes(self) -> int:
        """What they take in Arrow."""
        return sum(table.nbytes for _rows, tables in self.parts for table in tables)


class RecordDecoder:
    """Decodes records of one encoding for the fields of one source.

    Args:
        encoding: The encoding.
        fields: The source's fields.
        source: The source's name, for errors.
        shard: The shard, for errors.
    """

    def __init__(self, encoding: str, fields: Sequence[FieldPlan], *, source: str | None, shard: str) -> None:
        self._source = source
        self._shard = shard
        self._codec = msgspec.json if encoding == JSON_LINES else msgspec.msgpack
        self._unit = "line" if encoding == JSON_LINES else "frame"
        self.layers = layers_of(fields)
        wanted = list(dict.fromkeys(name for field in fields for name in _prefixes_of(field.source)))
        self._decode, getters = _decoding_of(self._codec, wanted)
        self._values_of = {field.source: _values_getter(field.source, getters) for field in fields}

    def decode(self, records: Sequence[bytes], first_row: int) -> tuple[tuple[int, list[Any]], DataError | None]:
        """Decodes records, of which the first is record `first_row` of the shard.

        Returns:
            The part up to the first record that cannot be had, and that one's error.
        """
        rows: list[Any] = []
        error: DataError | None = None
        try:
            for record in records:
                rows.append(self._decode(record))  # noqa: PERF401 - what is decoded when one fails counts
        except (msgspec.DecodeError, ValueError, RecursionError) as failure:
            error = self._undecodable(failure, first_row + len(rows))
        tables = []
        for layer in self.layers:
            names, columns = [], []
            for field in layer:
                try:
                    values = self._values_of[field.source](rows)
                except _Ambiguous as ambiguous:
                    rows, values = rows[: ambiguous.row], ambiguous.values
                    misfit = Misfit(ambiguous.row, "an object", f"{field.source!r} leads to several of its members")
                    error = self._refusal(misfit, field, first_row)
                column, unfit = column_of(values, field)
                if unfit is not None:
                    rows, error = rows[: unfit.row], self._refusal(unfit, field, first_row)
                names.append(field.source)
                columns.append(column)
            tables.append((names, columns))
        num_rows = len(rows)
        made = [
            pa.Table.from_arrays([column.slice(0, num_rows) for column in columns], names) for names, columns in tables
        ]
        return (num_rows, made), error

    def check_first(self, record: bytes) -> None:
        """Refuses a shard whose first record does not give the fields: all that can be known before it is read.

        Raises:
            DataError: It does not.
        """
        (_rows, _tables), error = self.decode([record], 0)
        if error is not None:
            raise error
        keys: Mapping[str, Any] = self._codec.decode(record)
        for field in (field for layer in self.layers for field in layer):
            if field.null is None and not any(name in keys for name in _prefixes_of(field.source)):
                close = difflib.get_close_matches(field.source, [str(key) for key in keys], n=3)
                hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"it has {_listed(list(keys))}"
                raise SchemaError(
                    f"the first record has no key {field.source!r} ({hint})",
                    source=self._source,
                    shard=self._shard,
                    row=0,
                    column=field.source,
                    advice=f"Change the field's source, or set `null` of field {field.name!r} if it may be missing",
                )

    def _refusal(self, misfit: Misfit, field: FieldPlan, first_row: int) -> DataError:
        return ValueRefusedError(
            misfit.why,
            source=self._source,
            shard=self._shard,
            row=first_row + misfit.row,
            column=field.source,
            value=misfit.value,
            advice=misfit.advice,
        )

    def _undecodable(self, failure: Exception, row: int) -> DataError:
        reason = " ".join(str(failure).split()) or type(failure).__name__
        return CorruptDataError(
            f"the {self._unit} is no record: {reason}", source=self._source, shard=self._shard, row=row
        )


class RecordProjector:
    """Writes decoded records into a slot, as `Projector` writes tables."""

    def __init__(self, layers: Sequence[Sequence[FieldPlan]]) -> None:
        self._layers = layers
        self._projectors: list[dict[Any, Projector]] = [{} for _ in layers]

    def write(self, records: DecodedRecords, out: Mapping[str, NDArray[Any]], **options: Any) -> None:
        """Writes records as `write_fitting` does, where every one has to be there and to fit.

        Raises:
            DataError: A record cannot be had, or a value does not fit; the earliest is named.
        """
        refused = self.write_fitting(records, out, **options)
        if refused is not None:
            raise refused.error
        if records.error is not None:
            raise records.error

    def write_fitting(
        self,
        records: DecodedRecords,
        out: Mapping[str, NDArray[Any]],
        *,
        places: NDArray[np.int64] | None = None,
        row_offset_in_shard: int = 0,
        row_group: int | None = None,  # noqa: ARG002 - a shard of records has none
        shard: str | None = None,
        source: str | None = None,
    ) -> RefusedRows | None:
        """Writes record i into row `places[i]`, by default row i, of every array of `out`.

        Returns:
            The records with a value that does not fit, of which `out` holds anything; None if there are none.
        """
        row = 0
        refused: list[RefusedRows] = []
        for num_rows, tables in records.parts:
            regions, own = out, None
            if places is None:
                regions = {name: region[row:] for name, region in out.items()}
            else:
                own = places[row : row + num_rows]
            for layer, table, projectors in zip(self._layers, tables, self._projectors, strict=True):
                projector = projectors.get(table.schema)
                if projector is None:
                    plan = plan_projection(table.schema, layer, source=source, shard=shard)
                    projector = projectors[table.schema] = Projector(plan)
                of_layer = projector.write_fitting(
                    table,
                    regions,
                    places=own,
                    row_offset_in_shard=row_offset_in_shard + row,
                    shard=shard,
                    source=source,
                )
                if of_layer is not None:
                    refused.append(RefusedRows(of_layer.rows + row, of_layer.error))
            row += num_rows
        if not refused:
            return None
        first = min(refused, key=lambda each: int(each.rows[0]))
        return RefusedRows(np.unique(np.concatenate([each.rows for each in refused])), first.error)


def layers_of(fields: Sequence[FieldPlan]) -> list[list[FieldPlan]]:
    """Fields in groups in which no source stands twice: a table each."""
    layers: list[dict[str, FieldPlan]] = []
    for field in fields:
        layer = next((layer for layer in layers if field.source not in layer), None)
        if layer is None:
            layers.append(layer := {})
        layer[field.source] = field
    return [list(layer.values()) for layer in layers]


def _prefixes_of(source: str) -> list[str]:
    """The keys of a record under which a source may lie: "a.b.c" is that key, or below "a.b", or below "a"."""
    parts = source.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _decoding_of(codec: Any, names: Sequence[str]) -> tuple[Callable[[bytes], Any], dict[str, Callable[[Any], Any]]]:
    """How records are decoded, and how each of these keys is got out of one."""
    attributes = {name: f"k{number}" for number, name in enumerate(names)}
    try:
        struct = msgspec.defstruct(
            "Record",
            [(attribute, Any, None) for attribute in attributes.values()],
            rename={attribute: name for name, attribute in attributes.items()},
            gc=False,
        )
        decoder = codec.Decoder(struct)
    except (ValueError, UnicodeError):  # it takes no quotes, backslashes or control characters in names
        decoder = codec.Decoder(dict[str, Any])
        return decoder.decode, {name: methodcaller("get", name) for name in names}
    return decoder.decode, {name: attrgetter(attribute) for name, attribute in attributes.items()}


class _Ambiguous(Exception):
    """In record `row` a path leads to several members; `values` are those of the records before it."""

    def __init__(self, row: int, values: list[Any]) -> None:
        super().__init__(row)
        self.row = row
        self.values = values


def _values_getter(source: str, getters: Mapping[str, Callable[[Any], Any]]) -> Callable[[list[Any]], list[Any]]:
    """How the values of a source are got out of records."""
    if "." not in source:
        get = getters[source]
        return lambda rows: list(map(get, rows))

    def values_of(rows: list[Any]) -> list[Any]:
        values: list[Any] = []
        for row in rows:
            exact = getters[source](row)
            if exact is not None:
                values.append(exact)
                continue
            found = _below({name: getters[name](row) for name in _prefixes_of(source)[1:]}, source)
            if len(found) > 1:
                raise _Ambiguous(len(values), values)
            values.append(found[0] if found else None)
        return values

    return values_of


def _below(members: Mapping[str, Any], path: str) -> list[Any]:
    """All values that a path may mean: the member of that name, and what lies below shorter names."""
    found = [members[path]] if members.get(path) is not None else []
    for name in _prefixes_of(path)[1:]:
        inner = members.get(name)
        if isinstance(inner, dict):
            found += _below(inner, path[len(name) + 1 :])
    return found


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "no keys"
