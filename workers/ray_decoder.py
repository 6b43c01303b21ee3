"""Blocks decoded by a Ray cluster: a worker hands its orders on as tasks, and puts what they return into slots.

    coordinator ──order──► worker ──task──► any node ──rows, object store──► worker ──► slot

The coordinator sees the workers that it always has, so order, leases, back-pressure by slots and checkpoints are the
same, and so are the bytes. Ray retries tasks whose node or process died; what is left to fail after that is told as a
block that ended its workers.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from o41td.error_records import error_to_record
from o41td.errors import WorkerCrashError
from o41td.workers.messages import BlockDecoded, BlockFailed, DecodeBlock
from o41td.workers.piece import SourceFormat
from o41td.workers.ray_task import DecoderSetup, decode_block
from o41td.workers.supervisor import ignore_group_signals

__all__ = ["RayDecoder"]

_MAX_RETRIES = 8
_PLACE_SHARE = 0.001
"""What a task takes of the custom resource that it is placed by: it says where, not how many."""


class RayDecoder:
    """Has blocks decoded by tasks.

    Args:
        regions: The arena's arrays by field.
        block_rows: Rows of a slot.
        sources: The sources, by number.
        places: For each the custom resource of the nodes that decode it, or None for any node.
        address: The cluster's address, or "auto" for the one that this host is part of.
        storage: How to reach stores; it travels to the nodes.
        max_row_group_bytes: As for `BlockDecoder`.
        max_held_units: As for `BlockDecoder`.

    Raises:
        ConnectionError: There is no such cluster.

    Called by: a worker's main thread.
    """

    def __init__(
        self,
        regions: Mapping[str, NDArray[Any]],
        block_rows: int,
        sources: Sequence[SourceFormat],
        *,
        places: Sequence[str | None],
        address: str,
        storage: dict[str, Any] | None,
        max_row_group_bytes: int,
        max_held_units: int,
    ) -> None:
        self._regions = regions
        self._block_rows = block_rows
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        ignore_group_signals()  # Ray has its own mind about some of them
        setup = DecoderSetup(
            identity=secrets.token_hex(8),
            sources=list(sources),
            block_rows=block_rows,
            max_row_group_bytes=max_row_group_bytes,
            max_held_units=max_held_units,
            storage=storage,
        )
        self._setup = ray.put(setup)
        task = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES, scheduling_strategy="SPREAD")(decode_block)
        self._tasks = [task.options(resources={place: _PLACE_SHARE} if place else {}) for place in places]
        self._begun: dict[int, Any] = {}

    def begin(self, order: DecodeBlock) -> None:
        """Has a block decoded from now on, which goes on while others are waited for."""
        if order.block_id not in self._begun:
            self._begun[order.block_id] = self._tasks[order.source].remote(self._setup, order._replace(careful=False))

    def decode(self, order: DecodeBlock) -> BlockDecoded | BlockFailed:
        """Returns what came of a block, once its rows are in their slot.

        Blocks: on the cluster.
        """
        self.begin(order)
        try:
            answer, arrays = ray.get(self._begun.pop(order.block_id))
        except ray.exceptions.RayTaskError:
            raise  # a fault of ours: it is told with its traceback, as in any worker
        except ray.exceptions.RayError as error:
            lost = WorkerCrashError(
                f"the cluster gave the block up: {' '.join(str(error).split())[:400]}",
                shard=order.pieces[0][1],
                attempts=_MAX_RETRIES + 1,
            )
            rows = np.arange(order.num_rows, dtype="<i8").tobytes()
            return BlockFailed(order.block_id, [rows], [error_to_record(lost)])
        assert isinstance(answer, BlockDecoded | BlockFailed)
        first = order.slot * self._block_rows
        for name, rows in arrays.items():
            self._regions[name][first : first + len(rows)] = rows
        return answer

    def close(self) -> None:
        """Leaves the cluster."""
        with contextlib.suppress(Exception):
            ray.shutdown()
