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
from itertools import chain
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
from o41td.workers.slot_rows import Placement

__all__ = ["DecodedRecords", "RecordDecoder", "RecordProjector"]

_UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Records that were looked at, one after the other; those that cannot be had are left out of the tables.

    Attributes:
        rows: Which records of the shard they are: int64 [n].
        parts: (places of records in `rows`, int64 ascending; a table of them for each of the decoder's `layers`).
        refused: (places, int64; why they cannot be had), by the first place.
    """

    rows: NDArray[np.int64]
    parts: list[tuple[NDArray[np.int64], list[Any]]]
    refused: list[tuple[NDArray[np.int64], DataError]]

    @classmethod
    def joined(cls, several: Sequence[DecodedRecords]) -> DecodedRecords:
        """Records looked at one stretch after the other."""
        parts: list[tuple[NDArray[np.int64], list[Any]]] = []
        refused: list[tuple[NDArray[np.int64], DataError]] = []
        place = 0
        for records in several:
            parts += [(kept + place, tables) for kept, tables in records.parts]
            refused += [(places + place, error) for places, error in records.refused]
            place += records.num_rows
        return cls(np.concatenate([np.empty(0, np.int64), *(records.rows for records in several)]), parts, refused)

    @property
    def num_rows(self) -> int:
        """Records looked at."""
        return len(self.rows)

    @property
    def num_refused(self) -> int:
        """Those of them that are left out."""
        return sum(len(places) for places, _error in self.refused)

    @property
    def error(self) -> DataError | None:
        """Why the first of them that is left out is so; None where none is."""
        return min(self.refused, key=lambda refusal: int(refusal[0][0]))[1] if self.refused else None

    @property
    def nbytes(self) -> int:
        """What they take in Arrow."""
        return sum(table.nbytes for _kept, tables in self.parts for table in tables)


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

    def decode(self, records: Sequence[bytes], rows: NDArray[np.int64]) -> DecodedRecords:
        """Decodes records, to the same effect as each by itself; `rows` says which of the shard's they are."""
        refused: dict[int, DataError] = {}
        places: Sequence[int] = range(len(records))
        try:
            decoded = list(map(self._decode, records))
        except _UNDECODABLE:
            decoded, places = self._decoded_singly(records, rows, refused)
        tables, misfits = self._tables_of(decoded)
        kept = np.array(places, np.int64)
        if not misfits:
            parts = [(kept, tables)]
        elif len(records) == 1:
            parts, refused[0] = [], self._refusal(*misfits[0], int(rows[0]))
        else:
            fits = np.array([number not in misfits for number in range(len(decoded))], np.bool_)
            parts = [(kept[fits], [table.filter(pa.array(fits)) for table in tables])]
            for place in kept[~fits].tolist():
                # Alone it may fit: how deep a column's lists are taken to be is decided by the first of them.
                alone = self.decode(records[place : place + 1], rows[place : place + 1])
                parts += [(own + place, tables) for own, tables in alone.parts]
                if alone.error is not None:
                    refused[place] = alone.error
        return DecodedRecords(rows, parts, [(np.array([place]), refused[place]) for place in sorted(refused)])

    def _tables_of(self, decoded: Sequence[Any]) -> tuple[list[Any], dict[int, tuple[FieldPlan, Misfit]]]:
        """A table for each layer; by row, which holds anything there, the first field whose value does not fit."""
        tables = []
        misfits: dict[int, tuple[FieldPlan, Misfit]] = {}
        for layer in self.layers:
            columns = []
            for field in layer:
                values, ambiguous = self._values_of[field.source](decoded)
                column, unfit = column_of(values, field)
                why = f"{field.source!r} leads to several of its members"
                for misfit in (*(Misfit(row, "an object", why) for row in ambiguous), *unfit):
                    misfits.setdefault(misfit.row, (field, misfit))
                columns.append(column)
            tables.append(pa.Table.from_arrays(columns, [field.source for field in layer]))
        return tables, misfits

    def _decoded_singly(
        self, records: Sequence[bytes], rows: NDArray[np.int64], refused: dict[int, DataError]
    ) -> tuple[list[Any], list[int]]:
        """Those records that can be decoded, and their places; the others are noted as refused."""
        decoded, places = [], []
        for place, record in enumerate(records):
            try:
                decoded.append(self._decode(record))
                places.append(place)
            except _UNDECODABLE as failure:
                refused[place] = self._undecodable(failure, int(rows[place]))
        return decoded, places

    def check_sample(self, sample: Sequence[tuple[int, bytes]]) -> None:
        """Refuses a shard where none of some (row, record) gives the fields: all that can be known before it is read.

        One record that does not is data, which is judged when its turn comes; that none does is a mistyped key, or a
        column of another kind, maybe with nulls in it.

        Raises:
            DataError: The first record's that is wrong by more than a null, else the first one's.
        """
        error: DataError | None = None
        null_error: DataError | None = None
        for row, record in sample:
            of_record = self._error_of(record, row)
            if of_record is not None:
                error = error or of_record
                continue
            of_record = self._null_in(record, row)
            if of_record is None:
                return
            null_error = null_error or of_record
        error = error or null_error
        if error is not None:
            raise error

    def check_keys(self, sample: Sequence[tuple[int, bytes]], keys: Sequence[str]) -> None:
        """Refuses a shard where none of some (row, record) has any of these keys.

        Raises:
            SchemaError: None has.
        """
        found: dict[str, None] = {}
        for _row, record in sample if keys else ():
            try:
                found.update(dict.fromkeys(self._codec.decode(record, type=dict[str, msgspec.Raw])))
            except msgspec.DecodeError:
                continue
            if not found.keys().isdisjoint(keys):
                return
        if found:
            close = difflib.get_close_matches(keys[0], list(found), n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"they have {_listed(list(found))}"
            raise SchemaError(
                f"no record has a key {' or '.join(map(repr, keys[:8]))} ({hint})",
                source=self._source,
                shard=self._shard,
                column=keys[0],
                advice="Change the `columns` of the source's first node",
            )

    def _null_in(self, record: bytes, row: int) -> DataError | None:
        """The refusal of a field that may not be null and is, under a key of its own; None where there is none."""
        keys = self._values_by_key(record)
        if keys is None:
            return None
        for field in chain.from_iterable(self.layers):
            if field.null is None and bytes(keys.get(field.source, b"")) in (b"null", b"\xc0"):
                return ValueRefusedError(
                    "the value is null",
                    source=self._source,
                    shard=self._shard,
                    row=row,
                    column=field.source,
                    advice=f"Set `null` of field {field.name!r} to the value to use instead",
                )
        return None

    def _error_of(self, record: bytes, row: int) -> DataError | None:
        """Why a record does not give the fields; None where it does, as far as its kinds of values go."""
        error = self.decode([record], np.array([row])).error
        if error is not None:
            return error
        keys = self._values_by_key(record)
        if keys is None:
            return None
        for field in chain.from_iterable(self.layers):
            if field.null is None and not any(name in keys for name in _prefixes_of(field.source)):
                close = difflib.get_close_matches(field.source, list(keys), n=3)
                hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"it has {_listed(list(keys))}"
                return SchemaError(
                    f"the record has no key {field.source!r} ({hint})",
                    source=self._source,
                    shard=self._shard,
                    row=row,
                    column=field.source,
                    advice=f"Change the field's source, or set `null` of field {field.name!r} if it may be missing",
                )
        return None

    def _values_by_key(self, record: bytes) -> dict[str, msgspec.Raw] | None:
        """A record's values as they are written; None where a key is no text, as one that nobody wants may be."""
        try:
            keys: dict[str, msgspec.Raw] = self._codec.decode(record, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            return None
        return keys

    def _refusal(self, field: FieldPlan, misfit: Misfit, row: int) -> DataError:
        return ValueRefusedError(
            misfit.why,
            source=self._source,
            shard=self._shard,
            row=row,
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
        unfit = self.write_fitting(records, out, **options)
        refused = records.refused + ([] if unfit is None else [(unfit.rows, unfit.error)])
        if refused:
            raise min(refused, key=lambda refusal: int(refusal[0][0]))[1]

    def write_fitting(
        self,
        records: DecodedRecords,
        out: Mapping[str, NDArray[Any]],
        *,
        places: NDArray[np.int64] | Placement | None = None,
        row_offset_in_shard: int = 0,  # noqa: ARG002 - the records know their rows
        row_group: int | None = None,  # noqa: ARG002 - a shard of records has none
        shard: str | None = None,
        source: str | None = None,
    ) -> RefusedRows | None:
        """Writes record i into row `places[i]`, by default row i, of every array of `out`.

        Returns:
            The records with a value that does not fit, of which `out` holds anything, as it does of those that are left
            out; None if there are none.
        """
        if isinstance(places, Placement):
            places = places.places
        refused: list[RefusedRows] = []
        for kept, tables in records.parts:
            own = kept if places is None else places[kept]
            regions, own_places = _side_by_side(out, own)
            for layer, table, projectors in zip(self._layers, tables, self._projectors, strict=True):
                projector = projectors.get(table.schema)
                if projector is None:
                    plan = plan_projection(table.schema, layer, source=source, shard=shard)
                    projector = projectors[table.schema] = Projector(plan)
                of_layer = projector.write_fitting(
                    table, regions, places=own_places, shard_rows=records.rows[kept], shard=shard, source=source
                )
                if of_layer is not None:
                    refused.append(RefusedRows(kept[of_layer.rows], of_layer.error))
        if not refused:
            return None
        first = min(refused, key=lambda each: int(each.rows[0]))
        return RefusedRows(np.unique(np.concatenate([each.rows for each in refused])), first.error)


def _side_by_side(
    out: Mapping[str, NDArray[Any]], places: NDArray[np.int64]
) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.int64] | None]:
    """The arrays from the first place on, without places, where these follow each other: copied, not scattered."""
    if len(places) and (np.diff(places) == 1).all():
        return {name: region[places[0] :] for name, region in out.items()}, None
    return out, places


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


def _values_getter(
    source: str, getters: Mapping[str, Callable[[Any], Any]]
) -> Callable[[Sequence[Any]], tuple[list[Any], list[int]]]:
    """How a source's values are got out of records: them, and the records in which a path leads to several."""
    if "." not in source:
        get = getters[source]
        return lambda rows: (list(map(get, rows)), [])

    def values_of(rows: Sequence[Any]) -> tuple[list[Any], list[int]]:
        values: list[Any] = []
        ambiguous: list[int] = []
        for row, record in enumerate(rows):
            exact = getters[source](record)
            if exact is not None:
                values.append(exact)
                continue
            found = _below({name: getters[name](record) for name in _prefixes_of(source)[1:]}, source)
            if len(found) > 1:
                ambiguous.append(row)
            values.append(found[0] if len(found) == 1 else None)
        return values, ambiguous

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
