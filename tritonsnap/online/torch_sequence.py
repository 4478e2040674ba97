"""What `torch.compile` needs of a learner before it can follow its `sequence`."""

from __future__ import annotations

from typing import Any

import torch

from tritonsnap.online.learner import Learner


def make_ready(learner: Learner, chunk: Any, xs: Any) -> None:
    """Where a program is compiled, find what a first `sequence` finds."""
    if torch.compiler.is_compiling():
        _find_structure(learner, chunk, xs)


@torch.compiler.assume_constant_result
def _find_structure(learner: Learner, chunk: Any, xs: Any) -> bool:
    """Find it as plain Python: `torch.compile` would trace the NumPy code of a first use."""
    learner.prepare(learner.cell.init(0, like="torch"))
    return chunk is None or learner.chunking(chunk, xs) is None
