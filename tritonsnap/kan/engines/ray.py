"""Servers as actors of Ray, snapshots in its object store, clients as tasks: many machines.

``ray.init()`` starts Ray on this machine unless it is running; connect to a cluster before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tritonsnap.kan.data import Block
from tritonsnap.kan.engines import Plan
from tritonsnap.kan.functions import Functions
from tritonsnap.kan.metrics import Meter
from tritonsnap.kan.model import read_only
from tritonsnap.kan.protocol import (
    Message,
    Outcome,
    Server,
    Snapshot,
    compute_messages,
    join_functions,
    split_addends,
    split_functions,
)

_MOST_DEATHS = 10
"""A worker that dies so many times in a row ends the training."""


class Remote:
    """Trains with one actor for each server and one task for each block under way."""

    def __init__(self, functions: Functions, plan: Plan) -> None:
        self._ray = _import_ray()
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False, include_dashboard=False)
        self._plan = plan
        addends = functions.inner.shape[-1]
        self._shares = split_addends(addends, plan.servers)
        self._groups = split_addends(addends, plan.groups)
        self._actor = self._ray.remote(num_cpus=0)(_ServerActor)
        self._task = self._ray.remote(max_retries=0)(_compute)
        self._servers = [
            self._start(Snapshot(0, part)) for part in split_functions(functions, self._shares)
        ]
        self._deaths = 0

    @property
    def functions(self) -> Functions:
        """The newest functions."""
        snapshots = self._ray.get([server.snapshot for server in self._servers])
        # what comes out of the object store belongs to it
        copies = [Functions(*(array.copy() for array in part.functions)) for part in snapshots]
        return read_only(join_functions(copies))

    def train(self, blocks: Iterable[Block], meter: Meter) -> None:
        """Train on every block.

        Raises
        ------
        RuntimeError
            If workers die again and again.
        """
        numbered = enumerate(blocks)
        returned: deque[tuple[int, Block]] = deque()
        under_way: dict[Any, tuple[int, Block]] = {}
        while True:
            while len(under_way) < self._plan.clients:
                item = returned.popleft() if returned else next(numbered, None)
                if item is None:
                    break
                under_way[self._send(item)] = item
            if not under_way:
                return
            done, _ = self._ray.wait(list(under_way))
            item = under_way.pop(done[0])
            try:
                outcome = self._ray.get(done[0])
            except self._ray.exceptions.RayError as error:
                meter.count_dead_client()
                self._count_death(error)
                returned.append(item)
                continue
            self._apply(outcome, meter)
            meter.count_block(outcome)

    def _send(self, item: tuple[int, Block]) -> Any:
        number, block = item
        return self._task.remote(
            self._shares,
            block,
            self._plan.rule,
            self._groups[number % len(self._groups)],
            *(server.snapshot for server in self._servers),
        )

    def _apply(self, outcome: Outcome, meter: Meter) -> None:
        """Send each server its message, then take what it publishes."""
        sent = [
            (number, self._servers[number].actor.apply.options(num_returns=2).remote(message))
            for number, message in enumerate(outcome.messages)
            if message is not None
        ]
        for number, (staleness, snapshot) in sent:
            try:
                meter.count_message(self._ray.get(staleness))
                self._servers[number].snapshot = snapshot
                self._deaths = 0
            except FloatingPointError:
                raise
            except self._ray.exceptions.RayError as error:
                meter.count_restart()
                self._count_death(error)
                self._servers[number] = self._start(self._ray.get(self._servers[number].snapshot))

    def _start(self, snapshot: Snapshot) -> _RemoteServer:
        actor = self._actor.remote(snapshot, self._plan.max_staleness)
        return _RemoteServer(actor, self._ray.put(snapshot))

    def _count_death(self, error: Exception) -> None:
        self._deaths += 1
        if self._deaths == _MOST_DEATHS:
            raise RuntimeError(f"workers died {self._deaths} times in a row") from error


@dataclass
class _RemoteServer:
    """An actor, and a reference to the last snapshot it published."""

    actor: Any
    snapshot: Any


class _ServerActor:
    """A server that answers a message with its staleness and the next snapshot."""

    def __init__(self, snapshot: Snapshot, max_staleness: int) -> None:
        self._server = Server(snapshot, max_staleness)

    def apply(self, message: Message) -> tuple[int | None, Snapshot]:
        staleness = self._server.apply(message)
        return staleness, self._server.snapshot


def _compute(
    shares: list[slice], block: Block, rule: Any, changed: slice, *snapshots: Snapshot
) -> Outcome:
    return compute_messages(snapshots, shares, block, rule, changed)


def _import_ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ImportError(
            "ray is not installed; run: pip install 'tritonsnap[distributed]'"
        ) from error
    return ray


def open_engine(functions: Functions, plan: Plan) -> Remote:
    """Start the engine.

    Raises
    ------
    ImportError
        If Ray is not installed.
    """
    return Remote(functions, plan)
