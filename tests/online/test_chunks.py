"""Chunked time gives what step by step gives."""

from dataclasses import replace

import numpy as np
import pytest
from networks import autodiff, largest_difference, problem

from tritonsnap import BPTT, GRU, LRU, LSTM, RFLO, RNN, RTRL, LeakyRNN, SnAp, SparsityPattern
from tritonsnap.arrays import namespace, to_numpy
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.online.unroll import Unroll
from tritonsnap.plan.blocks import Regime

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

SIZES = {
    "dense": {"inputs": 3, "hidden": 6},
    "sparse": {"inputs": 4, "hidden": 9, "density": 0.25, "input_density": 0.5, "seed": 1},
    "thin": {"inputs": 2, "hidden": 24, "density": 0.07, "seed": 2},
}
CELLS = [
    pytest.param(kind(**sizes), id=f"{kind.__name__}-{name}")
    for kind in (RNN, GRU)
    for name, sizes in SIZES.items()
]
ORDERS = [1, 2, 3, None]
STEPS = 7


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def run(given, learner, chunk, carry=None):
    """Loss, gradients and carry with a number of steps, or a chunking made beforehand."""
    if not isinstance(chunk, Chunking):
        return given.run(learner, carry, chunk=chunk)
    learner.chunking = lambda *_: chunk
    try:
        return given.run(learner, carry)
    finally:
        del learner.chunking


def check_equal(found, expected) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert largest_difference(found[1], expected[1]) < 1e-12
    assert int(found[2].step) == int(expected[2].step)
    arrays = [(found[2].state, expected[2].state)]
    arrays += zip(found[2].influence, expected[2].influence, strict=True)
    for one, other in arrays:
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_chunk_is_its_steps(cell, order) -> None:
    given, learner = problem(cell, "numpy", STEPS), SnAp(cell, order)
    _, _, carry = run(given, learner, 1)  # an influence that is not zero
    expected = run(given, learner, 1, carry)
    for chunk in (2, 3, STEPS, STEPS + 3):
        check_equal(run(given, learner, chunk, carry), expected)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("order", [1, 2, None])
def test_a_chunk_is_its_steps_in_torch(cell, order) -> None:
    given, learner = problem(cell, "torch", STEPS), SnAp(cell, order)
    _, _, carry = run(given, learner, 1)
    kept = [value.clone() for value in carry.influence]
    expected = run(given, learner, 1, carry)
    check_equal(run(given, learner, 3, carry), expected)
    assert all(torch.equal(one, other) for one, other in zip(kept, carry.influence, strict=True))


@pytest.mark.parametrize(
    ("kind", "name", "order"),
    [(GRU, "dense", None), (GRU, "sparse", 1), (RNN, "sparse", 2)],
)
def test_a_chunk_is_its_steps_in_jax(kind, name, order) -> None:
    cell = kind(**SIZES[name])
    given, learner = problem(cell, "jax", STEPS), SnAp(cell, order)
    _, _, carry = run(given, learner, 1)
    check_equal(run(given, learner, 3, carry), run(given, learner, 1, carry))


@pytest.mark.parametrize("like", ["torch", "jax"])
def test_chunked_rtrl_is_autodiff(like: str) -> None:
    cell = GRU(**SIZES["sparse"])
    given = problem(cell, like, 12)
    loss, gradients, state = autodiff(given)
    found_loss, found, carry = run(given, RTRL(cell), 5)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found, gradients) < 1e-12
    np.testing.assert_allclose(to_numpy(carry.state), state, rtol=1e-12)


@pytest.mark.parametrize("kind", [RNN, GRU])
@pytest.mark.parametrize("regime", [Regime.WALK, Regime.DENSE])
def test_both_regimes_of_an_adjoint_and_of_an_influence(kind, regime) -> None:
    cell = kind(**SIZES["sparse"])
    given = problem(cell, "numpy", STEPS)
    for stepped in (Regime.WALK, Regime.DENSE):
        learner = SnAp(cell, 2)
        packing = learner.plan.packing("numpy", stepped)
        learner.__dict__["structure"] = replace(
            learner.structure, plan=learner.plan.with_packing(packing)
        )
        chosen = dict.fromkeys(range(len(packing.blocks)), regime)
        chunking = Chunking.build(3, learner.structure, learner.dynamics, packing, chosen)
        _, _, carry = run(given, learner, 1)
        check_equal(run(given, learner, chunking, carry), run(given, learner, 1, carry))


@pytest.mark.parametrize("steps", [3, 4, 5, 12])
def test_rows_that_lead_nowhere_fade_out(steps) -> None:
    cell = RNN(inputs=3, hidden=40, density=0.08, seed=1)
    given, learner = problem(cell, "numpy", 13), SnAp(cell, 2)
    packing = learner.plan.packing_for(given.xs)
    chosen = dict.fromkeys(range(len(packing.blocks)), Regime.DENSE)
    chunking = Chunking.build(steps, learner.structure, learner.dynamics, packing, chosen)
    assert any(g.way.lasting < g.shape[1] and g.way.fading == 4 for g in chunking.groups)
    _, _, carry = run(given, learner, 1)
    check_equal(run(given, learner, chunking, carry), run(given, learner, 1, carry))


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_some_blocks_are_chunked_and_the_others_stepped(like) -> None:
    cell = GRU(inputs=2, hidden=12, density=0.06, seed=3)
    given, learner = problem(cell, like, STEPS), SnAp(cell, 2)
    packing = learner.plan.packing_for(given.xs)
    whole = learner.chunking(3, given.xs)
    assert whole.elementwise
    assert whole.groups
    for blocks in (whole.elementwise, whole.merged):
        chosen = {one.number: packing.blocks[one.number].regime for one in blocks}
        part = Chunking.build(3, learner.structure, learner.dynamics, packing, chosen)
        assert part.stepped is not None
        check_equal(run(given, learner, part), run(given, learner, 1))


@pytest.mark.parametrize(
    ("like", "order"), [("numpy", 1), ("numpy", None), ("torch", None), ("jax", 1)]
)
def test_a_nan_ends_with_the_reset_of_its_row(order, like: str) -> None:
    cell = GRU(**SIZES["sparse"])
    given, learner = problem(cell, like, 6, resets=False), SnAp(cell, order)
    xp = namespace(like)
    bad = to_numpy(given.xs).copy()
    bad[1, 2] = np.nan
    resets = np.zeros((6, 3), bool)
    resets[[0, 3], 2] = True
    given.resets = xp.asarray(resets)
    clean = run(given, learner, 1)[2]
    given.xs = xp.asarray(bad)
    carry = learner.init(3, like=like, dtype="float64")
    poison = xp.asarray(np.array([1.0, 1.0, np.nan]))
    carry = carry._replace(
        influence=tuple(b + 0 * poison.reshape(3, *(1,) * (b.ndim - 1)) for b in carry.influence)
    )
    with np.errstate(invalid="ignore"):
        found = run(given, learner, 6, carry)[2]
    for one, other in zip(found.influence, clean.influence, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-12, atol=1e-14)
    given.xs = xp.asarray(np.nan_to_num(bad))
    gradients = run(given, learner, 6, carry)[1]  # reset before its first step
    assert all(np.isfinite(value).all() for value in gradients.values())


@pytest.mark.parametrize(
    "learner",
    [
        SnAp(LSTM(inputs=3, hidden=8, density=0.3, seed=1), 1),
        RTRL(LSTM(inputs=3, hidden=6)),
        SnAp(LRU(inputs=3, hidden=6), 1),
        RFLO(LSTM(inputs=3, hidden=6)),
        SnAp(LeakyRNN(inputs=3, hidden=8, density=0.3, seed=1), 1),
        SnAp(LeakyRNN(inputs=3, hidden=8, density=0.3, seed=1, learn_leak=True), 2),
    ],
    ids=repr,
)
def test_a_chunk_is_its_steps_for_other_cells(learner) -> None:
    given = problem(learner.cell, "numpy", STEPS)
    given.readout = given.loss.init(learner.cell.rows, 1, dtype="float64")
    _, _, carry = run(given, learner, 1)
    check_equal(run(given, learner, 3, carry), run(given, learner, 1, carry))


@pytest.mark.parametrize("missing", [0, 3, 4])
@pytest.mark.parametrize("order", [1, 2])
def test_any_unit_may_lack_a_path_to_itself(order: int, missing: int) -> None:
    weights = np.eye(5, dtype=bool)
    weights[missing, missing] = False
    weights[0, 1] = True
    pattern = SparsityPattern.from_dense(weights)
    cell = RNN(inputs=2, hidden=5, patterns={"recurrent": pattern})
    given, learner = problem(cell, "numpy", STEPS), SnAp(cell, order)
    check_equal(run(given, learner, 3), run(given, learner, 1))


def test_no_mask_and_no_resets() -> None:
    cell = RNN(**SIZES["sparse"])
    given, learner = problem(cell, "numpy", STEPS), SnAp(cell, 2)
    given.mask = given.resets = None
    check_equal(run(given, learner, 4), run(given, learner, 1))


def test_a_chunking_keeps_its_indices_out_of_the_program() -> None:
    from tritonsnap.online.jax_sequence import _run

    cell = RNN(inputs=2, hidden=64, density=0.1, seed=1)
    given, learner = problem(cell, "jax", 4), SnAp(cell, 2)
    chunking = learner.chunking(2, given.xs)
    carry = learner.init(3, like="jax", dtype="float64")
    unroll = Unroll(given.params, carry, *given.sequence, given.readout)
    lowered = _run.lower(learner, chunking, unroll.arrays, given.loss)
    constants = [line for line in lowered.as_text().splitlines() if "stablehlo.constant" in line]
    assert constants
    assert max(map(len, constants)) < 200


def test_a_chunking_is_an_operand_of_a_program_around_a_sequence() -> None:
    cell = RNN(inputs=2, hidden=64, density=0.1, seed=1)
    given, learner = problem(cell, "jax", 4), SnAp(cell, 2)
    xs = given.xs
    ys = jax.numpy.ones((4, 3, 64))

    def loss(state, y):
        return ((state - y) ** 2).sum(-1)

    @jax.jit
    def run_all(learner, chunking, params, carry, xs, ys):
        return learner.sequence(params, carry, xs, ys, loss, chunk=chunking)

    carry = learner.init(3, like="jax", dtype="float64")
    arguments = (learner, learner.chunking(2, xs), given.params, carry, xs, ys)
    constants = [
        line for line in run_all.lower(*arguments).as_text().splitlines() if ".constant" in line
    ]
    assert constants
    assert max(map(len, constants)) < 200
    expected = learner.sequence(given.params, carry, xs, ys, loss, chunk=1)
    assert largest_difference(run_all(*arguments)[1], expected[1]) < 1e-12


def test_wrong_chunks() -> None:
    cell = RNN(**SIZES["dense"])
    given = problem(cell, "numpy", 3)
    for make, chunk, error in (
        (SnAp, 0, ValueError),
        (SnAp, -2, ValueError),
        (SnAp, 1.5, TypeError),
        (SnAp, True, TypeError),
        (SnAp, "all", TypeError),
        (BPTT, 2, ValueError),
    ):
        with pytest.raises(error, match="`chunk`"):
            given.run(make(cell), chunk=chunk)
    learner, other = SnAp(cell, 1), SnAp(RNN(**SIZES["thin"]), 1)
    chunking = learner.chunking(2, given.xs)
    check_equal(given.run(learner, chunk=chunking), given.run(learner, chunk=None))
    with pytest.raises(ValueError, match="`chunk` must be a chunking of SnAp"):
        given.run(learner, chunk=other.chunking(2, given.xs))
