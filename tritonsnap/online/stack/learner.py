"""`StackLearner`: what the learners of a stack have in common."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar, cast

from tritonsnap.online.cell import Cell
from tritonsnap.online.learner import Learner
from tritonsnap.online.stack.network import Stack


class StackLearner(Learner):
    """A learner of a `Stack`, made of a learner for each of its cells.

    Its `step` gives the network's output [batch, outputs]; losses are of that, and `gradient` takes
    the gradient in it.

    Attributes
    ----------
    learners
        A learner of each cell; None for layers without memory.
    """

    network: ClassVar = Stack

    @property
    def stack(self) -> Stack:
        """The network."""
        return cast(Stack, self.cell)

    @abstractmethod
    def _learner_of(self, cell: Cell) -> Learner:
        """The learner of one layer."""

    @cached_property
    def learners(self) -> tuple[Any, ...]:
        """A learner of each cell; None for layers without memory."""
        return tuple(
            self._learner_of(layer) if isinstance(layer, Cell) else None
            for layer in self.stack.layers
        )

    def _make_pytree(self) -> None:
        importlib.import_module("tritonsnap.online.stack.jax_tree")

    @property
    def num_outputs(self) -> int:
        """Numbers that a loss reads."""
        return self.stack.outputs

    def output_of(self, state: Any) -> Any:
        """The network's output [..., outputs] in a state [..., rows]."""
        return state[..., self.stack.output]
