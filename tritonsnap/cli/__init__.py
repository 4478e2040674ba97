"""The `tritonsnap` command: one module per subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import tritonsnap
from tritonsnap.cli import calibrate, doctor, explain, kan, train, tune
from tritonsnap.cli.errors import UserError
from tritonsnap.console import run_command

SUBCOMMANDS: dict[str, Any] = {
    "train": train,
    "explain": explain,
    "kan": kan,
    "tune": tune,
    "calibrate": calibrate,
    "doctor": doctor,
}
"""Every module has a docstring, `add_options(parser)` and `run(arguments) -> exit code`."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is not known, in the name of the subcommand that was given it."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv
        Arguments; None for those of the process.

    Returns
    -------
    int
        Exit code: 0, 2 for a user's error, 130 after Ctrl-C, 141 if nobody reads the output.
    """
    return run_command(lambda: _run(argv))


def make_parser() -> argparse.ArgumentParser:
    """The command line: options of every subcommand; `command` says which was given."""
    parser = _Parser(prog="tritonsnap", description=tritonsnap.__doc__)
    parser.add_argument("--version", action="version", version=tritonsnap.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in SUBCOMMANDS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        module.add_options(commands.add_parser(name, help=summary, description=summary))
    return parser


def _run(argv: Sequence[str] | None) -> int:
    arguments = make_parser().parse_args(argv)
    command = arguments.command
    del arguments.command
    try:
        return int(SUBCOMMANDS[command].run(arguments))
    except BrokenPipeError:
        raise
    except UserError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    print(f"tritonsnap {command}: error: {message}", file=sys.stderr)
    return 2
