"""`o41td verify`: the first batch at which two configs part, found by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import shard_writer
from command_line import o41td, toml_config
from o41td.outline import read_outline
from o41td.verifying import compare_streams

pytestmark = pytest.mark.usefixtures("forked_loaders")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 40 rows in two shards, and 40 others."""
    folder = tmp_path_factory.mktemp("verify")
    write = shard_writer.ShardWriter(folder)
    write([20, 20], name="web", row_group_rows=10)
    write([20, 20], name="code", first_id=1000, row_group_rows=10)
    return folder


def config_in(folder: Path, name: str, *stages: dict[str, Any], **keys: Any) -> Path:
    """A config of stages over `web`'s shards in listed order, in batches of 5, unless a stage says otherwise."""
    web = sorted((folder / "web").iterdir())
    made = [{"batch_size": 5, "sources": [("web", web, 1.0)], **stage} for stage in stages or ({},)]
    return toml_config(folder / name, made, **{"threads": 1, "seed": 3, **keys})


def compared(a: Path, b: Path) -> dict[str, Any]:
    """What `verify` finds."""
    return compare_streams(read_outline(a), read_outline(b))


def test_threads_weights_of_one_source_and_moved_shards_make_no_difference(folder, tmp_path):
    """Resources, equal shares, and where shards lie change no batch."""
    shutil.copytree(folder / "web", tmp_path / "web")
    moved = sorted((tmp_path / "web").iterdir())
    a = config_in(folder, "a.toml", {"shuffle": 8})
    b = config_in(folder, "b.toml", {"shuffle": 8, "sources": [("other", moved, 7.0)]}, threads=2, lookahead=3)
    record = compared(a, b)
    assert record["identical"]
    assert record["first"] is None


@pytest.mark.parametrize(
    ("stage", "keys", "number", "why"),
    [
        ({"batch_size": 4}, {}, 0, "5 rows in the first, 4 in the second"),
        ({"shuffle": 8}, {}, 0, ""),
        ({}, {"lanes": 2}, 1, "another row at place 0"),  # batch 1 begins at row 5 of one lane, at row 20 of two
        ({}, {"exclude": [[3, 5]]}, 3, "excluded in the second only"),
        ({"infinite": True}, {}, 8, "the first has no more batches"),
    ],
    ids=["batch_size", "shuffle", "lanes", "exclude", "infinite"],
)
def test_a_setting_that_changes_batches_is_found_with_the_first_of_them(folder, stage, keys, number, why):
    """40 rows in listed order are 8 batches of 5; the differing setting is named with both values."""
    record = compared(config_in(folder, "a.toml"), config_in(folder, "other.toml", stage, **keys))
    assert not record["identical"]
    assert record["first"]["batch"] == record["first"]["number"] == number
    assert why in record["first"]["why"]
    (name,) = [*stage, *keys]
    assert any(name in path or name == "shuffle" for path, _, _ in record["differences"])


def test_a_shard_that_was_rewritten_is_found_at_its_first_row(folder, tmp_path):
    """The second shard's rows begin with batch 4; its version differs, and is told."""
    write = shard_writer.ShardWriter(tmp_path)
    first, second = sorted((folder / "web").iterdir())
    (changed,) = write([20], name="changed", first_id=5000, row_group_rows=10)
    a = config_in(folder, "a.toml")
    b = config_in(folder, "c.toml", {"sources": [("web", [first, changed], 1.0)]})
    record = compared(a, b)
    assert (record["first"]["batch"], record["first"]["why"]) == (4, "another row at place 0")
    assert any(str(second) in str(old) and str(changed) in str(new) for _, old, new in record["differences"])


def test_rows_in_another_order_are_told_from_other_rows(folder):
    """Row groups of a batch's size in another order: the same rows within one batch of both."""
    a = config_in(folder, "a.toml", {"batch_size": 40, "shuffle": 8})
    b = config_in(folder, "b.toml", {"batch_size": 40, "shuffle": 8}, seed=4)
    assert compared(a, b)["first"]["why"].startswith("the same rows in another order, from place")


def test_a_stage_that_only_one_has_is_where_they_part(folder):
    """The first stage's 8 batches are equal; batch 8 is of a stage that the other lacks."""
    a = config_in(folder, "a.toml")
    b = config_in(folder, "two.toml", {}, {"name": "second", "batch_size": 4})
    record = compared(a, b)
    assert (record["first"]["batch"], record["first"]["stage_name"]) == (8, "second")
    assert record["first"]["why"] == "the first has no stage 'second'"


def test_the_commands_say_it_in_a_line_a_table_and_the_exit_code(folder, tmp_path):
    """0 and "identical"; 1 and where; 2 where one of them is no config."""
    a, b = config_in(folder, "a.toml"), config_in(folder, "b4.toml", {"batch_size": 4})
    same = o41td("verify", a, a, "--json")
    assert (same.code, json.loads(same.out)["identical"]) == (0, True)
    shown = o41td("verify", a, b)
    assert (shown.code, shown.err) == (1, "")
    assert "they part at batch 0 (batch 0 of stage stage0): 5 rows in the first, 4 in the second" in " ".join(
        shown.out.split()
    )
    assert "stages[0].batch_size" in shown.out
    assert "what differs" in shown.out
    of_two = config_in(folder, "lanes.toml", lanes=2)
    hinted = o41td("verify", a, of_two)
    assert (hinted.code, hinted.err) == (1, "")
    assert "give --world-size 2 to compare what 2 ranks stream." in hinted.out
    assert o41td("verify", a, of_two, "--world-size", "2").out == "identical\n"
    (tmp_path / "broken.json").write_text('{\n"format": "o41td-checkpoint",')
    done = o41td("verify", a, tmp_path / "broken.json")
    assert (done.code, done.out) == (2, "")
    assert "broken.json" in done.err
