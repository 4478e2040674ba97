"""Online training: cells, learners, readout, tasks and the training loop."""

from tritonsnap.online.bptt import BPTT
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Cell, Linearization
from tritonsnap.online.cells import GRU, RNN
from tritonsnap.online.explain import Explanation, explain
from tritonsnap.online.learner import Learner
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.online.readout import Readout
from tritonsnap.online.rflo import RFLO
from tritonsnap.online.snap import RTRL, SnAp
from tritonsnap.online.uoro import UORO

__all__ = [
    "BPTT",
    "GRU",
    "RFLO",
    "RNN",
    "RTRL",
    "UORO",
    "Carry",
    "Cell",
    "Explanation",
    "Learner",
    "LinearMap",
    "Linearization",
    "Readout",
    "SnAp",
    "explain",
]
