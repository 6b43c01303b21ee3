"""What scripts/test installs beside its tools."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

LINES = [
    line
    for line in (Path(__file__).parents[2] / "scripts" / "frameworks.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("line", LINES)
def test_pytorch_comes_in_no_build_but_that_for_cpus(line: str) -> None:
    """A line with PyTorch, or with what brings it, names a version that the build with CUDA does not have."""
    names = [re.split(r"[=>]", word)[0] for word in line.split()]
    brings_it = "torch" in names
    for name in names:
        try:
            brings_it |= any(re.match(r"torch\b(?!.*extra ==)", needed) for needed in requires(name) or ())
        except PackageNotFoundError:
            continue  # it could not be had
    assert brings_it == bool(re.search(r"(^| )torch==[0-9.]+\+cpu( |$)", line))
