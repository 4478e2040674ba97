"""Train networks online, forward in time, with sparse Jacobians at kernel speed."""

from tritonsnap.online import (
    BPTT,
    GRU,
    RNN,
    RTRL,
    Carry,
    Cell,
    Learner,
    Linearization,
    LinearMap,
    Readout,
    SnAp,
)
from tritonsnap.ops import coo_to_csr, influence_gradient, influence_update, masked_dsmm
from tritonsnap.plan import DsmmPlan, Regime
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.sparsity import ColumnGroups, SparsityPattern, snap_pattern

__version__ = "0.1.0"

__all__ = [
    "BPTT",
    "GRU",
    "RNN",
    "RTRL",
    "Carry",
    "Cell",
    "ColumnGroups",
    "DsmmPlan",
    "FactorStructure",
    "Factors",
    "Learner",
    "LinearMap",
    "Linearization",
    "Readout",
    "Regime",
    "SnAp",
    "SparsityPattern",
    "coo_to_csr",
    "influence_gradient",
    "influence_update",
    "masked_dsmm",
    "snap_pattern",
]
