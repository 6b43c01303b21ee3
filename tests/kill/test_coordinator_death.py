"""Coordinators that are killed: the stream starts another from its cursor and gives the same bytes."""

from __future__ import annotations

import os
import signal

import pytest

from loader_processes import (
    children_running,
    coordinator_pid,
    is_gone,
    kill,
    kill_coordinator,
    wait_until,
    worker_pids,
)
from o41td import CoordinatorError, open_batch_stream, resume_batch_stream
from o41td.order import add_digests
from stream_reference import Reference, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


@pytest.fixture
def config(write_shards):
    """A shuffled set of 12 shards in small slots."""
    return stream_config(stage_of(write_shards([50] * 12), batch_size=10, buffer_rows=100), block_rows=16)


def test_a_coordinator_killed_at_any_time_costs_no_byte(config, open_stream):
    """SIGKILL before the first batch, midway, before the last and behind it: the same bytes and digest."""
    reference = Reference(config)
    stream = open_stream(config)
    whole = add_digests(*[reference.digest(number, number) for number in range(60)])
    for restarts, moment in enumerate((0, 30, 59, 60), start=1):
        stream.seek(0)
        digest = stream.order_digest
        for at in range(moment):
            reference.check(stream.next(), number=at)
        workers = worker_pids(stream)
        os.kill(coordinator_pid(stream), signal.SIGKILL)
        reference.check_rest(stream, position=moment)
        assert add_digests(stream.order_digest, -digest) == whole
        wait_until(lambda workers=workers: all(map(is_gone, workers)), "a dead coordinator's workers live on")
        wait_until(lambda n=restarts: stream.stats()["coordinator_restarts"] == n, "no coordinator was started anew")
    assert len(children_running("o41td.coordinator")) == len(children_running("o41td.workers")) == 1


def test_coordinator_and_worker_killed_together_on_two_ranks(config, open_stream):
    """Both ranks lose all their processes at once, at an odd moment, and both go on in step."""
    reference = Reference(config, lanes=2)
    streams = [open_stream(config, rank=rank, world_size=2) for rank in range(2)]
    for rank, stream in enumerate(streams):
        for k in range(7):
            reference.check(stream.next(), number=2 * k + rank)
    for process in [*children_running("o41td.workers"), *children_running("o41td.coordinator")]:
        process.kill()
    for rank, stream in enumerate(streams):
        reference.check_rest(stream, position=14, rank=rank, world_size=2)
        assert stream.dropped_rows == 0


def test_seek_and_figures_right_after_a_kill(config, open_stream):
    """A jump and a stats() while the coordinator is being replaced."""
    reference = Reference(config)
    stream = open_stream(config)
    for _ in range(2):
        stream.seek(5)
        reference.check(stream.next(), number=5)
        os.kill(coordinator_pid(stream), signal.SIGKILL)
        stream.seek(20)
        assert stream.stats()["coordinator"]["pid"] > 0
        reference.check(stream.next(), number=20)
        reference.check(stream.next(), number=21)


def test_batches_in_hand_survive_their_coordinator(config, open_stream):
    """K5: batches kept from three coordinators, each killed: none has changed."""
    reference = Reference(config)
    stream = open_stream(config)
    kept = []
    for number in range(30):
        kept.append(stream.next())
        if number in (9, 19):
            kill_coordinator(stream)
    for number, batch in enumerate(kept):
        reference.check(batch, number=number)


def test_two_deaths_without_progress_are_an_error_and_the_checkpoint_goes_on(config, faulty_host, open_stream):
    """What was gathered arrives, then CoordinatorError, again and again, also behind a seek; a checkpoint resumes."""
    reference = Reference(config)
    stream = open_stream(config)
    reference.check(stream.next(), number=0)
    first = coordinator_pid(stream)
    faulty_host.order("start", "SIGKILL", times=2, module="o41td.coordinator")
    kill(first)
    batches = iter(stream.next, None)
    with pytest.raises(CoordinatorError) as caught:
        _ = [reference.check(batch, number=number) for number, batch in enumerate(batches, start=1)]
    got = stream.checkpoint().batches_yielded
    assert "SIGKILL" in str(caught.value)
    with pytest.raises(CoordinatorError) as again:
        stream.next()
    assert str(again.value) == str(caught.value)
    checkpoint = stream.checkpoint()
    assert checkpoint.batches_yielded == got
    stream.seek(0)
    with pytest.raises(CoordinatorError) as sought:
        stream.next()
    assert str(sought.value) == str(caught.value)
    stream.close()
    wait_until(lambda: not children_running("o41td.coordinator"), "a coordinator is left")
    (faulty_host.folder / "start").unlink()
    with resume_batch_stream(checkpoint) as resumed:
        reference.check_rest(resumed, position=got)


def test_a_coordinator_that_dies_as_soon_as_it_is_open_is_an_error_without_noise(config, faulty_host, open_stream):
    """Each new one dies between its answer and the first order: CoordinatorError, and no thread's traceback."""
    stream = open_stream(config)
    stream.next()
    pid = coordinator_pid(stream)
    faulty_host.order("getuid", "SIGKILL", module="o41td.coordinator")
    kill(pid)
    with pytest.raises(CoordinatorError, match="died"):
        list(stream)
    assert faulty_host.times_done("getuid") >= 1


def test_a_coordinator_that_dies_while_opening_is_an_error_with_its_last_words(config, faulty_host):
    """Killed, and gone with a last word: open_batch_stream says how it ended."""
    faulty_host.order("start", "SIGKILL", module="o41td.coordinator")
    with pytest.raises(CoordinatorError, match="SIGKILL"):
        open_batch_stream(config)
    faulty_host.order("start", "fail", module="o41td.coordinator")
    with pytest.raises(CoordinatorError, match="exited with code 1") as caught:
        open_batch_stream(config)
    assert caught.value.log_tail == "a fault on order"


def test_an_endless_stage_with_resident_sources_survives(write_shards, open_stream):
    """Infinite, two sources that stay decoded: a kill in the third epoch changes nothing."""
    config = stream_config(
        stage_of(write_shards([20], name="a"), write_shards([30], name="b", first_id=100), buffer_rows=8, infinite=True)
    )
    reference = Reference(config)
    stream = open_stream(config)
    for number in range(40):
        reference.check(stream.next(), number=number)
        if number in (13, 20):
            kill_coordinator(stream)
    assert len(ids_of([stream.next()])) == 8


def test_a_replacement_that_is_slow_to_start_is_not_taken_for_silent(write_shards, faulty_host, open_stream):
    """The silence of a dead coordinator is not counted against the next, which takes long; figures wait for it."""
    config = stream_config(stage_of(write_shards([16] * 4), batch_size=4), stall_timeout_s=4, prefetch_batches=1)
    stream = open_stream(config)
    first = ids_of([stream.next()])
    before = coordinator_pid(stream)
    faulty_host.order("start", "sleep:5", times=1, module="o41td.coordinator")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: is_gone(before), "the coordinator outlives SIGKILL")
    assert stream.stats()["coordinator"]["pid"] != before, "asked while it is replaced, which takes longer than 5 s"
    assert first + ids_of(list(stream)) == list(range(64))
    assert stream.stats()["coordinator_restarts"] == 1
