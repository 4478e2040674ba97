"""UORO and RFLO: their papers' recursions, and how they relate to RTRL and SnAp-1."""

from dataclasses import dataclass

import numpy as np
import pytest
from networks import as_numpy, largest_difference, problem
from test_function_cells import written_out

from tritonsnap import GRU, LRU, LSTM, RFLO, RNN, RTRL, UORO, SnAp, SparsityPattern, Stack
from tritonsnap.arrays import LIBRARIES, namespace, to_numpy
from tritonsnap.online.signs import make_key, random_signs, threefry

jax = pytest.importorskip("jax")
pytest.importorskip("torch")

LEAK = 0.3
SMALL = GRU(inputs=2, hidden=5, density=0.5, seed=3)


@dataclass(frozen=True)
class Leaky(RNN):
    """Murray's network: ``h' = h + a (tanh(x W + h U + b) - h)``."""

    def activate(self, xp, a, state):
        return {"hidden": (1 - LEAK) * state["hidden"] + LEAK * xp.tanh(a["preactivation"])}

    def partials(self, xp, a, state, new):
        slope = 1 - xp.tanh(a["preactivation"]) ** 2
        kept = (1 - LEAK) * xp.ones_like(slope)
        return {"preactivation": {"hidden": LEAK * slope}}, {("hidden", "hidden"): kept}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # the known answers of the Random123 library
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers(key, counter, words, like: str) -> None:
    xp = namespace(like)
    dtype = xp.int64 if like == "torch" else xp.uint32
    with jax.enable_x64(False):
        counters = tuple(xp.asarray([word], dtype=dtype) for word in counter)
        found = threefry(xp.asarray(key, dtype=dtype), counters)
    assert [int(word[0]) for word in found] == list(words)


def test_signs_are_the_same_in_every_library_and_new_at_every_step() -> None:
    drawn = []
    for like, double in (*((like, True) for like in LIBRARIES), ("jax", False)):
        xp = namespace(like)
        with jax.enable_x64(double):
            key = make_key(np.array([5, 2**32 - 9], np.uint32), like)
            steps = [xp.asarray(step, dtype=xp.int32) for step in (0, 1)]
            drawn.append([to_numpy(random_signs(key, t, (7, 100), xp.float32)) for t in steps])
    for other in drawn[1:]:
        np.testing.assert_array_equal(other, drawn[0])
    first, second = drawn[0]
    assert set(np.unique(first)) == {-1, 1}
    assert abs(first.mean()) < 4 / np.sqrt(700)
    assert abs((first * second).mean()) < 4 / np.sqrt(700)


def spread(cell, learners) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the learners' gradients and the standard error of it, over all parameters."""
    given = problem(cell, "numpy", steps=5, batch=1, resets=False)
    given.mask[:] = 1
    for name in ("xs", "ys", "mask", "resets"):  # every row draws its own signs
        setattr(given, name, np.repeat(getattr(given, name), 500, axis=1))
    rows = []
    for learner in learners:
        gradients = given.run(learner)[1]
        rows.append(np.concatenate([gradients[n].ravel() / 500 for n in given.params]))
    error = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else 0
    return np.mean(rows, axis=0), error


BEFORE = GRU(inputs=2, hidden=4, density=0.5, seed=3, reset="before")


@pytest.mark.parametrize(
    "cell", [SMALL, LSTM(inputs=2, hidden=4), Leaky(inputs=2, hidden=5), BEFORE]
)
def test_uoro_is_unbiased(cell) -> None:
    mean, error = spread(cell, [UORO(cell, seed) for seed in range(60)])
    exact, _ = spread(cell, [RTRL(cell)])
    assert (np.abs(mean - exact) / error).max() < 5  # over some hundred parameters
    truncated, _ = spread(cell, [SnAp(cell, 1)])  # a biased gradient does not pass
    assert (np.abs(truncated - exact) / error).max() > 10


def test_uoro_is_the_same_in_every_library() -> None:
    results = [problem(SMALL, like, steps=6).run(UORO(SMALL, 4)) for like in LIBRARIES]
    for loss, gradients, carry in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-12)
        assert largest_difference(gradients, results[0][1]) < 1e-10
        np.testing.assert_array_equal(to_numpy(carry.influence.key), results[0][2].influence.key)


@pytest.mark.parametrize(
    ("cell", "like"), [(SMALL, "torch"), (SMALL, "jax"), (BEFORE, "torch"), (BEFORE, "numpy")]
)
def test_uoro_of_values_is_that_of_the_same_equations(cell, like: str) -> None:
    """Of a function as of the cell that it writes out, and of the original gated unit."""
    loss, gradients, carry = problem(cell, like, steps=6).run(UORO(cell, 4))
    library = "torch" if like == "numpy" else like
    found = problem(cell, library, steps=6).run(UORO(written_out(cell, library), 4))
    assert found[0] == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found[1], gradients) < 1e-10
    np.testing.assert_allclose(
        to_numpy(found[2].influence.of_state), to_numpy(carry.influence.of_state), rtol=1e-10
    )


@pytest.mark.parametrize("like", LIBRARIES)
def test_the_seed_decides_every_bit(like: str) -> None:
    given = problem(SMALL, like, steps=4)
    one, two, other = (given.run(UORO(SMALL, seed))[1] for seed in (4, 4, 5))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.allclose(one["recurrent_reset"], other["recurrent_reset"])


def test_a_jax_key_is_a_seed() -> None:
    keys = [UORO(SMALL, jax.random.key(n)).init(1, "jax").influence.key for n in (1, 1, 2)]
    assert keys[0].shape == (2,)
    assert bool((keys[0] == keys[1]).all())
    assert not bool((keys[0] == keys[2]).all())
    with pytest.raises(ValueError, match="`seed`"):
        UORO(SMALL, -1)
    with pytest.raises(TypeError, match="`seed`"):
        UORO(SMALL, "one")


@pytest.mark.parametrize("like", LIBRARIES)
def test_rflo_is_murrays_recursion(like: str) -> None:
    cell = Leaky(inputs=3, hidden=6, density=0.5, seed=1)
    given = problem(cell, like, steps=9)
    _, found, carry = given.run(RFLO(cell))
    p = {name: to_numpy(value) for name, value in given.params.items()}
    readout = {name: to_numpy(value) for name, value in given.readout.items()}
    (recurrent,) = cell.recurrent_maps()
    dense = np.zeros((6, 6))
    dense[recurrent.rows, recurrent.units] = p["recurrent"]
    expected = {name: np.zeros_like(value) for name, value in p.items()}
    for row in range(3):
        h = np.zeros(6)
        of_input, of_state, of_bias = np.zeros((3, 6)), np.zeros((6, 6)), np.zeros(6)
        for t in range(9):
            if to_numpy(given.resets)[t, row]:
                h, of_input, of_state, of_bias = (0 * a for a in (h, of_input, of_state, of_bias))
            x, y = to_numpy(given.xs)[t, row], int(given.ys[t, row])
            u = x @ p["input"] + h @ dense + p["bias"]
            slope = LEAK * (1 - np.tanh(u) ** 2)
            of_input = (1 - LEAK) * of_input + np.outer(x, slope)
            of_state = (1 - LEAK) * of_state + np.outer(h, slope)
            of_bias = (1 - LEAK) * of_bias + slope
            h = (1 - LEAK) * h + LEAK * np.tanh(u)
            logits = h @ readout["kernel"] + readout["bias"]
            error = np.exp(logits) / np.exp(logits).sum() - (np.arange(4) == y)
            delta = readout["kernel"] @ error * float(given.mask[t, row])
            expected["input"] += of_input * delta
            expected["recurrent"] += (of_state * delta)[recurrent.rows, recurrent.units]
            expected["bias"] += of_bias * delta
        np.testing.assert_allclose(to_numpy(carry.state)[row], h, rtol=1e-12)
    assert largest_difference({name: found[name] for name in expected}, expected) < 1e-12


@pytest.mark.parametrize("kind", [RNN, Leaky, GRU])
def test_rflo_is_snap_1_where_no_unit_feeds_itself(kind) -> None:
    names = [m.name for m in kind(inputs=2, hidden=7).recurrent_maps()]
    open_loops = SparsityPattern.from_dense(~np.eye(7, dtype=bool))
    cell = kind(inputs=2, hidden=7, patterns=dict.fromkeys(names, open_loops))
    given = problem(cell, "numpy", steps=8)
    found, expected = (given.run(learner)[1] for learner in (RFLO(cell), SnAp(cell, 1)))
    assert largest_difference(found, expected) < 1e-13
    closed = kind(inputs=2, hidden=7)
    given = problem(closed, "numpy", steps=8)
    found, expected = (given.run(learner)[1] for learner in (RFLO(closed), SnAp(closed, 1)))
    assert largest_difference(found, expected) > 1e-3


def test_rflo_is_exact_where_no_unit_hears_another() -> None:
    cell = LRU(inputs=3, hidden=6)
    given = problem(cell, "numpy", steps=8)
    found, expected = (given.run(learner)[1] for learner in (RFLO(cell), RTRL(cell)))
    assert largest_difference(found, expected) < 1e-13


@pytest.mark.parametrize("like", LIBRARIES)
def test_without_direct_paths_rflo_forgets_at_once(like: str) -> None:
    cell, xp = RNN(inputs=2, hidden=5), namespace(like)
    given, learner = problem(cell, like, steps=3, resets=False), RFLO(cell)
    carry = learner.init(3, like=like, dtype="float64")
    for x in given.xs:
        before, (carry, state) = carry.state, learner.step(given.params, carry, x)
    found = as_numpy(learner.gradient(carry, xp.ones_like(state)))
    slope = 1 - to_numpy(state) ** 2
    np.testing.assert_allclose(found["recurrent"], to_numpy(before).T @ slope, rtol=1e-12)
    np.testing.assert_allclose(found["bias"], slope.sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("rule", [RFLO, UORO])
def test_rules_for_cells_only_say_so(rule) -> None:
    stack = Stack([RNN(inputs=2, hidden=3), RNN(inputs=3, hidden=3)])
    with pytest.raises(TypeError, match=f"got Stack: {rule.__name__} has no form for it, as SnAp"):
        rule(stack)


def test_rules_that_need_factors_say_so_at_once() -> None:
    with pytest.raises(TypeError, match="`cell` must be in factored form for RFLO"):
        RFLO(GRU(inputs=2, hidden=3, reset="before"))
