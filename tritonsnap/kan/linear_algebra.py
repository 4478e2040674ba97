"""The linear system of a block, and how many threads BLAS may take: faster where libraries are."""

from __future__ import annotations

import functools
import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np


def solve_positive(xp: Any, system: Any, right: Any) -> Any:
    """Solve a symmetric positive definite system [n, n] for right-hand sides [n, columns].

    In NumPy by Cholesky's method, in half the work, where SciPy is installed; as `xp` does
    otherwise, and where rounding has left the system indefinite.
    """
    lapack = _import_optional("scipy.linalg.lapack") if xp is np else None
    if lapack is not None:
        solve = lapack.sposv if system.dtype == np.float32 else lapack.dposv
        # the transpose is the same matrix, in the order of axes that LAPACK takes
        _, solution, failed = solve(system.T, right)
        if not failed:
            return solution
    return xp.linalg.solve(system, right)


def one_blas_thread() -> AbstractContextManager[Any]:
    """Hold BLAS to the threads that call it, where threadpoolctl is installed.

    The products of a block are too small to gain from more, and on a busy machine BLAS threads
    wait for each other.
    """
    controller = _blas_controller()
    return nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")


@functools.cache
def _blas_controller() -> Any:
    threadpoolctl = _import_optional("threadpoolctl")
    if threadpoolctl is None:
        return None
    _import_optional("scipy.linalg.lapack")  # which brings a BLAS of its own
    return threadpoolctl.ThreadpoolController()


@functools.cache
def _import_optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None
