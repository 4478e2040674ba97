"""How the protocol runs: in turn, in threads, in processes, on a GPU, or on many machines."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tritonsnap.kan.data import Block
from tritonsnap.kan.functions import Functions
from tritonsnap.kan.metrics import Meter
from tritonsnap.kan.step import Rule

EngineName = Literal["threads", "processes", "sequential", "triton", "ray"]


@dataclass(frozen=True)
class Plan:
    """Who does what in an engine.

    Parameters
    ----------
    name : {"threads", "processes", "sequential", "triton", "ray"}
        Of the engine.
    rule : Rule
        How residuals become changes.
    clients, servers : int
        How many of each.
    groups : int
        Into how many groups the addends are cut; a block changes one group, in turn.
    max_staleness : int
        Messages that are older by more than so many versions are dropped.
    queue : int
        Messages that a server's queue holds.
    """

    name: EngineName
    rule: Rule
    clients: int
    servers: int
    groups: int
    max_staleness: int
    queue: int


class Engine(Protocol):
    """Trains functions on blocks of records."""

    @property
    def functions(self) -> Functions:
        """The newest functions, as NumPy arrays."""

    def train(self, blocks: Iterable[Block], meter: Meter) -> None:
        """Train on every block; return when all that came of them has been applied."""


def open_engine(functions: Functions, plan: Plan) -> Engine:
    """Start an engine with the functions to train."""
    module = importlib.import_module(f"tritonsnap.kan.engines.{plan.name}")
    engine: Any = module.open_engine(functions, plan)
    return engine
