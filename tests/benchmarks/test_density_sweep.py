"""The density sweep and the benchmark of one product, small."""

import json

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("torch")

from benchmarks import density_sweep, masked_dsmm, report


def test_every_variant_is_checked_and_compared_with_ours():
    rows = density_sweep.run(24, 2, 1, 2, (0.05, 1.0))
    assert {row.variant for row in rows} >= {density_sweep.OURS, density_sweep.DENSE}
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)
    assert density_sweep.plot(rows) is not None


def test_it_writes_one_report_and_a_plot(tmp_path):
    options = ["--hidden", "16", "--densities", "0.1", "1", "--repeats", "2"]
    assert density_sweep.main([*options, "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.rglob("*.json")
    written = json.loads(path.read_text())
    assert written["schema"] == report.SCHEMA
    assert {"device", "python", "numpy", "torch", "triton", "date"} <= written["header"].keys()
    assert path == report.results_path(
        "density_sweep", written["header"]["device"], ".json", tmp_path
    )
    for row in written["rows"]:
        assert row["unit"] == "s"
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
    assert {row["parameters"]["density"] for row in written["rows"]} == {0.1, 1}
    assert path.with_suffix(".png").stat().st_size > 1000


def test_a_wrong_result_is_found():
    plan = masked_dsmm.recurrent_plan(16, 0.2, 2)
    d = np.ones((1, 16, 16), np.float32)
    x = np.ones((1, plan.x.nnz), np.float32)
    reference = density_sweep._reference(plan, d, x)
    with pytest.raises(AssertionError, match="ours is wrong by"):
        density_sweep._check("ours", x + 100, reference, plan)


def test_the_loop_over_nonzeros_computes_the_product():
    plan = masked_dsmm.recurrent_plan(16, 0.2, 3)
    rng = np.random.default_rng(0)
    d = plan.dynamics.to_dense(rng.normal(size=plan.dynamics.nnz).astype(np.float32))
    x = rng.normal(size=plan.x.nnz).astype(np.float32)
    found = masked_dsmm._seed_product(plan, d, x, np.empty_like(x))
    np.testing.assert_allclose(found, plan.mask.values_of(d @ plan.x.to_dense(x)), rtol=1e-4)
