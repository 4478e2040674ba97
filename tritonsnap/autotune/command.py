"""The command lines `python -m autotune` and `tritonsnap tune`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tritonsnap.autotune.caches import describe, merge, prune
from tritonsnap.autotune.check import check
from tritonsnap.autotune.runner import TorchRunner
from tritonsnap.autotune.tune import tune
from tritonsnap.console import INTERRUPTED
from tritonsnap.ops.kernel import Kernel, declared_kernels
from tritonsnap.tuning import shipped_directory, user_directory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m autotune`, which keeps the caches that the package ships.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line's by default.

    Returns
    -------
    int
        The exit status: 0 if all is well, 1 if something is wrong, 130 after an interrupt.
    """
    options = _parser().parse_args(arguments)
    try:
        kernels = declared_kernels()
    except ModuleNotFoundError as error:
        return _report([f"{error}; run: pip install 'tritonsnap[torch]'"])
    directory: Path = options.directory
    match options.command:
        case "tune":
            return run_tune(_named(kernels, options.kernels), directory)
        case "check":
            return _report(check(_named(kernels, options.kernels), [directory]))
        case "list":
            print("\n".join(describe(directory, kernels)) or f"no tuned configs in {directory}")
        case "merge":
            return _report(merge(options.sources, directory, kernels))
        case "prune":
            print("\n".join(str(path) for path in prune(directory, kernels)) or "nothing to prune")
    return 0


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tritonsnap tune` takes: `main`'s ``tune`` on the user's caches."""
    _add_kernels(parser)
    _add_directory(parser, user_directory())


def run_tune_command(options: argparse.Namespace) -> int:
    """Run `tritonsnap tune` with what `add_tune_arguments` declared; the status is `main`'s."""
    names = [item for name in options.kernels or [] for item in ("--kernels", name)]
    return main(["tune", *names, "--directory", str(options.directory)])


def run_tune(kernels: Iterable[Kernel], directory: Path) -> int:
    """Tune kernels on the GPU at hand; the status is `main`'s."""
    if importlib.util.find_spec("torch") is None:
        return _report(["tuning needs torch; run: pip install 'tritonsnap[torch]'"])
    import torch

    if not torch.cuda.is_available():
        return _report(["tuning needs a CUDA or ROCm GPU, and torch sees none"])
    try:
        return _report(tune(kernels, TorchRunner("cuda"), directory))
    except KeyboardInterrupt:
        print(f"interrupted; the finished entries are in {directory}", file=sys.stderr)
        return INTERRUPTED


def _report(problems: list[str]) -> int:
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _named(kernels: tuple[Kernel, ...], names: Sequence[str] | None) -> tuple[Kernel, ...]:
    known = {kernel.name: kernel for kernel in kernels}
    if unknown := [name for name in names or () if name not in known]:
        raise SystemExit(f"no kernel is named {unknown[0]!r}; there are: {', '.join(known)}")
    return tuple(known[name] for name in names) if names else kernels


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m autotune", description="Make and keep the tuned launch configs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "tune": "time every config on the GPU at hand and keep the best",
        "check": "compile every default and tuned config for four GPUs, which need not be there",
        "list": "say what the caches hold",
        "merge": "add the entries of other directories; the faster of two stays",
        "prune": "delete what no lookup uses any more",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text, description=text)
        _add_directory(command, shipped_directory())
        if name in ("tune", "check"):
            _add_kernels(command)
        if name == "merge":
            command.add_argument("sources", nargs="+", type=Path, help="directories of caches")
    return parser


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernels",
        action="append",
        metavar="NAME",
        help="a kernel, instead of all; may be given more than once",
    )


def _add_directory(parser: argparse.ArgumentParser, default: Path) -> None:
    parser.add_argument(
        "--directory", type=Path, default=default, help="of the caches (default: %(default)s)"
    )
