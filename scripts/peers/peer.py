"""What an adapter is given, and what it gives."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from peers.workloads import Batch, Workload

__all__ = ["Job", "Peer", "Resumable", "StateDictLoader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pass.

    Attributes:
        workload: What to read.
        files: The Parquet shards.
        folder: Where the library's own format is, or is to be written.
        state: Where to go on: what `Resumable.state` gave, or None.
    """

    workload: Workload
    files: list[str]
    folder: Path
    state: bytes | None = None


class Resumable(Protocol):
    """A loader whose place can be kept."""

    def __iter__(self) -> Any: ...

    def state(self) -> bytes:
        """The place behind the last batch that was taken."""
        ...


class StateDictLoader:
    """Batches of a library's loader that keeps its place in a `state_dict`, which JSON carries."""

    def __init__(self, loader: Any, job: Job, batch_of: Callable[[Any], Batch] | None = None) -> None:
        """Goes on from the job's state; `batch_of` makes a batch of what the loader gives, where that is none."""
        self._loader = loader
        self._batch_of = batch_of
        if job.state is not None:
            loader.load_state_dict(json.loads(job.state))

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader) if self._batch_of is None else map(self._batch_of, self._loader)

    def state(self) -> bytes:
        """The loader's."""
        return json.dumps(self._loader.state_dict()).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A way to load: a library with settings.

    Attributes:
        name: The library, as the table calls it.
        settings: How it is used, for the table.
        package: The distribution whose version is told.
        module: The adapter in `peers.adapters`. It has `open_…` for each peer and, for a format of its own, `convert`.
        opens: The name of the function that opens it.
        converts: Which shards its own format is made of: "all", the "part" that the workload names, or "" for Parquet.
        resumes: Whether what it opens is `Resumable`.
        environment: The folder of its environment under build/peers; "o41td" is the checkout's own.
    """

    name: str
    settings: str
    package: str
    module: str
    opens: str
    converts: str = ""
    resumes: bool = False
    environment: str = "env"

    def open(self, job: Job) -> Iterable[Batch]:
        """Batches of one pass over the job's rows."""
        loader: Iterable[Batch] = getattr(self._adapter(), self.opens)(job)
        return loader

    def convert(self, job: Job) -> None:
        """Writes the library's own format into `job.folder`."""
        self._adapter().convert(job)

    def _adapter(self) -> Any:
        return importlib.import_module(f"peers.adapters.{self.module}")
