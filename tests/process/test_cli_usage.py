"""The command line's manners: help, version, and one paragraph with the right exit code for what is wrong."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import subprocess
from pathlib import Path

import pytest

import shard_writer
from command_line import command as words_of
from command_line import o41td, o41td_in_a_process, o41td_on_a_terminal, toml_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def test_version() -> None:
    """`--version` prints one line and is quick about it."""
    done = o41td("--version")
    assert (done.code, done.out, done.err) == (0, f"o41td {importlib.metadata.version('o41td')}\n", "")


def test_without_arguments_it_shows_its_commands() -> None:
    """`o41td` alone is a question, not a mistake."""
    done = o41td()
    assert (done.code, done.err) == (0, "")
    for command in ("run", "demo", "status", "plan", "trace", "verify"):
        assert f" {command} " in done.out


@pytest.mark.parametrize("command", ["run", "demo", "status", "plan", "trace", "verify"])
def test_every_command_has_help(command: str) -> None:
    """`--help` works everywhere, names `--json`, and fits 80 columns."""
    done = o41td(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert "--json" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runn"], "Did you mean 'run'"),
        (["run"], "o41td run --help"),
        (["run", "x.toml", "--bathes", "3"], "--batches"),
        (["run", "x.toml", "--batches", "0"], "--batches"),
        (["run", "x.toml", "--rank", "first"], "--rank"),
        (["plan", "no-such-file.toml"], "no-such-file.toml"),
        (["run", "no-such-file.toml"], "no-such-file.toml"),
        (["demo", "no-such-file.toml"], "no-such-file.toml"),
        (["trace", "no-such-file.toml", "--batch", "0"], "no-such-file.toml"),
        (["verify", "no-such-file.toml", "neither.json"], "no-such-file.toml"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    """What is wrong and where help is, on stderr, with nothing on stdout."""
    done = o41td(*arguments, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err


def test_a_wrong_config_names_the_key(tmp_path: Path) -> None:
    """A senseless value is told with the path to its key, and exits 2."""
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 0, "sources": [("a", ["x.parquet"], 1.0)]}])
    done = o41td("run", config)
    assert (done.code, done.out) == (2, "")
    assert "stages[0].batch_size" in done.err


def test_a_rank_outside_the_world_exits_2(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """Rank 2 of 2 is a wrong argument."""
    paths = write_shards([20])
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", paths, 1.0)]}])
    done = o41td("run", config, "--rank", "2", "--world-size", "2")
    assert (done.code, done.out) == (2, "")
    assert "2" in done.err


def test_a_missing_shard_exits_1(tmp_path: Path) -> None:
    """Data that is not there is a failed stream, told in one paragraph that names it."""
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", ["gone.parquet"], 1.0)]}])
    done = o41td("run", config)
    assert (done.code, done.out) == (1, "")
    assert "gone.parquet" in done.err
    assert "Traceback" not in done.err


def test_debug_adds_the_traceback(tmp_path: Path) -> None:
    """`--debug`, before or behind the command, shows where it went wrong as well."""
    for arguments in (["--debug", "run", "gone.toml"], ["run", "gone.toml", "--debug"]):
        done = o41td(*arguments, cwd=tmp_path)
        assert done.code == 2
        assert "Traceback" in done.err
        assert done.err.splitlines()[-1].startswith("o41td: ")


@pytest.mark.usefixtures("forked_programs")
def test_no_color_is_heeded(tmp_path: Path) -> None:
    """On a terminal with NO_COLOR set no colour is drawn; help is where most of it would be."""
    coloured = o41td_on_a_terminal("run", "--help")
    plain = o41td_on_a_terminal("run", "--help", env={"NO_COLOR": "1"})
    assert "\x1b[3" in coloured.out
    assert "\x1b[3" not in plain.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["index", "s3://bucket/a.parquet"], "is not on this machine"),
        (["index", "c.toml", "x.csv"], "c.toml is a config or a checkpoint: give it alone"),
        (["convert", "c.toml", "--to", "c.yaml"], "is there already; nothing is overwritten"),
    ],
)
def test_targets_that_do_not_go_together(arguments: list[str], said: str, tmp_path: Path) -> None:
    """What a command does not take is told with what it does take."""
    toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", ["x.csv"], 1.0)]}])
    (tmp_path / "c.yaml").write_text("")
    done = o41td(*arguments, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_table_of_text_as_a_shard_is_told_what_to_do(tmp_path: Path) -> None:
    """Whoever names a CSV file as a shard learns which command makes shards of it."""
    (tmp_path / "x.csv").write_text("id\n" + "1\n" * 100)
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", ["x.csv"], 1.0)]}])
    done = o41td("run", config)
    assert (done.code, done.out) == (1, "")
    assert f"Its suffix says csv: `o41td write {tmp_path}/x.csv --to FOLDER` makes shards of it." in done.err


def test_what_is_wrong_with_several_shards_is_told_once(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """The first shard's error has its remedy; others that have the same are named behind it, some of many."""
    good = write_shards([8])
    bad = [tmp_path / f"{number}.parquet" for number in range(7)]
    for path in bad[1:]:
        path.write_bytes(b"x" * 100)
    bad[0].write_bytes(b"")
    sources = [("a", [*good, *bad[1:], bad[0]], 1.0)]
    done = o41td("plan", toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": sources}]))
    first, *others = done.err.splitlines()
    assert (done.code, done.out) == (1, "")
    assert first.count("Replace the shard") == 1
    assert str(bad[1]) in first
    assert others == [
        f"Also: the same in {', '.join(map(str, bad[2:6]))}, and 1 more shard",
        f"the shard is no readable Parquet file: it has 0 bytes: {bad[0]}",
    ]


def test_control_characters_are_shown_not_sent(tmp_path: Path) -> None:
    """What a reader says of a damaged file, and a file's name, cannot drive the terminal."""
    odd = tmp_path / "a\x1b[31m.csv"
    odd.write_bytes(b"a\n\x1b[2J,1\n")
    done = o41td("inspect", odd)
    assert (done.code, done.out) == (2, "")
    assert "\\x1b[31m.csv" in done.err
    assert "\x1b" not in done.err


def test_a_full_disk_behind_standard_output(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """Output that cannot be written is one line on standard error, not a bug of ours."""
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", write_shards([20]), 1.0)]}])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            words_of("plan", config), stdout=full, stderr=subprocess.PIPE, env=env, text=True, timeout=110
        )
    said = "o41td: standard output cannot be written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(tmp_path: Path, write_shards: shard_writer.ShardWriter, closed: str) -> None:
    """What is closed is as the null device: the exit code tells, and nothing is written to another file instead."""
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", write_shards([20]), 1.0)]}])
    run = [*words_of("run", config), "--checkpoint", tmp_path / "saved.json"]
    absent = words_of("plan", tmp_path / "absent.toml")
    for words, code in ((run, 0), (absent, 2)):
        typed = f"{shlex.join(map(str, words))} {closed}"
        done = subprocess.run(typed, shell=True, capture_output=True, text=True, timeout=110)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert (">&-" not in closed or "2>" in closed) or done.stdout == ""
    assert o41td("run", config, "--resume", tmp_path / "saved.json", "--json").code == 0


def test_letters_that_an_output_lacks(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """An output of few letters, and a file name that is no text, are written as escapes and end no command."""
    name = os.fsdecode(b"\xff\xe9.csv")
    (tmp_path / name).write_text("".join(f"{'x' * (row % 3)}\n" for row in range(9)))
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", write_shards([20]), 1.0)]}])
    for encoding, arguments in (("ascii", ("check", config)), ("latin-1", ("inspect", tmp_path / name))):
        done = o41td_in_a_process(*arguments, env={"PYTHONIOENCODING": encoding})
        assert (done.code, done.err) == (0, "")
    assert "\\udcff\\udce9.csv" in done.out
