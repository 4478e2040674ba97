"""Online training: cells, learners, readout, tasks and the training loop."""

from tritonsnap.online.bptt import BPTT
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Cell, Linearization
from tritonsnap.online.cells import GRU, LRU, LSTM, RNN, LeakyRNN
from tritonsnap.online.learner import Learner
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.online.readout import Readout
from tritonsnap.online.snap import RTRL, SnAp

__all__ = [
    "BPTT",
    "GRU",
    "LRU",
    "LSTM",
    "RNN",
    "RTRL",
    "Carry",
    "Cell",
    "LeakyRNN",
    "Learner",
    "LinearMap",
    "Linearization",
    "Readout",
    "SnAp",
]
