"""torchdata.nodes: two threads read windows, and cut them into shuffled batches."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from torchdata import nodes

from peers.adapters.windows import Window, Windows, plan_windows, shuffled_batches
from peers.peer import Job
from peers.workloads import Batch


class NodesLoader:
    """A `nodes.Loader` whose state is bytes."""

    def __init__(self, job: Job) -> None:
        windows = Windows(job.workload, use_threads=False)
        planned = plan_windows(job)

        def batches_of(index: int) -> list[dict[str, torch.Tensor]]:
            window: Window = planned[index]
            batches = shuffled_batches(windows.arrays(window.groups), job.workload, window.index)
            return [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in batches]

        node: Any = nodes.SamplerWrapper(SequentialSampler(planned))
        node = nodes.ParallelMapper(node, batches_of, num_workers=2, method="thread", max_concurrent=2, prebatch=None)
        self._loader = nodes.Loader(nodes.Unbatcher(node))
        if job.state is not None:
            self._loader.load_state_dict(pickle.loads(job.state))  # noqa: S301 (this run's own)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state(self) -> bytes:
        """The state of all nodes."""
        return pickle.dumps(self._loader.state_dict())


def open_loader(job: Job) -> NodesLoader:
    return NodesLoader(job)
