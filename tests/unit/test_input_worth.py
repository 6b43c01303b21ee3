from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from o41td import Contribution, contribution, findings, plot_shares, shares
from o41td.batch import Batch
from o41td.errors import ConfigError

ROWS, BATCHES = 200, 20


def batches(num_batches: int = BATCHES) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Inputs a, b and c of unit variance; the target is 3a + b."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(num_batches):
        inputs = {name: rng.standard_normal(ROWS) for name in "abc"}
        found.append((inputs, 3 * inputs["a"] + inputs["b"]))
    return found


def model(inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The model that knows."""
    return 3 * inputs["a"] + inputs["b"]


def score(predictions: np.ndarray, target: np.ndarray) -> float:
    """The mean squared error, the other way up."""
    return -float(np.mean((predictions - target) ** 2))


def test_worth_is_what_theory_says() -> None:
    """Permuting an input of weight w and variance v costs 2·w²·v of squared error: 18 and 2 here, and 0 for c."""
    given = batches()
    variance = {name: np.mean([inputs[name].var() for inputs, _ in given]) for name in "ab"}
    found = contribution(model, given, score, repeats=5)
    assert found.score == 0.0
    assert found.num_rows == ROWS * BATCHES
    assert found.worth["a"] == pytest.approx(18 * variance["a"], rel=0.05)
    assert found.worth["b"] == pytest.approx(2 * variance["b"], rel=0.05)
    assert found.worth["c"] == 0.0
    assert shares(found)["a"] == pytest.approx(0.9, abs=0.01)
    assert [str(finding) for finding in findings(found, sole_above=0.85)] == ["SOLE_RELIANCE(a)", "IGNORED_INPUT(c)"]
    assert [str(finding) for finding in findings(found, sole_above=0.95)] == ["IGNORED_INPUT(c)"]


def test_inputs_named_together_are_permuted_together() -> None:
    """A model of a·b, where b is a's sign twice over, loses less where both move as one."""
    rng = np.random.default_rng(1)
    a = rng.choice([-1.0, 1.0], ROWS)
    given = [({"a": a, "b": a.copy(), "c": rng.standard_normal(ROWS)}, np.ones(ROWS))]
    found = contribution(lambda inputs: inputs["a"] * inputs["b"], given, score, over=["a", ("a", "b")])
    assert list(found.drops) == ["a", "a + b"]
    assert found.worth["a"] > 1.0
    assert found.worth["a + b"] == 0.0


def test_the_same_seed_gives_the_same_and_nothing_is_changed() -> None:
    """Permutations follow from the seed alone, and the batches' own arrays stay as they were."""
    given = batches(2)
    before = [{name: values.copy() for name, values in inputs.items()} for inputs, _ in given]
    first, again = contribution(model, given, score, seed=3), contribution(model, iter(given), score, seed=3)
    assert all((first.drops[name] == again.drops[name]).all() for name in "abc")
    assert (contribution(model, given, score, seed=4).drops["a"] != first.drops["a"]).any()
    assert all(
        (inputs[name] == was[name]).all() for (inputs, _), was in zip(given, before, strict=True) for name in "abc"
    )


def test_batches_of_a_stream_name_their_target() -> None:
    """A field of the batch is the target, and all others are inputs."""
    made = [
        Batch(
            arrays={**inputs, "y": target},
            num_rows=ROWS,
            stage=0,
            number=number,
            batch_index=number,
            locate=lambda _stage, _number: np.empty(0),
            key_of=lambda _stage, _number: "",
        )
        for number, (inputs, target) in enumerate(batches(3))
    ]
    found = contribution(model, made, score, target="y")
    assert list(found.drops) == ["a", "b", "c"]
    assert (found.drops["a"] == contribution(model, batches(3), score).drops["a"]).all()
    for target, told in ((None, "need `target`"), ("z", "'z' is no field")):
        with pytest.raises(ConfigError, match=told):
            contribution(model, made, score, target=target)


@pytest.mark.parametrize(
    ("given", "keys", "told"),
    [
        ([], {}, "no batches"),
        ([({"a": np.ones(1), "b": np.ones(1)}, np.ones(1))], {}, "one row"),
        (batches(1), {"over": ["d"]}, "'d' is no input"),
        (batches(1), {"over": []}, "no input"),
        (batches(1), {"repeats": 0}, "`repeats`"),
    ],
)
def test_what_cannot_be_asked_is_refused(given, keys, told: str) -> None:
    """No batches, batches of one row, and names that are no inputs are told at once."""
    with pytest.raises(ConfigError, match=told):
        contribution(model, given, score, **keys)


def test_shares_leave_out_what_does_harm() -> None:
    """An input without which the model does better has no share; where none is worth anything, all have none."""
    drops = {"a": np.array([3.0, 5.0]), "b": np.array([-1.0, -1.0]), "c": np.array([1.0, 1.0])}
    assert shares(Contribution(score=0.0, drops=drops, num_rows=1)) == {"a": 0.8, "b": 0.0, "c": 0.2}
    nothing = Contribution(score=0.0, drops={"a": np.zeros(1)}, num_rows=1)
    assert shares(nothing) == {"a": 0.0}
    assert [str(finding) for finding in findings(nothing)] == ["IGNORED_INPUT(a)"]


def test_shares_are_drawn(tmp_path: Path) -> None:
    """A picture comes to be, and a folder that is not there is an error of ours."""
    pytest.importorskip("matplotlib")
    found = contribution(model, batches(1), score)
    plot_shares(found, tmp_path / "shares.png")
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="cannot be written"):
        plot_shares(found, tmp_path / "nowhere" / "shares.png")
