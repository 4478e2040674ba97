"""What a training run is made of, checked before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tritonsnap.arrays import LIBRARIES, Library, fastest_library
from tritonsnap.checks import check_choice, check_integer
from tritonsnap.online.bptt import BPTT
from tritonsnap.online.cell import Cell
from tritonsnap.online.cells import GRU, LRU, LSTM, RNN, LeakyRNN
from tritonsnap.online.optimizers import SGD, Adam, Optimizer
from tritonsnap.online.rflo import RFLO
from tritonsnap.online.snap import RTRL, SnAp
from tritonsnap.online.stack.network import Stack
from tritonsnap.online.tasks import CopyTask, TextTask, reference_text
from tritonsnap.online.uoro import UORO

TaskName = Literal["text", "copy"]
CellName = Literal["rnn", "leaky", "gru", "lstm", "lru"]
MethodName = Literal["snap", "rtrl", "rflo", "uoro", "bptt"]
InfluenceName = Literal["float32", "float16", "bfloat16"]
OptimizerName = Literal["sgd", "adam"]

GRADIENT_NORM = 1.0
"""Gradients (per prediction) are clipped to this norm."""


def make_network(
    cell: CellName,
    inputs: int,
    hidden: int,
    density: float = 1.0,
    seed: int = 0,
    layers: int = 1,
    exact: bool = False,
) -> Cell | Stack:
    """Build a cell by the name that the command line has for it, or a stack of several.

    Raises
    ------
    ValueError, TypeError
        If an argument is not allowed; the message names it.
    """
    kinds: dict[CellName, type[Cell]] = {
        "rnn": RNN,
        "leaky": LeakyRNN,
        "gru": GRU,
        "lstm": LSTM,
        "lru": LRU,
    }
    check_choice("cell", cell, get_args(CellName))
    check_integer("layers", layers, 1)
    if exact and layers == 1:
        raise ValueError("`exact` goes with several `layers` only")
    built: list[Cell] = []
    for number in range(layers):
        built.append(kinds[cell](inputs, hidden, density, seed=seed + number))
        inputs = built[-1].outputs
    return built[0] if layers == 1 else Stack(built, exact=exact)


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides what a run computes; where it ends is not part of it.

    Parameters
    ----------
    task
        ``"text"`` (next character) or ``"copy"`` (repeat bits, longer and longer).
    text
        Path of a UTF-8 text file; None for the language reference that CPython carries.
    backend
        Array library; by default the fastest one that is installed.
    cell, hidden, density
        Kind of cell, its units, and the density of its recurrent weights in (0, 1].
    layers
        Layers of that kind, one above the other.
    exact
        Whether the influence of several layers crosses them: see `Stack`.
    method, order
        ``"snap"`` of that order, or one without: exact ``"rtrl"``, the local ``"rflo"``, the
        unbiased but noisy ``"uoro"``, or ``"bptt"``.
    influence_dtype
        What the influence of SnAp, RTRL and RFLO is stored in; NumPy has no ``"bfloat16"``.
    batch
        Rows trained side by side.
    update_every
        Time steps k between updates of the parameters: 1 learns at every step. The influence goes
        on across updates; BPTT looks back k steps, no further.
    optimizer, learning_rate
        The optimizer and its step size.
    seed
        Decides parameters, sparsity, the signs of UORO and the copy task's stream.

    Raises
    ------
    ValueError
        If a value is not allowed; the message names it.
    """

    task: TaskName = "text"
    text: str | None = None
    backend: Library = field(default_factory=fastest_library)
    cell: CellName = "gru"
    hidden: int = 256
    density: float = 1.0
    layers: int = 1
    exact: bool = False
    method: MethodName = "snap"
    order: int = 1
    influence_dtype: InfluenceName = "float32"
    batch: int = 16
    update_every: int = 8
    optimizer: OptimizerName = "adam"
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("task", get_args(TaskName)),
            ("backend", LIBRARIES),
            ("cell", get_args(CellName)),
            ("method", get_args(MethodName)),
            ("influence_dtype", get_args(InfluenceName)),
            ("optimizer", get_args(OptimizerName)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"`{name}` must be one of {allowed}, got {getattr(self, name)!r}")
        for name in ("hidden", "layers", "order", "batch", "update_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if not 0 < self.density <= 1:
            raise ValueError(f"`density` must be in (0, 1], got {self.density}")
        if not self.learning_rate > 0:
            raise ValueError(f"`learning_rate` must be positive, got {self.learning_rate}")
        if self.influence_dtype != "float32" and self.method in ("uoro", "bptt"):
            raise ValueError(f"`influence_dtype`: {self.method} keeps no influence to store")
        if self.influence_dtype == "bfloat16" and self.backend == "numpy":
            raise ValueError("`influence_dtype`: NumPy has no bfloat16, only float16")
        if self.seed < 0:
            raise ValueError(f"`seed` must not be negative, got {self.seed}")
        if self.exact and self.layers == 1:
            raise ValueError("`exact` goes with several `layers` only")
        if self.layers > 1 and self.method in ("rflo", "uoro"):
            raise ValueError(f"`method`: {self.method} learns one layer, got {self.layers}")
        if self.text is not None and self.task != "text":
            raise ValueError("`text` goes with the task 'text' only")

    def make_task(self) -> TextTask | CopyTask:
        """Open the stream.

        Raises
        ------
        ValueError
            If the text cannot be read, is no UTF-8, or is too short.
        """
        if self.task == "copy":
            return CopyTask(self.batch, self.seed)
        return TextTask(reference_text() if self.text is None else _read(self.text), self.batch)

    def make_learner(self, inputs: int) -> Any:
        """Build the network and its learner."""
        cell: Any = make_network(
            self.cell, inputs, self.hidden, self.density, self.seed, self.layers, self.exact
        )
        stored = None if self.influence_dtype == "float32" else self.influence_dtype
        learners: dict[str, Callable[[], Any]] = {
            "snap": lambda: SnAp(cell, self.order, influence_dtype=stored),
            "rtrl": lambda: RTRL(cell, influence_dtype=stored),
            "rflo": lambda: RFLO(cell, influence_dtype=stored),
            "uoro": lambda: UORO(cell, seed=self.seed),
            "bptt": lambda: BPTT(cell),
        }
        return learners[self.method]()

    def make_optimizer(self) -> Optimizer:
        """Build the optimizer."""
        kinds: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam}
        return kinds[self.optimizer](self.learning_rate, clip_norm=GRADIENT_NORM)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"`text`: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"`text`: {path} is not UTF-8 text") from error
