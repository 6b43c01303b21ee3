"""Ranks: what is refused, and what the launchers' variables mean."""

import numpy as np
import pytest

from o41td.errors import ConfigError
from o41td.rank_info import RankInfo, check_rank


@pytest.mark.parametrize(
    ("rank", "world_size", "blamed", "shown"),
    [
        (-1, 4, "rank", "-1"),
        (4, 4, "rank", "4"),
        (True, 4, "rank", "True"),
        (1.0, 4, "rank", "1.0"),
        ("0", 4, "rank", "'0'"),
        (None, 4, "rank", "None"),
        (0, 0, "world_size", "0"),
        (0, -2, "world_size", "-2"),
        (0, True, "world_size", "True"),
        (0, 2.0, "world_size", "2.0"),
        (0, "1", "world_size", "'1'"),
    ],
)
def test_a_bad_rank_is_refused_by_name_and_value(rank, world_size, blamed, shown):
    """The error names the argument to blame and only that."""
    with pytest.raises(ConfigError) as caught:
        check_rank(rank, world_size)
    ((path, text),) = caught.value.problems
    assert path == blamed
    assert text.startswith(f"{shown} is not allowed")


def test_numpy_integers_become_ints():
    """Any integer type is taken, and comes back plain."""
    checked = check_rank(np.int64(2), np.uint8(3))
    assert checked == (2, 3)
    assert [type(number) for number in checked] == [int, int]


@pytest.mark.parametrize(
    ("local_rank", "local_world_size"), [(-1, None), (4, None), (2, 2), (0, 0), (0, 5), (True, 2), ("0", 1)]
)
def test_a_bad_local_rank_is_refused(local_rank, local_world_size):
    """Local figures have to fit the global ones."""
    with pytest.raises(ConfigError, match="local_"):
        RankInfo(0, 4, local_rank, local_world_size)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, RankInfo(3, 8)),
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "SLURM_PROCID": "0"},
            RankInfo(3, 8, 1, 2),
        ),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "11"}, RankInfo(5, 11)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "40", "SLURM_STEP_NUM_TASKS": "11"}, RankInfo(5, 11)),
        (
            # nodes 0 and 1 have 4 tasks each, node 2 has 3: task 9 is the second of node 2
            {
                "SLURM_PROCID": "9",
                "SLURM_NTASKS": "11",
                "SLURM_LOCALID": "1",
                "SLURM_NODEID": "2",
                "SLURM_TASKS_PER_NODE": "4(x2),3",
            },
            RankInfo(9, 11, 1, 3),
        ),
    ],
)
def test_launchers_variables(env, expected):
    """The variables of torchrun come first, then SLURM's."""
    assert RankInfo.from_env(env) == expected


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({}, "torchrun"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK is ''"),
        ({"RANK": "x1", "WORLD_SIZE": "2"}, "RANK is 'x1'"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1'"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "world_size"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK and WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": ""}, "LOCAL_RANK is ''"),
        ({"SLURM_PROCID": "", "SLURM_NTASKS": "2"}, "SLURM_PROCID is ''"),
        ({"SLURM_PROCID": "1"}, "SLURM_NTASKS is not set"),
    ],
)
def test_bad_variables_are_named(env, named):
    """A missing, empty or senseless variable is refused by its name."""
    with pytest.raises(ConfigError) as caught:
        RankInfo.from_env(env)
    assert named in str(caught.value)


def test_the_process_own_variables_are_the_default(monkeypatch):
    """Without an argument, the environment is read."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert RankInfo.from_env() == RankInfo(1, 2)
