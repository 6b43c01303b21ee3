"""Which rank this process is: `RankInfo`, and the check that every open makes of a rank and a world size."""

import operator
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from o41td.errors import ConfigError

__all__ = ["ANY_WORLD", "RankInfo", "check_rank"]

ANY_WORLD = 1 << 31
"""The world size of whoever does not know it yet."""

_DIGITS = re.compile(r"[0-9]{1,9}", re.ASCII)
_TASKS_PER_NODE = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?", re.ASCII)


def check_rank(rank: object, world_size: object) -> tuple[int, int]:
    """Checks a rank and a world size.

    Args:
        rank: 0 to world_size - 1.
        world_size: 1 or more.

    Returns:
        Both as plain ints. NumPy's integers are taken; bools, floats and text are refused.

    Raises:
        ConfigError: One of them is not allowed; the error names it and its value.
    """
    problems = []
    size = _integer_of(world_size)
    if size is None or size < 1:
        problems.append(("world_size", f"{world_size!r} is not allowed; give an integer of 1 or more"))
        size = None
    number = _integer_of(rank)
    if number is None or number < 0 or (size is not None and number >= size):
        allowed = "of 0 or more, below the world size"
        if size is not None and size < ANY_WORLD:
            allowed = f"from 0 to {size - 1} (world size {size})"
        wanted = "0, or a larger world size" if size == 1 else f"an integer {allowed}"
        problems.append(("rank", f"{rank!r} is not allowed; give {wanted}"))
    if problems or number is None or size is None:
        raise ConfigError("this rank does not make sense", problems=problems)
    return number, size


def _integer_of(value: object) -> int | None:
    """A plain int, or None for what is not an integer."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The place of a training process among all of its job.

    Attributes:
        rank: 0 to world_size - 1.
        world_size: The number of training processes.
        local_rank: The place on this host, where it is known.
        local_world_size: The number of training processes on this host, where it is known.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    local_world_size: int | None = None

    def __post_init__(self) -> None:
        rank, world_size = check_rank(self.rank, self.world_size)
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "world_size", world_size)
        for name, low, high in (
            ("local_world_size", 1, world_size),
            ("local_rank", 0, (self.local_world_size or world_size) - 1),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            number = _integer_of(value)
            if number is None or not low <= number <= high:
                problem = f"{value!r} is not allowed; give an integer from {low} to {high}"
                raise ConfigError("this rank does not make sense", problems=[(name, problem)])
            object.__setattr__(self, name, number)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Reads the variables that torchrun sets, else those of SLURM. Called only where the user asks for it.

        torchrun: RANK and WORLD_SIZE, with LOCAL_RANK and LOCAL_WORLD_SIZE where set. SLURM (`srun`): SLURM_PROCID and
        SLURM_NTASKS (or SLURM_STEP_NUM_TASKS), with SLURM_LOCALID and the entry of SLURM_TASKS_PER_NODE for
        SLURM_NODEID where set. torchrun's come first, since it may run inside `srun`.

        Args:
            env: The variables; None for this process's own.

        Raises:
            ConfigError: A variable is missing, empty or not a number; the error names it.
        """
        variables = os.environ if env is None else env
        if "RANK" in variables or "WORLD_SIZE" in variables:
            rank, world_size = _required(variables, "RANK"), _required(variables, "WORLD_SIZE")
            local_rank, local_world_size = _optional(variables, "LOCAL_RANK"), _optional(variables, "LOCAL_WORLD_SIZE")
            names = "RANK and WORLD_SIZE"
        elif "SLURM_PROCID" in variables:
            size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS"
            rank, world_size = _required(variables, "SLURM_PROCID"), _required(variables, size_name)
            local_rank, local_world_size = _optional(variables, "SLURM_LOCALID"), _slurm_tasks_here(variables)
            names = f"SLURM_PROCID and {size_name}"
        else:
            raise ConfigError(
                "neither torchrun's RANK and WORLD_SIZE nor SLURM's SLURM_PROCID and SLURM_NTASKS are set",
                where="environment",
                advice="Start the program with torchrun or srun, or pass rank and world_size",
            )
        try:
            return cls(rank, world_size, local_rank, local_world_size)
        except ConfigError as error:
            problems = error.problems
        raise ConfigError(f"{names} do not make sense", where="environment", problems=problems)


def _required(variables: Mapping[str, str], name: str) -> int:
    """The number in a variable that must be set."""
    value = variables.get(name)
    if value is None:
        raise ConfigError(
            f"the variable {name} is not set, though others of its launcher are",
            where="environment",
            advice=f"Set {name}, or pass rank and world_size",
        )
    if not _DIGITS.fullmatch(value.strip()):
        raise ConfigError(
            f"the variable {name} is {value!r}, which is not a number of 0 or more",
            where="environment",
            advice=f"Set {name} to an integer, or pass rank and world_size",
        )
    return int(value)


def _optional(variables: Mapping[str, str], name: str) -> int | None:
    """The number in a variable that may be left out."""
    return _required(variables, name) if name in variables else None


def _slurm_tasks_here(variables: Mapping[str, str]) -> int | None:
    """Tasks on this node out of `SLURM_STEP_TASKS_PER_NODE` or `SLURM_TASKS_PER_NODE`, written like `4(x2),3`."""
    text = variables.get("SLURM_STEP_TASKS_PER_NODE", variables.get("SLURM_TASKS_PER_NODE"))
    node = _optional(variables, "SLURM_NODEID")
    if text is None or node is None:
        return None
    last = 0
    for part in text.split(","):
        match = _TASKS_PER_NODE.fullmatch(part.strip())
        if match is None:
            return None
        last += int(match[2] or 1)
        if node < last:
            return int(match[1])
    return None
