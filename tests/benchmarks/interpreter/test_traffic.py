import json

import pytest
import torch

from benchmarks.roofline import DEVICES, H200
from benchmarks.traffic.__main__ import main
from benchmarks.traffic.kernels import KERNELS, NAIVE
from benchmarks.traffic.model import Kernel, Run, measure_traffic
from benchmarks.traffic.problem import snap_problem
from tests.benchmarks.interpreter.toy_kernels import copy_kernel


def _copy(problem):
    nnz = problem.mask.nnz
    j = torch.zeros(problem.batch * nnz)
    grid = (-(-len(j) // 128),)

    def launch():
        copy_kernel[grid](torch.zeros_like(j), j, len(j), 1, BLOCK=128)

    return Run(launch, ("p_in", "p_out"), flops=3 * len(j))


COPY = Kernel("copy", _copy)


def test_a_copy_of_the_influence_is_the_unit():
    problem = snap_problem(hidden=64, density=0.1, batch=2)
    traffic = measure_traffic(COPY, problem)
    assert traffic.influence_bytes == traffic.influence.useful == traffic.total.useful
    assert traffic.l1_ratio == pytest.approx(1, abs=0.01)
    assert traffic.l2_ratio == pytest.approx(1, abs=0.01)
    assert traffic.flops == 3 * 2 * problem.mask.nnz
    assert traffic.intensity == pytest.approx(3 / 8, rel=0.01)
    assert traffic.seconds(H200) == traffic.l2_bytes / H200.bandwidth


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("density", [0.01, 0.1])
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
