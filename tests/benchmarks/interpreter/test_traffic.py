import json

import numpy as np
import pytest
import torch

from benchmarks.roofline import DEVICES, H200
from benchmarks.traffic.__main__ import main
from benchmarks.traffic.kernels import (
    COO_TO_CSR,
    GATHER_COMPRESSED,
    INFLUENCE_GRADIENT,
    INFLUENCE_UPDATE,
    KERNELS,
    MASKED_DSMM,
    MASKED_OUTER,
    NAIVE,
    SNAP1_STEP,
)
from benchmarks.traffic.model import Kernel, Run, measure_traffic
from benchmarks.traffic.problem import Problem, snap_problem
from benchmarks.traffic.recorder import record
from tests.benchmarks.interpreter.toy_kernels import copy_kernel
from tritonsnap.plan import DsmmPlan
from tritonsnap.sparsity import SparsityPattern


def _copy(problem):
    nnz = problem.mask.nnz
    j = torch.zeros(problem.batch * nnz)
    grid = (-(-len(j) // 128),)

    def launch():
        copy_kernel[grid](torch.zeros_like(j), j, len(j), 1, BLOCK=128)

    return Run(launch, ("p_in", "p_out"), flops=3 * len(j))


COPY = Kernel("copy", _copy)


SAMPLED = (NAIVE, MASKED_DSMM, INFLUENCE_UPDATE, INFLUENCE_GRADIENT)


def test_a_copy_of_the_influence_is_the_unit():
    problem = snap_problem(hidden=64, density=0.1, batch=2)
    traffic = measure_traffic(COPY, problem)
    assert traffic.influence_bytes == traffic.influence.useful == traffic.total.useful
    assert traffic.l1_ratio == pytest.approx(1, abs=0.01)
    assert traffic.l2_ratio == pytest.approx(1, abs=0.01)
    assert traffic.flops == 3 * 2 * problem.mask.nnz
    assert traffic.intensity == pytest.approx(3 / 8, rel=0.01)
    assert traffic.seconds(H200) == traffic.l2_bytes / H200.bandwidth


@pytest.mark.parametrize("kernel", SAMPLED, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("density", [0.01, 0.03])
def test_a_sample_estimates_the_whole(kernel, density):
    whole = snap_problem(hidden=64, density=density, batch=2)
    part = snap_problem(
        hidden=64, density=density, batch=2, most_nonzeros=max(500, whole.mask.nnz // 2)
    )
    full = measure_traffic(kernel, whole)
    sampled = measure_traffic(kernel, part, programs=24)
    assert sampled.influence_bytes == pytest.approx(full.influence_bytes)
    for quantity in ("l1_bytes", "l2_bytes", "flops"):
        assert getattr(sampled, quantity) == pytest.approx(getattr(full, quantity), rel=0.1)
    assert sampled.influence.efficiency == pytest.approx(full.influence.efficiency, rel=0.05)


def test_the_naive_kernel_loads_every_index_and_every_pair():
    problem = snap_problem(hidden=48, density=0.1, batch=1)
    traffic = measure_traffic(NAIVE, problem)
    mask = problem.mask
    pairs = (mask.indptr[1:] - mask.indptr[:-1])[mask.cols].sum()
    # row, column and two pointers per nonzero; row, D and J per pair; the output
    assert traffic.total.requested == 4 * (4 * mask.nnz + 3 * pairs + mask.nnz)
    assert traffic.flops == 2 * pairs


def test_command_writes_one_report_with_ratios(tmp_path, capsys):
    options = ["--hidden", "32", "--densities", "0.05", "0.5", "--batches", "1"]
    main([*options, "--programs", "4", "--results", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split()[1:2] in (["0.05"], ["0.5"]) for line in lines) == 2 * len(KERNELS)
    report = json.loads((tmp_path / "triton-interpreter" / "traffic.json").read_text())
    naive = [row for row in report["rows"] if row["variant"] == "naive"]
    assert {row["parameters"]["density"] for row in naive} == {0.05, 0.5}
    assert all(row["ratio"] == 1 for row in naive)
    assert {f"roofline {gpu.name}" for gpu in DEVICES} <= {
        row["parameters"]["quantity"] for row in naive
    }


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("density", [1e-4, 0.003, 0.02])
@pytest.mark.parametrize(
    "kernel", [MASKED_DSMM, INFLUENCE_UPDATE, MASKED_OUTER], ids=lambda kernel: kernel.name
)
def test_moves_less_than_the_naive_kernel(kernel, density, batch):
    problem = snap_problem(hidden=1024, density=density, batch=batch)
    traffic = measure_traffic(kernel, problem, programs=24)
    naive = measure_traffic(NAIVE, problem, programs=24)
    assert traffic.influence.efficiency >= 0.8
    most = 0.5 if density >= 0.01 else 1
    assert traffic.l1_ratio <= most * naive.l1_ratio


@pytest.mark.parametrize("batch", [1, 8])
def test_a_fused_snap1_step_moves_the_influence_once(batch):
    problem = snap_problem(hidden=1024, density=1.0, batch=batch, order=1)
    traffic = measure_traffic(SNAP1_STEP, problem, programs=3)
    assert 32 * traffic.influence.sectors <= 1.01 * traffic.influence_bytes
    assert traffic.l2_ratio <= 1.05 + 1 / batch


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("density", [0.01, 0.03])
def test_a_fused_snap1_step_of_sparse_weights_moves_little_more_than_it_must(density, batch):
    problem = snap_problem(hidden=1024, density=density, batch=batch, order=1)
    traffic = measure_traffic(SNAP1_STEP, problem)
    assert 32 * traffic.influence.sectors <= 1.01 * traffic.influence_bytes
    weights_of_a_unit = problem.mask.nnz / 1024
    least = 1 + 1 / (2 * batch) + 3 / (8 * batch) + 2 / weights_of_a_unit  # docs/design.md
    assert least < traffic.l2_ratio <= 1.25 * least


@pytest.mark.parametrize("batch", [1, 8])
def test_an_elementwise_product_is_counted_with_what_it_writes(batch):
    problem = snap_problem(hidden=256, density=0.1, batch=batch, order=1)
    traffic = measure_traffic(MASKED_DSMM, problem)
    assert traffic.influence.useful == pytest.approx(traffic.influence_bytes, rel=0.01)


def test_a_gradient_reads_the_influence_once_and_a_gather_writes_it_once():
    problem = snap_problem(hidden=64, density=0.2, batch=2)
    for kernel in (INFLUENCE_GRADIENT, GATHER_COMPRESSED):
        traffic = measure_traffic(kernel, problem)
        assert 2 * traffic.influence.useful == problem.influence_bytes
        assert traffic.influence.efficiency > 0.9


def test_row_pointers_read_the_rows_once():
    problem = snap_problem(hidden=64, density=0.2, batch=1)
    traffic = measure_traffic(COO_TO_CSR, problem)
    assert traffic.influence.useful == 4 * problem.mask.nnz
    assert traffic.l2_ratio < 0.6


@pytest.mark.parametrize("batch", [1, 8])
def test_an_outer_product_of_snap1_moves_less_than_the_naive_kernel(batch):
    problem = snap_problem(hidden=256, density=0.1, batch=batch, order=1)
    traffic = measure_traffic(MASKED_OUTER, problem)
    assert traffic.influence.efficiency >= 0.9
    assert traffic.l1_ratio <= measure_traffic(NAIVE, problem).l1_ratio


def test_an_outer_product_reads_both_influences_once_for_each_tile_of_d():
    problem = snap_problem(hidden=128, density=1.0, batch=1, most_nonzeros=1 << 13)
    traffic = measure_traffic(MASKED_OUTER, problem)
    assert traffic.influence.useful == 2 * problem.influence_bytes  # D has two tiles each way
    # the rest is mostly the result: there are fewer columns than rows
    assert traffic.l1_ratio <= 2.7
    sparse = snap_problem(hidden=16, density=0.3, batch=1)
    assert measure_traffic(MASKED_OUTER, sparse).influence.useful >= sparse.influence_bytes


@pytest.mark.parametrize("gaps", [0, 1])
def test_an_outer_product_reads_which_entries_d_has_only_where_it_has_gaps(gaps):
    full = np.ones((128, 128), bool)
    mask = SparsityPattern.from_dense(full)
    full[3, 64 : 64 + gaps] = False
    problem = Problem(SparsityPattern.from_dense(full), mask, np.arange(128), batch=1, scale=1)
    with record() as launches:
        MASKED_OUTER.prepare(problem).launch()
    assert launches[0].total("kept").useful == 4 * 3 * 64 * gaps  # of one tile of four, if any


@pytest.mark.parametrize("density", [0.01, 0.03, 0.1])
def test_structure_costs_little(density):
    problem = snap_problem(hidden=1024, density=density, batch=8, most_nonzeros=1 << 19)
    plan = DsmmPlan(problem.mask, problem.mask, problem.dynamics)
    values = 4 * problem.batch * problem.mask.nnz
    assert plan.packing("triton").structure_bytes < 0.05 * values
