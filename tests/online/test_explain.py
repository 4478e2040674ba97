"""What `explain` says, against the learners' own plans."""

import time
import tracemalloc

import numpy as np
import pytest

import tritonsnap as ts
from tritonsnap.online.dynamics import immediate_pattern
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


def test_known_sparsity() -> None:
    """The percentages of zeros that Menick et al. report, recurrent weights only."""
    sizes = {"inputs": 1, "hidden": 256, "density": 0.0625, "input_density": 1e-9}
    found = [ts.explain(ts.RNN(**sizes, seed=seed), (1, 2, 3)).rows[:3] for seed in range(6)]
    zeros = np.mean([[100 * (1 - row.density) for row in rows] for rows in found], axis=0)
    assert zeros == pytest.approx([99.6, 93.4, 34.5], abs=0.6)


def test_a_huge_case_is_explained_at_once() -> None:
    cell = ts.RNN(inputs=64, hidden=4096)
    begun = time.process_time()
    found = ts.explain(cell, batch=8)
    assert time.process_time() - begun < 2
    tracemalloc.start()
    assert str(ts.explain(cell, batch=8)) == str(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
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
    with pytest.raises(TypeError, match="`cell` must be a Cell"):
        ts.explain("gru")
    with pytest.raises(TypeError, match="`steps`"):
        ts.explain(CELLS[0], steps=1.5)
