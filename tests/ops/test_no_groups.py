"""Plans without a single group: every op gives zeros of the operands' batch axes and dtype."""

from typing import Any

import numpy as np
import pytest

from tritonsnap.arrays import import_library
from tritonsnap.ops.influence_gradient import influence_gradient
from tritonsnap.ops.influence_update import influence_update
from tritonsnap.ops.masked_dsmm import masked_dsmm
from tritonsnap.ops.masked_outer import masked_outer
from tritonsnap.plan import DsmmPlan
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.sparsity import Compression, Projection, SparsityPattern

LIBRARIES = ["numpy", "torch", "jax"]
NONE, FULL = SparsityPattern.from_coo([], [], (5, 7)), SparsityPattern.full((5, 7))
PLANS = {
    "no values": DsmmPlan(NONE, NONE),
    "nothing written": DsmmPlan(FULL, NONE),
    "no columns": DsmmPlan(*[SparsityPattern.from_coo([], [], (5, 0))] * 2),
}


@pytest.fixture(params=LIBRARIES)
def ones(request: pytest.FixtureRequest) -> Any:
    """Makes an array of ones of a shape and a dtype."""
    if request.param == "numpy":
        return lambda *shape, dtype="float32": np.ones(shape, dtype)
    pytest.importorskip(request.param)
    library = import_library(request.param)
    if request.param == "torch":
        return lambda *shape, dtype="float32": library.ones(shape, dtype=getattr(library, dtype))
    return lambda *shape, dtype="float32": library.numpy.ones(shape, dtype)


def expect(found: Any, *shape: int, dtype: str = "float32") -> None:
    assert tuple(found.shape) == shape
    assert str(found.dtype).removeprefix("torch.") == dtype
    assert not np.asarray(found).any()


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("left", "right"), [((3,), ()), ((), (3,)), ((3, 1), (2,)), ((0,), (1,))])
def test_batch_axes_broadcast(ones: Any, name: str, left: tuple, right: tuple) -> None:
    plan = PLANS[name]
    batch = np.broadcast_shapes(left, right)
    nnz, columns = plan.mask.nnz, plan.mask.shape[1]
    x, r, delta = ones(*right, plan.x.nnz), ones(*right, nnz), ones(*left, 5)
    for d in (ones(*left, 5, 5), ones(*left, plan.dynamics.nnz)):
        expect(masked_dsmm(d, x, plan), *batch, nnz)
        expect(masked_dsmm(d, x, plan, row_scale=ones(4, 1, 1, 5)), 4, *scaled(batch), nnz)
        expect(influence_update(d, x, ones(nnz), plan), *batch, nnz)
    expect(masked_outer(ones(*left, nnz), x, plan), *batch, plan.dynamics.nnz)
    dense = masked_outer(ones(*left, nnz), x, plan, form="dense")
    expect(dense, *batch, 5, 5)
    expect(influence_gradient(delta, r, plan), *batch, columns)
    expect(influence_gradient(delta, r, plan, sum_batch=True), columns)


def scaled(batch: tuple[int, ...]) -> tuple[int, ...]:
    """Two batch axes beside a row scale's own."""
    return (1,) * (2 - len(batch)) + batch


def test_an_immediate_jacobian_has_batch_axes_too(ones: Any) -> None:
    plan = PLANS["nothing written"]
    units = np.zeros(7, int)
    factors = FactorStructure(plan, units, units, units, 5, 1, 3)
    colored = CompressedStructure(plan, Projection.of(Compression.of(NONE, mode="row")))
    d, j = ones(5, 5), ones(plan.x.nnz)
    for immediate in (
        Factors(ones(3, 1, 1, 5), ones(2, 3), factors),
        Compressed(ones(3, 2, 0, 7), colored),
    ):
        expect(influence_update(d, j, immediate, plan), 3, 2, 0)


def test_the_dtype_is_that_of_all_operands(ones: Any) -> None:
    plan, wide = PLANS["no values"], "float32"
    d, j, delta = ones(5, 5), ones(0, dtype="float16"), ones(5)
    expect(masked_dsmm(d, j, plan), 0, dtype=wide)
    expect(influence_update(d, j, j, plan), 0, dtype=wide)
    expect(influence_gradient(delta, j, plan), 7, dtype=wide)
    expect(influence_gradient(delta, j, plan, sum_batch=True), 7, dtype=wide)
    expect(masked_outer(ones(0), j, plan), 0, dtype=wide)


def test_unpack_of_no_blocks_takes_what_it_is_to_be_like(ones: Any) -> None:
    plan = PLANS["no values"]
    with pytest.raises(ValueError, match="`like` must be given to unpack no blocks"):
        plan.unpack(())
    expect(plan.unpack((), like=ones(3, 5)), 3, 0)
    assert influence_gradient(ones(3, 5), (), plan).shape == (3, 7)
    assert masked_dsmm(ones(3, 5, 5), (), plan) == ()
