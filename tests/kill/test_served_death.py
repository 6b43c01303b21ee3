"""Deaths around a served loader: a trainer's, its coordinator's, the server's own, and clients that misbehave."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading

import psutil
import pytest

from loader_processes import is_gone, kill, wait_until, wait_until_gone
from o41td import ConnectError, connect, resume_batch_stream
from o41td.joining import served_loader
from o41td.runtime import list_loaders
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.messages import BatchesGathered, JoinLoader, LoaderOpened, Message, ServeFrom, StreamEnded
from served_loader import line_of, trainer
from stream_reference import Reference, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders", "forked_programs")


@pytest.fixture
def config(write_shards):
    """A shuffled set of 12 shards on one lane, in small slots."""
    return stream_config(stage_of(write_shards([50] * 12), batch_size=10, buffer_rows=100), lanes=1, block_rows=16)


def stats_of(served):
    """The ranks that a loader serves now."""
    return [rank["rank"] for loader in list_loaders() if loader["name"] == served.name for rank in loader["ranks"]]


def test_a_killed_trainer_frees_its_rank_which_comes_back_at_its_cursor(config, serve, join):
    """Rank 1 is killed behind its third batch; rank 0 goes on, and another process goes on as rank 1."""
    reference = Reference(config)
    served = serve(config, "--ranks", "2")
    stream = join(served.name, 0)
    process = trainer(served.name, 1, stop_after=3)
    said = json.loads(line_of(process))
    assert said["ids"] == [reference.ids(number) for number in (1, 3, 5)]
    reference.check(stream.next(), number=0)
    process.kill()
    process.communicate()
    wait_until(lambda: stats_of(served) == [0], "a dead trainer's rank is still listed")
    back = join(served.name, 1)
    back.load_state_dict(said["state"])
    for k in range(3, 30):
        reference.check(back.next(), number=2 * k + 1)
    assert back.next() is None
    for k in range(1, 30):
        reference.check(stream.next(), number=2 * k)


def test_a_stopped_trainer_keeps_its_rank_until_it_is_killed(config, serve, join):
    """A second client is refused as long as the first one lives, stopped or not."""
    served = serve(config, "--ranks", "2")
    process = trainer(served.name, 1, stop_after=1)
    line_of(process)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(ConnectError, match=f"process {process.pid}"):
        connect(served.name, rank=1)
    process.kill()
    process.communicate()
    Reference(config).check(join(served.name, 1).next(), number=1)  # at once, whether or not its death was heard of


def test_a_served_coordinator_killed_costs_no_byte(config, serve, join):
    """SIGKILL in mid-stream: the server starts another, and both ranks go on with it."""
    reference = Reference(config)
    served = serve(config, "--ranks", "2")
    streams = [join(served.name, rank) for rank in range(2)]
    for k in range(5):
        for rank, stream in enumerate(streams):
            reference.check(stream.next(), number=2 * k + rank)
    kill(served.coordinator_pid)
    for rank, stream in enumerate(streams):
        reference.check_rest(stream, position=10, rank=rank, world_size=2)
        assert stream.stats()["coordinator_restarts"] == 1
        stream.close()
    code, told = served.end()
    assert code == 0
    assert "is replaced" in told


def test_a_rank_that_comes_while_the_coordinator_is_replaced_waits(config, serve, join):
    """No loader is listed then, but its server lives: connecting takes the time that another coordinator needs."""
    served = serve(config, "--ranks", "2")
    kill(served.coordinator_pid)
    with join(served.name, 1) as stream:
        Reference(config).check(stream.next(), number=1)
    assert served.end()[0] == 0


def test_a_server_whose_coordinators_keep_dying_gives_up(config, serve):
    """Killed five times as soon as its name is there, open or not: code 1, and the reason on standard error."""
    served = serve(config, "--ranks", "1")
    killed = set()

    def kill_the_next() -> bool:
        entry = served_loader(served.name)
        if entry is not None and entry.pid not in killed:
            os.kill(entry.pid, signal.SIGKILL)
            killed.add(entry.pid)
        return served.process.poll() is not None

    wait_until(kill_the_next, "the server does not give up", deadline_s=90)
    code, told = served.end()
    assert (code, len(killed)) == (1, 5)
    assert "died 5 times in a row" in told
    assert "Traceback" not in told


def test_a_stopped_coordinator_is_replaced_by_its_server(config, serve, join):
    """SIGSTOP: the server kills it after stall_timeout_s without a sign of life, and the stream goes on."""
    served = serve(config.model_copy(update={"stall_timeout_s": 2.0}), "--ranks", "1")
    reference = Reference(config)
    stream = join(served.name, 0)
    reference.check(stream.next(), number=0)
    os.kill(served.coordinator_pid, signal.SIGSTOP)
    reference.check_rest(stream, position=1)
    wait_until(lambda: is_gone(served.coordinator_pid), "the stopped coordinator lives on")


def test_a_killed_server_takes_its_stopped_coordinator_with_it(config, serve):
    """SIGSTOP of the coordinator, then SIGKILL of the server: coordinator and workers end all the same."""
    served = serve(config, "--ranks", "1")
    loader = psutil.Process(served.process.pid).children(recursive=True)
    os.kill(served.coordinator_pid, signal.SIGSTOP)
    served.end(signal.SIGKILL)
    wait_until_gone(loader, deadline_s=15)


def test_a_name_is_free_as_soon_as_its_server_is_killed(config, serve):
    """SIGKILL of the server, its coordinator stopped: the next of that name starts, and is the only one."""
    first = serve(config, "--ranks", "1")
    os.kill(first.coordinator_pid, signal.SIGSTOP)
    first.end(signal.SIGKILL)
    second = serve(config, "--ranks", "1", name=first.name)
    entry = served_loader(first.name)
    assert entry is not None
    assert entry.pid == second.coordinator_pid != first.coordinator_pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_is_waited_for(config, serve, join, caplog, tmp_path, number):
    """It comes back with other threads and a cache: the stream said that it waits, and goes on with the same bytes."""
    reference = Reference(config)
    first = serve(config, "--ranks", "1")
    stream = join(first.name, 0)
    reference.check(stream.next(), number=0)
    with caplog.at_level(logging.WARNING, "o41td"):
        first.end(number)
        wait_until(lambda: "waits up to 60 s" in caplog.text, "the stream did not say that it waits")
    other = config.model_copy(update={"threads": 2, "cache_dir": str(tmp_path / "cache"), "cache_limit_bytes": 1 << 20})
    serve(other, "--ranks", "1", name=first.name)
    reference.check_rest(stream, position=1)


def test_a_server_that_stays_away_is_one_error(config, serve, join):
    """What was gathered arrives, then ConnectError, each time the same; the checkpoint is behind the last batch."""
    reference = Reference(config)
    served = serve(config, "--ranks", "1")
    stream = join(served.name, 0, wait_s=0.3)
    reference.check(stream.next(), number=0)
    served.end()
    batches = iter(stream.next, None)
    with pytest.raises(ConnectError, match=r"has not come back for 0\.3 s") as caught:
        _ = [reference.check(batch, number=number) for number, batch in enumerate(batches, start=1)]
    got = stream.checkpoint().batches_yielded
    with pytest.raises(ConnectError) as again:
        stream.next()
    assert str(again.value) == str(caught.value)
    with resume_batch_stream(stream.checkpoint()) as resumed:
        reference.check(resumed.next(), number=got)


def test_a_stream_can_be_closed_while_it_waits_for_its_server(config, serve, caplog):
    """close() while the wait for a server would go on for a minute returns at once."""
    served = serve(config, "--ranks", "1")
    stream = connect(served.name, rank=0)
    with caplog.at_level(logging.WARNING, "o41td"):
        served.end()
        wait_until(lambda: "waits up to" in caplog.text, "the stream did not say that it waits")
    closing = threading.Thread(target=stream.close)
    closing.start()
    closing.join(10.0)
    assert not closing.is_alive()


def test_a_server_that_comes_back_with_another_stream_is_refused(config, serve, join):
    """Another seed under the same name would be other batches: ConnectError names it."""
    served = serve(config, "--ranks", "1")
    stream = join(served.name, 0)
    served.end()
    serve(config.model_copy(update={"seed": 8}), "--ranks", "1", name=served.name)
    with pytest.raises(ConnectError, match="seed: 7 -> 8"):
        list(stream)


def _joined_channel(name: str, rank: int) -> Channel:
    """A connection of our own making, which has said which rank it is."""
    entry = served_loader(name)
    assert entry is not None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(entry.socket_path)
    channel = Channel(connection, blocking=True)
    channel.send(JoinLoader(rank))
    while not isinstance(channel.receive(20.0), LoaderOpened):
        pass
    os.close(channel.take_descriptor())
    return channel


NONSENSE: dict[str, list[Message]] = {
    "no such stage": [ServeFrom(1, 1, 2, 9, 0, 0)],
    "another's rank": [ServeFrom(1, 0, 2, 0, 0, 0)],
    "another world": [ServeFrom(1, 1, 3, 0, 0, 0)],
    "before the beginning": [ServeFrom(1, 1, 2, 0, -1, 0)],
    "beyond the end": [ServeFrom(1, 1, 2, 0, 2**40, 2**40)],
    "gathered what was never sent": [ServeFrom(1, 1, 2, 0, 0, 0), BatchesGathered(1, 2**40, 0, 0, 0, 0.0, 0)],
    "a coordinator's message": [StreamEnded(1, 0)],
    "a second rank": [JoinLoader(0)],
}


def test_a_client_that_makes_no_sense_is_hung_up_on_and_others_go_on(config, serve, join):
    """Eight kinds of nonsense, and bytes that are no message: rank 0 gets all its batches from the same coordinator."""
    reference = Reference(config)
    served = serve(config, "--ranks", "2")
    stream = join(served.name, 0)
    for number, (what, messages) in enumerate(NONSENSE.items()):
        channel = _joined_channel(served.name, 1)
        for message in messages:
            channel.send(message)
        with pytest.raises(ChannelClosed):
            _ = list(iter(lambda: channel.receive(20.0), None))  # noqa: B023 - used up at once
        channel.close()
        reference.check(stream.next(), number=2 * number)
        assert stats_of(served) == [0], what
    channel = _joined_channel(served.name, 1)
    os.write(channel.fileno(), b"\xff" * 4096)
    with pytest.raises(ChannelClosed):
        channel.receive(20.0)
    channel.close()
    reference.check_rest(stream, position=16, rank=0, world_size=2)
    reference.check(join(served.name, 1).next(), number=1)
    assert stream.stats()["coordinator"]["pid"] == served.coordinator_pid
