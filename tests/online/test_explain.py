"""What `explain` says, against the learners' own plans."""

import time
import tracemalloc

import numpy as np
import pytest

import tritonsnap as ts
from tritonsnap.online.dynamics import immediate_pattern
from tritonsnap.online.trees import leaves_of
from tritonsnap.plan.calibration import CONSTANTS, calibrated_target, write_costs
from tritonsnap.plan.cost import TARGETS

CELLS = [
    ts.RNN(inputs=3, hidden=40, density=0.1, input_density=0.5, seed=1),
    ts.GRU(inputs=5, hidden=32, density=0.05, seed=2),
    ts.GRU(inputs=2, hidden=12),
    ts.LSTM(inputs=3, hidden=20, density=0.1),
    ts.LRU(inputs=3, hidden=10),
]


@pytest.mark.parametrize("library", ["numpy", "jax"])
@pytest.mark.parametrize("cell", CELLS)
def test_it_agrees_with_the_plans(cell, library: str) -> None:
    found = ts.explain(cell, batch=3, steps=10, library=library)
    assert [row.name for row in found.rows] == ["SnAp-1", "SnAp-2", "SnAp-3", "RTRL", "BPTT(10)"]
    assert found.colors == ts.color_rows(immediate_pattern(cell)).num_colors == len(cell.parts)
    for row, order in zip(found.rows, (1, 2, 3, None), strict=False):
        plan = ts.SnAp(cell, order).plan
        packing = plan.packing(found.target)
        assert row.order == order
        assert row.nonzeros == plan.mask.nnz
        assert row.density == pytest.approx(plan.mask.density)
        assert row.groups == len(plan.groups)
        assert row.largest_support == plan.groups.mask_sizes.max()
        names, counts = np.unique([str(regime) for regime in packing.regimes], return_counts=True)
        assert row.regimes == dict(zip(names, counts, strict=True))
        assert row.bytes == 3 * 4 * plan.mask.nnz
        if found.target == plan.packing().target.name:  # the FLOPs of a plan are those of NumPy
            kernels = sum(m.shape[0] * m.shape[1] for m in cell.maps)
            others = 2 * plan.mask.nnz + 2 * cell.num_parameters + 2 * kernels
            assert row.flops == 3 * (plan.flops + others)
        least = 3 * (packing.predicted_seconds - 1e-9 * 8 * TARGETS[found.target].block)
        assert row.seconds > least
        assert row.total_seconds == pytest.approx(10 * row.seconds)


def test_it_says_what_the_automatic_choice_takes() -> None:
    cell = ts.RNN(inputs=8, hidden=64, density=0.1, seed=1)
    found = ts.explain(cell, batch=8, steps=192, library="jax")
    for row, order in zip(found.rows, (1, 2, 3, None), strict=False):
        chunking = ts.SnAp(cell, order).chunkings.find("auto", "xla", 192, 8)
        assert row.chunk == (1 if chunking is None else chunking.steps)
        if row.chunk == 1:
            assert row.total_seconds == pytest.approx(192 * row.seconds)
        else:
            assert row.total_seconds < 192 * row.seconds
    assert found.rows[3].chunk > 1
    assert found.rows[-1].chunk is None
    assert "chunk" in str(found).splitlines()[1]


def test_it_says_what_the_automatic_choice_takes_for_a_stack() -> None:
    stack = ts.Stack([ts.GRU(inputs=8, hidden=64), ts.GRU(inputs=64, hidden=64)])
    row = ts.explain(stack, (1,), batch=8, steps=192, library="jax").rows[0]
    chunking = ts.SnAp(stack, 1).chunkings.find("auto", "xla", 192, 8)
    assert row.chunk == chunking.steps > 1
    assert row.total_seconds < 192 * row.seconds


STACK = [
    ts.GRU(inputs=3, hidden=8, density=0.2, seed=1),
    ts.Linear(8, 5),
    ts.LayerNorm(5),
    ts.Skip("input"),
    ts.LSTM(inputs=8, hidden=6, density=0.3, seed=2),
    ts.Linear(6, 4, density=0.5),
]


@pytest.mark.parametrize("order", [1, 2, None])
@pytest.mark.parametrize("exact", [False, True])
def test_a_stack_is_the_sum_of_its_plans(exact: bool, order: int | None) -> None:
    stack = ts.Stack(STACK, exact=exact)
    found = ts.explain(stack, (order,), batch=3, steps=20, library="numpy")
    learner = ts.SnAp(stack, order)
    plans = [one.plan for one in learner.learners if one is not None]
    plans += [plan for plan in learner.crossing_plans if plan is not None]
    products = [plan for one in learner.crossings if one is not None for plan in one.products]
    row, bptt = found.rows
    assert row.nonzeros == sum(plan.mask.nnz for plan in plans)
    assert row.density == row.nonzeros / (stack.memory * stack.num_parameters)
    assert row.groups == sum(len(plan.groups) for plan in plans)
    carry = learner.init(3)
    blocks = leaves_of((carry.influence.own, carry.influence.crossing))
    assert row.bytes == sum(plan.mask.nnz for plan in plans) * 3 * 4
    assert row.bytes <= sum(block.nbytes for block in blocks) < 1.5 * row.bytes  # with padding
    names = [str(regime) for plan in plans for regime in plan.regime]
    assert row.regimes == {name: names.count(name) for name in set(names)}
    least = sum(plan.flops for plan in (*plans, *products)) + 2 * row.nonzeros
    assert 3 * least < row.flops < 3 * (least + 20 * stack.num_parameters)
    if exact:
        assert (row.chunk, row.total_seconds) == (1, 20 * row.seconds)
    else:
        chunking = learner.chunkings.find("auto", found.target, 20, 3)
        assert row.chunk == (1 if chunking is None else chunking.steps)
    assert bptt.bytes > 20 * 3 * 4 * stack.rows
    columns = sum(len(c.targets) * c.hidden for c in (STACK[0], STACK[4])) + 5 + 5 + 4
    assert found.masks[row.name].shape == (stack.memory, columns)
    assert str(found).startswith("Stack of GRU(8), Linear(5), LayerNorm(5), Skip('input'), LSTM(6)")


def test_an_exact_stack_costs_more_than_its_layers() -> None:
    local, exact = (ts.explain(ts.Stack(STACK, exact=e), (1,)).rows[0] for e in (False, True))
    assert local.seconds < exact.seconds
    assert local.flops < exact.flops


@pytest.mark.parametrize("density", [1.0, 0.2])
def test_the_reset_gate_before_the_product(density: float) -> None:
    cell = ts.GRU(inputs=3, hidden=12, density=density, seed=1, reset="before")
    found = ts.explain(cell, (1, 2, None), batch=2, library="numpy")
    for row, order in zip(found.rows, (1, 2, None), strict=False):
        plan = ts.SnAp(cell, order).plan
        assert (row.nonzeros, row.groups) == (plan.mask.nnz, len(plan.groups))
        products = plan.flops + 2 * plan.mask.nnz
        assert row.flops > 2 * (products + 2 * 12**3)  # a product of two kernels a row
        chunking = ts.SnAp(cell, order).chunkings.find("auto", found.target, 48, 2)
        assert row.chunk == (1 if chunking is None else chunking.steps)
        by_steps = 48 * row.seconds
        assert row.total_seconds < by_steps if chunking else row.total_seconds == by_steps
    assert found.rows[2].chunk > 1
    assert found.passes == 0
    assert found.colors == ts.color_rows(cell.immediate_pattern).num_colors


def function_of_torch() -> ts.FunctionCell:
    torch = pytest.importorskip("torch")
    module = torch.nn.RNNCell(3, 10)

    def step(params, state, x):
        return torch.func.functional_call(module, params, (x, state))

    return ts.FunctionCell(step, dict(module.named_parameters()), inputs=3, hidden=10)


def function_of_jax() -> ts.FunctionCell:
    jax = pytest.importorskip("jax")
    pytest.importorskip("asdex")

    def step(params, state, x):
        return jax.numpy.tanh(x @ params["input"] + state @ params["recurrent"])

    ones = jax.numpy.ones
    params = {"input": ones((3, 10)), "recurrent": ones((10, 10))}
    return ts.FunctionCell(step, params, inputs=3, hidden=10)


@pytest.mark.parametrize("make", [function_of_torch, function_of_jax])
def test_any_function(make) -> None:
    cell = make()
    found = ts.explain(cell, (1, None), batch=2)
    assert found.library == cell.library
    assert found.passes == cell.projection().num_passes > 0
    forward = 2 * 10 * (3 + 10)  # what the framework counts of products, and little else
    assert forward <= 2 * cell.work.step <= 1.2 * forward
    for row, order in zip(found.rows, (1, None), strict=False):
        plan = ts.SnAp(cell, order).plan
        assert row.nonzeros == plan.mask.nnz
        assert row.flops > 2 * (plan.flops + 2 * found.passes * forward)
    assert f"a step takes {found.passes} derivative passes" in str(found)
    other = {"torch": "jax", "jax": "torch"}[cell.library]
    with pytest.raises(ValueError, match=f"`library` must be '{cell.library}'"):
        ts.explain(cell, library=other)


def test_costs_measured_here_decide_the_times_but_not_the_regimes(tmp_path, monkeypatch) -> None:
    cell = ts.RNN(inputs=3, hidden=40, density=0.1, seed=1)
    monkeypatch.setenv("TRITONSNAP_CONFIG_DIR", str(tmp_path))
    calibrated_target.cache_clear()
    try:
        shipped = ts.explain(cell, (2,), library="numpy")
        write_costs({shipped.target: dict.fromkeys(CONSTANTS, 1e6)})
        here = ts.explain(cell, (2,), library="numpy")
    finally:
        calibrated_target.cache_clear()
    assert here.rows[0].regimes == shipped.rows[0].regimes
    for one, other in zip(here.rows, shipped.rows, strict=True):
        assert one.seconds > 2 * other.seconds


def test_known_sparsity() -> None:
    """The percentages of zeros that Menick et al. report, recurrent weights only."""
    sizes = {"inputs": 1, "hidden": 256, "density": 0.0625, "input_density": 1e-9}
    found = [ts.explain(ts.RNN(**sizes, seed=seed), (1, 2, 3)).rows[:3] for seed in range(6)]
    zeros = np.mean([[100 * (1 - row.density) for row in rows] for rows in found], axis=0)
    assert zeros == pytest.approx([99.6, 93.4, 34.5], abs=0.6)


def explained_at_once(cell) -> ts.Explanation:
    """In seconds and little memory, whatever the network."""
    begun = time.process_time()
    found = ts.explain(cell, batch=8)
    assert time.process_time() - begun < 2
    tracemalloc.start()
    assert str(ts.explain(cell, batch=8)) == str(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
    return found


def test_a_large_stack_is_explained_at_once() -> None:
    layers = [ts.RNN(inputs=64, hidden=256), ts.RNN(inputs=256, hidden=256)]
    found = explained_at_once(ts.Stack(layers, exact=True))
    lower, upper = (layer.num_parameters for layer in layers)
    assert found.rows[3].nonzeros == 256 * (2 * lower + upper)
    assert found.rows[3].bytes > 2e9


def test_a_huge_case_is_explained_at_once() -> None:
    found = explained_at_once(ts.RNN(inputs=64, hidden=4096))
    exact = found.rows[3]
    assert exact.nonzeros == 4096 * 4096 * (4096 + 64 + 1)
    assert exact.bytes > 2e12


def test_the_table_and_the_picture(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    found = ts.explain(ts.GRU(inputs=2, hidden=600, density=0.01), (1, 2), batch=2, library="numpy")
    lines = str(found).splitlines()
    assert lines[0].startswith("GRU of 600 units and 2 inputs, density 0.01")
    assert [line.split()[0] for line in lines[2:]] == ["SnAp-1", "SnAp-2", "BPTT(48)"]
    assert "2,400 elementwise" in lines[2]
    path = found.plot(tmp_path / "masks.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "`batch`"),
        ({"steps": -1}, "`steps`"),
        ({"orders": (0,)}, "`order`"),
        ({"library": "cupy"}, "`library`"),
    ],
)
def test_bad_arguments_are_named(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ts.explain(CELLS[0], **arguments)
    with pytest.raises(TypeError, match="`cell` must be a Cell, a FunctionCell or a Stack"):
        ts.explain("gru")
    with pytest.raises(TypeError, match="`steps`"):
        ts.explain(CELLS[0], steps=1.5)
