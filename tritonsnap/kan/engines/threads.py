"""Clients as threads of one process, with a bounded queue in front of each server.

A server runs in the thread of whichever client brings it a message, one at a time: a thread of its
own would make every message wait for two switches between threads. NumPy releases the
interpreter's lock inside its loops, where a block of records spends its time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from tritonsnap.kan.data import Block
from tritonsnap.kan.engines import Plan
from tritonsnap.kan.functions import Functions
from tritonsnap.kan.metrics import Meter
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

_MOST_RESTARTS = 10
"""A server that dies so many times in a row, without a message applied, ends the training."""


class Threads:
    """Trains with one thread for each client."""

    def __init__(self, functions: Functions, plan: Plan) -> None:
        self._plan = plan
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
        """Train on every block; see `Round`."""
        computes = [compute_messages] * self._plan.clients
        Round(self._servers, self._shares, self._groups, self._plan, meter, computes).run(blocks)


class _Letter:
    """A message on its way, and whom to tell when it has been dealt with."""

    def __init__(self, message: Message, dealt_with: threading.Semaphore) -> None:
        self.message, self.dealt_with = message, dealt_with


class Round:
    """One pass over blocks.

    A client sends its next messages only after its last ones have been applied, so with a single
    client every block sees all blocks before it, and equal seeds give equal bits.
    """

    def __init__(
        self,
        servers: list[Server],
        shares: list[slice],
        groups: list[slice],
        plan: Plan,
        meter: Meter,
        computes: Sequence[Callable[..., Outcome]],
    ) -> None:
        self._servers, self._shares, self._groups = servers, shares, groups
        self._plan, self._meter, self._computes = plan, meter, computes
        self._queues: list[queue.Queue[_Letter]] = [queue.Queue(plan.queue) for _ in servers]
        self._blocks: Iterator[tuple[int, Block]] = iter(())
        self._returned: deque[tuple[int, Block]] = deque()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._client_error: Exception | None = None
        self._living = set(range(len(computes)))
        self._deaths = [0] * len(servers)
        self._busy = [threading.Lock() for _ in servers]

    def run(self, blocks: Iterable[Block]) -> None:
        """Train until there is no block left.

        Raises
        ------
        RuntimeError
            If every client has died, or a server dies again and again.
        """
        self._blocks = enumerate(blocks)
        if len(self._computes) == 1:
            self._run_client(0)  # with nothing to do beside it
        else:
            self._run_threads()
        if self._failure is not None:
            raise self._failure
        if self._returned:
            raise RuntimeError("every client died") from self._client_error

    def _run_threads(self) -> None:
        clients = [
            threading.Thread(
                target=self._run_client, args=(number,), name=f"kan-client-{number}", daemon=True
            )
            for number in sorted(self._living)
        ]
        for thread in clients:
            thread.start()
        try:
            for thread in clients:
                thread.join()
            while self._returned and self._living:
                # a block came back after the others had finished
                self._run_client(next(iter(self._living)))
        finally:
            self._stopped.set()
            for thread in clients:
                thread.join()

    def _run_client(self, client: int) -> None:
        dealt_with = threading.Semaphore(0)
        while (item := self._next_block()) is not None:
            number, block = item
            try:
                outcome = self._computes[client](
                    [server.snapshot for server in self._servers],
                    self._shares,
                    block,
                    self._plan.rule,
                    self._groups[number % len(self._groups)],
                )
            except Exception as error:  # whatever it was, another client takes the block
                with self._lock:
                    self._client_error = error
                    self._living.discard(client)
                    self._returned.append(item)
                self._meter.count_dead_client()
                return
            sent = 0
            for server, message in enumerate(outcome.messages):
                if message is not None:
                    self._send(server, _Letter(message, dealt_with))
                    sent += 1
            for _ in range(sent):
                dealt_with.acquire()
            self._meter.count_block(outcome)

    def _next_block(self) -> tuple[int, Block] | None:
        with self._lock:
            if self._stopped.is_set():
                return None
            if self._returned:
                return self._returned.popleft()
            try:
                return next(self._blocks, None)
            except Exception as error:  # the user's iterator failed
                self._fail(error)
                return None

    def _send(self, server: int, letter: _Letter) -> None:
        letters = self._queues[server]
        try:
            letters.put_nowait(letter)
        except queue.Full:
            self._meter.count_full_queue()
            letters.put(letter)
        self._serve(server)

    def _serve(self, server: int) -> None:
        """Handle what waits for a server, unless another thread does; it then sees this letter."""
        letters, busy = self._queues[server], self._busy[server]
        while not letters.empty() and busy.acquire(blocking=False):
            try:
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._handle(server, letters.get_nowait())
            finally:
                busy.release()

    def _handle(self, number: int, letter: _Letter) -> None:
        server = self._servers[number]
        try:
            self._meter.count_message(server.apply(letter.message))
            self._deaths[number] = 0
        except FloatingPointError as error:
            self._fail(error)
        except Exception as error:  # the message is lost, the last snapshot is not
            self._deaths[number] += 1
            self._meter.count_restart()
            self._servers[number] = Server(server.snapshot, self._plan.max_staleness)
            if self._deaths[number] == _MOST_RESTARTS:
                failure = RuntimeError(f"server {number} died {_MOST_RESTARTS} times in a row")
                failure.__cause__ = error
                self._fail(failure)
        finally:
            letter.dealt_with.release()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._stopped.set()


def open_engine(functions: Functions, plan: Plan) -> Threads:
    """Start the engine."""
    return Threads(functions, plan)
