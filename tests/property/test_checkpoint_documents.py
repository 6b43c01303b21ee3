"""Checkpoints that somebody else wrote: whatever they hold, one is refused with a reason, or is a checkpoint."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from o41td.checkpoint import Checkpoint, SourceRecord
from o41td.config import BatchStreamConfig, FileSource, ProjectedField, Stage
from o41td.errors import CheckpointError
from o41td.opening import resume_batch_stream
from o41td.order import ORDER_VERSION
from o41td.plain_json import MAX_DEPTH, parse_plain_json

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-1, 3) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def _document() -> dict[str, Any]:
    """A checkpoint's document, new each time."""
    config = BatchStreamConfig(
        fields=[ProjectedField(name="x", dtype="f32")],
        stages=[Stage(sources=[FileSource(files=["a/*.parquet"])], batch_size=4)],
        lanes=2,
    )
    source = SourceRecord(
        name="stage0/source0",
        stage=0,
        source=0,
        uris=("/a/0.parquet", "/a/1.parquet"),
        rows=(7, 9),
        size_bytes=(100, None),
        versions=("v", None),
    )
    return Checkpoint(
        order_version=ORDER_VERSION,
        config=config.to_document(),
        sources=(source,),
        cursor=((0, 2),),
        batches_yielded=2,
        rows_yielded=8,
        epochs={"stage0/source0": 0},
        world_size=2,
    ).to_document()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.extend(_paths(inner, (*path, key)))
    return found


def _signed(body: str) -> str:
    """A text with a right checksum, as anybody can make one."""
    digest = hashlib.blake2b(body.encode(), digest_size=8).hexdigest()
    return f'{body}\n"checksum": "{digest}"\n}}\n'


def _text_of(document: dict[str, Any]) -> str:
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    return _signed("{\n" + lines + ",")


def test_the_forger_of_these_tests_can_write() -> None:
    """What `_text_of` writes is read, so a refusal below is for what is wrong in it."""
    assert Checkpoint.from_json(_text_of(_document())).to_document() == _document()


@given(st.sampled_from(_paths(_document())), _VALUES)
@settings(max_examples=200, deadline=None)
def test_any_part_replaced_by_anything(path: tuple[Any, ...], value: Any) -> None:
    """As text and as a dict alike: a CheckpointError of moderate length, or a checkpoint that can be written again."""
    document = _document()
    part = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    for read in (lambda: Checkpoint.from_json(_text_of(document)), lambda: Checkpoint.from_document(document)):
        checkpoint, refusal = None, ""
        try:
            checkpoint = read()
        except CheckpointError as error:
            refusal = str(error)
        assert len(refusal) < 1000
        if checkpoint is None:
            continue
        assert all(0 <= count < 2**63 for run in checkpoint.cursor for count in run)
        assert checkpoint.rank < checkpoint.world_size
        assert path[0] == "config" or Checkpoint.from_json(checkpoint.to_json()) == checkpoint


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('"cursor": ' + "[" * 100_000 + "]" * 100_000, "levels deep"),
        ('"config": ' + '{"a":' * 200 + "1" + "}" * 200, "levels deep"),
        ('"rank": NaN', "NaN is no number"),
        ('"rank": -Infinity', "-Infinity is no number"),
        ('"rank": 1e999', "too large"),
        ('"rank": ' + "9" * 5000, "digits"),
        ('"format_version": 1, "format_version": 1', "'format_version' stands twice"),
        ('"config": {"seed": 1, "seed": 2}', "'seed' stands twice"),
        ('"format_version": ' + "9" * 40, "not an integer"),
        ('"rank": "\\ud800"', "lacks|format_version"),
    ],
    ids=["deep list", "deep table", "NaN", "Infinity", "1e999", "digits", "twice", "twice inside", "40 digits", "half"],
)
def test_json_that_is_no_plain_data(body: str, reason: str) -> None:
    """With a right beginning, end and checksum, what json.loads would let pass, or die of, is refused by its name."""
    with pytest.raises(CheckpointError, match=reason):
        Checkpoint.from_json(_signed('{\n"format": "o41td-checkpoint",\n' + body + ","))


def test_a_gigabyte_is_not_read(tmp_path) -> None:
    """A file of a gigabyte (of holes) is refused by its length, as text is; memory is not asked for it."""
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match=r"longer than 268435456 bytes.*large\.json"):
        Checkpoint.load(path)


def test_a_file_cut_or_changed_at_every_byte(tmp_path) -> None:
    """G5: the file of a checkpoint cut short anywhere, or with any bit flipped, is refused; nothing else happens."""
    path = tmp_path / "ckpt.json"
    checkpoint = Checkpoint.from_document(_document())
    checkpoint.save(path)
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at], *(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for bit in range(8))):
            with pytest.raises(CheckpointError):
                Checkpoint.from_json(damaged)
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=r"cut short.*ckpt\.json"):
        Checkpoint.load(path)
    path.write_bytes(data)
    assert Checkpoint.load(path) == checkpoint


def test_depth_is_counted_where_it_may_not_be_exceeded() -> None:
    """As many levels as allowed are read and one more is not, whatever they are made of."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        parse_plain_json(opening * MAX_DEPTH + "1" + closing * MAX_DEPTH, max_bytes=10_000)
        one_more = MAX_DEPTH + 1
        with pytest.raises(ValueError, match="levels deep"):
            parse_plain_json(opening * one_more + "1" + closing * one_more, max_bytes=10_000)


@pytest.mark.parametrize("spoil", ["none", "another stage", "twice", "another name", "no shards"])
def test_a_resume_never_guesses_the_data(spoil: str) -> None:
    """Without the shards of each source of its config, and no others, a checkpoint is refused before anything starts.

    Otherwise the config's patterns would be listed anew, and the stream would go on over other data.
    """
    document = _document()
    (source,) = document["sources"]
    if spoil == "none":
        document["sources"] = []
    elif spoil == "another stage":
        source["stage"] = 1
    elif spoil == "twice":
        document["sources"] = [source, source]
    elif spoil == "another name":
        source["name"] = "stage0/other"
    else:
        for column in ("uris", "rows", "size_bytes", "versions"):
            source[column] = []
    with pytest.raises(CheckpointError, match="shards of"):
        resume_batch_stream(Checkpoint.from_document(document))
