"""Run benchmarks by name, each in a process of its own.

``python -m benchmarks all [--quick] [--results FOLDER]`` runs every one, goes on where one fails
and ends by saying which did. ``python -m benchmarks NAME [OPTION ...]`` runs one, with its options:
``python -m benchmarks NAME --help`` lists them. ``python -m benchmarks readme`` puts the committed
results into README.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.report import Parser
from tritonsnap.console import INTERRUPTED, run_command

BENCHMARKS: dict[str, tuple[str, ...]] = {
    "masked_dsmm": ("jax", "numba", "torch"),
    "density_sweep": ("jax", "matplotlib", "numba", "scipy", "torch"),
    "step": ("jax",),
    "sequence": ("jax", "matplotlib"),
    "chunks": ("jax", "torch"),
    "copy_task": ("matplotlib",),
    "jacobian": ("asdex", "jax", "matplotlib", "scipy", "sparsejac"),
    "kan": ("matplotlib", "numba", "torch"),
    "traffic": ("torch", "triton"),
    "devices": ("matplotlib",),
}
"""Modules, each with a `main(arguments)` whose options a `Parser` reads, and what they import."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark or all; the exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ("all", *BENCHMARKS, "readme")
    parser.add_argument("name", choices=names, metavar="NAME", help="one of %(choices)s")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="OPTION")
    asked = parser.parse_args(arguments)
    if asked.name != "all":
        return run(asked.name, asked.options)
    Parser("all", __doc__).parse_args(asked.options)  # what is wrong is said once
    return run_all(asked.options)


def run_all(options: Sequence[str]) -> int:
    """Run every benchmark with the same options."""
    failed = []
    start = time.monotonic()
    for number, name in enumerate(BENCHMARKS, 1):
        seconds = time.monotonic() - start
        print(f"\n[{number}/{len(BENCHMARKS)}, {seconds:.0f} s] {name}\n", flush=True)
        status = run(name, options)
        if status == INTERRUPTED:
            return INTERRUPTED
        if status:
            failed.append(name)
    print(f"\n{len(BENCHMARKS)} benchmarks in {time.monotonic() - start:.0f} s; ", end="")
    print(f"failed: {', '.join(failed)}" if failed else "all went well")
    return int(bool(failed))


def run(name: str, options: Sequence[str]) -> int:
    """Run a benchmark in a new process, which shows its progress, and return its exit status.

    Where it lacks something, that is said in place of running it, and the status is 1. Ctrl-C is
    for that process to answer; its status is then `INTERRUPTED`.
    """
    missing = [need for need in BENCHMARKS.get(name, ()) if importlib.util.find_spec(need) is None]
    if missing:
        print(
            f"{name} needs {', '.join(missing)}; run: pip install -e '.[all,test]'", file=sys.stderr
        )
        return 1
    with subprocess.Popen([sys.executable, "-m", f"benchmarks.{name}", *options]) as process:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            status = process.wait()
        finally:
            signal.signal(signal.SIGINT, previous)
    return INTERRUPTED if status == -signal.SIGINT else status


if __name__ == "__main__":
    raise SystemExit(run_command(main))
