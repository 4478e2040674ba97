"""Train networks online, forward in time, with sparse Jacobians at kernel speed."""

import importlib
from typing import Any

from tritonsnap.online import (
    BPTT,
    GRU,
    LRU,
    LSTM,
    RFLO,
    RNN,
    RTRL,
    UORO,
    Carry,
    Cell,
    Explanation,
    FeedForward,
    FunctionCell,
    LayerNorm,
    LeakyRNN,
    Learner,
    Linear,
    Linearization,
    LinearMap,
    Readout,
    Skip,
    SnAp,
    Stack,
    explain,
)
from tritonsnap.ops import (
    coo_to_csr,
    gather_compressed,
    influence_gradient,
    influence_update,
    masked_dsmm,
    masked_outer,
    mix,
)
from tritonsnap.plan import DsmmPlan, Regime
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.sparsity import (
    ColumnGroups,
    SparsityPattern,
    color_columns,
    color_rows,
    snap_pattern,
)

__version__ = "0.1.0"

__all__ = [
    "BPTT",
    "GRU",
    "LRU",
    "LSTM",
    "RFLO",
    "RNN",
    "RTRL",
    "UORO",
    "Carry",
    "Cell",
    "ColumnGroups",
    "DsmmPlan",
    "Explanation",
    "FactorStructure",
    "Factors",
    "FeedForward",
    "FunctionCell",
    "LayerNorm",
    "LeakyRNN",
    "Learner",
    "Linear",
    "LinearMap",
    "Linearization",
    "Readout",
    "Regime",
    "Skip",
    "SnAp",
    "SparsityPattern",
    "Stack",
    "color_columns",
    "color_rows",
    "coo_to_csr",
    "explain",
    "gather_compressed",
    "influence_gradient",
    "influence_update",
    "masked_dsmm",
    "masked_outer",
    "mix",
    "snap_pattern",
]


def __getattr__(name: str) -> Any:
    """Import the second system, `tritonsnap.kan`, when it is asked for."""
    if name == "kan":
        return importlib.import_module("tritonsnap.kan")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
