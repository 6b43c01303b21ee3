"""Fixtures of tests that open streams, or start processes which do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import c_programs
import faulty_host as faults
import forked_loaders as forking
import forked_programs as programs
import s3_store
import served_loader
import shard_writer
import stream_reference
from o41td import BatchStream, BatchStreamConfig, connect, open_batch_stream


@pytest.fixture(scope="session")
def nursery() -> Iterator[forking.Nursery | None]:
    """What `forked_loaders` are forked from, one for each process that runs tests."""
    with forking.nursery() as made:
        yield made


@pytest.fixture(scope="module")
def forked_loaders(nursery: forking.Nursery | None) -> Iterator[None]:
    """Forks the loaders of a file of tests, instead of starting each; the file asserts nothing of starts."""
    with forking.forked_loaders(nursery):
        yield


@pytest.fixture
def forked_programs(nursery: forking.Nursery | None) -> Iterator[None]:
    """Forks `o41td serve`, other commands and trainers instead of starting each; the test asserts nothing of starts."""
    with programs.forked_programs(nursery):
        yield


@pytest.fixture(scope="module")
def module_shards(tmp_path_factory: pytest.TempPathFactory) -> shard_writer.ShardWriter:
    """As `write_shards`, for streams that the tests of a file share."""
    return shard_writer.ShardWriter(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def reference(config: BatchStreamConfig) -> stream_reference.Reference:
    """What the `config` of a file of tests must give."""
    return stream_reference.Reference(config)


@pytest.fixture(scope="module")
def opened(config: BatchStreamConfig) -> Iterator[BatchStream]:
    """The stream of `config` that the tests of a file share."""
    with open_batch_stream(config) as stream:
        yield stream


@pytest.fixture
def open_stream() -> Iterator[Callable[..., BatchStream]]:
    """Opens streams that are closed behind the test: `open_stream(config, rank=0, world_size=1)`."""
    with ExitStack() as stack:

        def opened(config: BatchStreamConfig, **keys: Any) -> BatchStream:
            return stack.enter_context(open_batch_stream(config, **keys))

        yield opened


@pytest.fixture(scope="session")
def s3_address() -> Iterator[tuple[str, int]]:
    """The address of an S3 server, one for each process that runs tests."""
    with s3_store.s3_server() as address:
        yield address


@pytest.fixture
def bucket(s3_address: tuple[str, int]) -> Iterator[s3_store.S3Bucket]:
    """An S3 bucket of the test's own, behind a proxy that fails on order."""
    with s3_store.s3_bucket(s3_address) as made:
        yield made


@pytest.fixture(scope="session")
def fault_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what processes of a faulty host import."""
    return faults.installed_code(tmp_path_factory.mktemp("fault_code"))


@pytest.fixture
def faulty_host(fault_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> faults.FaultyHost:
    """A host whose loader processes fail on order."""
    return faults.FaultyHost.prepare(tmp_path / "faults", fault_code, monkeypatch)


@pytest.fixture(scope="session")
def faulty_nursery(fault_code: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[forking.Nursery | None]:
    """What loaders of faulty hosts are forked from, one for each process that runs tests."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            faults.FaultyHost.prepare(tmp_path_factory.mktemp("no_faults") / "faults", fault_code, patch)
            made = stack.enter_context(forking.nursery())
        yield made


@pytest.fixture
def forked_faulty_loaders(
    faulty_host: faults.FaultyHost, faulty_nursery: forking.Nursery | None
) -> Iterator[faults.FaultyHost]:
    """Forks the loaders of a faulty host, instead of starting each; the test asserts nothing of their starts."""
    with forking.forked_loaders(faulty_nursery):
        yield faulty_host


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., served_loader.Served]]:
    """Starts `o41td serve` and waits until it is ready: `serve(config, "--ranks", "2")`."""
    with served_loader.serving(tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def c_consumer_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How to run `c_consumer.c` so that it is watched."""
    return c_programs.watched(c_programs.SUPPORT / "c_consumer.c", tmp_path_factory.mktemp("c"))


@pytest.fixture
def consume(c_consumer_command: list[str]) -> Iterator[Callable[..., c_programs.CConsumer]]:
    """Starts C consumers, which have ended behind the test: `consume(name, rank, wait_s=20)`."""
    with ExitStack() as stack:

        def started(name: str, rank: int, **keys: float) -> c_programs.CConsumer:
            consumer = c_programs.CConsumer(c_consumer_command, name, rank, **keys)
            stack.callback(consumer.kill)
            return consumer

        yield started


@pytest.fixture
def join(serve: Callable[..., served_loader.Served]) -> Iterator[Callable[..., BatchStream]]:
    """Connects to served loaders; the streams are closed behind the test, before the loaders end."""
    with ExitStack() as stack:

        def joined(name: str, rank: int, **keys: Any) -> BatchStream:
            return stack.enter_context(connect(name, rank=rank, **keys))

        yield joined
