"""Addresses: which shard and row group a block's rows are, for the worker that decodes them and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from o41td.coordinator.block_table import Block
from o41td.coordinator.events import DecodeInto
from o41td.error_records import error_to_record
from o41td.errors import WorkerCrashError
from o41td.index import ShardEntry, SourceIndex
from o41td.workers.messages import DecodeBlock

__all__ = ["BlockAddresses"]


class BlockAddresses:
    """Turns units, by which blocks are planned, into shards and row groups."""

    def __init__(self, by_stage: Sequence[Sequence[SourceIndex]]) -> None:
        """`by_stage` holds the index of each stage's sources."""
        self._by_stage = by_stage

    def order_of(self, order: DecodeInto) -> DecodeBlock:
        """Returns the message that has a worker decode a block."""
        index = self._by_stage[order.key.stage][order.key.source]
        pieces = []
        for number, piece in enumerate(order.pieces):
            if number in order.without:
                continue
            unit = piece.unit
            shard = _shard_of(index, unit)
            pieces.append(
                [
                    number,
                    shard.uri,
                    shard.size_bytes,
                    shard.mtime_ns,
                    shard.rows,
                    int(index.unit_row_group[unit]),
                    int(index.unit_rows[unit]),
                    int(index.unit_decoding_bytes[unit]),
                    int(index.unit_first_row[unit]),
                    piece.row_start,
                    piece.row_stop,
                    piece.block_row,
                    shard.version,
                ]
            )
        leaving = order.block.leaving
        return DecodeBlock(
            block_id=order.handle,
            source=self._source_number(order.key.stage, order.key.source),
            slot=order.slot,
            num_rows=order.block.num_rows,
            leaving=None if leaving is None else [leaving.epoch_key, leaving.first, leaving.buffer_rows],
            careful=order.careful,
            pieces=pieces,
        )

    def crash_error(self, block: Block, piece: int, cause: str, exit_code: int | None) -> dict[str, Any]:
        """Returns the record of the error of a piece that ends whoever decodes it."""
        index = self._by_stage[block.key.stage][block.key.source]
        unit = block.pieces[piece].unit
        error = WorkerCrashError(
            f"decoding this row group ended its worker {block.kills} times; the last time {cause}",
            source=index.name,
            shard=_shard_of(index, unit).uri,
            row_group=int(index.unit_row_group[unit]),
            signal=-exit_code if exit_code is not None and exit_code < 0 else None,
            exit_code=exit_code if exit_code is not None and exit_code >= 0 else None,
            attempts=block.kills,
        )
        return error_to_record(error)

    def place_of(self, block: Block, for_s: float) -> dict[str, Any]:
        """Returns where a worker is that has had a block for so long; if it is not careful, the block's first piece."""
        index = self._by_stage[block.key.stage][block.key.source]
        unit = block.pieces[block.current_piece or 0].unit
        return {
            "source": index.name,
            "shard": _shard_of(index, unit).uri,
            "row_group": int(index.unit_row_group[unit]),
            "for_s": round(for_s, 3),
        }

    def _source_number(self, stage: int, source: int) -> int:
        """A source's number among those of all stages, by which `AttachArena` lists them."""
        return sum(len(sources) for sources in self._by_stage[:stage]) + source


def _shard_of(index: SourceIndex, unit: int) -> ShardEntry:
    return index.shards[int(index.unit_shard[unit])]
