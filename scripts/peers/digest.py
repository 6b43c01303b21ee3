"""A digest of rows in any order: equal only where the same rows were seen, each as often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from peers.workloads import Batch, Workload

__all__ = ["SeenRows"]

_Words = npt.NDArray[np.uint64]


def mixed(words: _Words) -> _Words:
    """Each word with its bits well mixed: the finisher of splitmix64 (Steele, Lea, Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def row_hashes(array: npt.NDArray[Any]) -> _Words:
    """A hash of each row's bytes, [rows]: words of 8 bytes, each times an odd number of its place, summed."""
    data = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
    if missing := -data.shape[1] % 8:
        data = np.pad(data, ((0, 0), (0, missing)))
    words = data.view(np.uint64)
    weights = mixed(np.arange(1, words.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
    return mixed(words @ weights)


@dataclass(slots=True)
class SeenRows:
    """The rows of some batches: how many, which ids, and the sum of their hashes, modulo 2^64."""

    workload: Workload
    digest: int = 0
    ids: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Counts a batch's rows. Values are looked at in the workload's dtype, whatever dtype a loader gives them."""
        rows = np.zeros(len(batch["doc_id"]), np.uint64)
        for number, column in enumerate(self.workload.columns):
            array = np.asarray(batch[column.name])
            width = () if column.length is None else (column.length,)
            rows += mixed(row_hashes(array.reshape(-1, *width).astype(column.dtype, copy=False)) + np.uint64(number))
        self.digest = (self.digest + int(mixed(rows).sum(dtype=np.uint64))) % 2**64
        self.ids.append(np.asarray(batch["doc_id"]).astype(np.int64).reshape(-1))

    def to_record(self) -> dict[str, Any]:
        """As JSON."""
        ids = np.concatenate(self.ids) if self.ids else np.zeros(0, np.int64)
        return {"rows": len(ids), "distinct": len(np.unique(ids)), "digest": f"{self.digest:016x}"}
