"""Faults on order: real ones, in real processes; nothing of o41td is replaced.

A `FaultyHost` puts `fault_code` as `sitecustomize` in front of every Python process that is started from then on; what
can be ordered, and where, is said there.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

_CODE = Path(__file__).with_name("fault_code.py")


def installed_code(folder: Path) -> Path:
    """Puts the faults' code into a folder, for the hosts of any number of tests."""
    shutil.copy(_CODE, folder / "sitecustomize.py")
    return folder


@dataclass(frozen=True)
class FaultyHost:
    """Orders faults of the loader's processes, or of a training script."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyHost:
        """Put the faults' code, `installed_code`, where every Python process started from now on imports it."""
        folder.mkdir()
        inherited = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(code), *([inherited] if inherited else [])]))
        monkeypatch.setenv("O41TD_FAULTS", str(folder))
        return cls(folder)

    def watch_calls(self) -> None:
        """Let points be calls and returns of functions too, which slows each process down a little."""
        (self.folder / "profiled").touch()

    def set_clock(self, wrong_by_s: float) -> None:
        """Set the wall clock of all processes wrong by so much."""
        (self.folder / "clock").write_text(str(wrong_by_s))

    def order(self, point: str, act: str, *, times: int = 1_000_000, module: str = "o41td.workers") -> None:
        """From now on, processes of `module` that come to this point do `act`, so many times in all.

        `act` is a signal's name, "exit" (with code 0), "fail" (words and code 1), "raise", "memory" (an allocation that
        is refused), "sleep:SECONDS" or "write:HEX" (bytes to its socket).
        """
        self.cancel(point)
        partial = self.folder / f"{point}.partial"
        partial.write_text(f"{module} {act} {times}")
        partial.rename(self.folder / point)

    def cancel(self, point: str) -> None:
        """Nothing happens at this point any more, and nothing has."""
        (self.folder / point).unlink(missing_ok=True)
        (self.folder / f"{point}.done").unlink(missing_ok=True)

    def times_done(self, point: str) -> int:
        """How often a process came to the point of a fault."""
        done = self.folder / f"{point}.done"
        return done.stat().st_size if done.exists() else 0
