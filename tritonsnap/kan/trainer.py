"""`Trainer`: trains a `KAN` with many concurrent workers, and says how that goes."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from tritonsnap.checks import (
    check_choice,
    check_instance,
    check_integer,
    check_number,
    check_share,
)
from tritonsnap.files import parse_json, read_arrays, write_arrays
from tritonsnap.kan import storage
from tritonsnap.kan.data import Block, Source, checked_blocks, finite_records, shuffled
from tritonsnap.kan.engines import Engine, EngineName, Plan, open_engine
from tritonsnap.kan.functions import Functions
from tritonsnap.kan.linear_algebra import one_blas_thread
from tritonsnap.kan.metrics import History, Meter, Report, pearson, root_mean_square_error
from tritonsnap.kan.model import KAN
from tritonsnap.kan.step import Rule, Solver

FORMAT = "tritonsnap.kan.Trainer/1"

_BLOCKS = {"sequential": 1, "threads": 192, "processes": 192, "ray": 512, "triton": 512}
_SMALLEST_CLIPPED = 32
_CLIP = 2.0
_SELECT = 0.5


class Trainer:
    """Trains a model on blocks of records with concurrent clients and servers.

    Parameters
    ----------
    model : KAN
        What to train; its numbers are replaced after each round.
    engine : {"threads", "processes", "sequential", "triton", "ray"}
        Threads of this process; clients in processes of their own, which pays from two clients on;
        the calling thread alone; a GPU; tasks and actors of Ray.
    clients : int
        Workers that compute changes, each on a core of its own.
    servers : int
        Workers that own functions, each those of an equal share of the addends.
    block : int, optional
        Records that a client draws at once. By default 1 for ``"sequential"``, 192 for
        ``"threads"`` and ``"processes"``, 512 otherwise. With fewer than 64 selected a message is
        hardly worth sending.
    select : float, optional
        The fraction of a block that is used: the records with the largest residuals. By default a
        half where residuals are clipped, for else wrong targets would be preferred; otherwise all.
    solver : {"newton-kaczmarz", "kaczmarz"}
        Whether a block is solved as a whole or each record followed by itself; see `Rule`.
    step : float, optional
        By default 1 for Newton-Kaczmarz; otherwise 0.1, or less in large blocks: 4 / (records
        used in a block * clients), for many records together must not overshoot.
    damping : float
        Of Newton-Kaczmarz, positive: more is slower and steadier.
    clip : float, optional
        Bound of residuals in robust standard deviations of a block's residuals, which takes the
        power from wrong targets; ``inf`` for none. By default 2 in blocks of at least 32 records.
    partial : float
        The fraction of the addends that one block changes; blocks take turns.
    max_staleness : int, optional
        Messages older by more versions are dropped. By default four times `clients`.
    queue : int
        Messages that wait for a server at most.

    Attributes
    ----------
    history : History
        A report for each round of `fit`.
    seconds : float
        Training time so far.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    def __init__(
        self,
        model: KAN,
        engine: EngineName = "threads",
        *,
        clients: int = 1,
        servers: int = 1,
        block: int | None = None,
        select: float | None = None,
        solver: Solver = "newton-kaczmarz",
        step: float | None = None,
        damping: float = 0.3,
        clip: float | None = None,
        partial: float = 1.0,
        max_staleness: int | None = None,
        queue: int = 16,
    ) -> None:
        self.settings = {
            name: value for name, value in locals().items() if name not in ("self", "model")
        }
        check_instance("model", model, KAN)
        check_choice("engine", engine, get_args(EngineName))
        check_choice("solver", solver, get_args(Solver))
        block = _BLOCKS[engine] if block is None else block
        for name, number in (
            ("clients", clients),
            ("servers", servers),
            ("block", block),
            ("queue", queue),
        ):
            check_integer(name, number, 1, 2**31)
        max_staleness = 4 * clients if max_staleness is None else max_staleness
        if engine in ("sequential", "triton") and clients > 1:
            raise ValueError(f"`clients` must be 1 for the engine {engine!r}, got {clients}")
        if servers > model.addends:
            raise ValueError(
                f"`servers` must be at most {model.addends}, the model's addends, got {servers}"
            )
        if clip is not None:
            clip = check_number("clip", clip, "(0, inf]", 0, np.inf)
        else:
            clip = _CLIP if block >= _SMALLEST_CLIPPED else np.inf
        if select is None:
            select = _SELECT if np.isfinite(clip) else 1.0
        for name, fraction in (("select", select), ("partial", partial)):
            check_share(name, fraction)
        check_integer("max_staleness", max_staleness)
        for name, positive in (("step", step), ("damping", damping)):
            if positive is not None:
                check_number(name, positive, "(0, inf]", 0, np.inf)
        if np.isfinite(clip) and block < _SMALLEST_CLIPPED:
            raise ValueError(
                f"`clip` needs blocks of at least {_SMALLEST_CLIPPED} records to know their "
                f"spread, got `block` = {block}"
            )
        groups = round(1 / partial)
        self.model = model
        self.history = History()
        self.seconds = 0.0
        self._block = block
        self._plan = Plan(
            name=engine,
            rule=Rule(
                solver=solver,
                convention=model.convention,
                step=step or _default_step(solver, block * select * clients),
                inner_step=model.inner_step,
                outer_step=model.outer_step,
                damping=damping,
                concurrency=groups * _concurrency(clients),
                select=select,
                clip=clip if np.isfinite(clip) else None,
                adapt=True,
            ),
            clients=clients,
            servers=servers,
            groups=groups,
            max_staleness=max_staleness,
            queue=queue,
        )
        self._engine: Engine | None = None
        self._engine_of = 0, False

    def fit(
        self,
        x: Any,
        y: ArrayLike | None = None,
        *,
        epochs: int = 1,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
        report_every: int | None = None,
        patience: int | None = None,
        until: float | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> History:
        """Train, round by round.

        Parameters
        ----------
        x : array [records, inputs], or iterable of (x, y)
            Inputs, or blocks of records that need not fit in memory together. An iterable is gone
            through once for each epoch, so it must be one that can be, or `epochs` be 1.
        y : array [records, targets] or [records], optional
            Targets; left out where `x` is an iterable.
        epochs : int
            How often to go through the records.
        validation : (array, array), optional
            Held-out inputs and targets, to report Pearson's correlation and the RMSE.
        report_every : int, optional
            Records of a round; by default an epoch is one round.
        patience : int, optional
            End after so many rounds without a better validation RMSE, and take the best functions.
        until : float, optional
            End once the validation correlation is at least this.
        checkpoint : path, optional
            Write the trainer there after each round; `Trainer.load` reads it.
        progress : bool
            Show a progress bar on a terminal.

        Returns
        -------
        History
            All rounds of this trainer so far.

        Raises
        ------
        TypeError, ValueError
            If an argument does not fit.
        FloatingPointError
            If the training diverges; the model is left as it was before the round.
        RuntimeError
            If all clients died, or a server died again and again.
        """
        check_integer("epochs", epochs, 1)
        if report_every is not None:
            check_integer("report_every", report_every, 1)
        if validation is None and (patience is not None or until is not None):
            raise ValueError("`patience` and `until` need `validation`")
        if patience is not None:
            check_integer("patience", patience, 1)
        held_out = None if validation is None else self._held_out(validation)
        if until is not None:
            check_number("until", until, "[-1, 1]", -1, 1)
        watch = _Watch(patience, until)
        total, passes = self._passes(x, y)
        with tqdm(
            total=total and total * epochs,
            unit="record",
            unit_scale=True,
            disable=None if progress else True,
        ) as bar:
            for _ in range(epochs):
                rounds = 0
                for blocks in _rounds(passes(), report_every):
                    report = self._round(blocks, held_out, bar)
                    self.history.append(report)
                    rounds += 1
                    if checkpoint is not None:
                        self.save(checkpoint)
                    if watch.is_over(report, self.model):
                        return self.history
                if not rounds:
                    raise ValueError("`x` must hold records for every epoch, and now holds none")
        watch.take_best(self.model)
        return self.history

    def partial_fit(self, x: ArrayLike, y: ArrayLike) -> Report:
        """Train once on a block of records of an endless stream, in the order they come.

        The report is not added to `history`, which would grow without end.

        Parameters
        ----------
        x : array, shape [records, inputs]
            Inputs.
        y : array, shape [records, targets] or [records]
            Targets.

        Returns
        -------
        Report
            What this round measured.
        """
        return self._round([Block(*self.model.checked_records(x, y))], None, None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, the settings and the history to one ``.npz`` file without pickle."""
        arrays = storage.to_arrays(vars(self.model), self.model.functions)
        about = {"settings": self.settings, "seconds": self.seconds}
        text = {"trainer": json.dumps(about), "history": self.history.to_json()}
        write_arrays(
            path, FORMAT, arrays | {name: np.asarray(value) for name, value in text.items()}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trainer:
        """Read what `save` or a checkpoint wrote; training goes on as if it had never ended.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is damaged or holds something else.
        """
        arrays = read_arrays(path, FORMAT)
        try:
            about, history = parse_json(str(arrays["trainer"])), str(arrays["history"])
            trainer = cls(KAN.restored(*storage.from_arrays(arrays)), **about["settings"])
            trainer.history = History.from_json(history)
            trainer.seconds = about["seconds"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no valid trainer: {error}") from error
        return trainer

    def _held_out(self, validation: Any) -> Block:
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            given = type(validation).__name__
            raise TypeError(f"`validation` must be a pair (x, y), got {given}")
        return Block(*self.model.checked_records(*validation))

    def _passes(self, x: Any, y: Any) -> tuple[int | None, Callable[[], Iterable[Block]]]:
        """How many records there are, if that is known, and how to go through them once."""
        model = self.model
        if y is None:
            if not isinstance(x, Iterable):
                raise TypeError(
                    f"`x` must be arrays or an iterator of blocks, got {type(x).__name__}"
                )
            return None, lambda: checked_blocks(x, model.checked_records)
        x, y = model.checked_records(x, y)
        if model.functions is None:
            self._initialize(Block(x, y))
        return len(x), lambda: shuffled(x, y, self._block, (model.seed, model.epochs))

    def _round(self, blocks: Iterable[Block], held_out: Block | None, bar: Any) -> Report:
        """Train on some blocks and report; a round without any finite record changes nothing."""
        model, meter = self.model, Meter()
        if model.functions is None:
            blocks = self._initialized_by_first(iter(blocks))
        source = Source(blocks, self._block)
        start = time.perf_counter()
        if model.functions is None:
            for _ in source:  # nothing in it but what is rejected
                pass
        else:
            model.functions = self._trained(_shown(source, bar), meter)
        seconds = time.perf_counter() - start
        self.seconds += seconds
        model.epochs += 1
        model.records += meter.records
        model.updates += meter.updates
        report = self._report(meter, source.rejected, seconds, held_out)
        if bar is not None and report.pearson is not None:
            bar.set_postfix(pearson=f"{report.pearson:.4f}", rmse=f"{report.rmse:.4g}")
        return report

    def _trained(self, blocks: Iterable[Block], meter: Meter) -> Functions:
        model = self.model
        assert model.functions is not None
        engine = self._engine
        if engine is None or self._engine_of != (id(model.functions), model.frozen):
            rule = replace(self._plan.rule, adapt=not model.frozen)
            engine = open_engine(model.functions, replace(self._plan, rule=rule))
        self._engine = None  # what fails is not used again
        try:
            with one_blas_thread():
                engine.train(blocks, meter)
            functions = engine.functions
            if not all(np.isfinite(array).all() for array in functions):
                raise FloatingPointError
        except FloatingPointError as error:
            raise FloatingPointError(
                "training diverged and the model is as before this round; take a smaller `step`, "
                "more `damping`, a smaller `block` or fewer `clients`"
            ) from error
        self._engine, self._engine_of = engine, (id(functions), model.frozen)
        return functions

    def _initialized_by_first(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Pass blocks on, once the first with a finite record has initialized the model."""
        seen = []
        for block in blocks:
            seen.append(block)
            if self._initialize(block):
                break
        return itertools.chain(seen, blocks)

    def _initialize(self, block: Block) -> bool:
        finite = finite_records(block)
        if finite.any():
            self.model.initialize(block.x[finite], block.y[finite])
        return bool(finite.any())

    def _report(
        self, meter: Meter, rejected: int, seconds: float, held_out: Block | None
    ) -> Report:
        model = self.model
        accuracy: dict[str, float | None] = {"pearson": None, "rmse": None}
        if held_out is not None and model.functions is not None:
            predictions = model.predict(held_out.x)
            accuracy = {
                "pearson": float(pearson(predictions, held_out.y).mean()),
                "rmse": float(root_mean_square_error(predictions, held_out.y).mean()),
            }
        records = max(meter.records, 1)
        return Report(
            epoch=model.epochs,
            records=model.records,
            updates=model.updates,
            seconds=self.seconds,
            train_error=float(np.sqrt(meter.squared_error / records)),
            records_per_second=meter.records / seconds,
            updates_per_second=meter.updates / seconds,
            messages_per_second=meter.messages / seconds,
            share_selected=meter.updates / records,
            staleness=dict(sorted(meter.staleness.items())),
            rejected=rejected,
            dropped=meter.dropped,
            dead_clients=meter.dead_clients,
            restarts=meter.restarts,
            full_queues=meter.full_queues,
            **accuracy,
        )


class _Watch:
    """Says when training is over, and remembers the best functions where that is asked for."""

    def __init__(self, patience: int | None, until: float | None) -> None:
        self._patience, self._until = patience, until
        self._best: tuple[float, Functions | None] = np.inf, None
        self._rounds_since = 0

    def is_over(self, report: Report, model: KAN) -> bool:
        if report.pearson is None or report.rmse is None:
            return False
        if self._until is not None and report.pearson >= self._until:
            return True
        if report.rmse < self._best[0]:
            self._best, self._rounds_since = (report.rmse, model.functions), 0
        else:
            self._rounds_since += 1
        if self._patience is not None and self._rounds_since >= self._patience:
            self.take_best(model)
            return True
        return False

    def take_best(self, model: KAN) -> None:
        if self._patience is not None and self._best[1] is not None:
            model.functions = self._best[1]


def _concurrency(clients: int) -> float:
    """Divide the step of what all blocks agree on, so that it is stable in spite of its delay.

    Steps s that are `clients` - 1 messages late converge for s < 2 sin(pi / (4 clients - 2)),
    which is more than the inverse of this for any number of clients.
    """
    return 1 + (clients - 1) * 2 / 3


def _default_step(solver: Solver, records_under_way: float) -> float:
    """Blocks of stale records are stable up to about 13 / records, best at 3-6 / records."""
    return 1.0 if solver == "newton-kaczmarz" else min(0.1, 4 / records_under_way)


def _rounds(blocks: Iterable[Block], records: int | None) -> Iterator[Iterator[Block]]:
    """Cut blocks into rounds of at least so many records, the last one smaller."""
    rest = iter(blocks)
    for first in rest:
        yield _take(itertools.chain([first], rest), records)


def _take(blocks: Iterator[Block], records: int | None) -> Iterator[Block]:
    taken = 0
    for block in blocks:
        yield block
        taken += len(block.x)
        if records is not None and taken >= records:
            return


def _shown(blocks: Iterable[Block], bar: Any) -> Iterator[Block]:
    """Pass blocks on, counted by a progress bar."""
    for block in blocks:
        yield block
        if bar is not None:
            bar.update(len(block.x))
