"""Say what SnAp-n, exact RTRL and BPTT would cost for a network, without running them."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any, get_args

import tritonsnap
from tritonsnap.arrays import LIBRARIES, fastest_library
from tritonsnap.cli.errors import UserError, check_plot, told_to_user
from tritonsnap.online.configuration import CellName, make_network


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--cell", choices=get_args(CellName), default="gru", help="kind of cell (default: gru)"
    )
    for name, default, help in (
        ("--inputs", 64, "inputs of the cell"),
        ("--hidden", 256, "units of the cell"),
        ("--layers", 1, "layers of that kind, one above the other"),
        ("--batch", 16, "rows trained side by side"),
        ("--steps", 48, "length of the sequence, which is what BPTT remembers"),
        ("--seed", 0, "seed of the sparsity"),
    ):
        text = f"{help} (default: {default})"
        parser.add_argument(name, type=int, default=default, metavar="N", help=text)
    parser.add_argument(
        "--density",
        type=float,
        default=1.0,
        metavar="D",
        help="density of the recurrent weights, in (0, 1] (default: 1.0)",
    )
    parser.add_argument(
        "--exact",
        help="keep the influence of lower layers on higher ones (default: layer by layer)",
        action="store_true",
    )
    parser.add_argument(
        "--network",
        metavar="MODULE:NAME",
        help="a Cell, FunctionCell or Stack of your own, in place of the options above: the name "
        "of an object in a module that Python finds from here",
    )
    parser.add_argument(
        "--orders",
        type=_order,
        nargs="+",
        default=[1, 2, 3, None],
        metavar="N",
        help="n of SnAp-n to compare, or 'rtrl' (default: 1 2 3 rtrl)",
    )
    parser.add_argument(
        "--library",
        choices=LIBRARIES,
        help=f"array library to predict for (default: here {fastest_library()})",
    )
    parser.add_argument("--plot", metavar="FILE", help="write a picture of the masks as PNG")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, and draw the masks if asked to."""
    check_plot("--plot", arguments.plot)
    with told_to_user():
        if arguments.network:
            network = _imported(arguments.network)
        else:
            names = ("cell", "inputs", "hidden", "density", "seed", "layers", "exact")
            network = make_network(**{name: getattr(arguments, name) for name in names})
        found = tritonsnap.explain(
            network,
            arguments.orders,
            batch=arguments.batch,
            steps=arguments.steps,
            library=arguments.library,
        )
        print(found)
        if arguments.plot:
            print(f"masks are in {found.plot(arguments.plot)}")
    return 0


def _imported(text: str) -> Any:
    """The network that ``MODULE:NAME`` names."""
    module, _, name = text.partition(":")
    sys.path.insert(0, "")
    try:
        network = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--network {text}: {error}; it must be MODULE:NAME") from error
    finally:
        sys.path.remove("")
    if not isinstance(network, (tritonsnap.Cell, tritonsnap.FunctionCell, tritonsnap.Stack)):
        raise UserError(
            f"--network {text} must be a Cell, a FunctionCell or a Stack, "
            f"got {type(network).__name__}"
        )
    return network


def _order(text: str) -> int | None:
    if text == "rtrl":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers of at least 1 or 'rtrl', got {text!r}")
    return int(text)
