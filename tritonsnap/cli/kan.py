"""Train a Kolmogorov-Arnold network with concurrent workers on a known problem or a CSV file."""

from __future__ import annotations

import argparse
import sys
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from tritonsnap.cli.errors import UserError, check_plot, check_writable, told_to_user
from tritonsnap.console import INTERRUPTED
from tritonsnap.files import write_atomically
from tritonsnap.kan import KAN, Trainer
from tritonsnap.kan.engines import EngineName
from tritonsnap.kan.step import Solver
from tritonsnap.kan.tasks import TASKS, Records, read_csv

_HELD_OUT = 0.2
_TRAINER = ("engine", "solver", "clients", "servers", "block", "select", "step", "clip", "partial")
_CSV_MODEL = {"addends": 32, "inner_points": 6, "outer_points": 16}
_CSV_EPOCHS = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""

    def add(name: str, kind: type, help: str) -> None:
        metavar = {int: "N", float: "X", str: "FILE"}[kind]
        parser.add_argument(name, type=kind, metavar=metavar, help=help)

    parser.add_argument(
        "--task",
        nargs="+",
        required=True,
        metavar=("TASK", "FILE"),
        help=f"what to learn: {', '.join(TASKS)}, or csv FILE, numbers under a header line",
    )
    parser.add_argument("--target", metavar="NAME", help="column of the CSV (default: the last)")
    add("--records", int, "records to train on (default: the task's, or 80 %% of the CSV)")
    add("--addends", int, "hidden sums of the model (default: the task's)")
    add("--inner-points", int, "points of an inner function (default: the task's)")
    add("--outer-points", int, "points of an outer function (default: the task's)")
    add("--epochs", int, "how often to go through the records (default: the task's)")
    add("--until", float, "end once the held-out correlation is at least this")
    add("--patience", int, "end after so many epochs without a better held-out RMSE")
    parser.add_argument("--engine", choices=get_args(EngineName), help="default: threads")
    parser.add_argument("--solver", choices=get_args(Solver), help="default: the task's")
    add("--clients", int, "workers that compute changes")
    add("--servers", int, "workers that own functions")
    add("--block", int, "records that a client draws at once")
    add("--select", float, "fraction of a block that is used, its largest residuals")
    add("--step", float, "step size")
    add("--clip", float, "bound of residuals in robust standard deviations")
    add("--partial", float, "fraction of the addends that one block changes")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of data and model")
    add("--save", str, "write the model, as JSON text if the name ends so, else as .npz")
    add("--checkpoint", str, "write model, settings and history after each epoch")
    parser.add_argument("--resume", action="store_true", help="go on with --checkpoint")
    add("--plot", str, "plot accuracy against records, updates and seconds as PNG")


def run(arguments: argparse.Namespace) -> int:
    """Train, report each epoch, and print the accuracy as the last line."""
    if arguments.resume and arguments.checkpoint is None:
        raise UserError("--resume needs --checkpoint FILE, what to go on with")
    check_writable("--save", arguments.save)
    check_writable("--checkpoint", arguments.checkpoint)
    check_plot("--plot", arguments.plot)
    with told_to_user(training="records"):
        training, validation, sizes, epochs = _problem(arguments)
        settings = {name: getattr(arguments, name) for name in _TRAINER}
        chosen = {name: value for name, value in settings.items() if value is not None}
        if arguments.resume:
            if chosen:
                raise UserError(
                    f"--{next(iter(chosen))} cannot be changed with --resume: the checkpoint has it"
                )
            trainer = Trainer.load(arguments.checkpoint)
        else:
            model = KAN(training[0].shape[1], **sizes, seed=arguments.seed)
            if arguments.task[0] in TASKS:
                chosen = {"solver": TASKS[arguments.task[0]].solver} | chosen
            trainer = Trainer(model, **chosen)
        print(_summary(trainer, len(training[0])), file=sys.stderr)
        try:
            history = trainer.fit(
                *training,
                epochs=epochs if arguments.epochs is None else arguments.epochs,
                validation=validation,
                until=arguments.until,
                patience=arguments.patience,
                checkpoint=arguments.checkpoint,
            )
        except KeyboardInterrupt:
            print(_keep(trainer, arguments), file=sys.stderr)
            return INTERRUPTED
        except (FloatingPointError, RuntimeError) as error:
            raise UserError(str(error)) from error
        if arguments.save is not None:
            _save(trainer.model, arguments.save)
        if arguments.plot is not None:
            history.plot(arguments.plot)
    for report in history:
        print(
            f"epoch {report.epoch}: {report.seconds:.2f} s, correlation {report.pearson:.4f}, "
            f"RMSE {report.rmse:.5g}; {report.records_per_second:.0f} records/s, "
            f"{report.updates_per_second:.0f} updates/s, "
            f"{report.messages_per_second:.0f} messages/s, {report.share_selected:.0%} selected, "
            f"staleness {_quantiles(report.staleness)}, {report.rejected} rejected"
        )
    last = history[-1]
    print(f"held-out correlation: {last.pearson:.4f}")
    print(f"held-out RMSE: {last.rmse:.5g}")
    return 0


def _problem(arguments: argparse.Namespace) -> tuple[Records, Records, dict[str, Any], int]:
    """Records to train on and held out, sizes of the model, and epochs."""
    name, *files = arguments.task
    if name == "csv":
        if len(files) != 1:
            raise UserError("--task csv needs one FILE")
        x, y = read_csv(files[0], arguments.target)
        order = np.random.default_rng(arguments.seed).permutation(len(x))
        held_out = max(1, round(_HELD_OUT * len(x)))
        kept = order[held_out:][: arguments.records]
        training, validation = (x[kept], y[kept]), _finite(x[order[:held_out]], y[order[:held_out]])
        sizes: dict[str, Any] = dict(_CSV_MODEL)
        epochs = _CSV_EPOCHS
        if not len(kept) or not len(validation[0]):
            raise UserError(f"{files[0]} holds too few records, {len(x)}")
    elif name in TASKS:
        if files:
            raise UserError(f"--task {name} makes its own records and takes no FILE")
        if arguments.target is not None:
            raise UserError("--target goes with --task csv")
        task = TASKS[name]
        training, validation = task.records(arguments.seed, arguments.records)
        sizes = {size: getattr(task, size) for size in _CSV_MODEL}
        epochs = task.epochs
    else:
        raise UserError(f"--task must be one of {', '.join(TASKS)} or csv FILE, got {name!r}")
    chosen = {size: getattr(arguments, size) for size in sizes}
    sizes.update({size: value for size, value in chosen.items() if value is not None})
    return training, validation, sizes, epochs


def _finite(x: NDArray[Any], y: NDArray[Any]) -> Records:
    """The records without a missing value, for those held out have to be predicted."""
    finite = np.isfinite(x).all(axis=1) & np.isfinite(y)
    return x[finite], y[finite]


def _keep(trainer: Trainer, arguments: argparse.Namespace) -> str:
    """Save what an interrupted training has, and say what that is."""
    epochs = trainer.model.epochs
    if not epochs:
        return "interrupted in the first epoch, nothing is kept"
    kept = f"interrupted after epoch {epochs}"
    if arguments.save is not None:
        _save(trainer.model, arguments.save)
        kept += f"; {arguments.save} holds the model"
    if arguments.checkpoint is not None:
        task = " ".join(arguments.task)
        kept += f"; go on with: tritonsnap kan --task {task} --resume "
        kept += f"--checkpoint {arguments.checkpoint}"
    elif arguments.save is None:
        kept += ", nothing is kept without --save or --checkpoint"
    return kept


def _save(model: KAN, path: str) -> None:
    if path.endswith(".json"):
        write_atomically(path, model.to_json())
    else:
        model.save(path)


def _summary(trainer: Trainer, records: int) -> str:
    return f"{trainer.model}, {trainer.model.parameters} parameters, {records} records"


def _quantiles(staleness: dict[int, int]) -> str:
    """Median and maximum."""
    if not staleness:
        return "-"
    ages = sorted(staleness)
    counts = np.cumsum([staleness[age] for age in ages])
    return f"{ages[int(np.searchsorted(counts, counts[-1] / 2))]} (at most {ages[-1]})"
