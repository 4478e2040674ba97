"""The `tritonsnap` command: one module per subcommand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import tritonsnap
from tritonsnap.cli import calibrate, doctor, explain, kan, train, tune
from tritonsnap.cli.errors import UserError

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
    parser = _Parser(prog="tritonsnap", description=tritonsnap.__doc__)
    parser.add_argument("--version", action="version", version=tritonsnap.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in SUBCOMMANDS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        module.add_options(commands.add_parser(name, help=summary, description=summary))
    arguments = parser.parse_args(argv)
    command = arguments.command
    del arguments.command
    try:
        code = int(SUBCOMMANDS[command].run(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # who reads the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (UserError, OSError) as error:
        print(f"tritonsnap {command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
