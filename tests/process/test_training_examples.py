"""The examples that train by PyTorch, JAX and scikit-learn, and the hooks of what builds on PyTorch."""

from __future__ import annotations

import faulthandler
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from forked_runs import Program, forked_runs

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
HOOKS = {
    "hook_accelerate": ["accelerate"],
    "hook_lightning": ["lightning"],
    "hook_torchtitan": ["torchtitan"],
    "hook_trainer": ["accelerate", "transformers"],
}
"""What each needs beside PyTorch."""
TOLD = {
    "hook_accelerate": ["[0.0, 10.0, 20.0]", "[30.0, 40.0, 50.0]", "[30.0, 40.0, 50.0]"],
    "hook_lightning": ["5 5 True"],
    "hook_torchtitan": [f"[{row[:-1]}] [{row[1:]}]" for row in ([10 * row + n for n in range(5)] for row in range(5))],
    "hook_trainer": ["5 5 True"],
}
"""What each prints at last."""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--run-path", "--start-method", "fork", "--nproc-per-node"]

Ended = subprocess.CompletedProcess[str]


def need(*libraries: str) -> None:
    """Skip the test where one of the libraries is not installed; none is imported here.

    The hang guard is put off: importing such a library takes seconds of CPU, and the runs have a limit of their own.
    """
    for library in libraries:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    faulthandler.cancel_dump_traceback_later()


def example(name: str, *arguments: str, **environment: str) -> Program:
    """An example with its arguments."""
    return Program([str(EXAMPLES / f"{name}.py"), *arguments], environment)


def losses_of(done: Ended, word: str = "step") -> dict[int, float]:
    """The losses that an example printed, by step or batch."""
    return {int(step): float(loss) for step, loss in re.findall(rf"{word} +(\d+)  loss ([\d.]+)", done.stdout)}


@pytest.fixture(scope="module")
def torch_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Runs of the examples with PyTorch: as forks of one process that has imported it, torchrun's ranks too."""
    need("torch")
    elastic = str(EXAMPLES / "train_elastic.py")
    programs = {
        "first": example("train_torch", "data"),
        "second": example("train_torch", "data"),
        "alone": example("train_elastic", "."),
        "of four one dies": Program([*TORCHRUN, "4", elastic, ".", "--die-at", "13"]),
        "two resume": Program([*TORCHRUN, "2", elastic, ".", "--resume"]),
    } | {name: example(name) for name, needed in HOOKS.items() if all(map(find_spec, needed))}
    imports = ["torch._dynamo", "torch.distributed.launcher", "pyarrow.parquet", "o41td.opening", "o41td.stream"]
    return dict(zip(programs, forked_runs(imports, list(programs.values()), tmp_path_factory.mktemp("torch"))))


def test_training_goes_on_in_a_new_process(torch_runs: dict[str, Ended]) -> None:
    """Two calls of 20 steps go through batches 0 to 39, and the loss falls on."""
    calls = [torch_runs["first"], torch_runs["second"]]
    assert [(done.returncode, done.stderr) for done in calls] == [(0, "")] * 2
    first, second = (losses_of(done, "batch") for done in calls)
    assert (list(first), list(second)) == ([0, 5, 10, 15], [20, 25, 30, 35])
    assert second[20] < first[15] < first[0]
    assert second[35] < second[20]


def test_ranks_train_alike_across_a_crash_and_a_change_of_their_number(torch_runs: dict[str, Ended]) -> None:
    """Four ranks, of which one is killed, and then two that resume have the losses of one rank alone, step for step."""
    one, four, two = (torch_runs[name] for name in ("alone", "of four one dies", "two resume"))
    assert (one.returncode, one.stderr, two.returncode) == (0, "", 0), two.stderr
    # torchrun tells of the rank that it finds gone first: of the killed one, or of one that missed it.
    assert four.returncode == 1
    alone, begun, resumed = map(losses_of, (one, four, two))
    assert list(alone) == list(range(20))
    assert set(range(12)) <= set(begun) <= set(range(13))
    assert list(resumed) == list(range(10, 20))
    for losses in (begun, resumed):
        assert losses == pytest.approx({step: alone[step] for step in losses}, abs=2e-5)


@pytest.mark.parametrize("name", HOOKS)
def test_a_framework_saves_and_resumes_a_stream(name: str, torch_runs: dict[str, Ended]) -> None:
    """A framework's own saving and resuming keeps the stream's place, in mid-pass, to the batch."""
    need(*HOOKS[name])
    lines = TOLD[name]
    assert torch_runs[name].stdout.splitlines()[-len(lines) :] == lines, torch_runs[name].stderr


def test_jax_trains_alike_on_any_number_of_devices(tmp_path: Path) -> None:
    """The loss falls a hundredfold and more, to the same values on one device and on four."""
    need("jax")
    on_devices = [
        example("train_jax", JAX_PLATFORMS="cpu", XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}")
        for devices in (1, 4)
    ]
    for done in forked_runs(["jax.numpy", "pyarrow.parquet", "o41td"], on_devices, tmp_path):
        losses = losses_of(done, "batch")
        assert list(losses) == [4, 9, 14, 19], done.stderr
        assert list(losses.values()) == pytest.approx([3.4497, 0.2713, 0.0317, 0.0039], rel=0.02)


def test_scikit_learn_learns_from_batches(tmp_path: Path) -> None:
    """Each of three passes is told, and the last leaves few rows of another file wrong."""
    need("sklearn")
    (done,) = forked_runs([], [example("partial_fit")], tmp_path)
    told = re.findall(r"after batch (\d+): ([\d.]+)% right", done.stdout)
    assert ([int(batch) for batch, _right in told], done.stderr) == ([20, 40, 60], "")
    assert float(told[-1][1]) > 95
