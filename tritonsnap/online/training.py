"""The training loop: read some steps, update, report; stop at any time and go on bit for bit."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from tritonsnap.arrays import Library, namespace, namespace_of
from tritonsnap.files import write_atomically
from tritonsnap.online.checkpoint import load_checkpoint, read_config, save_checkpoint
from tritonsnap.online.configuration import TrainingConfig
from tritonsnap.online.evaluation import generate_text, held_out_bits
from tritonsnap.online.metrics import Metrics
from tritonsnap.online.optimizers import Optimizer
from tritonsnap.online.readout import Readout
from tritonsnap.online.tasks import Batch, StreamState, TextTask
from tritonsnap.online.trees import map_tree

DEFAULT_SECONDS = 60.0
UPDATES_PER_REPORT = 50
SECONDS_PER_CHECKPOINT = 30.0


class TrainingState(NamedTuple):
    """All that a run needs to go on.

    Attributes
    ----------
    params
        Parameters of the cell and of the readout.
    optimizer
        State of the optimizer.
    carry
        The learner's carry: state and influence of every row.
    stream
        Where the task stands.
    step
        Time steps done.
    seconds
        Time spent on them.
    """

    params: tuple[Any, Any]
    optimizer: Any
    carry: Any
    stream: StreamState
    step: int
    seconds: float


@dataclass(frozen=True)
class Budget:
    """Where a run ends, counted from its very beginning; `DEFAULT_SECONDS` if nothing is given.

    Parameters
    ----------
    steps
        Exactly so many time steps.
    seconds
        So much training time, compilation included.

    Raises
    ------
    ValueError
        If both are given, or one is not positive.
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.seconds is not None:
            raise ValueError("`steps` and `seconds` exclude each other")
        if self.steps is None and self.seconds is None:
            object.__setattr__(self, "seconds", DEFAULT_SECONDS)
        for name in ("steps", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"`{name}` must be positive, got {value}")

    def is_spent(self, state: TrainingState) -> bool:
        """Tell whether a run in this state has ended."""
        if self.steps is not None:
            return state.step >= self.steps
        return self.seconds is not None and state.seconds >= self.seconds

    def next_steps(self, state: TrainingState, update_every: int) -> int:
        """Time steps until the next update."""
        return min(update_every, self.steps - state.step) if self.steps else update_every


class Run:
    """A training run in a directory.

    Making one checks everything a user can get wrong; nothing is computed yet.

    Parameters
    ----------
    config
        What to compute.
    out
        The directory, made if needed: ``config.json``, ``metrics.jsonl``, ``checkpoint.npz``,
        ``loss.png`` (if matplotlib is installed) and for text ``sample.txt``.
    resume
        Go on from the checkpoint in `out`.

    Raises
    ------
    ValueError
        If `out` cannot be written, already holds a run (without `resume`), holds none or one of
        another configuration (with `resume`), or the configuration cannot be built.
    ImportError
        If the backend is not installed.
    """

    def __init__(self, config: TrainingConfig, out: Path, *, resume: bool = False) -> None:
        self.config = config
        self.out = out
        self.library = config.backend
        namespace(self.library)  # imports it, or says how to install it
        self.task = config.make_task()
        self.learner = config.make_learner(self.task.inputs)
        self.readout = Readout(self.task.outputs)
        self.optimizer = config.make_optimizer()
        self.checkpoint = out / "checkpoint.npz"
        self._identity = asdict(config) | {"stream": self.task.fingerprint}
        self.state = self._initial_state()
        if resume:
            self._check_same_run()
            self.state = load_checkpoint(self.checkpoint, like=self.state)
        elif self.checkpoint.exists():
            raise ValueError(f"`out`: {out} already holds a run; resume it or name another one")
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_atomically(out / "config.json", json.dumps(asdict(config), indent=2) + "\n")
            self.metrics = Metrics(out / "metrics.jsonl", keep_until=self.state.step)
        except OSError as error:
            raise ValueError(f"`out`: cannot write to {out}: {error.strerror}") from error

    def train(self, budget: Budget, updates_per_report: int = UPDATES_PER_REPORT) -> bool:
        """Train until the budget is spent or Ctrl-C; either way the checkpoint is written.

        Parameters
        ----------
        budget
            Where the run ends.
        updates_per_report
            Updates between two rows of the metrics, counted from the beginning of the run.

        Returns
        -------
        bool
            False if Ctrl-C ended it.
        """
        update = _compiled_update(self.library)
        xp = namespace(self.library)
        interval = _Interval(self.state)
        saved = time.perf_counter()
        begun = saved - self.state.seconds
        with _ctrl_c() as stop, _progress_bar(budget, self.state) as bar:
            while not (budget.is_spent(self.state) or stop.is_set()):
                steps = budget.next_steps(self.state, self.config.update_every)
                batch, stream = self.task.read(self.state.stream, steps)
                params, optimizer, carry, loss = update(
                    self.learner,
                    self.readout,
                    self.optimizer,
                    self.state.params,
                    self.state.optimizer,
                    self.state.carry,
                    Batch(*(xp.asarray(part) for part in batch)),
                )
                bits, predictions = float(loss) / math.log(2), int(batch.mask.sum())
                now = time.perf_counter()
                self.state = TrainingState(
                    params,
                    optimizer,
                    carry,
                    self.task.observe(stream, bits, predictions),
                    self.state.step + steps,
                    now - begun,
                )
                interval.add(bits, predictions)
                bar.n = min(self._progress(budget), bar.total)
                bar.update(0)
                updates = -(-self.state.step // self.config.update_every)
                if updates % updates_per_report == 0:
                    interval = self._report(interval, bar)
                if now - saved > SECONDS_PER_CHECKPOINT:
                    self.save()
                    saved = now
            if interval.updates:
                self._report(interval, bar)
        self.save()
        self.metrics.plot(self.out / "loss.png", self._references())
        return not stop.is_set()

    def evaluate(self) -> dict[str, float]:
        """Score the run, write the final row of the metrics and, for text, a sample.

        Returns
        -------
        dict
            For text ``held_out_bits_per_character`` and the two entropies; for copy
            ``copy_length``.
        """
        figures = self.task.report(self.state.stream) | self._references()
        if isinstance(self.task, TextTask):
            forward = (self.learner, self.readout, self.state.params, self.task, self.library)
            figures["held_out_bits_per_character"] = held_out_bits(*forward)
            sample = generate_text(*forward, seed=self.config.seed)
            write_atomically(self.out / "sample.txt", sample + "\n")
        self.metrics.add({"step": self.state.step, "seconds": self.state.seconds} | figures)
        return figures

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self.checkpoint, self._identity, self.state)

    def _initial_state(self) -> TrainingState:
        rng = np.random.default_rng(self.config.seed)
        params = (
            self.learner.cell.init(rng, like=self.library),
            self.readout.init(self.learner.num_outputs, rng, like=self.library),
        )
        return TrainingState(
            params=params,
            optimizer=self.optimizer.init(params),
            carry=self.learner.init(batch=self.config.batch, like=self.library),
            stream=self.task.start(),
            step=0,
            seconds=0.0,
        )

    def _check_same_run(self) -> None:
        try:
            saved = read_config(self.checkpoint)
        except FileNotFoundError:
            raise ValueError(f"`resume`: {self.out} holds no checkpoint.npz") from None
        for name, value in self._identity.items():
            # the fingerprint of the stream tells texts apart, wherever they lie
            if name != "text" and saved.get(name) != value:
                raise ValueError(
                    f"`resume`: {self.checkpoint} belongs to another configuration: "
                    f"{name} is {saved.get(name)!r} there, {value!r} here"
                )

    def _report(self, interval: _Interval, bar: Any) -> _Interval:
        """Write the figures of an interval and begin the next one."""
        figures = interval.figures(self.state) | self.task.report(self.state.stream)
        self.metrics.add({"step": self.state.step, "seconds": self.state.seconds} | figures)
        bar.set_postfix_str(
            ", ".join(f"{value:.3g} {name.replace('_', ' ')}" for name, value in figures.items())
        )
        return _Interval(self.state)

    def _references(self) -> dict[str, float]:
        if not isinstance(self.task, TextTask):
            return {}
        return {
            "unigram_entropy": self.task.unigram_entropy,
            "bigram_entropy": self.task.bigram_entropy,
        }

    def _progress(self, budget: Budget) -> float:
        return self.state.step if budget.steps is not None else self.state.seconds


class _Interval:
    """Sums since the last report."""

    def __init__(self, start: TrainingState) -> None:
        self.start_step, self.start_seconds = start.step, start.seconds
        self.bits, self.predictions, self.updates = 0.0, 0, 0

    def add(self, bits: float, predictions: int) -> None:
        self.bits += bits
        self.predictions += predictions
        self.updates += 1

    def figures(self, state: TrainingState) -> dict[str, float]:
        rate = (state.step - self.start_step) / (state.seconds - self.start_seconds)
        figures = {"steps_per_second": rate}
        if self.predictions:
            figures = {"bits_per_character": self.bits / self.predictions} | figures
        return figures


def _update(
    learner: Any,
    readout: Readout,
    optimizer: Optimizer,
    params: Any,
    optimizer_state: Any,
    carry: Any,
    batch: Batch,
) -> tuple[Any, Any, Any, Any]:
    """The gradient per prediction of one batch, then the optimizer."""
    loss, gradients, carry = learner.sequence(
        params[0],
        carry,
        batch.inputs,
        batch.targets,
        readout,
        readout=params[1],
        mask=batch.mask,
        resets=batch.resets,
    )
    xp = namespace_of(batch.mask)
    predictions = xp.clip(xp.sum(batch.mask), 1, None)
    gradients = map_tree(lambda gradient: gradient / predictions, gradients)
    params, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return params, optimizer_state, carry, loss


def _compiled_update(library: Library) -> Callable[..., Any]:
    if library != "jax":
        return _update
    import jax

    compiled: Callable[..., Any] = jax.jit(
        _update,
        static_argnames=("readout", "optimizer"),
        donate_argnames=("params", "optimizer_state", "carry"),
    )
    return compiled


@contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """Set an event at Ctrl-C, so that the update under way ends; a second one ends at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread gets signals
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)


def _progress_bar(budget: Budget, state: TrainingState) -> Any:
    if budget.steps is not None:
        return tqdm(
            total=budget.steps, initial=state.step, unit="step", mininterval=0.5, disable=None
        )
    bar_format = "{l_bar}{bar}| {n:.0f}/{total:.0f} s{postfix}"
    return tqdm(
        total=budget.seconds,
        initial=state.seconds,
        bar_format=bar_format,
        mininterval=0.5,
        disable=None,
    )
