"""Train a Kolmogorov-Arnold network with concurrent workers on a known problem or a CSV file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

import numpy as np

from tritonsnap.cli.errors import UserError, told_to_user
from tritonsnap.kan import KAN, Report, Trainer
from tritonsnap.kan.engines import EngineName
from tritonsnap.kan.step import Solver
from tritonsnap.kan.tasks import TASKS, Records, Task, read_csv

_HELD_OUT = 0.2
_CSV = Task(lambda *_: (np.empty(0), np.empty(0)), 0, 0, 0, 32, 6, 16, 20)
"""The model for a CSV file, whose inputs its columns tell."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""

    def number(name: str, help: str, kind: type = int) -> None:
        parser.add_argument(name, help=help, type=kind, metavar="N" if kind is int else "X")

    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--task",
        nargs="+",
        metavar="TASK",
        help=f"what to learn: {', '.join(TASKS)}, or csv FILE, a table with a header line",
    )
    what.add_argument("--resume", help="go on with a checkpoint's settings", metavar="FILE")
    parser.add_argument("--target", help="target column of the CSV (default: the last one)")
    number("--records", "records to train on (default: the task's, or 80 %% of the CSV)")
    number("--addends", "hidden sums of the model (default: the task's)")
    number("--inner-points", "points of an inner function (default: the task's)")
    number("--outer-points", "points of an outer function (default: the task's)")
    number("--epochs", "how often to go through the records (default: the task's)")
    parser.add_argument("--until", type=float, metavar="R", help="end at this correlation")
    number("--patience", "end after N epochs without a better validation RMSE")
    parser.add_argument("--engine", choices=get_args(EngineName), default="threads")
    parser.add_argument("--solver", choices=get_args(Solver), default="newton-kaczmarz")
    number("--clients", "workers that compute changes")
    number("--servers", "workers that own functions")
    number("--block", "records that a client draws at once")
    number("--select", "fraction of a block that is used, its largest residuals", float)
    number("--step", "step size", float)
    number("--clip", "bound of residuals in robust standard deviations", float)
    number("--partial", "fraction of the addends that one block changes", float)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of data, model and order")
    parser.add_argument("--save", help="write the model, as .npz or .json", metavar="FILE")
    parser.add_argument("--checkpoint", help="write the state after each epoch", metavar="FILE")
    parser.add_argument("--plot", help="plot accuracy against time to a .png", metavar="FILE")


def run(arguments: argparse.Namespace) -> int:
    """Train, report each epoch, and print the accuracy as the last line."""
    with told_to_user():
        if arguments.resume is None:
            trainer, about = None, " ".join(arguments.task)
            task, training, validation = _data(arguments.task, arguments)
        else:
            trainer, about = Trainer.load(arguments.resume), arguments.resume
            if trainer.task is None:
                raise UserError(f"--resume: {about} does not say what it was trained on")
        raise NotImplementedError(task, training, validation)
    return 0
