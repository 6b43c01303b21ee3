"""Numbers as the command line words them."""

from __future__ import annotations

import pytest

from o41td.cli.wording import (
    bytes_text,
    count_text,
    counted_text,
    digest_text,
    duration_text,
    printable,
    share_text,
    speed_text,
)
from o41td.counted import kind_text
from o41td.percentages import percent_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (2149, "2.1 KB"),
        (9949, "9.9 KB"),
        (9951, "10 KB"),
        (203_423_744, "203 MB"),
        (999_499_999, "999 MB"),
        (999_500_001, "1.0 GB"),
        (1.5e12, "1.5 TB"),
        (12e15, "12 PB"),
        (5e18, "5000 PB"),
    ],
)
def test_bytes(num_bytes: float, text: str) -> None:
    """Sizes have decimal units and two or three figures."""
    assert bytes_text(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (0.414, "0.41 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (123.4, "2 min 03 s"),
        (3599.6, "1 h 00 min"),
        (3900, "1 h 05 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """Times never show 60 seconds or 60 minutes."""
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 10, "0 %"), (0.01, 10, "<1 %"), (0.4, 10, "4 %"), (10, 10, "100 %"), (1, 0, "–")],
)
def test_shares(part: float, whole: float, text: str) -> None:
    """A small share is not shown as nothing."""
    assert share_text(part, whole) == text


def test_percentages_with_decimals() -> None:
    """So many decimals as asked for, and what they do not show is still not nothing."""
    texts = [percent_text(part, 2) for part in (0.0, 0.00001, 0.0031, 1.0)]
    assert texts == ["0.00 %", "<0.01 %", "0.31 %", "100.00 %"]


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("shard",), "0 shards"),
        (1, ("shard",), "1 shard"),
        (1024, ("shard",), "1,024 shards"),
        (1, ("batch", "batches"), "1 batch"),
        (2, ("batch", "batches"), "2 batches"),
    ],
)
def test_things_are_counted_in_their_own_number(count: int, words: tuple[str, ...], text: str) -> None:
    """One thing is told in the singular, none and many in the plural."""
    assert counted_text(count, *words) == text


def test_counts_speeds_and_digests() -> None:
    """Thousands are set apart, no time gives no speed, and a digest has 16 figures."""
    assert count_text(1_234_567.4) == "1,234,567"
    assert speed_text(1000, 2_000_000, 2.0) == "500 rows/s, 1.0 MB/s"
    assert speed_text(1000, 2_000_000, 0.0) == "too short to say"
    assert digest_text(255) == "00000000000000ff"


def test_control_characters_are_escaped() -> None:
    """What a terminal would obey is shown; ends of lines, tabs and letters of any script stay."""
    assert printable("a\x1b[31m\x00\x9b\r\n\té…") == "a\\x1b[31m\\x00\\x9b\\r\n\té…"


@pytest.mark.parametrize(("value", "text"), [(1, "an int"), ({}, "a dict"), (None, "None"), (OSError(), "an OSError")])
def test_kinds_of_things_have_their_article(value: object, text: str) -> None:
    """A kind is told as it would be said."""
    assert kind_text(value) == text
