"""Fixtures of the kill tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import loader_processes
from o41td import BatchStream, BatchStreamConfig, open_batch_stream


@pytest.fixture
def open_stream() -> Iterator[Callable[..., BatchStream]]:
    """Opens streams that are closed behind the test: `open_stream(config, rank=0, world_size=1)`."""
    with ExitStack() as stack:

        def opened(config: BatchStreamConfig, **keys: Any) -> BatchStream:
            return stack.enter_context(open_batch_stream(config, **keys))

        yield opened


@pytest.fixture
def faulty_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> loader_processes.FaultyHost:
    """A host whose loader processes fail on order."""
    return loader_processes.FaultyHost.prepare(tmp_path / "faults", monkeypatch)
