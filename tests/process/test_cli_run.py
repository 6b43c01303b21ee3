"""`o41td run`, `plan`, `status` and `demo` on small real shards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import o41td as o41td_package
import shard_writer
from command_line import DEADLINE_S, command, o41td, o41td_in_a_process, o41td_on_a_terminal, toml_config
from loader_processes import wait_until
from o41td.runtime import list_loaders

pytestmark = pytest.mark.usefixtures("forked_loaders")

#  id i64, tokens i32[8], score f64: 8 + 32 + 8 bytes.
ROW_BYTES = 48
RUN_KEYS = {
    "batches",
    "rows",
    "bytes",
    "wall_s",
    "first_batch_s",
    "rows_per_s",
    "wait_s",
    "dropped_rows",
    "bad_rows",
    "order_digest",
}


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finite stages: 100 rows of one source in batches of 8, then 100 + 60 rows of two in batches of 16."""
    folder = tmp_path_factory.mktemp("curriculum")
    write_shards = shard_writer.ShardWriter(folder)
    web = write_shards([50, 50], name="web")
    books = write_shards([60], name="books", first_id=1000)
    stages: list[dict[str, Any]] = [
        {"name": "easy", "batch_size": 8, "shuffle": 32, "sources": [("web", web, 1.0)]},
        {"name": "mix", "batch_size": 16, "shuffle": 32, "sources": [("web", web, 1.0), ("books", books, 3.0)]},
    ]
    return toml_config(folder / "curriculum.toml", stages, seed=7, threads=1)


@pytest.fixture(scope="module")
def straight(curriculum: Path) -> dict[str, Any]:
    """What `run --json` says of the curriculum, streamed in one go with one worker, in a process of its own."""
    done = o41td_in_a_process("run", curriculum, "--json")
    assert (done.code, done.err) == (0, "")
    return last_line_of(done.out)


@pytest.fixture
def endless(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> Path:
    """One infinite stage over 100 rows in batches of 10."""
    stage = {"batch_size": 10, "infinite": True, "shuffle": 16, "sources": [("web", write_shards([100]), 1.0)]}
    return toml_config(tmp_path / "endless.toml", [stage], threads=1)


def last_line_of(out: str) -> dict[str, Any]:
    """The JSON in the last line."""
    record: dict[str, Any] = json.loads(out.splitlines()[-1])
    return record


def test_run_streams_every_stage_to_its_end(straight: dict[str, Any]) -> None:
    """100 rows are 13 batches of 8, 160 rows are 10 of 16: 23 batches, 260 rows, 48 bytes each."""
    assert set(straight) == RUN_KEYS
    assert (straight["batches"], straight["rows"], straight["bytes"]) == (23, 260, 260 * ROW_BYTES)
    assert straight["dropped_rows"] == straight["bad_rows"] == 0
    assert 0 < straight["first_batch_s"] <= straight["wall_s"]


def test_the_order_digest_is_the_same_for_any_number_of_workers(curriculum: Path, straight: dict[str, Any]) -> None:
    """Runs with one and with three workers have one digest."""
    three = curriculum.with_name("three.toml")
    three.write_text(curriculum.read_text().replace("threads = 1", "threads = 3"))
    assert re.fullmatch("[0-9a-f]{16}", straight["order_digest"])  # as for people; a double would not hold the number
    assert last_line_of(o41td("run", three, "--json").out)["order_digest"] == straight["order_digest"]


def test_run_stops_saves_and_resumes(curriculum: Path, straight: dict[str, Any], tmp_path: Path) -> None:
    """Stopped after 13 batches, a stage's end, and after 20, the rest is 3, and ends with the straight run's digest."""
    saved = tmp_path / "saved.json"
    stop_after_13, stop_after_20 = ("--batches", "13"), ("--resume", saved, "--batches", "7")
    for arguments, num_batches in ((stop_after_13, 13), (stop_after_20, 7), (("--resume", saved), 3)):
        done = o41td("run", curriculum, *arguments, "--checkpoint", saved, "--json")
        assert (done.code, done.err) == (0, "")
        assert last_line_of(done.out)["batches"] == num_batches
    assert last_line_of(done.out)["order_digest"] == straight["order_digest"]


def test_ranks_share_the_rows(curriculum: Path) -> None:
    """Both ranks of two take equally many batches; rows delivered and dropped add up to all 260."""
    records = [
        last_line_of(o41td("run", curriculum, "--rank", str(rank), "--world-size", "2", "--json").out)
        for rank in (0, 1)
    ]
    assert records[0]["batches"] == records[1]["batches"]
    assert sum(record["rows"] + record["dropped_rows"] for record in records) == 260


def test_a_checkpoint_of_another_config_is_refused(curriculum: Path, endless: Path, tmp_path: Path) -> None:
    """`--resume` with a checkpoint that does not fit CONFIG exits 2 and names what differs."""
    saved = tmp_path / "saved.json"
    assert o41td("run", curriculum, "--batches", "3", "--checkpoint", saved).code == 0
    done = o41td("run", endless, "--resume", saved)
    assert (done.code, done.out) == (2, "")
    assert "stages" in done.err
    saved.write_text(saved.read_text()[:-20])
    done = o41td("run", curriculum, "--resume", saved)
    assert done.code == 2
    assert "saved.json" in done.err


def test_a_checkpoint_resumes_by_whatever_path_its_shards_have(write_shards: Any, tmp_path: Path) -> None:
    """As a glob, through a link, by a relative path with `./`, in a copy, and moved: the rest is the same."""
    files = write_shards([50, 50], name="a")
    saved, data = tmp_path / "saved.json", tmp_path / "a"

    def configured(name: str, *paths: str) -> Path:
        stage = {"batch_size": 8, "shuffle": 32, "sources": [("a", list(paths), 1.0)]}
        return toml_config(tmp_path / name, [stage], threads=1)

    listed = configured("listed.toml", *map(str, files))
    straight = last_line_of(o41td("run", listed, "--json").out)
    assert o41td("run", listed, "--batches", "5", "--checkpoint", saved).code == 0
    (tmp_path / "link").symlink_to(data)
    shutil.copytree(data, tmp_path / "copy")
    again = tmp_path / "again.json"
    for number, paths in enumerate(([f"{data}/*.parquet"], ["./a/"], [f"{tmp_path}/link"], [f"{tmp_path}/copy"])):
        config = configured(f"{number}.toml", *paths)
        done = o41td("run", config.name, "--resume", saved, "--checkpoint", again, "--json", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert last_line_of(done.out)["batches"] == 13 - 5
        assert last_line_of(done.out)["order_digest"] == straight["order_digest"]
    assert str(tmp_path / "copy") in again.read_text()
    relative = configured("relative.toml", "a/*.parquet")
    assert o41td("run", "relative.toml", "--batches", "5", "--checkpoint", saved, cwd=tmp_path).code == 0
    (tmp_path / "elsewhere").mkdir()
    for moved in (data, relative):
        moved.rename(tmp_path / "elsewhere" / moved.name)
    done = o41td("run", "relative.toml", "--resume", saved, "--json", cwd=tmp_path / "elsewhere")
    assert (done.code, last_line_of(done.out)["order_digest"]) == (0, straight["order_digest"])


def test_a_checkpoint_is_refused_by_name_of_the_shards_that_are_others(write_shards: Any, tmp_path: Path) -> None:
    """Another shard in the place of one, one more, and one less: exit 1 or 2, the shard named, nothing delivered."""
    saved = tmp_path / "saved.json"

    def configured(*paths: Path) -> Path:
        stage = {"batch_size": 8, "sources": [("a", list(paths), 1.0)]}
        return toml_config(tmp_path / "run.toml", [stage], threads=1)

    one, two = write_shards([50, 50], name="a")
    other, three = write_shards([50, 50], name="b", first_id=500)
    assert o41td("run", configured(one, two), "--batches", "5", "--checkpoint", saved).code == 0
    three = three.rename(three.with_name("three.parquet"))
    for paths, code, named in (((one, other), 1, other), ((one, two, three), 2, three), ((one,), 2, two)):
        done = o41td("run", configured(*paths), "--resume", saved, "--json")
        assert (done.code, done.out) == (code, "")
        assert named.name in "".join(done.err.split())
    missing = tmp_path / "absent.parquet"
    done = o41td("run", configured(one, missing), "--resume", saved)
    assert (done.code, done.out) == (1, "")
    assert "absent.parquet" in "".join(done.err.split())


def test_run_for_a_person_is_plain_lines_where_there_is_no_terminal(curriculum: Path) -> None:
    """Progress goes to stderr and the summary to stdout, neither with control characters."""
    done = o41td("run", curriculum)
    assert done.code == 0
    assert "260 rows in 23 batches" in done.out
    assert "easy" in done.err
    assert "mix" in done.err
    assert "\x1b" not in done.out + done.err


@pytest.mark.usefixtures("forked_programs")
def test_run_on_a_terminal_of_80_columns(curriculum: Path) -> None:
    """No drawn line is wider than the terminal, and NO_COLOR keeps colours out."""
    done = o41td_on_a_terminal("run", curriculum, env={"NO_COLOR": "1"})
    assert done.code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", done.out.replace("\r", "\n"))
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", done.out)
    assert "260 rows in 23 batches" in text


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGTERM, 143, "Terminated"), (signal.SIGHUP, 129, "Hung up")],  # SIGINT: see below
)
def test_being_asked_to_end_saves_and_says_so_in_one_line(
    endless: Path, tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    """Signals to the whole group, as terminals and schedulers send them: one line, and a checkpoint that resumes."""
    saved = tmp_path / "saved.json"
    process = subprocess.Popen(
        command("run", endless, "--checkpoint", saved),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stdout is not None
    process.stderr.readline()  # the first line of progress: batches flow
    os.killpg(process.pid, number)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code
    assert out == ""
    assert err.splitlines()[-1].startswith(f"{word} after ")
    assert str(saved) in err
    assert "Traceback" not in err
    taken = o41td_package.Checkpoint.load(saved).batches_yielded
    assert f" {taken:,} batches" in err.splitlines()[-1]
    if number is signal.SIGTERM:
        rest = o41td("run", endless, "--resume", saved, "--batches", "4", "--json")
        assert last_line_of(rest.out)["rows"] == 40


def test_a_program_gets_its_json_after_a_signal_too(endless: Path, tmp_path: Path) -> None:
    """SIGINT to the group of `run --json`: code 130, one line, and the last of its JSON counts what was saved."""
    saved = tmp_path / "saved.json"
    process = subprocess.Popen(
        command("run", endless, "--checkpoint", saved, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def has_begun() -> bool:
        listed = (loader for loader in list_loaders() if is_child_of(loader["pid"], process.pid))
        return any(rank["batches"] for loader in listed for rank in loader["ranks"])

    wait_until(has_begun, "no batch came")
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("Interrupted after ")
    assert str(saved) in err
    assert "Traceback" not in err
    record = last_line_of(out)
    assert set(record) == RUN_KEYS
    assert record["batches"] == o41td_package.Checkpoint.load(saved).batches_yielded > 0


def test_a_signal_that_was_ignored_stays_ignored(endless: Path) -> None:
    """Under nohup a SIGHUP does not end a run; a SIGTERM behind it does."""
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    process = subprocess.Popen(
        [*ignoring, *command("run", endless)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress: batches flow
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143, err


def test_damaged_data_is_an_error_that_a_resume_may_pass_over(
    tmp_path: Path, write_shards: shard_writer.ShardWriter
) -> None:
    """Ten batches of a good shard are saved, then exit 1 names the bad one; `on_bad_data` goes on from there."""
    good, bad = write_shards([80, 80], row_group_rows=80)
    damaged = bytearray(bad.read_bytes())
    damaged[4:200] = bytes(196)  # the first column's pages begin behind the magic
    bad.write_bytes(damaged)
    stage = {"batch_size": 8, "sources": [("web", [good, bad], 1.0)]}
    strict = toml_config(tmp_path / "strict.toml", [stage], threads=1, block_rows=80)
    saved = tmp_path / "saved.json"
    done = o41td("run", strict, "--json", "--checkpoint", saved)
    assert (done.code, done.out) == (1, "")
    assert str(bad) in done.err
    assert "Traceback" not in done.err
    assert o41td_package.Checkpoint.load(saved).batches_yielded == 10

    lenient = tmp_path / "lenient.toml"
    quarantine = tmp_path / "quarantine.jsonl"
    settings = f"on_bad_data = 'replace'\nbad_data_budget = 0.5\nquarantine_file = '{quarantine}'\n"
    lenient.write_text(settings + strict.read_text())
    rest = o41td("run", lenient, "--resume", saved, "--json")
    assert rest.code == 0, rest.err
    # The other 80 came before the damage, and the shard's one row group is all bad.
    assert (last_line_of(rest.out)["rows"], last_line_of(rest.out)["bad_rows"]) == (80, 80)
    assert quarantine.exists()
    shown = o41td("run", lenient, "--resume", saved)
    assert re.search(r"^replaced +80 rows", shown.out, re.MULTILINE), shown.out


def test_a_reader_that_leaves_is_no_error(curriculum: Path) -> None:
    """`o41td plan … | true` says nothing on stderr."""
    quoted = " ".join(f"'{word}'" for word in command("plan", curriculum, "--json"))
    done = subprocess.run(["bash", "-c", f"{quoted} | true"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stderr == ""


def test_plan_says_rows_batches_and_memory(curriculum: Path) -> None:
    """Worked out from footers: 13 and 10 batches, 100 and 160 rows, and a bound that is the sum of its terms."""
    done = o41td("plan", curriculum, "--json")
    assert (done.code, done.err) == (0, "")
    record = json.loads(done.out)
    assert [(stage["name"], stage["batches"], stage["rows"]) for stage in record["stages"]] == [
        ("easy", 13, 100),
        ("mix", 10, 160),
    ]
    assert sum(record["memory"]["terms"].values()) == record["memory"]["bound_bytes"]
    shown = o41td("plan", curriculum)
    assert shown.code == 0
    assert "easy" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_status_lists_a_running_loader_and_forgets_it(endless: Path) -> None:
    """While a stream runs, `status --json` has an entry with its figures; after it, the entry is gone."""
    process = subprocess.Popen(command("run", endless), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    try:
        listed = o41td("status", "--json")
        assert (listed.code, listed.err) == (0, "")
        pids = {loader["pid"] for loader in json.loads(listed.out)}
        ours = [loader for loader in json.loads(listed.out) if is_child_of(loader["pid"], process.pid)]
        assert len(ours) == 1
        assert {"name", "pid", "ranks", "workers", "sources", "memory", "verdict"} <= set(ours[0])
        (rank,) = ours[0]["ranks"]
        assert (rank["rank"], rank["world_size"], rank["dropped_rows"]) == (0, 1, 0)
        assert rank["batches"] > 0
        assert len(ours[0]["workers"]) == 1
        assert ours[0]["memory"]["bound_bytes"] > 0
        shown = o41td("status")
        assert shown.code == 0
        assert str(ours[0]["pid"]) in shown.out
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    after = {loader["pid"] for loader in json.loads(o41td("status", "--json").out)}
    assert ours[0]["pid"] not in after
    assert after <= pids | after


def is_child_of(pid: int, parent_pid: int) -> bool:
    """Whether a process was started by another."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[1]) == parent_pid


def test_demo_of_an_own_config_finds_both_streams_equal(curriculum: Path) -> None:
    """Stopped in the middle and resumed is the same as never stopped, over finite stages to their ends."""
    done = o41td("demo", curriculum, "--json")
    assert (done.code, done.err) == (0, "")
    record = json.loads(done.out)
    assert record["equal"]
    assert (record["batches"], record["rows"], record["stopped_after_batches"]) == (23, 260, 11)


def test_demo_for_a_person_ends_with_a_summary(endless: Path) -> None:
    """The limit is stated at the start, and the verdict is the last line."""
    done = o41td("demo", endless, "--batches", "21")
    assert (done.code, done.err) == (0, "")
    assert "at most 21 batches of each" in done.out
    assert "210 rows in 21 batches" in done.out
    assert done.out.splitlines()[-1].strip() == "✓ the same rows, in the same order, byte by byte"
    assert max(map(len, done.out.splitlines()[1:])) <= 80


def test_a_checkpoint_that_could_not_be_saved_is_refused_before_anything_is_streamed(
    curriculum: Path, tmp_path: Path
) -> None:
    """A folder, or a file in a folder that is not there: exit 2 at once, not after hours."""
    for impossible in (tmp_path, tmp_path / "absent" / "ckpt.json"):
        done = o41td("run", curriculum, "--checkpoint", impossible, "--json")
        assert done.code == 2
        assert done.out == ""
        assert str(impossible) in done.err
