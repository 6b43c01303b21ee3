"""What no caller means: integers for paths, dicts for objects, texts that are none; refused before anything happens."""

from __future__ import annotations

import os
import sys

import pytest

from o41td import (
    BatchStreamConfig,
    Checkpoint,
    CheckpointError,
    ConfigError,
    CoordinatorError,
    Parquet,
    connect,
    open_batch_stream,
    plan,
    resume_batch_stream,
)
from o41td.checking import check
from o41td.coordinator_process import CoordinatorProcess

CHECKPOINT = Checkpoint(order_version=1, config={}, sources=(), cursor=(), batches_yielded=0, rows_yielded=0)
CONFIG = BatchStreamConfig.from_document(
    {"fields": [{"name": "x", "dtype": "i32"}], "stages": [{"sources": [{"files": ["a"]}], "batch_size": 1}]}
)
TAKES_A_PATH = {
    "BatchStreamConfig.load": BatchStreamConfig.load,
    "Checkpoint.load": Checkpoint.load,
    "Checkpoint.save": CHECKPOINT.save,
    "resume_batch_stream": resume_batch_stream,
}


@pytest.mark.parametrize("take", TAKES_A_PATH.values(), ids=TAKES_A_PATH.keys())
@pytest.mark.parametrize("kind", ["descriptor", True, 2**70, 1.5, None, b"x", "", "a\0b", {"config": {}}])
def test_what_is_no_path_is_refused(take, kind):
    """One sentence; an open descriptor of the caller's is neither read nor closed."""
    with open(os.devnull, "rb") as file:
        value = file.fileno() if kind == "descriptor" else kind
        with pytest.raises(ConfigError, match="is not a path; give a string or a"):
            take(value)
        os.fstat(file.fileno())


@pytest.mark.parametrize("take", [open_batch_stream, plan, check])
@pytest.mark.parametrize("config", [5, None, {"stages": []}])
def test_what_is_no_config_is_refused(take, config):
    """The error says how a config is made of a file or a dict."""
    with pytest.raises(ConfigError, match=r"not a BatchStreamConfig. Use BatchStreamConfig.load\(path\)"):
        take(config)


def test_a_rank_of_no_number_is_refused_without_a_world():
    """Who connects does not say how many ranks there are, so none is told."""
    with pytest.raises(ConfigError, match="'0' is not allowed; give an integer of 0 or more, below the world size"):
        connect("none", rank="0")


@pytest.mark.parametrize("take", [open_batch_stream, plan])
def test_what_is_no_storage_is_refused(take):
    """A dict of keys is not taken for a StorageConfig, and is not repeated: it may hold secrets."""
    with pytest.raises(ConfigError, match="a dict is not a StorageConfig") as caught:
        take(CONFIG, storage={"secret_access_key": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", [5, None, 1.5, ["{"]])
def test_what_is_no_text_is_no_checkpoint(text):
    """`from_json` of something else is a CheckpointError like any other text that is none."""
    with pytest.raises(CheckpointError, match=r"it is not text but (an int|None|a float|a list)"):
        Checkpoint.from_json(text)


@pytest.mark.parametrize("wait_s", [None, "5", b"x", -1, float("nan"), float("inf")])
def test_a_wait_that_is_no_number_of_seconds_is_refused(wait_s):
    """`connect` says so before it looks for a loader."""
    with pytest.raises(ConfigError, match="is no number of seconds"):
        connect("nobody", wait_s=wait_s)


@pytest.mark.parametrize("rows", [[{"x": 1}], {"x": [1]}, None, 3])
def test_what_are_no_rows_is_not_projected(rows):
    """Records and dicts of columns are not guessed at: the error says what makes rows of them."""
    with pytest.raises(ConfigError, match=r"a pyarrow.RecordBatch or Table, not .*from_pylist makes one of records"):
        CONFIG.project(rows)


@pytest.mark.parametrize("span", [5, None, (0, 3)])
def test_what_is_no_span_is_not_answered(span):
    """A source and a chain's key ask for a `Span` by name."""
    source = Parquet("gone.parquet")
    with pytest.raises(ConfigError, match=r"'Parquet' answers a Span, not .*Give Span\(at, take\)"):
        source.forward(span)
    with pytest.raises(ConfigError, match="a key is of a Span, not of"):
        source.key(span)


def test_a_program_that_cannot_be_started(monkeypatch, tmp_path):
    """Where the system starts no loader, that is one error with its reason, and the program it was."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(CoordinatorError, match=rf"cannot be started: No such file or directory \({tmp_path}/python\)"):
        CoordinatorProcess(1)
