"""Decoding on a Ray cluster: the same bytes as here, whoever of the cluster dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from o41td import BatchStreamConfig, Parquet, ProjectedField, Stage, open_batch_stream
from o41td.errors import ConfigError

STORY = Path(__file__).parent.parent / "support" / "ray_story.py"


def test_a_lost_node_costs_time_and_no_rows(write_shards) -> None:
    """A node that dies midway changes no byte: the rows, their order and the digest are those of this host."""
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, STORY, *write_shards([400, 300], row_group_rows=50)],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert "batches 70 same rows True same digest True" in done.stdout, done.stderr[-3000:]


def test_an_engine_that_is_not_there_is_refused(write_shards) -> None:
    """Only this host and Ray decode."""
    fields = [ProjectedField(name="id", source="id", dtype="i64")]
    config = BatchStreamConfig(fields=fields, stages=[Stage(sources=[Parquet(write_shards([5]))], batch_size=5)])
    with pytest.raises(ConfigError, match="'spark' is not 'local' or 'ray'"):
        open_batch_stream(config, engine="spark")
