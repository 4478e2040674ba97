"""Influences stored in 16 bits: within the error that rounding once a step allows."""

import numpy as np
import pytest
from networks import problem
from stacks import stack_problem

from tritonsnap import GRU, RFLO, RNN, RTRL, UORO, SnAp, Stack
from tritonsnap.arrays import namespace, to_numpy
from tritonsnap.online.trees import leaves_of

jax = pytest.importorskip("jax")
pytest.importorskip("torch")

ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}  # the spacing of subnormal numbers
CELL = RNN(inputs=2, hidden=6, density=0.5, seed=1)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def influence(learner, carry) -> np.ndarray:
    blocks = tuple(widened(block) for block in carry.influence)
    return learner.plan.mask.to_dense(to_numpy(learner.plan.unpack(blocks)))


def widened(block):
    xp = namespace({"ndarray": "numpy", "Tensor": "torch"}.get(type(block).__name__, "jax"))
    return xp.astype(block, xp.float64)


@pytest.mark.parametrize(
    ("like", "stored"),
    [
        ("numpy", "float16"),
        ("torch", "float16"),
        ("torch", "bfloat16"),
        ("jax", "bfloat16"),
    ],
)
@pytest.mark.parametrize("make", [SnAp, RTRL])
def test_the_error_is_that_of_one_rounding_a_step(make, like: str, stored: str) -> None:
    given = problem(CELL, like, steps=10)
    exact, rounded = make(CELL), make(CELL, influence_dtype=stored)
    carries = [learner.init(3, like=like, dtype="float64") for learner in (exact, rounded)]
    assert {str(block.dtype).removeprefix("torch.") for block in carries[1].influence} == {stored}
    (recurrent,) = CELL.recurrent_maps()
    kernel = to_numpy(recurrent.dense(given.params["recurrent"]))
    mask = exact.plan.mask.to_dense()
    step = jax.jit(SnAp.step) if like == "jax" else SnAp.step
    bound = np.zeros((3, *mask.shape))
    for t in range(10):
        reset = given.resets[t]
        carries = [
            step(learner, given.params, carry, given.xs[t], reset)[0]
            for learner, carry in zip((exact, rounded), carries, strict=True)
        ]
        j, found = (
            influence(learner, carry)
            for learner, carry in zip((exact, rounded), carries, strict=True)
        )
        slope = 1 - to_numpy(carries[0].state) ** 2
        d = np.abs(slope[:, :, None] * kernel.T)
        bound = np.where(to_numpy(reset)[:, None, None], 0, bound)
        through = mask * (d @ bound)  # E <= |D| E + u (|J| + |D| E) + half a subnormal spacing
        bound = through + ROUNDOFF[stored] * (np.abs(j) + through) + SMALLEST[stored] / 2
        assert np.all(np.abs(found - j) <= bound * (1 + 1e-9))
    error = np.abs(found - j)
    assert error.max() > 0.1 * ROUNDOFF[stored] * np.abs(j).max()  # it is stored in 16 bits indeed
    delta = namespace(like).ones_like(carries[0].state)
    gradients = (
        learner.gradient(carry, delta)
        for learner, carry in zip((exact, rounded), carries, strict=True)
    )
    one, other = (
        np.concatenate([linear.flat(to_numpy(found[linear.name])) for linear in CELL.maps])
        for found in gradients
    )
    assert np.all(np.abs(one - other) <= bound.sum(axis=(0, 1)) * (1 + 1e-9))


@pytest.mark.parametrize("make", [SnAp, RTRL, RFLO])
def test_a_sequence_keeps_the_stored_dtype_and_the_wide_gradient(make) -> None:
    given = problem(CELL, "numpy", steps=4)
    learner = make(CELL, influence_dtype="float16")
    loss, gradients, carry = given.run(learner)
    assert {block.dtype for block in carry.influence} == {np.dtype("float16")}
    assert {gradient.dtype for gradient in gradients.values()} == {np.dtype("float64")}
    exact = given.run(make(CELL))
    assert loss == exact[0]
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, exact[1][name], rtol=0.02, atol=0.02, err_msg=name)
    assert "influence_dtype='float16'" in repr(learner)


@pytest.mark.parametrize(("like", "stored"), [("numpy", "float16"), ("torch", "bfloat16")])
@pytest.mark.parametrize(
    "cell",
    [
        GRU(inputs=2, hidden=5, density=0.5, seed=1, reset="before"),
        Stack([CELL, RNN(inputs=6, hidden=4)]),
        Stack([CELL, RNN(inputs=6, hidden=4)], exact=True),
    ],
    ids=["unfactored", "layer by layer", "exact"],
)
def test_stacks_and_unfactored_cells_store_halves(cell, like: str, stored: str) -> None:
    given = (problem if isinstance(cell, GRU) else stack_problem)(cell, like, steps=6)
    exact = given.run(SnAp(cell, 2))
    loss, gradients, carry = given.run(SnAp(cell, 2, influence_dtype=stored))
    assert loss == exact[0]
    influence = carry.influence
    kept = influence if isinstance(cell, GRU) else (influence.own, influence.crossing)
    dtypes = {str(leaf.dtype).removeprefix("torch.") for leaf in leaves_of(kept)}
    assert dtypes == {stored}
    error = max(np.abs(value - exact[1][name]).max() for name, value in gradients.items())
    largest = max(np.abs(value).max() for value in exact[1].values())
    assert 0 < error < 20 * ROUNDOFF[stored] * largest


def test_what_is_stored_is_part_of_a_learner_in_a_compiled_function() -> None:
    init = jax.jit(lambda learner: learner.init(2, like="jax"))
    dtypes = [
        init(SnAp(network, 1, influence_dtype=stored)).influence
        for network in (CELL, Stack([CELL]))
        for stored in (None, "float16", "bfloat16")
    ]
    found = [str(leaves_of(getattr(one, "own", one))[0].dtype) for one in dtypes]
    assert found == 2 * ["float32", "float16", "bfloat16"]
    seeds = [init(UORO(CELL, seed)).influence.key.tolist() for seed in (1, 2, 1)]
    assert seeds[0] == seeds[2] != seeds[1]


def test_numpy_has_no_bfloat16() -> None:
    with pytest.raises(ValueError, match="`influence_dtype` 'bfloat16' needs torch or JAX"):
        SnAp(CELL, influence_dtype="bfloat16").init(1)
    with pytest.raises(ValueError, match="`influence_dtype` must be one of"):
        SnAp(CELL, influence_dtype="int8")
    with pytest.raises(ValueError, match="`influence_dtype` 'bfloat16' needs torch or JAX"):
        SnAp(Stack([CELL]), influence_dtype="bfloat16").init(1)
