"""Streams for minutes while a seeded chaos kills, stops and fills, and compares every batch with an undisturbed run.

A lap is a stream of two stages, walked by several ranks in step, and restarted from its last checkpoint on another
world size whenever a rank is killed. Each batch's share of the order digest and a checksum of its bytes must be those
of the undisturbed run, and each batch must have been delivered when the lap ends. After each lap nothing may be left:
no process, no byte in /dev/shm, no descriptor, no entry in the runtime folder.

As root, everything runs in a mount namespace with a /dev/shm of its own, small enough to be filled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from o41td.runtime_folder import listed_loaders, process_start_time, runtime_folder

HERE = Path(__file__).resolve().parent
MARK = "O41TD_SOAK_MARK"
SHM = Path("/dev/shm")  # noqa: S108 - where arenas are
SHM_MIB = 96
WORLD_SIZES = (1, 2, 3, 4)
STEP_S = 0.005  # a training step
CHUNK = 24  # global batches between two checkpoints: whole rounds on any of the world sizes
STALL_TIMEOUT_S = 3
SURE_BATCHES = 100  # more than a coordinator announces ahead, which may still be taken when it is dead
HANG_S = 120
_FILL_STEP_BYTES = 64 << 10
LEFTOVER_S = 10
FAULTS = {  # how often each is chosen
    "kill worker": 12, "kill coordinator": 6, "kill trainer": 2,
    "stop worker": 3, "stop coordinator": 2, "stop trainer": 2, "fill /dev/shm": 3,
}  # fmt: skip


class Fault(Exception):
    """What must not happen: the run ends with it."""


def write_data(folder: Path) -> Path:
    """Writes shards of three sources and the config over them; returns the config's path."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for source, (num_shards, rows) in {"web": (6, 3000), "books": (3, 2000), "few": (1, 500)}.items():
        for shard in range(num_shards):
            lengths = rng.integers(0, 200, rows)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            tokens = pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 50_000, offsets[-1], dtype=np.int32)))
            table = pa.table({"tokens": tokens, "score": rng.random(rows), "id": np.arange(rows) + shard * rows})
            (folder / source).mkdir(exist_ok=True)
            pq.write_table(table, folder / source / f"{shard}.parquet", row_group_size=400, compression="zstd")

    def files(name: str, weight: float = 1.0) -> dict[str, Any]:
        return {"files": [str(folder / name / "*.parquet")], "name": name, "weight": weight}

    config = {
        "fields": [
            {"name": "tokens", "dtype": "i32", "length": 128},
            {"name": "score", "dtype": "f32"},
            {"name": "id", "dtype": "i64"},
        ],
        "stages": [
            {"sources": [files("web", 3.0), files("books")], "batch_size": 32, "infinite": True,
             "shuffle": {"buffer_rows": 1000}},
            {"sources": [files("books"), files("few", 0.2)], "batch_size": 24, "infinite": True,
             "shuffle": {"buffer_rows": 300}},
        ],
        "seed": 11, "lanes": 4, "threads": 2, "block_rows": 500, "stall_timeout_s": STALL_TIMEOUT_S,
    }  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


class Rank:
    """A trainer process and what it has told."""

    def __init__(self, config: Path, rank: int, world_size: int, resume: Path | None, *, step_s: float) -> None:
        command = [sys.executable, "-P", str(HERE / "soak_trainer.py"), str(config)]
        command += ["--rank", str(rank), "--world-size", str(world_size), "--step", str(step_s)]
        command += ["--resume", str(resume)] if resume else []
        self.number = rank
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rank
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, bufsize=0
        )
        self.is_killed = False
        self.has_ended = False  # in its own time
        self.batches = 0
        self.batches_at_coordinator_hit = 0
        self._told = b""

    def order(self, *words: Any) -> None:
        """Gives an order; one to a dead rank is found out by its silence."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())

    def lines(self) -> list[list[str]] | None:
        """What it has told since the last look, None where it has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *whole, self._told = (self._told + data).split(b"\n")
        return [line.decode().split() for line in whole] if data else None

    def loader(self, role: str) -> list[psutil.Process]:
        """Its coordinators or workers that live."""
        found = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if f"o41td.{role}" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def kill(self) -> None:
        """Kills it, stopped or not."""
        self.is_killed = True
        self.process.kill()

    def ended(self) -> str:
        """Reaps it; returns what it wrote to stderr."""
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.errors.seek(0)
        said = self.errors.read().decode("utf-8", "replace").strip()
        self.errors.close()
        return said


class Chaos:
    """Faults at random moments; `strike` is called often and does at most one thing."""

    def __init__(self, seed: int, *, mean_s: float, can_fill: bool) -> None:
        self._rng = random.Random(seed)
        self._mean_s = mean_s
        self._faults = {name: often for name, often in FAULTS.items() if can_fill or not name.startswith("fill")}
        self._next_s = 0.0
        self._stopped: list[tuple[float, psutil.Process]] = []
        self._filled: tuple[float, Path] | None = None
        self.counts: Counter[str] = Counter()
        self.wait()

    def wait(self) -> None:
        """Leaves things alone for a while."""
        self._next_s = time.monotonic() + self._rng.expovariate(1 / self._mean_s)

    def choose_world_size(self, other_than: int) -> int:
        """The next world size."""
        return self._rng.choice([size for size in WORLD_SIZES if size != other_than])

    def strike(self, ranks: list[Rank]) -> None:
        """Ends what is due to end, and begins what is due to begin."""
        now_s = time.monotonic()
        self._let_go(now_s)
        if now_s < self._next_s:
            return
        self.wait()
        fault = self._rng.choices(list(self._faults), list(self._faults.values()))[0]
        rank = self._rng.choice(ranks)
        act, _, target = fault.partition(" ")
        if act == "fill":
            self._fill(now_s)
        elif target == "trainer":
            self._hit(rank, psutil.Process(rank.process.pid), act, fault, now_s)
        else:
            victims = rank.loader(target + "s" * (target == "worker"))
            if victims and (target == "worker" or self._may_hit_coordinator(rank)):
                self._hit(rank, self._rng.choice(victims), act, fault, now_s)

    def relax(self) -> None:
        """Ends everything that is going on."""
        self._let_go(float("inf"))

    def _may_hit_coordinator(self, rank: Rank) -> bool:
        """Two deaths without a batch between them are an error by design, so they are not dealt out."""
        if rank.batches < rank.batches_at_coordinator_hit + SURE_BATCHES:
            return False
        rank.batches_at_coordinator_hit = rank.batches
        return True

    def _hit(self, rank: Rank, victim: psutil.Process, act: str, fault: str, now_s: float) -> None:
        with contextlib.suppress(psutil.Error):
            if act == "stop":
                victim.suspend()
                self._stopped.append((now_s + self._rng.uniform(0.1, 2 * STALL_TIMEOUT_S), victim))
            elif fault == "kill trainer":
                rank.kill()
            else:
                victim.send_signal(self._rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))
            self.counts[fault] += 1

    def _fill(self, now_s: float) -> None:
        if self._filled is not None:
            return
        path = SHM / "soak-fill"
        with path.open("wb") as file, contextlib.suppress(OSError):  # "no space left" is what is wanted
            for start in range(0, SHM_MIB << 20, _FILL_STEP_BYTES):
                os.posix_fallocate(file.fileno(), start, _FILL_STEP_BYTES)
        self._filled = (now_s + self._rng.uniform(0.5, 5), path)
        self.counts["fill /dev/shm"] += 1

    def _let_go(self, now_s: float) -> None:
        for until_s, process in list(self._stopped):
            if until_s <= now_s:
                self._stopped.remove((until_s, process))
                with contextlib.suppress(psutil.Error):
                    process.resume()
        if self._filled is not None and self._filled[0] <= now_s:
            self._filled[1].unlink()
            self._filled = None


class Lap:
    """One walk of all ranks through both stages, however often it is restarted."""

    def __init__(self, config: Path, folder: Path, *, batches: int, chaos: Chaos | None, counts: Counter[str]) -> None:
        self._config = config
        self._checkpoint = folder / "checkpoint.json"
        self._checkpoint.unlink(missing_ok=True)
        self._batches = batches
        self._chaos = chaos
        self._counts = counts
        self._ranks: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        self._heard_s = time.monotonic()
        self.told: dict[int, list[str]] = {}

    def run(self, world_size: int, reference: dict[int, list[str]] | None) -> None:
        """Walks to the end.

        Raises:
            Fault: A batch is not the one of the reference, a rank fails by itself, or nothing happens any more.
        """
        at = 0  # global batches behind the last checkpoint
        try:
            while at < self._batches:
                try:
                    at = self._walk(at, world_size)
                except InterruptedError:
                    self._counts["trainer restarts"] += 1
                    previous, world_size = world_size, self._chaos.choose_world_size(world_size) if self._chaos else 1
                    self._counts["restarts on another world size"] += previous != world_size
        finally:
            if self._chaos:
                self._chaos.relax()
            self._end_all()
            self._selector.close()
        if reference is not None and self.told != reference:
            wrong = [number for number in reference if self.told.get(number) != reference[number]]
            raise Fault(f"batches {wrong[:10]} are not those of the undisturbed run")

    def _walk(self, at: int, world_size: int) -> int:
        """Starts ranks and goes on until the end; returns where it is.

        Raises:
            InterruptedError: A rank was killed: all are gone, and `checkpoint` says where to go on.
        """
        resume = self._checkpoint if self._checkpoint.exists() else None
        if resume is not None:
            at = json.loads(resume.read_text())["batches_yielded"]
        for rank in range(world_size):
            started = Rank(self._config, rank, world_size, resume, step_s=STEP_S if self._chaos else 0)
            self._ranks.append(started)
            assert started.process.stdout is not None
            self._selector.register(started.process.stdout, selectors.EVENT_READ, started)
        self._await("open")
        while at < self._batches:
            if at == self._batches // 2:
                for rank in self._ranks:
                    rank.order("advance", 1)
            for rank in self._ranks:
                rank.order("take", CHUNK // world_size)
            self._await("batch", CHUNK // world_size)
            at += CHUNK
            saver = self._ranks[at // CHUNK % world_size]  # any rank's checkpoint is every rank's
            saver.order("save", self._checkpoint)
            self._await("saved", of=[saver])
        if self._chaos:
            self._chaos.relax()
        for rank in self._ranks:
            rank.order("end")
        self._await("ended")
        self._end_all()
        return at

    def _await(self, word: str, count: int = 1, *, of: list[Rank] | None = None) -> None:
        missing = {rank.number: count for rank in of or self._ranks}
        while missing:
            if self._chaos and word != "ended":
                self._chaos.strike(self._ranks)
            for key, _ in self._selector.select(0.05):
                lines = key.data.lines()
                if lines is None and key.data.has_ended:
                    self._selector.unregister(key.fileobj)
                elif lines is None:
                    self._lose(key.data)
                self._heard_s = time.monotonic()
                for line in lines or ():
                    self._note(key.data, line)
                    if line[0] == word and key.data.number in missing:
                        missing[key.data.number] -= 1
                        if not missing[key.data.number]:
                            del missing[key.data.number]
            if time.monotonic() - self._heard_s > HANG_S:
                raise Fault(f"ranks {sorted(missing)} said nothing for {HANG_S} s (awaiting {word!r})")

    def _note(self, rank: Rank, line: list[str]) -> None:
        if line[0] == "batch":
            number, fingerprint = int(line[1]), line[2:]
            before = self.told.setdefault(number, fingerprint)
            if before != fingerprint:
                raise Fault(f"batch {number} came as {before}, then as {fingerprint}")
            rank.batches += 1
            self._counts["batches"] += 1
            self._counts["rows"] += int(line[4])
        elif line[0] == "ended":
            rank.has_ended = True
            self._counts["descriptors left"] += int(line[1])

    def _lose(self, rank: Rank) -> None:
        """A rank has ended before its time: every rank ends, as in a training job."""
        was_killed = rank.is_killed
        said = self._end_all()
        if not was_killed:
            raise Fault(f"rank {rank.number} ended by itself:\n{said}")
        raise InterruptedError

    def _end_all(self) -> str:
        """Ends every rank that is left; returns what they wrote to stderr."""
        said = []
        for rank in self._ranks:
            with contextlib.suppress(KeyError):  # it had ended by then
                self._selector.unregister(rank.process.stdout)
            if rank.process.poll() is None and rank.batches >= 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    rank.process.wait(0.2 if not rank.is_killed else None)
                rank.process.kill()
            said.append(rank.ended())
        self._ranks = []
        words = "\n".join(filter(None, said))
        self._counts["lines on stderr"] += len(words.splitlines())
        return words


class Surroundings:
    """What must be as it was after each lap."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._shm_bytes = _used_shm_bytes()
        self._descriptors = len(os.listdir("/proc/self/fd"))

    def leaks(self) -> dict[str, int]:
        """Counts what is left, once nothing more goes away by itself."""
        deadline_s = time.monotonic() + LEFTOVER_S
        while any((found := self._look()).values()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return found

    def _look(self) -> dict[str, int]:
        children = 0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                children += process.pid != os.getpid() and process.environ().get(MARK) == self._mark
        return {
            "processes": children,
            "bytes in /dev/shm": max(0, _used_shm_bytes() - self._shm_bytes),
            "descriptors": max(0, len(os.listdir("/proc/self/fd")) - self._descriptors),
            "runtime folder entries": _stale_entries(),
        }


def _used_shm_bytes() -> int:
    volume = os.statvfs(SHM)
    return (volume.f_blocks - volume.f_bfree) * volume.f_frsize


def _stale_entries() -> int:
    """Entries of loaders that are dead, behind the clearing up that every `status` and every new loader does."""
    listed_loaders()
    folder = runtime_folder(create=False)
    names = [path.name for path in folder.iterdir() if path.suffix != ".lock"] if folder is not None else []
    return sum(process_start_time(int(name.partition("-")[0])) is None for name in names)


def has_own_shm(arguments: argparse.Namespace) -> bool:
    """Whether /dev/shm is this run's own; the first call starts the run again where it is, and does not return."""
    if arguments.own_shm:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SHM_MIB}m", "tmpfs", str(SHM)]
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if shutil.which("unshare") and subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0:
        os.execvp("unshare", [*unshare, sys.executable, "-P", __file__, *sys.argv[1:], "--own-shm"])  # noqa: S606 - the same run, elsewhere
    return False


def table_of(report: dict[str, Any]) -> str:
    """The report as a table in Markdown."""
    rows = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in report.items()]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def soak(arguments: argparse.Namespace) -> int:
    """Runs laps until the time is over; prints the report; returns the exit code."""
    can_fill = has_own_shm(arguments)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    counts: Counter[str] = Counter()
    started_s = time.monotonic()
    print(f"seed {seed}, {arguments.minutes:g} minutes, /dev/shm {'filled too' if can_fill else 'left alone'}")
    with tempfile.TemporaryDirectory(prefix="o41td-soak-") as name:
        folder = Path(name)
        config = write_data(folder)
        surroundings = Surroundings(mark)
        undisturbed = Lap(config, folder, batches=arguments.batches, chaos=None, counts=Counter())
        undisturbed.run(1, None)
        print(f"undisturbed run: {len(undisturbed.told)} batches in {time.monotonic() - started_s:.0f} s", flush=True)
        chaos = Chaos(seed, mean_s=arguments.every, can_fill=can_fill)
        leaks: Counter[str] = Counter()
        fault = ""
        began_s = time.monotonic()
        world_size = 2
        while not fault and (counts["laps"] == 0 or time.monotonic() - began_s < arguments.minutes * 60):
            chaos.wait()
            lap = Lap(config, folder, batches=arguments.batches, chaos=chaos, counts=counts)
            try:
                lap.run(world_size, undisturbed.told)
                counts["laps"] += 1
            except Fault as found:
                fault = str(found)
            leaks.update(surroundings.leaks())
            world_size = chaos.choose_world_size(world_size)
            done = ", ".join(f"{name} {count}" for name, count in sorted(chaos.counts.items()))
            print(
                f"{time.monotonic() - began_s:6.0f} s  lap {counts['laps']}, {counts['batches']:,} batches, "
                f"restarts {counts['trainer restarts']}; {done}; leaks {sum(leaks.values())}",
                flush=True,
            )
    leaks["descriptors"] += counts.pop("descriptors left", 0)
    report: dict[str, Any] = {"seed": seed, "minutes": round((time.monotonic() - began_s) / 60, 1)}
    report |= {f"survived: {name}": chaos.counts[name] for name in FAULTS}
    report |= {name: counts[name] for name in ("laps", "batches", "rows", "trainer restarts")}
    report |= {name: counts[name] for name in ("restarts on another world size", "lines on stderr")}
    report |= {f"leaked: {name}": leaks[name] for name in ("processes", "bytes in /dev/shm", "descriptors")}
    report["leaked: runtime folder entries"] = leaks["runtime folder entries"]
    report["outcome"] = fault or "every batch as in the undisturbed run"
    print(json.dumps(report) if arguments.json else f"\n{table_of(report)}")
    return 1 if fault or any(leaks.values()) or counts["lines on stderr"] else 0


def open_and_close(arguments: argparse.Namespace) -> int:
    """Opens and closes loaders in this one process; returns 1 where anything grows."""
    from o41td import BatchStreamConfig, open_batch_stream

    has_own_shm(arguments)
    os.environ[MARK] = uuid.uuid4().hex
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with tempfile.TemporaryDirectory(prefix="o41td-soak-") as name:
        config = BatchStreamConfig.load(write_data(Path(name))).model_copy(update={"threads": 1})
        surroundings = None
        for number in range(arguments.opens):
            with open_batch_stream(config) as stream:
                stream.next()
            if surroundings is None:  # behind what the first one imports
                surroundings = Surroundings(os.environ[MARK])
            if number % 50 == 49:
                print(f"{number + 1} opened and closed, left: {surroundings.leaks()}", flush=True)
        leaks = surroundings.leaks() if surroundings is not None else {}
    print(f"{arguments.opens} loaders opened and closed; left: {leaks}")
    return 1 if any(leaks.values()) else 0


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float, nargs="?", default=20.0)
    parser.add_argument("--seed", type=int, help="of the faults; a random one by default")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two faults, on average")
    parser.add_argument(
        "--batches", type=int, default=80 * CHUNK, help=f"global batches of a lap, a multiple of {2 * CHUNK}"
    )
    parser.add_argument("--opens", type=int, help="open and close so many loaders instead")
    parser.add_argument("--json", action="store_true", help="the report as one line of JSON")
    parser.add_argument("--own-shm", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.batches < 1 or arguments.batches % (2 * CHUNK):
        parser.error(f"--batches must be a multiple of {2 * CHUNK}")
    return open_and_close(arguments) if arguments.opens else soak(arguments)


if __name__ == "__main__":
    sys.exit(main())
