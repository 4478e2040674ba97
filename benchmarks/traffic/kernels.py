"""The kernels whose traffic is counted. To add one: a function from `Problem` to `Run`."""

from __future__ import annotations

import torch

from benchmarks.naive import NaiveDsmm
from benchmarks.traffic.model import Kernel, Run
from benchmarks.traffic.problem import Problem


def _naive(problem: Problem) -> Run:
    naive = NaiveDsmm(problem.mask, problem.mask)
    d = torch.zeros(problem.batch, *problem.dynamics.shape)
    j = torch.zeros(problem.batch, problem.mask.nnz)
    return Run(lambda: naive(d, j), ("p_x", "p_out"), naive.flops * problem.batch)


NAIVE = Kernel("naive", _naive)

KERNELS = (NAIVE,)
