"""Train a recurrent network online on text or on the copy task."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import tritonsnap
from tritonsnap.arrays import LIBRARIES, Library, fastest_library, import_library
from tritonsnap.cli.errors import UserError, told_to_user
from tritonsnap.console import INTERRUPTED
from tritonsnap.online.checkpoint import read_config
from tritonsnap.online.configuration import (
    CellName,
    InfluenceName,
    MethodName,
    OptimizerName,
    TaskName,
    TrainingConfig,
)
from tritonsnap.online.training import DEFAULT_SECONDS, Budget, Run


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; those of the configuration stay unset unless given."""
    defaults = TrainingConfig(backend="numpy")

    def add(name: str, help: str, **settings: Any) -> None:
        default = getattr(defaults, name.removeprefix("--").replace("-", "_"))
        shown = "" if default is None or name == "--backend" else f" (default: {default})"
        parser.add_argument(name, help=help + shown, default=argparse.SUPPRESS, **settings)

    add("--task", "what to learn", choices=get_args(TaskName))
    add("--text", "UTF-8 text to learn (default: the Python language reference)", metavar="FILE")
    add(
        "--backend",
        f"array library (default: the fastest installed, here {fastest_library()})",
        choices=LIBRARIES,
    )
    parser.add_argument(
        "--device",
        help="where torch computes: cpu, cuda, cuda:1, ... (default: a GPU if it sees one)",
        metavar="NAME",
    )
    add("--cell", "kind of cell", choices=get_args(CellName))
    add("--hidden", "units of the cell", type=int, metavar="N")
    add("--density", "density of the recurrent weights, in (0, 1]", type=float, metavar="D")
    add("--layers", "layers of that kind, one above the other", type=int, metavar="N")
    parser.add_argument(
        "--exact",
        help="keep the influence of lower layers on higher ones (default: layer by layer)",
        action="store_true",
        default=argparse.SUPPRESS,
    )
    add("--method", "how gradients are computed", choices=get_args(MethodName))
    add("--order", "n of SnAp-n; for --method snap", type=int, metavar="N")
    add("--influence-dtype", "what the influence is stored in", choices=get_args(InfluenceName))
    add("--batch", "rows trained side by side", type=int, metavar="N")
    add(
        "--update-every",
        "time steps between updates, 1 to update at every step",
        type=int,
        metavar="K",
    )
    add("--optimizer", "how gradients are applied", choices=get_args(OptimizerName))
    add("--learning-rate", "step size of the optimizer", type=float, metavar="RATE")
    add("--seed", "seed of parameters, sparsity and the copy task", type=int, metavar="N")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--steps", help="end after so many time steps", type=int, metavar="N")
    budget.add_argument(
        "--seconds",
        help=f"end after so much training time (default: {DEFAULT_SECONDS:.0f})",
        type=float,
        metavar="S",
    )
    parser.add_argument(
        "--out", help="directory for the results (default: runs/TASK-1, -2, ...)", metavar="DIR"
    )
    parser.add_argument(
        "--resume",
        help="go on with the run in --out; other options default to those of that run",
        action="store_true",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, score, and print the score as the last line."""
    names = {field.name for field in fields(TrainingConfig)}
    chosen = {name: value for name, value in vars(arguments).items() if name in names}
    if arguments.resume and arguments.out is None:
        raise UserError("--resume needs --out DIR, the directory of the run to go on with")
    with told_to_user():
        budget = Budget(arguments.steps, arguments.seconds)
        if arguments.resume:
            chosen = _saved_config(Path(arguments.out)) | chosen
        config = TrainingConfig(**chosen)
        out = Path(arguments.out) if arguments.out else _next_directory(config.task)
        if "order" in vars(arguments) and config.method != "snap":
            raise UserError(f"--order goes with --method snap only, got {config.method}")
        device = _device(config.backend, arguments.device)
    with device:
        with told_to_user():
            training = Run(config, out, resume=arguments.resume)
        return _train(config, training, budget)


def _train(config: TrainingConfig, training: Run, budget: Budget) -> int:
    print(_summary(config, training), file=sys.stderr)
    if not training.train(budget):
        print(
            f"interrupted after {training.state.step} time steps, all kept in "
            f"{training.checkpoint}; go on with: tritonsnap train --resume --out {training.out}",
            file=sys.stderr,
        )
        return INTERRUPTED
    figures = training.evaluate()
    print(f"results in {training.out}")
    if config.task == "copy":
        print(f"copy length reached: {figures['copy_length']}")
        return 0
    print(f"unigram entropy: {figures['unigram_entropy']:.2f}")
    print(f"bigram entropy: {figures['bigram_entropy']:.2f}")
    print(f"held-out bits per character: {figures['held_out_bits_per_character']:.2f}")
    return 0


def _device(backend: Library, name: str | None) -> AbstractContextManager[Any]:
    """Within it torch makes its tensors on a device; other libraries find theirs themselves."""
    if backend != "torch":
        if name is not None:
            raise UserError(f"--device goes with --backend torch only, got {backend}")
        return nullcontext()
    torch = import_library("torch")
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).cpu()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device: torch cannot compute on {name!r}: {reason}") from error
    # a context costs time in every call of torch
    return nullcontext() if name == "cpu" else torch.device(name)


def _saved_config(out: Path) -> dict[str, Any]:
    """The configuration of the run to go on with, as `TrainingConfig` takes it."""
    try:
        saved = read_config(out / "checkpoint.npz")
    except OSError:
        raise UserError(f"--resume: there is no checkpoint to read in {out}") from None
    except ValueError as error:
        raise ValueError(f"`resume`: {error}") from error
    names = {field.name for field in fields(TrainingConfig)}
    return {name: value for name, value in saved.items() if name in names}


def _next_directory(task: str) -> Path:
    number = 1
    while (path := Path("runs") / f"{task}-{number}").exists():
        number += 1
    return path


def _summary(config: TrainingConfig, training: Run) -> str:
    method = f"snap-{config.order}" if config.method == "snap" else config.method
    layers = "" if config.layers == 1 else f"{config.layers} layers, each a "
    if config.exact:
        method = f"exact {method}"
    return (
        f"{config.task}: {layers}{config.cell} of {config.hidden} units, "
        f"density {config.density:g}, "
        f"{method}, {config.batch} rows, in {config.backend}{_prediction(config, training)}; "
        f"results go to {training.out}"
    )


def _prediction(config: TrainingConfig, training: Run) -> str:
    """What the influence is predicted to take, for an exact one can take minutes a step."""
    if config.method not in ("snap", "rtrl"):
        return ""
    order = config.order if config.method == "snap" else None
    sizes = {"batch": config.batch, "steps": config.update_every}
    found = tritonsnap.explain(training.learner.cell, [order], library=config.backend, **sizes)
    return f", about {found.rows[0].total_seconds / config.update_every:.1g} s a time step"
