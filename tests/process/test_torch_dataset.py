"""A stream as the dataset of a trainer."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from o41td import (
    BatchStream,
    BatchStreamConfig,
    CheckpointError,
    ConfigError,
    Parquet,
    ProjectedField,
    resume_batch_stream,
)
from sample_nodes import Scale
from shard_writer import ShardWriter
from stream_reference import ID_ONLY, Reference, stage_of, stream_config

if TYPE_CHECKING:
    from o41td.torch import BatchDataset

pytestmark = pytest.mark.usefixtures("torch", "forked_loaders")

Make = Callable[..., "BatchDataset"]


@pytest.fixture(scope="module")
def paths(module_shards: ShardWriter) -> list[Path]:
    """100 rows in two shards: 10 batches of 10."""
    return module_shards([60, 40])


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes datasets, which are closed behind the test."""
    from o41td.torch import as_iterable_dataset

    with ExitStack() as stack:

        def made(source: BatchStreamConfig | BatchStream, *place: int, **keys: Any) -> BatchDataset:
            dataset = as_iterable_dataset(source, *place, **keys)
            stack.callback(dataset.close)
            return dataset

        yield made


def config_of(paths: list[Path], *, num_stages: int = 1, infinite: bool = False, **keys: Any) -> BatchStreamConfig:
    """Shuffled batches of 10 ids; each stage is the same data in an order of its own."""
    stages = [stage_of(paths, batch_size=10, buffer_rows=40, infinite=infinite) for _ in range(num_stages)]
    return stream_config(*stages, fields=ID_ONLY, **keys)


def ids(batches: Any, most: int | None = None) -> list[list[int]]:
    """The ids of the next batches."""
    return [batch["id"].tolist() for batch in itertools.islice(batches, most)]


def expected(config: BatchStreamConfig, numbers: Any, stage: int = 0, lanes: int = 1) -> list[list[int]]:
    """The ids of batches by their numbers."""
    reference = Reference(config, lanes=lanes)
    return [reference.ids(number, stage) for number in numbers]


def test_a_data_loader_gives_the_streams_batches(paths: list[Path], make: Make) -> None:
    """Each pass of a DataLoader gives every batch once, as tensors; the dataset's length is the number of batches."""
    from torch import Tensor
    from torch.utils.data import DataLoader

    config = config_of(paths)
    dataset = make(config)
    loader = DataLoader(dataset, batch_size=None)
    assert len(dataset) == len(loader) == 10
    assert ids(loader) == ids(loader) == expected(config, range(10))
    assert isinstance(next(iter(loader))["id"], Tensor)
    assert len(dataset) == 10


def test_a_pass_that_was_broken_off_goes_on(paths: list[Path], make: Make) -> None:
    """Iterating again goes on behind the last batch, without losing or repeating any."""
    config = config_of(paths)
    dataset = make(config, convert=lambda batch: batch.arrays())
    assert ids(dataset, 4) + ids(dataset) == expected(config, range(10))


def test_a_state_resumes_on_other_ranks(paths: list[Path], make: Make) -> None:
    """The state of one rank of two, taken in mid-pass, is taken up by another dataset, on any world size."""
    config = config_of(paths, lanes=2)
    whole = expected(config, range(10), lanes=2)
    dataset = make(config, 1, 2)
    assert ids(dataset, 2) == [whole[1], whole[3]]
    state = dataset.state_dict()
    alone, again = make(config), make(config, 1, 2)
    for resumed in (alone, again):
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
    assert ids(alone) == whole[4:]
    assert ids(again) == whole[5::2]
    assert len(again) == 5
    with resume_batch_stream(alone.stream.checkpoint()) as stream:
        assert stream.next() is None


def test_a_state_of_another_stream_is_refused(paths: list[Path], make: Make) -> None:
    """What names the rows has to be the same, and is named where it is not; what does not is taken as it is now."""
    state = make(config_of(paths)).state_dict()
    other = make(config_of(paths, num_stages=2))
    with pytest.raises(CheckpointError, match="stages"):
        other.load_state_dict(state)
    threads = make(config_of(paths, threads=2))
    threads.load_state_dict(state)
    assert len(threads.stream.stats()["workers"]) == 2


def test_exclusions_and_chains_come_along(paths: list[Path], make: Make) -> None:
    """A dataset resumes with its own chain of nodes, and with what it excludes now."""
    chain = Parquet([str(path) for path in paths]).named("rows") >> Scale(3)
    fields = [ProjectedField(name="id", source="scaled", dtype="i64")]

    def config(**keys: Any) -> BatchStreamConfig:
        return BatchStreamConfig(fields=fields, stages=[{"sources": [chain], "batch_size": 10}], threads=1, **keys)

    begun = make(config())
    assert ids(begun, 2) == [[3 * row for row in range(first, first + 10)] for first in (0, 10)]
    resumed = make(config(exclude=[(2, 9)]))
    resumed.load_state_dict(begun.state_dict())
    assert ids(resumed) == [[3 * row for row in range(90, 100)]]


def test_batches_fetched_ahead_do_not_count(paths: list[Path], make: Make) -> None:
    """Of a trainer that fetches one ahead, the state is behind the batch in work, and the next pass begins there."""
    config = config_of(paths, infinite=True)
    whole = expected(config, range(8))
    dataset = make(config, ahead=1)
    assert ids(dataset, 4) == whole[:4]  # of which it worked on three
    resumed = make(config)
    resumed.load_state_dict(dataset.state_dict())
    assert ids(resumed, 2) == whole[3:5]
    assert ids(dataset, 3) == whole[3:6]


def test_a_stream_that_was_moved_stays_where_it_is(paths: list[Path], make: Make) -> None:
    """A trainer that fetches ahead may advance: the next batch, and the state, are of the new stage."""
    config = config_of(paths, num_stages=2, infinite=True)
    dataset = make(config, ahead=1)
    assert ids(dataset, 3) == expected(config, range(3))
    dataset.stream.advance(1)
    resumed = make(config)
    resumed.load_state_dict(dataset.state_dict())
    batches = iter(dataset)
    assert ids(batches, 2) == ids(resumed, 2) == expected(config, range(2), stage=1)
    assert dataset.state_dict()["cursor"] == [[0, 3], [1, 1]]


def test_a_pass_ends_with_all_batches_counted(paths: list[Path], make: Make) -> None:
    """Where the stream has ended nothing is ahead of the last batch, and a pass from that state is a whole one."""
    dataset = make(config_of(paths), ahead=1)
    assert len(ids(dataset)) == 10
    state = dataset.state_dict()
    assert state["batches_yielded"] == 10
    dataset.load_state_dict(state)
    assert len(ids(dataset)) == 10


def test_a_pass_may_be_of_each_finite_stage(paths: list[Path], make: Make) -> None:
    """Advanced behind the end of a stage, the next pass is the next stage's, and so is the length."""
    config = config_of(paths, num_stages=2)
    dataset = make(config)
    assert len(ids(dataset)) == 10
    dataset.stream.advance(1)
    assert len(dataset) == 10
    assert ids(dataset, 4) == expected(config, range(4), stage=1)
    assert len(dataset) == 10
    assert ids(dataset) == expected(config, range(4, 10), stage=1)


def test_a_stage_without_an_end_has_no_length(paths: list[Path], make: Make) -> None:
    """`len` is a TypeError there, as for any iterable."""
    with pytest.raises(TypeError, match="no end"):
        len(make(config_of(paths, infinite=True)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of os.fork beside threads, from Python 3.12 on
def test_workers_of_a_data_loader_are_refused(paths: list[Path], make: Make) -> None:
    """With workers the first batch is an error that says what to do."""
    from torch.utils.data import DataLoader

    loader = iter(DataLoader(make(config_of(paths)), batch_size=None, num_workers=1))
    with pytest.raises(ConfigError, match="Use num_workers=0"):
        next(loader)
    loader._shutdown_workers()  # left to the collector of garbage, it waits 5 s for the worker


@pytest.mark.filterwarnings("ignore:'set_vital'")  # torchdata of a PyTorch newer than it
def test_a_stateful_data_loader_saves_and_resumes(paths: list[Path], make: Make) -> None:
    """A StatefulDataLoader of torchdata keeps the dataset's state in its own, and resumes without reading again."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    config = config_of(paths)
    whole = expected(config, range(10))
    loader = stateful(make(config), batch_size=None)
    assert ids(loader, 3) == whole[:3]
    dataset = make(config)
    resumed = stateful(dataset, batch_size=None)
    resumed.load_state_dict(loader.state_dict())
    assert ids(resumed) == whole[3:]
    assert dataset.stream.stats()["batches"] == 7


def test_ranks_are_those_of_the_process_group(paths: list[Path], make: Make) -> None:
    """Left out, rank and world size are the process group's, also where it was looked at before there was one."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    config = config_of(paths)
    early, late = make(config), make(config)
    assert len(early) == 10
    begun = make(config)
    assert len(ids(begun, 1)) == 1
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        assert ids(early) == ids(late) == expected(config, range(1, 10, 2), lanes=2)
        with pytest.raises(ConfigError, match=r"given batches of rank 0 of 1, .* says rank 1 of 2"):
            iter(begun)
    finally:
        distributed.destroy_process_group()


def test_no_rank_is_guessed_under_torchrun(paths: list[Path], make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by torchrun and without a process group, each process would be rank 0; it is an error instead."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(ConfigError, match="init_process_group"):
        iter(make(config_of(paths)))
    assert ids(make(config_of(paths), 0, 1), 1) == expected(config_of(paths), range(1))


def test_an_opened_stream_is_a_dataset_too(
    paths: list[Path], make: Make, open_stream: Callable[..., BatchStream]
) -> None:
    """A stream may be given instead of a config, and is then the one that moves; it cannot be copied."""
    config = config_of(paths)
    dataset = make(open_stream(config))
    state = dataset.state_dict()
    assert ids(dataset, 3) == expected(config, range(3))
    dataset.load_state_dict(state)
    assert ids(dataset) == expected(config, range(10))
    with pytest.raises(ConfigError, match="cannot be copied"):
        copy.deepcopy(dataset)
    with pytest.raises(ConfigError, match="a stream has its rank"):
        make(dataset.stream, 0, 1)


def test_a_copy_has_a_stream_of_its_own(paths: list[Path], make: Make) -> None:
    """A copy begins where the dataset stands, and neither moves the other."""
    config = config_of(paths)
    dataset = make(config)
    assert len(ids(dataset, 2)) == 2
    copied = copy.deepcopy(dataset)
    try:
        assert ids(copied) == ids(dataset) == expected(config, range(2, 10))
    finally:
        copied.close()


def test_arguments_that_make_no_sense_are_refused(paths: list[Path], make: Make) -> None:
    """What is no config, a rank without a world size and a count below 0 are errors before anything is opened."""
    with pytest.raises(ConfigError, match="not a BatchStreamConfig"):
        make("config.toml")
    with pytest.raises(ConfigError, match="world_size"):
        make(config_of(paths), 1)
    with pytest.raises(ConfigError, match="ahead"):
        make(config_of(paths), ahead=-1)
