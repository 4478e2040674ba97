"""How a command ends: without a traceback at Ctrl-C, or where nobody reads its output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT."""
_UNREAD = 141
"""Exit status where a pipe's reader is gone: 128 and the number of SIGPIPE."""


def run_command(
    run: Callable[[], int | None], interrupted: str = "interrupted, nothing was written"
) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    run
        The command; None is 0. It may end by `SystemExit`, as `argparse` does.
    interrupted
        What to say at Ctrl-C.

    Returns
    -------
    int
        Its own status; 130 after Ctrl-C; 141 if its output went to a reader that has seen enough,
        such as ``head``.
    """
    try:
        try:
            return run() or 0
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return _UNREAD
