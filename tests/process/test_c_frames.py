"""The C side of the golden frames: what the client says and hears to the byte, and what it does about what is none."""

from __future__ import annotations

import random
import signal
import subprocess

from c_programs import SANITIZERS, SUPPORT, compiled
from golden_frames import FRAMES, payload_of
from golden_server import golden_server
from o41td.workers.message_codec import decode_message, encode_message
from o41td.workers.messages import BatchesGathered, LoaderJoined

HEARD = [name for name, (sender, _frame) in FRAMES.items() if sender == "<"]


def hear_gathered(server, **expected: int) -> None:
    """Reads a `BatchesGathered`, whose time of waiting may be any."""
    golden = decode_message(payload_of("BatchesGathered"))
    heard = decode_message(server.hear(len(FRAMES["BatchesGathered"][1]))[4:])
    assert isinstance(heard, BatchesGathered)
    assert isinstance(golden, BatchesGathered)
    assert heard._replace(wait_s=golden.wait_s) == golden._replace(**expected)


def test_a_conversation_to_the_byte(consume, tmp_path):
    """From the greeting to the end of the stage: frames, rows out of the arena, digest, checkpoint, notices."""
    with golden_server() as server:
        consumer = consume(server.name, 1)
        server.accept()
        for name in ("OpenProgress", "LoaderNotice", "LoaderJoined", "LoaderOpened"):
            server.say(name)
        server.expect("ServeFrom")
        assert consumer.line() == "ok"
        assert consumer.notices == ["notice 0 hello", "notice 1 a tip"]
        server.say("BatchesReady")
        first, second = consumer.take(2)
        assert first[:5] == (1, 0, 1, 2, 2**64 - 2)
        assert second[:5] == (3, 0, 3, 2, 5)
        ids = [int.from_bytes(batch.fields[0][at : at + 8], "little") for batch in (first, second) for at in (0, 8)]
        assert ids == [104, 105, 107, 100]
        hear_gathered(server)
        server.say("StatsReply")
        server.say("StreamEnded")
        assert consumer.ask("next 1") == "end 3 0000000000000003"  # 2**64 - 2 + 5, and what wraps is gone
        hear_gathered(server, dropped_rows=3)
        consumer.ask(f"checkpoint {tmp_path / 'c.json'}")
        text = (tmp_path / "c.json").read_text()
        assert '"batches_yielded": 4,\n"rows_yielded": 7,\n"cursor": [[0,4]],\n"epochs": {"stage0/source0":1}' in text
        assert (
            '"prefix":"/g/a.parquet","suffix":"","uris":[""],"rows":[7],"size_bytes":[500],"versions":["v1ab"]' in text
        )
        consumer.end()


def test_a_loader_of_extreme_settings_is_joined(consume, tmp_path):
    """All batches from 4 to the last number there is are excluded, and a timeout is longer than milliseconds count."""
    golden = decode_message(payload_of("LoaderJoined"))
    assert isinstance(golden, LoaderJoined)
    job = golden.job | {"excluded": [[4, 2**63 - 1]], "stall_timeout_s": 1e300}
    config = golden.config | {"seed": 0, "exclude": job["excluded"]}
    payload = encode_message(golden._replace(job=job, config=config))
    with golden_server() as server:
        consumer = consume(server.name, 1)
        server.accept()
        server.send(len(payload).to_bytes(4, "little") + payload)
        server.say("LoaderOpened")
        server.expect("ServeFrom")
        assert consumer.line() == "ok"
        server.say("BatchesReady")
        assert [batch.batch_index for batch in consumer.take(2)] == [1, 3]
        assert consumer.ask(f"checkpoint {tmp_path / 'c.json'}") == "ok"
        assert '"batches_yielded": 4,\n' in (tmp_path / "c.json").read_text()
        assert consumer.ask(f"resume {tmp_path / 'c.json'}") == "ok"
        consumer.end()


def test_what_a_loader_says_of_a_failure_is_told(consume, tmp_path):
    """Bad data again and again behind the batches before it, a refusal, another version, no loader at all."""
    with golden_server() as server, golden_server(protocol="0badc0de") as other:
        consumer = consume(server.name, 1)
        server.open()
        assert consumer.line() == "ok"
        server.say("BatchesReady")
        server.say("StreamFailed")
        assert len(consumer.take(2)) == 2
        told = (
            "CorruptDataError: a page is damaged (source web, shard /g/a.parquet, row group 0, column id). Replace it."
        )
        assert [consumer.ask("next 1"), consumer.ask("next 1")] == [f"error {told}"] * 2
        consumer.tell(f"connect {server.name}")
        server.accept()
        server.say("LoaderFailed")
        assert consumer.line() == "error ConnectError: rank 1 is taken by process 77. Ask for another."
        version = "runs another version of o41td than this program was built with"
        assert version in consumer.ask(f"connect {other.name}")
        nobody = "error no loader is served under the name 'no-such'. Those that are: '"
        assert consumer.ask("connect no-such").startswith(nobody)
        asked = [consumer.ask(command) for command in (f"checkpoint {tmp_path / 'c.json'}", "next 1")]
        assert asked == ["error this stream was not opened"] * 2
        consumer.end()


def test_a_server_that_ends_is_waited_for(consume):
    """One of the same stream goes on where it was; SIGTERM ends the wait, not the stream; another stream is refused."""
    with golden_server() as server:
        consumer = consume(server.name, 1)
        server.open()
        assert consumer.line() == "ok"
        server.withdraw()
        server.hang_up()
        consumer.tell("next 1")
        gone = f"the loader '{server.name}' is gone; rank 1 waits up to 20 s for it to come back"
        consumer.take_notice(f"notice 1 {gone}")
        consumer.process.send_signal(signal.SIGTERM)
        assert consumer.line() == "stopped stopped while it waited"
        assert consumer.ask("lower_flag") == "ok"
        consumer.tell("next 2")
        server.enlist()
        server.open()
        server.send(_of_generation(FRAMES["BatchesReady"][1], 2))
        assert [consumer.line()[:8] for _ in range(2)] == ["batch 1 ", "batch 3 "]
        consumer.tell("next 1")
        server.accept()
        server.send(FRAMES["LoaderJoined"][1].replace(b"\xa4seed\x00", b"\xa4seed\x01"))
        server.say("LoaderOpened")
        other = "came back as another stream: its settings or its world size differ. "
        assert consumer.line().startswith(f"error the loader '{server.name}' {other}")
        consumer.end()


def test_a_loader_that_makes_no_sense_is_left(consume):
    """The client says why, and comes back for more; one that breaks off six times without a batch is given up."""
    golden = FRAMES["BatchesReady"][1]
    broken = {
        "it announced a frame that is too large": b"\xff\xff\xff\xff",
        "it sent what is no message": golden[:4] + b"\xc1" + golden[5:],
        "it sent batches with more rows than they have": golden.replace(b"\x92\x02\x02", b"\x92\x02\x01"),
        "it sent rows that are not in the arena": golden.replace(b"\x07\0\0\0\0\0\0\0", b"\x08\0\0\0\0\0\0\0"),
        "it sent batches that are none": golden.replace(b"\x92\xc2\xc3", b"\x92\x00\x01"),
        "it sent a message that was not asked for": FRAMES["LoaderJoined"][1],
    }
    with golden_server() as server:
        consumer = consume(server.name, 1, wait_s=0)
        for generation, (reason, spoilt) in enumerate(broken.items(), start=1):
            if generation > 1:
                server.enlist()
            consumer.tell("next 2")
            server.open()
            assert generation > 1 or consumer.line() == "ok"
            server.send(_of_generation(golden, generation))
            assert [consumer.line()[:6] for _ in range(2)] == ["batch "] * 2
            server.withdraw()
            server.send(_of_generation(spoilt, generation) if spoilt[5:6] == golden[5:6] else spoilt)
            gone = f"error the loader '{server.name}' is gone ({reason}) and has not come back for 0 s. "
            assert consumer.ask("next 1").startswith(gone)
        server.enlist()
        consumer.tell("next 1")
        for _ in range(5):
            server.open()
        server.hang_up()
        given_up = f"error the loader '{server.name}' was lost 6 times without a batch in between: "
        assert consumer.line().startswith(given_up)
        assert consumer.ask("next 1").startswith(given_up)
        consumer.end()


def _of_generation(frame: bytes, generation: int) -> bytes:
    """A golden `BatchesReady` that answers another request than the first."""
    return frame[:6] + bytes([generation]) + frame[7:]


def test_nothing_that_is_sent_makes_the_client_touch_what_is_not_its_own(tmp_path):
    """Golden frames that were spoilt in 4000 ways, under sanitizers: each is taken or refused."""
    spoil = random.Random(5)
    frames = []
    for _ in range(4000):
        payload = bytearray(payload_of(spoil.choice(HEARD)))
        for _ in range(spoil.randint(1, 2)):
            start = spoil.randrange(len(payload) + 1)
            stop = min(len(payload), start + spoil.choice((0, 1, 1, 1, 8)))
            wide = spoil.choice((b"", b"\xcf" + b"\xff" * 8, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x80"))
            payload[start:stop] = wide if spoil.random() < 0.3 else spoil.randbytes(stop - start)
        frames.append(len(payload).to_bytes(4, "little") + payload)
    (tmp_path / "spoilt").write_bytes(b"".join(frames))
    (tmp_path / "golden").write_bytes(b"".join(FRAMES[name][1] for name in HEARD))
    program = compiled(SUPPORT / "c_frames.c", tmp_path, *SANITIZERS)
    told = []
    for name in ("golden", "spoilt"):
        done = subprocess.run([program, tmp_path / name], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")
        told.append(tuple(map(int, done.stdout.split())))
    assert told[0] == (len(HEARD) - 1, 1)  # progress is for one that is opening
    assert sum(told[1]) == 4000
    assert min(told[1]) > 100
