"""Time the kernels' launch configs on this machine's GPU and keep the best ones."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `tritonsnap tune`."""
    from tritonsnap.autotune.command import add_tune_arguments

    add_tune_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Tune; the exit code is 1 where there is no GPU, 130 after Ctrl-C."""
    from tritonsnap.autotune.command import run_tune_command

    return run_tune_command(options)
