"""What `o41td serve` is asked for: which ranks, under which name."""

from __future__ import annotations

import pytest

from o41td import BatchStreamConfig, ConfigError
from o41td.job import FREE_TO_CHANGE, PARTS_OF_THE_STREAM
from o41td.serving import served_ranks_of


@pytest.mark.parametrize(
    ("text", "world_size", "ranks", "size"),
    [
        ("1", None, (0,), 1),
        ("8", None, tuple(range(8)), 8),
        ("8", 8, tuple(range(8)), 8),
        ("8-15", 16, tuple(range(8, 16)), 16),
        ("3-3", 4, (3,), 4),
    ],
)
def test_ranks_are_a_number_or_a_range(text, world_size, ranks, size):
    """A number is all ranks of so many; a range is some of the world's."""
    assert served_ranks_of(text, world_size) == (ranks, size)


@pytest.mark.parametrize(
    ("text", "world_size"),
    [
        ("0", None),
        ("", None),
        ("-1", None),
        ("8", 16),
        ("8-15", None),
        ("8-15", 15),
        ("9-8", 16),
        ("1,2", 4),
        ("²", 4),
        ("0-0", 0),
        ("0", 0),
    ],
)
def test_senseless_ranks_are_refused(text, world_size):
    """None, backwards, beyond the world, of an unknown world, or no number: ConfigError."""
    with pytest.raises(ConfigError, match=r"(world_size|ranks|rank)`: "):
        served_ranks_of(text, world_size)


def test_every_setting_either_makes_the_stream_or_is_free_to_change():
    """A server that comes back may differ in the one kind, not in the other; no key of the config is in neither."""
    stream, free = {*PARTS_OF_THE_STREAM, "stages", "fields", "exclude"}, {*FREE_TO_CHANGE} - {"cluster"}
    assert stream | free == set(BatchStreamConfig.model_fields)
    assert not stream & free
