"""Measure on this machine what the operations cost on which the way through time is chosen."""

from __future__ import annotations

import argparse
import importlib.util

from tritonsnap.cli.errors import UserError

_NEEDS = {"numpy": "numpy", "scipy": "scipy", "xla": "jax"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `tritonsnap calibrate`."""
    parser.add_argument(
        "--target",
        action="append",
        choices=sorted(_NEEDS),
        help="what to measure: NumPy, SciPy's or XLA's operations; may be given more than once "
        "(default: all that are installed)",
    )


def run(options: argparse.Namespace) -> int:
    """Measure, write the costs to the user's cache directory, and print them."""
    from tqdm import tqdm

    from tritonsnap.online.calibrate import measurements
    from tritonsnap.plan.calibration import write_costs

    installed = [name for name, module in _NEEDS.items() if importlib.util.find_spec(module)]
    for name in options.target or ():
        if name not in installed:
            raise UserError(f"--target {name}: {_NEEDS[name]} is not installed")
    names = [name for name in installed if not options.target or name in options.target]
    costs: dict[str, dict[str, float]] = {}
    with tqdm(total=sum(len(measurements(name)) for name in names), disable=None) as progress:
        for name in names:
            costs[name] = {}
            for constant, measure in measurements(name).items():
                progress.set_description(f"{name}: {constant}")
                costs[name][constant] = measure(costs[name])
                progress.update()
    path = write_costs(costs)
    for name, constants in costs.items():
        listed = ", ".join(f"{constant} {value:.3g}" for constant, value in constants.items())
        print(f"{name} (ns): {listed}")
    print(f"costs are in {path}")
    return 0
