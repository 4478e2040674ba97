"""One client and its servers in turn, in the calling thread: the reference for all engines."""

from __future__ import annotations

from collections.abc import Iterable

from tritonsnap.kan.data import Block
from tritonsnap.kan.engines import Plan
from tritonsnap.kan.functions import Functions
from tritonsnap.kan.metrics import Meter
from tritonsnap.kan.protocol import (
    Server,
    Snapshot,
    compute_messages,
    join_functions,
    split_addends,
    split_functions,
)


class Sequential:
    """Applies each block before it reads the next."""

    def __init__(self, functions: Functions, plan: Plan) -> None:
        self._rule = plan.rule
        addends = functions.inner.shape[-1]
        self._shares = split_addends(addends, plan.servers)
        self._groups = split_addends(addends, plan.groups)
        self._servers = [
            Server(Snapshot(0, part), plan.max_staleness)
            for part in split_functions(functions, self._shares)
        ]

    @property
    def functions(self) -> Functions:
        """The newest functions."""
        return join_functions([server.snapshot.functions for server in self._servers])

    def train(self, blocks: Iterable[Block], meter: Meter) -> None:
        """Train on every block."""
        for number, block in enumerate(blocks):
            outcome = compute_messages(
                [server.snapshot for server in self._servers],
                self._shares,
                block,
                self._rule,
                self._groups[number % len(self._groups)],
            )
            for server, message in zip(self._servers, outcome.messages, strict=True):
                if message is not None:
                    meter.count_message(server.apply(message))
            meter.count_block(outcome)


def open_engine(functions: Functions, plan: Plan) -> Sequential:
    """Start the engine."""
    return Sequential(functions, plan)
