"""`o41td pack`: documents of any length into sequences of one, as columns that a model can train on as they are.

    tokens        int list of `length`     the documents, one behind the other, then padding
    loss_mask     bool list of `length`    true where a token counts; false on padding
    position_ids  int list of `length`     from 0 in each piece; 0 on padding
    lengths       int list                 the pieces' lengths: for attention that does not look across documents
    documents     text list                each piece's source, "FILE#ROW", or "FILE#ROW[START:STOP]" of a part of it

`documents` is for people: a stream does not read it, and `o41td trace … --show documents` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.errors import ConfigError, SchemaError, ValueRefusedError
from o41td.storage_config import StorageConfig
from o41td.writing.conversion import WriteProgress, claimed_folder
from o41td.writing.dataset_writer import DatasetWriter
from o41td.writing.inputs import InputFile, InputRows, list_inputs, read_inputs
from o41td.writing.layout import BALANCED, Layout
from o41td.writing.packed_lists import is_flat_list
from o41td.writing.row_digest import digest_of
from o41td.writing.saved_shard import SavedShard
from o41td.writing.sequence_packing import BestFit, Concatenate, Piece, SequencePacker
from o41td.writing.shard_cutter import ShardCutter

__all__ = ["METHODS", "PackJob", "PackReport", "run_pack"]

_MASK = (1 << 64) - 1
_BATCH_SEQUENCES = 256
_COLUMN_ADVICE = "Name the column of token lists with --column, one of bools with --mask-column"

METHODS: Mapping[str, Callable[[int], SequencePacker]] = {"concatenate": Concatenate, "best-fit": BestFit}
"""Ways to pack, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackJob:
    """What to pack.

    Attributes:
        inputs: Files, folders and globs of documents, one a row.
        manifest_uri: The manifest to publish; shards lie beside it.
        length: Tokens of a sequence.
        method: A key of `METHODS`.
        column: The column of token lists.
        mask_column: A column of as many bools, which become the loss mask; all tokens count if left out.
        separator: A token that is put behind every document, if any.
        pad: The token of padding.
        drop_last: Whether a last sequence that is not full is left out.
        input_format: What the inputs are; from their suffixes if left out.
        layout: How Parquet is laid out.
        split: The split of all shards.
        stage: Their curriculum stage, if any.
        shard_bytes: What a shard's rows take when decoded, about.
        threads: Shards that are written at once.
    """

    inputs: Sequence[str]
    manifest_uri: str
    length: int
    method: str = "best-fit"
    column: str = "tokens"
    mask_column: str | None = None
    separator: int | None = None
    pad: int = 0
    drop_last: bool = False
    input_format: str | None = None
    layout: Layout = BALANCED
    split: str = "train"
    stage: str | None = None
    shard_bytes: int = 256 << 20
    threads: int = 2

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"{self.method!r} is no way to pack; give one of {', '.join(METHODS)}")
        if self.length < 1 or self.threads < 1 or self.shard_bytes < 1:
            raise ConfigError("a sequence's length, a shard's bytes and the number of threads are at least 1")
        for name in ("pad", "separator"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < 2**31:
                raise ConfigError(f"{name} is {token}; a token is a number from 0 to 2^31-1")

    def record(self, files: Sequence[InputFile]) -> bytes:
        """Returns all that the sequences follow from, as the document that guards a folder."""
        names = ("length", "method", "column", "mask_column", "separator", "pad", "drop_last", "split", "stage")
        document = {name: getattr(self, name) for name in (*names, "shard_bytes")}
        document |= {
            "version": 1,
            "inputs": [[file.path, file.format, file.size_bytes, file.mtime_ns] for file in files],
            "layout": [self.layout.name, self.layout.row_group_bytes],
        }
        return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


@dataclass(slots=True, kw_only=True)
class PackCounts:
    """What came in and what went out.

    Attributes:
        documents: Documents with tokens.
        empty: Documents without.
        tokens: Their tokens, and separators.
        dropped: Tokens of a last sequence that was left out.
        sequences: Sequences written.
        cut: Documents that are in more than one piece.
        padding: Padding tokens written.
    """

    documents: int = 0
    empty: int = 0
    tokens: int = 0
    dropped: int = 0
    sequences: int = 0
    cut: int = 0
    padding: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What a job did: the manifest, its shards, how many of them were done before, and the counts."""

    manifest_uri: str
    shards: tuple[SavedShard, ...]
    reused: int
    counts: PackCounts

    @property
    def waste(self) -> float:
        """The share of padding in what was written, 0 to 1."""
        kept = self.counts.tokens - self.counts.dropped
        return self.counts.padding / max(1, kept + self.counts.padding)


def run_pack(
    job: PackJob, *, storage: StorageConfig | None = None, on_progress: Callable[[WriteProgress], object] | None = None
) -> PackReport:
    """Packs documents and publishes the manifest of the sequences.

    Args:
        job: What to pack.
        storage: How to reach an object store.
        on_progress: Hears now and then how far it is, in this thread.

    Raises:
        O41Error: The inputs, the settings or the store do not allow it. Shards that were finished stay finished.

    Blocks: until all is written, read back and published.
    """
    files = list_inputs(job.inputs, job.input_format, to=job.manifest_uri)
    writer = DatasetWriter(job.manifest_uri, storage=storage, layout=job.layout, schema=_schema_of())
    packing = _Packing(job, files)
    shards: list[SavedShard] = []
    rows = digest = 0
    with (
        claimed_folder(writer, job.record(files)),
        ShardCutter(
            writer, stage=job.stage, shard_bytes=job.shard_bytes, threads=job.threads, on_shard=shards.append
        ) as cutter,
    ):
        sequences = packing.sequences()
        while chunk := list(islice(sequences, _BATCH_SEQUENCES)):
            batch = _batch_of(chunk, job, files)
            rows += batch.num_rows
            digest = (digest + digest_of([batch])) & _MASK
            cutter.add(job.split, batch)
            if on_progress is not None:
                at = WriteProgress(rows_read=packing.rows, input_bytes=packing.input_bytes, shards=len(shards))
                on_progress(at)
        finished = cutter.finish(rows=rows, digest=digest)
        if not finished:
            raise ConfigError("the inputs have no tokens to make a sequence of", where=", ".join(job.inputs))
    return PackReport(
        manifest_uri=writer.commit_manifest(), shards=finished, reused=cutter.reused, counts=packing.counts
    )


@dataclass(slots=True)
class _Packing:
    """The inputs on their way into sequences."""

    job: PackJob
    files: Sequence[InputFile]
    counts: PackCounts = field(default_factory=PackCounts)
    rows: int = 0
    input_bytes: int = 0

    def sequences(self) -> Iterator[list[Piece]]:
        """Yields every sequence that is to be written."""
        packer = METHODS[self.job.method](self.job.length)
        for document in self._documents():
            yield from map(self._counted, packer.add(document))
        for pieces in packer.finish():
            if self.job.drop_last and sum(len(piece.tokens) for piece in pieces) < self.job.length:
                self.counts.dropped += sum(len(piece.tokens) for piece in pieces)
            else:
                yield self._counted(pieces)

    def _counted(self, pieces: list[Piece]) -> list[Piece]:
        self.counts.sequences += 1
        self.counts.padding += self.job.length - sum(len(piece.tokens) for piece in pieces)
        self.counts.cut += sum(piece.start == 0 and not piece.whole for piece in pieces)
        return pieces

    def _documents(self) -> Iterator[Piece]:
        job = self.job
        columns = [job.column] if job.mask_column is None else [job.column, job.mask_column]
        for part in read_inputs(self.files, columns):
            for row, (tokens, mask) in enumerate(_tokens_of(part, self.job, self.files), part.first_row):
                if len(tokens):
                    self.counts.documents += 1
                    self.counts.tokens += len(tokens)
                    yield Piece(part.file, row, 0, True, tokens, mask)
                else:
                    self.counts.empty += 1
            self.rows += part.batch.num_rows
            self.input_bytes = sum(file.size_bytes for file in self.files[: part.file])


def _tokens_of(
    part: InputRows, job: PackJob, files: Sequence[InputFile]
) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_] | None]]:
    """Each row's tokens, with its separator, and its mask."""
    where = files[part.file].path
    values, ends = _lists_of(part, job.column, where)
    if values.dtype.kind not in "iu":
        raise SchemaError(f"the lists hold {values.dtype}, and tokens are integers", shard=where, column=job.column)
    beyond = (values < 0) | (values >= 2**31)
    if beyond.any():
        at = int(np.argmax(beyond))
        row = part.first_row + int(np.searchsorted(ends, at, side="right")) - 1
        value = int(values[at])
        why = f"{value} is no token, which is a number from 0 to 2^31-1"
        raise ValueRefusedError(why, shard=where, column=job.column, row=row, value=value)
    masks = None
    if job.mask_column is not None:
        masks, mask_ends = _lists_of(part, job.mask_column, where)
        if not np.array_equal(mask_ends, ends):
            row = part.first_row + int(np.argmax(np.diff(mask_ends) != np.diff(ends)))
            why = f"the mask is not as long as the tokens in {job.column!r}"
            raise ValueRefusedError(why, shard=where, column=job.mask_column, row=row)
        _check_bools(masks, mask_ends, part=part, column=job.mask_column, where=where)
    tokens = values.astype(np.int32)
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        mask = None if masks is None else masks[start:end].astype(np.bool_)
        if job.separator is None or start == end:
            yield tokens[start:end], mask
        else:
            yield (
                np.append(tokens[start:end], np.int32(job.separator)),
                None if mask is None else np.append(mask, mask[-1]),
            )


def _check_bools(masks: NDArray[Any], ends: NDArray[np.int64], *, part: InputRows, column: str, where: str) -> None:
    """Refuses a mask of anything but true and false, or 1 and 0: weights and labels would all count as true."""
    if masks.dtype.kind == "b":
        return
    odd = (masks != 0) & (masks != 1)
    if odd.any():
        at = int(np.argmax(odd))
        row = part.first_row + int(np.searchsorted(ends, at, side="right")) - 1
        why = f"{masks[at]} in a mask, which is of true and false, or 1 and 0"
        raise ValueRefusedError(why, shard=where, column=column, row=row, value=masks[at])


def _lists_of(part: InputRows, column: str, where: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """A list column's values end to end, and where each row begins and the last one ends; null lists are empty."""
    names = part.batch.schema.names
    if column not in names:
        told = f"there is no such column; there are {', '.join(names)}"
        raise SchemaError(told, shard=where, column=column, advice=_COLUMN_ADVICE)
    lists = part.batch.column(names.index(column))
    if pa.types.is_null(lists.type) or (pa.types.is_list(lists.type) and pa.types.is_null(lists.type.value_type)):
        lists = lists.cast(pa.list_(pa.int32()))  # records whose lists are all empty, or null
    if not is_flat_list(lists.type):
        told = f"it has type {lists.type}, and documents are lists of numbers"
        raise SchemaError(told, shard=where, column=column, advice=_COLUMN_ADVICE)
    values = lists.flatten()
    if values.null_count:
        raise ValueRefusedError("a list has a null item", shard=where, column=column)
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return values.to_numpy(zero_copy_only=False), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _schema_of() -> Any:
    ints = pa.list_(pa.int32())
    return pa.schema(
        {
            "tokens": ints,
            "loss_mask": pa.list_(pa.bool_()),
            "position_ids": ints,
            "lengths": ints,
            "documents": pa.list_(pa.string()),
        }
    )


def _batch_of(sequences: Sequence[Sequence[Piece]], job: PackJob, files: Sequence[InputFile]) -> Any:
    """Sequences as rows."""
    shape = (len(sequences), job.length)
    tokens, places = np.full(shape, job.pad, np.int32), np.zeros(shape, np.int32)
    counts = np.zeros(shape, np.bool_)
    for row, pieces in enumerate(sequences):
        at = 0
        for piece in pieces:
            end = at + len(piece.tokens)
            tokens[row, at:end] = piece.tokens
            places[row, at:end] = np.arange(end - at)
            counts[row, at:end] = True if piece.mask is None else piece.mask
            at = end
    offsets = pa.array(np.arange(0, shape[0] * job.length + 1, job.length, dtype=np.int32))
    lengths = [[len(piece.tokens) for piece in pieces] for pieces in sequences]
    named = [[_name_of(piece, files) for piece in pieces] for pieces in sequences]
    schema = _schema_of()
    arrays = [
        *(pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1))) for values in (tokens, counts, places)),
        pa.array(lengths, schema.field("lengths").type),
        pa.array(named, schema.field("documents").type),
    ]
    return pa.RecordBatch.from_arrays([array.cast(kind) for array, kind in zip(arrays, schema.types)], schema=schema)


def _name_of(piece: Piece, files: Sequence[InputFile]) -> str:
    name = f"{files[piece.file].path}#{piece.row}"
    return name if piece.whole else f"{name}[{piece.start}:{piece.start + len(piece.tokens)}]"
