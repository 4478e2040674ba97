"""A user's own cell: the one of docs/own-cell.md, whose code is run here."""

import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from networks import EQUATIONS, autodiff, largest_difference, off_diagonal_stopped, problem

from tritonsnap import BPTT, RNN, RTRL, Cell, SnAp

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
pytest.importorskip("asdex")

PAGE = Path(__file__).parents[2] / "docs" / "own-cell.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
NAMES: dict = {"__name__": "own_cell"}
for block in BLOCKS:  # one after the other, as a reader would run them
    exec(compile(block, str(PAGE), "exec"), NAMES)
Derived, ByHand = NAMES["MinimalGatedUnit"], NAMES["FasterUnit"]


def equations(h, inputs, recurrent, params, xp):
    forget = 1 / (
        1 + xp.exp(-inputs("input_forget") - recurrent("recurrent_forget") - params["bias_forget"])
    )
    past = forget * recurrent("recurrent_candidate")
    candidate = xp.tanh(inputs("input_candidate") + params["bias_candidate"] + past)
    return (1 - forget) * h + forget * candidate


EQUATIONS.update({Derived: equations, ByHand: equations})
KINDS = [(Derived, "torch"), (Derived, "jax"), (ByHand, "numpy"), (ByHand, "torch")]
kinds = pytest.mark.parametrize(("kind", "like"), KINDS)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def test_it_takes_about_twenty_lines() -> None:
    (definition,) = (text for text in BLOCKS if "class MinimalGatedUnit" in text)
    body = definition[definition.index("@dataclass") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20


@kinds
@pytest.mark.parametrize("density", [1.0, 0.3])
def test_it_learns_what_autodiff_says(kind, like: str, density: float) -> None:
    cell = kind(inputs=3, hidden=12, density=density, seed=1)
    given = problem(cell, like, steps=20)
    loss, gradients, _ = autodiff(problem(cell, "torch", steps=20) if like == "numpy" else given)
    for learner in (RTRL(cell), BPTT(cell)):
        found_loss, found, _ = given.run(learner)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert largest_difference(found, gradients) < 1e-10


@kinds
def test_its_snap_1_is_bptt_without_the_paths_between_units(kind, like: str) -> None:
    cell = kind(inputs=3, hidden=12)
    given = problem(cell, like, steps=20)
    source = problem(cell, "torch", steps=20) if like == "numpy" else given
    gradients = autodiff(source, off_diagonal_stopped)[1]
    assert largest_difference(given.run(SnAp(cell, 1))[1], gradients) < 1e-12


@pytest.mark.parametrize("like", ["torch", "jax"])
def test_derived_partials_of_several_parts(like: str) -> None:
    from tritonsnap import LSTM

    class Plain(LSTM):
        partials = Cell.partials

    cell = Plain(inputs=3, hidden=6, density=0.5)
    given = problem(LSTM(inputs=3, hidden=6, density=0.5), like, steps=8)
    expected = given.run(RTRL(given.cell))[1]
    given.cell = cell
    assert largest_difference(given.run(RTRL(cell))[1], expected) < 1e-12
    assert largest_difference(given.run(BPTT(cell))[1], expected) < 1e-12


def test_numpy_says_what_to_add() -> None:
    cell = Derived(inputs=3, hidden=4)
    carry = SnAp(cell).init(2)
    with pytest.raises(TypeError, match=r"NumPy cannot differentiate `MinimalGatedUnit\.activate`"):
        SnAp(cell).step(cell.init(0), carry, np.ones((2, 3), np.float32))
    cell.step(cell.init(0), carry.state, np.ones((2, 3), np.float32))  # the forward pass it can


class _Unfinished(Cell):
    targets: ClassVar = ("one", "two")
    given: ClassVar = ()

    def make_maps(self):
        return [self.weight(*arguments) for arguments in self.given]

    def activate(self, xp, a, state):
        return {"hidden": a["one"]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("w", "input", "one")], r"make_maps` feeds nothing to the targets \['two'\]"),
        ([("w", "input", "one"), ("w", "input", "two")], r"gives a name twice: \['w', 'w'\]"),
        ([("w", "cell", "one")], r"the source of 'w' must be one of \('input', 'hidden', 'one'\)"),
        ([("w", "input", "three")], r"the target of 'w' must be one of \('one', 'two'\), got"),
    ],
)
def test_maps_that_do_not_fit(given, message: str) -> None:
    kind = type("Unfinished", (_Unfinished,), {"given": given})
    with pytest.raises(ValueError, match=message):
        kind(inputs=2, hidden=3)


class Mixing(RNN):
    """Not elementwise: the softmax of all units."""

    def activate(self, xp, a, state):
        weights = xp.exp(a["preactivation"])
        return {"hidden": weights / weights.sum(axis=-1)[..., None]}


class Nameless(RNN):
    """Returns a part that the state has not."""

    def activate(self, xp, a, state):
        return {"cell": a["preactivation"]}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Mixing, r"`Mixing.activate` must be elementwise: a unit of 'hidden' depends on another"),
        (Nameless, r"`Nameless.activate` must return a dict of the parts \('hidden',\), got \["),
    ],
)
def test_what_is_not_elementwise_is_refused(kind, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(inputs=2, hidden=3)
