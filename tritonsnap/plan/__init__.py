"""How work over a pattern is organised: groups, regimes, costs, packed layout."""

from tritonsnap.plan.blocks import Regime
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.partition import Partition

__all__ = ["DsmmPlan", "Packing", "Partition", "Regime"]
