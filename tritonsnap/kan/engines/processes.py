"""Servers in threads of this process, clients in processes of their own.

Each client's thread passes its work through a pipe to a process that does nothing else, so clients
do not wait for each other's interpreter. A worker is started anew, not forked: BLAS and the array
libraries have threads that do not survive a fork. It needs no guard around the caller's module.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterable
from typing import Any

from tritonsnap.kan.data import Block
from tritonsnap.kan.engines import Plan
from tritonsnap.kan.engines.threads import Round, Threads
from tritonsnap.kan.functions import Functions
from tritonsnap.kan.metrics import Meter
from tritonsnap.kan.protocol import Outcome, compute_messages

_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
"""A worker is one client on one core."""


class Processes(Threads):
    """Trains with one process for each client; those that died are replaced before a round."""

    def __init__(self, functions: Functions, plan: Plan) -> None:
        super().__init__(functions, plan)
        self._workers = [Worker() for _ in range(plan.clients)]
        weakref.finalize(self, _stop, self._workers)

    def train(self, blocks: Iterable[Block], meter: Meter) -> None:
        """Train on every block; see `Round`."""
        for number, worker in enumerate(self._workers):
            if not worker.lives:
                worker.stop()
                self._workers[number] = Worker()
        computes = [worker.compute for worker in self._workers]
        Round(self._servers, self._shares, self._groups, self._plan, meter, computes).run(blocks)


class Worker:
    """A process that computes messages."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tritonsnap.kan.engines.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C reaches the caller alone, who ends its workers
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": paths},
        )

    @property
    def lives(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def compute(self, *arguments: Any) -> Outcome:
        """Run `compute_messages` in the process.

        Raises
        ------
        EOFError, OSError
            If the process has died.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        pickle.dump(arguments, requests, pickle.HIGHEST_PROTOCOL)
        requests.flush()
        answer = pickle.load(answers)
        if isinstance(answer, Exception):
            raise answer
        outcome: Outcome = answer
        return outcome

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):  # nobody reads what was left to send
                    pipe.close()


def open_engine(functions: Functions, plan: Plan) -> Processes:
    """Start the engine."""
    return Processes(functions, plan)


def serve() -> None:
    """Answer requests until the pipe ends: the life of a worker."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing but answers goes through the pipe
    while True:
        try:
            arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: Any = compute_messages(*arguments)
        except Exception as error:
            answer = error
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


def _stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.stop()


if __name__ == "__main__":
    serve()
