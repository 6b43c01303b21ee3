"""Credentials reach the loader over its socket, and are seen nowhere else: whatever is shown, written or raised."""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import loader_processes
from o41td import BatchStream, MissingShardError, O41Error, StorageConfig, open_batch_stream, plan, resume_batch_stream
from o41td.index_cache import default_cache_folder
from o41td.runtime import list_loaders
from o41td.runtime_folder import runtime_folder
from stream_reference import stage_of, stream_config

SECRETS = ("AKIAHUNTER2KEYID", "hunter2/secret+key", "hunter2-session-token")
STORAGE = StorageConfig(
    endpoint_url="http://localhost:9", access_key_id=SECRETS[0], secret_access_key=SECRETS[1], session_token=SECRETS[2]
)


def _shows(*things: object) -> list[str]:
    """The secrets in what things are shown as: text, bytes, repr, JSON."""
    texts = [thing.decode("utf-8", "replace") if isinstance(thing, bytes) else f"{thing}{thing!r}" for thing in things]
    return [secret for secret in SECRETS if any(secret in text for text in texts)]


def _told_of(error: BaseException) -> list[Any]:
    """Everything that an error can show, its traceback with the local variables of each frame included."""
    full = traceback.TracebackException.from_exception(error, capture_locals=True)
    fields = error.fields() if isinstance(error, O41Error) else {}
    # Frames of tests hold the secrets by name; only the package's own are looked at.
    ours = [frame for frame in full.stack if f"{os.sep}tests{os.sep}" not in frame.filename]
    frames = [f"{frame.name} {frame.locals}" for frame in ours]
    return [error, fields, pickle.dumps(error), *getattr(error, "__notes__", ()), *frames]


def _files_of(folder: Path | None) -> Iterator[bytes]:
    for path in folder.rglob("*") if folder is not None and folder.is_dir() else ():
        if path.is_file():
            yield path.read_bytes()


def _processes_of(stream: BatchStream) -> list[psutil.Process]:
    pids = [stream.stats()["coordinator"]["pid"], *loader_processes.worker_pids(stream)]
    return [psutil.Process(pid) for pid in pids]


def test_a_running_stream_shows_no_credentials(write_shards, open_stream, tmp_path, caplog, capfd):
    """Arguments, environments, status, figures, checkpoints, reprs, logs, runtime folder and index cache hold none."""
    caplog.set_level(logging.DEBUG)
    config = stream_config(stage_of(write_shards([64, 64]), infinite=True), threads=1)
    shown = [plan(config, storage=STORAGE)]
    stream = open_stream(config, storage=STORAGE)
    batch = stream.next()
    for process in _processes_of(stream):
        shown += [process.cmdline(), process.environ()]
        loader_log = Path(f"/proc/{process.pid}/fd/2")  # a file in memory, shared by the loader's processes
        shown.append(loader_log.read_bytes())
    checkpoint = stream.checkpoint()
    checkpoint.save(tmp_path / "ckpt.json")
    shown += [list_loaders(), stream.stats(), stream, batch, batch.key, stream.sources, config, STORAGE]
    shown += [
        checkpoint,
        checkpoint.to_json(),
        json.dumps(stream.state_dict()),
        stream.job if hasattr(stream, "job") else "",
    ]
    for command in (("status", "--json"), ("status",)):
        ended = loader_processes.run_python("-P", "-m", "o41td", *command)
        shown += [ended.out, ended.err]
    loader_processes.kill(loader_processes.worker_pids(stream)[0])
    loader_processes.kill(stream.stats()["coordinator"]["pid"])
    while stream.stats()["coordinator_restarts"] == 0:
        shown.append(stream.next())
    stream.close()
    shown += [*_files_of(runtime_folder(create=False)), *_files_of(default_cache_folder()), *_files_of(tmp_path)]
    shown += [caplog.text, *capfd.readouterr()]
    assert "is replaced" in caplog.text
    with resume_batch_stream(tmp_path / "ckpt.json", storage=STORAGE) as resumed:
        shown += [resumed, resumed.checkpoint().to_json()]
    assert not _shows(*shown)


def _missing(paths, _host):
    paths[1].unlink()


def _torn(paths, _host):
    paths[1].write_bytes(paths[1].read_bytes()[:-100])


def _coordinator_fails(_paths, host):
    host.order("start", "fail", module="o41td.coordinator")


def _workers_fail(_paths, host):
    host.order("start", "fail")


def _coordinator_raises_later(_paths, host):
    host.order("getuid", "raise", module="o41td.coordinator")


@pytest.mark.parametrize(
    "spoil", [_missing, _torn, _coordinator_fails, _workers_fail, _coordinator_raises_later], ids=lambda f: f.__name__
)
def test_errors_show_no_credentials(write_shards, faulty_host, caplog, capfd, spoil):
    """Whatever fails, at open or behind it, in whichever process: message, fields, notes, log tail and locals."""
    caplog.set_level(logging.DEBUG)
    paths = write_shards([16, 16])
    spoil(paths, faulty_host)
    with pytest.raises(O41Error) as caught:
        _stream_all(paths)
    assert not _shows(*_told_of(caught.value), caplog.text, *capfd.readouterr())


def _stream_all(paths: list[Path]) -> None:
    with open_batch_stream(stream_config(stage_of(paths), threads=1), storage=STORAGE) as stream:
        list(stream)


def test_the_search_for_secrets_finds_them() -> None:
    """The look at errors sees a secret in a message, in a field and in a frame's local variable."""
    for text in (SECRETS[0], f"with {SECRETS[1]} in it"):
        assert _shows(*_told_of(MissingShardError(shard=text)))
    assert _shows(STORAGE.secret_record())
    assert not _shows(STORAGE)
