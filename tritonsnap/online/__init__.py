"""Online training: cells, learners, readout, tasks and the training loop."""

import tritonsnap.online.unfactored.learners  # noqa: F401 - the learners' forms
from tritonsnap.online.bptt import BPTT
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Cell, Linearization
from tritonsnap.online.cells import GRU, LRU, LSTM, RNN, LeakyRNN
from tritonsnap.online.explain import explain
from tritonsnap.online.explanation import Explanation
from tritonsnap.online.learner import Learner
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.online.readout import Readout
from tritonsnap.online.rflo import RFLO
from tritonsnap.online.snap import RTRL, SnAp
from tritonsnap.online.stack.bptt import StackBPTT
from tritonsnap.online.stack.feed_forward import FeedForward, LayerNorm, Linear, Skip
from tritonsnap.online.stack.network import Stack
from tritonsnap.online.stack.snap import StackRTRL, StackSnAp
from tritonsnap.online.unfactored.function_cell import FunctionCell
from tritonsnap.online.uoro import UORO

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
    "Explanation",
    "FeedForward",
    "FunctionCell",
    "LayerNorm",
    "LeakyRNN",
    "Learner",
    "Linear",
    "LinearMap",
    "Linearization",
    "Readout",
    "Skip",
    "SnAp",
    "Stack",
    "StackBPTT",
    "StackRTRL",
    "StackSnAp",
    "explain",
]
