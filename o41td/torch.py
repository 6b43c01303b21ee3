"""A stream where a trainer wants a dataset: `as_iterable_dataset`, for PyTorch's DataLoader and what builds on it.

    dataset = as_iterable_dataset(config)
    loader = DataLoader(dataset, batch_size=None)     # or the dataset itself, where any iterable will do

Items are whole batches. The dataset has `state_dict` and `load_state_dict`, by which torchdata, Lightning, torchtitan,
Accelerate and torch.distributed.checkpoint know what they can save. Of our modules this one alone needs PyTorch to be
imported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info

from o41td.batch import Batch
from o41td.chain_source import ChainSource
from o41td.checkpoint import Checkpoint
from o41td.config import BatchStreamConfig, StorageConfig
from o41td.errors import ConfigError
from o41td.opening import open_batch_stream, refuse_other_config, resume_batch_stream
from o41td.rank_info import check_rank
from o41td.resuming import checkpoint_under
from o41td.stream import BatchStream

__all__ = ["BatchDataset", "as_iterable_dataset"]


def as_iterable_dataset(
    source: BatchStreamConfig | BatchStream,
    rank: int | None = None,
    world_size: int | None = None,
    storage: StorageConfig | None = None,
    engine: str = "local",
    *,
    convert: Callable[[Batch], Any] = Batch.to_torch,
    ahead: int = 0,
) -> BatchDataset:
    """Returns a dataset whose items are the batches of a stream.

    Args:
        source: A config, whose stream is opened where it is first needed; or a stream, such as `connect` gives.
        rank: This process's number. Left out with `world_size`, both are those of `torch.distributed`'s process group,
            or 0 of 1 where there is none.
        world_size: How many processes read the stream together.
        storage: As for `open_batch_stream`.
        engine: As for `open_batch_stream`.
        convert: Makes an item of a batch: by default a dict of tensors that share the batch's memory.
        ahead: Batches that the trainer asks for before it works on those it has. They do not count in `state_dict`.
            Lightning asks for one where the stream has no end, and for none where it has a length.

    Raises:
        ConfigError: An argument makes no sense.
    """
    return BatchDataset(source, rank, world_size, storage, engine, convert=convert, ahead=ahead)


class BatchDataset(IterableDataset):  # type: ignore[misc]
    """The batches of one rank's stream, in the order and with the state of the stream.

    Iterating goes on where the stream stands: a pass that was broken off loses nothing and repeats nothing. At the end
    of a finite stage it begins again at batch 0, in the same order; an infinite stage has a new order each epoch.

    Called by: one process, the one that trains; a DataLoader around it has `num_workers=0`.
    """

    def __init__(
        self,
        source: BatchStreamConfig | BatchStream,
        rank: int | None,
        world_size: int | None,
        storage: StorageConfig | None,
        engine: str,
        *,
        convert: Callable[[Batch], Any],
        ahead: int,
    ) -> None:
        super().__init__()
        if ahead < 0:
            raise ConfigError("this dataset does not make sense", problems=[("ahead", f"{ahead} is not 0 or more")])
        is_place_given = rank is not None or world_size is not None
        if isinstance(source, BatchStream):
            if is_place_given:
                raise ConfigError("a stream has its rank and world size; they are given with a config alone")
        else:
            refuse_other_config(source)
        self._config = None if isinstance(source, BatchStream) else source
        self._stream = source if isinstance(source, BatchStream) else None
        self._given_place = check_rank(rank, world_size) if is_place_given else None
        self._place = (0, 1)  # what the stream was opened as
        self._storage = storage
        self._engine = engine
        self._convert = convert
        self._ahead = ahead
        self._start: Checkpoint | None = None
        self._is_begun = False
        # Of the last `ahead` batches: where the stream was before and after each.
        self._fetched: deque[tuple[Checkpoint, Checkpoint]] = deque(maxlen=ahead)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise ConfigError(
                "this dataset cannot be read in a DataLoader's workers",
                advice="Use num_workers=0; the stream decodes in processes of its own, as many as `threads` says",
            )
        stream = self.stream
        if stream.num_rounds() == 0:
            stream.seek(0)
        elif self._fetched:
            stream.load_state_dict(self.state_dict())  # what was fetched ahead in the last pass was thrown away
        self._fetched.clear()
        return self._items(stream)

    def _items(self, stream: BatchStream) -> Iterator[Any]:
        before = stream.checkpoint() if self._ahead else None
        while (batch := stream.next()) is not None:
            self._is_begun = True
            if before is not None:
                self._fetched.append((before, stream.checkpoint()))
            yield self._convert(batch)
            before = stream.checkpoint() if self._ahead else None  # which the trainer may have moved meanwhile
        self._fetched.clear()

    def __len__(self) -> int:
        """Batches of a whole pass over the current stage; opens the stream.

        Raises:
            TypeError: It has no end.
        """
        left = self.stream.num_rounds()
        if left is None:
            raise TypeError(f"stage {self.stream.stage} has no end, and so this dataset no length")
        here = self.stream.checkpoint()
        of_stage = sum(batches for stage, batches in here.cursor if stage == self.stream.stage)
        return min(of_stage, here.batches_yielded) // here.world_size + left

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns where the stream is, as `BatchStream.state_dict` does; batches fetched ahead do not count."""
        if self._stream is None and self._start is not None:
            return self._start.to_document()
        here = self.stream.checkpoint()
        if self._fetched and self._fetched[-1][1].cursor == here.cursor:  # else it was moved, and goes on from here
            here = self._fetched[0][0]
        return here.to_document()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where `state_dict` was taken, on any rank of any world size; the stream opens there when needed.

        Raises:
            CheckpointError: It is of another config; the keys that differ are named.
        """
        if self._config is None:
            self.stream.load_state_dict(dict(state))
            self._fetched.clear()
            return
        checkpoint = checkpoint_under(
            Checkpoint.from_document(state), self._config, told="this state is of another stream"
        )
        self.close()
        self._start = checkpoint

    def __getstate__(self) -> dict[str, Any]:
        """A copy, also one in another process, has a stream of its own, which begins where this one stands."""
        if self._config is None:
            raise ConfigError("a dataset of an opened stream cannot be copied", advice="Make it of the config")
        if self._stream is None:
            return self.__dict__.copy()
        own: dict[str, Any] = {"_stream": None, "_is_begun": False, "_fetched": deque(maxlen=self._ahead)}
        return {**self.__dict__, **own, "_start": Checkpoint.from_document(self.state_dict())}

    # ---- the stream --------------------------------------------------------------------------------------------------

    @property
    def stream(self) -> BatchStream:
        """The stream, opened if it is not: for `advance`, `stats`, `coordinates` and what else it can.

        Raises:
            O41Error: It cannot be opened, or was opened for another rank and has given batches since.
        """
        if self._config is None:
            assert self._stream is not None
            return self._stream
        if self._stream is not None and self._is_begun and not _is_in_group():
            return self._stream  # its place stands, though the group that said it may be gone
        place = self._given_place or _place_in_group()
        if self._stream is not None and place != self._place:
            if self._is_begun:
                was, now = (f"rank {rank} of {world_size}" for rank, world_size in (self._place, place))
                raise ConfigError(
                    f"this dataset has given batches of {was}, and the process group says {now}",
                    advice="Iterate after init_process_group, or give rank and world_size",
                )
            self.close()
        if self._stream is None:
            self._place = place
            self._stream = self._open(self._config, *place)
        return self._stream

    def _open(self, config: BatchStreamConfig, rank: int, world_size: int) -> BatchStream:
        start = self._start
        if start is None:
            return open_batch_stream(config, rank, world_size, self._storage, self._engine)
        chains = {
            config.source_key(i, j): source.chain
            for i, stage in enumerate(config.stages)
            for j, source in enumerate(stage.sources)
            if isinstance(source, ChainSource)
        }
        return resume_batch_stream(
            start, rank, world_size, self._storage, self._engine, exclude=config.exclude, chains=chains
        )

    def close(self) -> None:
        """Ends the stream. Idempotent; a dataset of a config that is used again opens it anew, where it first began."""
        if self._stream is not None:
            self._stream.close()
        if self._config is not None:
            self._stream = None
        self._is_begun = False
        self._fetched.clear()


def _is_in_group() -> bool:
    return bool(distributed.is_available() and distributed.is_initialized())


def _place_in_group() -> tuple[int, int]:
    if _is_in_group():
        return distributed.get_rank(), distributed.get_world_size()
    if distributed.is_available() and distributed.is_torchelastic_launched():  # and would be rank 0 in each process
        raise ConfigError(
            "torchrun started this process, and there is no process group that says its rank",
            advice="Call init_process_group before the dataset is used, or give rank and world_size",
        )
    return 0, 1
