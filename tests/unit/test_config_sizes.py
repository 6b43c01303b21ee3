"""Sizes as people write them."""

import numpy as np
import pytest

from o41td.sizes import human_bytes, parse_size


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2GB", 2_000_000_000),
        ("64MiB", 67_108_864),
        ("64 mib", 67_108_864),
        (" 1.5 GiB ", 1_610_612_736),
        ("0.1kB", 100),
        ("7", 7),
        ("7B", 7),
        ("1TB", 10**12),
        ("1PiB", 2**50),
        (4096, 4096),
        (np.int64(5), 5),
    ],
)
def test_sizes(value, expected):
    """Powers of 1000 and of 1024 are told apart."""
    assert parse_size(value) == expected
    assert type(parse_size(value)) is int


@pytest.mark.parametrize(
    "value", ["2G", "2X", "", "GB", "-1", "1e9", "1_000", 0, -5, "0", "0.1B", True, 1.0, None, [1], 2**63]
)
def test_what_is_no_size(value):
    """Ambiguous, negative, empty and other values are refused by value."""
    with pytest.raises(ValueError, match=r"size|unit"):
        parse_size(value)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (67_108_864, "64.0 MiB"),
        (2**30 - 1, "1.0 GiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_human_bytes(size, expected):
    """A size is shown with one decimal in the unit that fits."""
    assert human_bytes(size) == expected
