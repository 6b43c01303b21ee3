"""The words of the watchdog, and the log that they go to."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from o41td.stream_log import StreamLog
from o41td.watchdog import WaitWatchdog, who_is_waited_for


def _worker(number: int, state: str, reading: tuple[str, int, float] | None = None) -> dict[str, object]:
    place = None if reading is None else dict(zip(("shard", "row_group", "for_s"), reading, strict=True))
    return {"id": number, "pid": 100 + number, "state": state, "reading": place}


def test_the_worker_that_has_been_at_it_longest_is_named_first():
    """Two that read and one that starts; the one that rests is not named."""
    workers = [
        _worker(0, "decoding", ("/a.parquet", 3, 1.25)),
        _worker(1, "idle"),
        _worker(2, "decoding", ("/b.parquet", 0, 9.84)),
        _worker(3, "starting"),
    ]
    assert who_is_waited_for(workers) == (
        "worker 2 (pid 102) has been reading row group 0 of /b.parquet for 9.8 s; "
        "worker 0 (pid 100) has been reading row group 3 of /a.parquet for 1.2 s; worker 3 of 4 is starting"
    )


def test_of_many_workers_three_are_named():
    """Five that read: the three that have been at it longest."""
    words = who_is_waited_for([_worker(n, "decoding", (f"/{n}.parquet", 0, float(n))) for n in range(5)])
    assert [part.split()[1] for part in words.split("; ")] == ["4", "3", "2"]


def test_workers_without_work_are_said_to_have_none():
    """The wait is then for the coordinator or the gathering thread."""
    assert who_is_waited_for([_worker(0, "idle")]) == "no worker has work to do"


def test_a_coordinator_that_is_gone_is_not_said_to_be_silent(caplog):
    """While another is started, or a served loader is waited for, nobody is there who could answer."""
    bell = SimpleNamespace(ring=lambda: None)
    gatherer = SimpleNamespace(stats=(0, {}), stats_wanted=0, bell=bell, is_replacing=True)
    watchdog = WaitWatchdog(gatherer, StreamLog(0, 1), stall_timeout_s=0.0)
    watchdog.look(7)
    assert gatherer.stats_wanted == 1
    watchdog.look(7)
    (words,) = [record.getMessage() for record in caplog.records]
    assert words.endswith(" for its batch 7: its coordinator is gone, and there is no other yet")


def test_a_line_of_the_log_names_its_rank(caplog):
    """Of several ranks each line begins with its own; of one rank none does; records have rank and world size."""
    StreamLog(3, 8).warning("waited %d s", 10)
    StreamLog(0, 1).warning("waited %d s", 20)
    assert [record.getMessage() for record in caplog.records] == ["rank 3 of 8: waited 10 s", "waited 20 s"]
    assert [(record.name, record.rank, record.world_size) for record in caplog.records] == [
        ("o41td", 3, 8),
        ("o41td", 0, 1),
    ]
    assert not logging.getLogger("o41td").handlers
