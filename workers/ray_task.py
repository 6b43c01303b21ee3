"""A block decoded on a node of a Ray cluster: what a task runs there.

setup (once a process) ──► BlockDecoder over arrays of one block
order ───────────────────► answer, and the block's rows by field, through Ray's object store
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from o41td.fields import DTYPES, FieldPlan
from o41td.workers.block_decoder import BlockDecoder
from o41td.workers.messages import BlockDecoded, BlockFailed, DecodeBlock
from o41td.workers.piece import SourceFormat
from o41td.workers.remote_work import RemoteWork

__all__ = ["DecoderSetup", "decode_block"]


class DecoderSetup(NamedTuple):
    """What all tasks of a stream need: its sources, a block's rows, limits, and how to reach stores.

    `identity` tells it from those of other streams that the same process decodes for.
    """

    identity: str
    sources: list[SourceFormat]
    block_rows: int
    max_row_group_bytes: int
    max_held_units: int
    storage: dict[str, Any] | None


class _Decoding:
    """One stream's decoder in this process, kept for the next task."""

    def __init__(self, setup: DecoderSetup) -> None:
        self._remote = None if setup.storage is None else RemoteWork(setup.storage, tell=lambda _message: None)
        fields: dict[str, FieldPlan] = {field.name: field for source in setup.sources for field in source.fields}
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.zeros((setup.block_rows, *field.shape), DTYPES[field.dtype]) for name, field in fields.items()
        }
        self._decoder = BlockDecoder(
            self.arrays,
            setup.block_rows,
            setup.sources,
            max_row_group_bytes=setup.max_row_group_bytes,
            max_held_units=setup.max_held_units,
            objects=None if self._remote is None else self._remote.objects,
            facts=None if self._remote is None else self._remote.facts,
        )
        if self._remote is not None:
            self._remote.attach(self._decoder, setup.sources, max_row_group_bytes=setup.max_row_group_bytes)

    def decode(self, order: DecodeBlock) -> BlockDecoded | BlockFailed:
        if self._remote is None:
            return self._decoder.decode(order, lambda _piece: None)
        return self._remote.decoded(self._decoder, order, lambda _piece: None)

    def close(self) -> None:
        self._decoder.close()


_kept: dict[str, _Decoding] = {}


def decode_block(setup: DecoderSetup, order: DecodeBlock) -> tuple[BlockDecoded | BlockFailed, dict[str, NDArray[Any]]]:
    """Returns what a worker answers to an order, and the block's rows by field.

    The arrays are this process's own and are copied by Ray before it begins another task.

    Called by: a task of Ray's.
    """
    decoding = _kept.get(setup.identity)
    if decoding is None:
        while _kept:  # a process that has begun to work for another stream is done with the one before
            _kept.popitem()[1].close()
        decoding = _kept[setup.identity] = _Decoding(setup)
    answer = decoding.decode(order._replace(slot=0))
    return answer, {name: array[: order.num_rows] for name, array in decoding.arrays.items()}
