"""`explain`: what each rule would cost for a network, before anything large is allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tritonsnap.arrays import LIBRARIES, Library, fastest_library
from tritonsnap.checks import check_choice, check_instance, check_integer
from tritonsnap.online.account import Account, Influence, Product, account_of
from tritonsnap.online.cell import Cell
from tritonsnap.online.chunk_choice import predicted_seconds
from tritonsnap.online.explanation import Explanation, Method
from tritonsnap.online.stack.network import Stack
from tritonsnap.online.unfactored.cell import UnfactoredCell
from tritonsnap.online.unfactored.function_cell import FunctionCell
from tritonsnap.plan.assignment import Assignment, block_cost, choose, count_flops
from tritonsnap.plan.calibration import calibrated_target
from tritonsnap.plan.cost import TARGETS, GroupCosts, Target, group_costs, price_groups
from tritonsnap.plan.dsmm_plan import default_target
from tritonsnap.sparsity.snap import check_order

_FLOAT = 4  # bytes of a float32


def explain(
    cell: Cell | UnfactoredCell | Stack,
    orders: Sequence[int | None] = (1, 2, 3, None),
    *,
    batch: int = 1,
    steps: int = 48,
    library: Library | None = None,
) -> Explanation:
    """Say what SnAp-n, exact RTRL and BPTT would cost for a network, without running them.

    Works on groups of columns: nothing of the size of the influence is allocated, so a case far
    too large to run is explained as well. Only an exact stack and a `FunctionCell` have patterns of
    about the size of their weights. Up to 2^18 parameters of a `Cell`, or of a `Stack` that learns
    layer by layer, it also says in which chunks `sequence` would go through time, and counts the
    sequence so; all others go step by step.

    Times are of the cost model, with the constants that `tritonsnap calibrate` measured here, or
    those that are shipped. What a `FunctionCell` computes is counted by its framework: a forward
    pass by its FLOPs (in torch those of products and convolutions), a derivative pass as two. What
    is not in it is the overhead of calls, such as torch's of a module that it maps row by row.

    Parameters
    ----------
    cell
        The network: a `Cell`, a `FunctionCell` or a `Stack`, exact or layer by layer.
    orders
        The n of SnAp-n to compare; None is exact RTRL (of a stack that is not exact: exact within
        each layer). BPTT is always there.
    batch, steps
        Rows side by side, and the length T of the sequence.
    library
        Whose cost model to use: "numpy", "torch" or "jax", on the CPU; by default the fastest one
        that is installed, for a `FunctionCell` its own.

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError, TypeError
        If an argument is not allowed; the message names it.

    Examples
    --------
    >>> import tritonsnap as ts
    >>> found = ts.explain(ts.RNN(inputs=2, hidden=64, density=0.1), batch=8, library="numpy")
    >>> [(row.name, row.nonzeros) for row in found.rows[:2]]
    [('SnAp-1', 602), ('SnAp-2', 4344)]
    """
    account = account_of(cell)
    check_instance("orders", orders, Sequence)
    for order in orders:
        check_order(order)
    check_integer("batch", batch, 1)
    check_integer("steps", steps, 1)
    library = _library(cell, library)
    target = TARGETS["xla" if library == "jax" else default_target()]
    influences = {order: account.influence(order) for order in dict.fromkeys(orders)}
    rows = [
        _forward_in_time(account, order, influence, target, batch, steps)
        for order, influence in influences.items()
    ]
    rows.append(_bptt(account, calibrated_target(target.name), batch, steps))
    return Explanation(
        cell=cell,
        batch=batch,
        steps=steps,
        library=library,
        target=target.name,
        title=account.title,
        num_parameters=account.num_parameters,
        colors=account.colors,
        passes=account.passes,
        rows=tuple(rows),
        masks={_name(order): influence.mask for order, influence in influences.items()},
    )


def _library(cell: Any, library: Library | None) -> Library:
    own = cell.library if isinstance(cell, FunctionCell) else None
    library = (own or fastest_library()) if library is None else library
    check_choice("library", library, LIBRARIES)
    if own not in (None, library):
        raise ValueError(f"`library` must be {own!r}, the library of `cell`, got {library!r}")
    return library


def _name(order: int | None) -> str:
    return "RTRL" if order is None else f"SnAp-{order}"


def _forward_in_time(
    account: Account,
    order: int | None,
    influence: Influence,
    target: Target,
    batch: int,
    steps: int,
) -> Method:
    """The row of SnAp-n or RTRL."""
    price = calibrated_target(target.name)
    kept = [product for product in influence.products if product.carried]
    nonzeros = sum(product.nonzeros for product in kept)
    regimes: Counter[str] = Counter()
    nanoseconds, flops, blocks = 0.0, 0, 0
    for product in influence.products:
        costs, assignment = _assigned(product, target)
        nanoseconds += _nanoseconds(product, costs, assignment, price)
        flops += count_flops(product.groups, costs, assignment)
        blocks += len(assignment)
        for regime, members in assignment if product.carried else ():
            regimes[str(regime)] += len(members)
    around = account.forward + account.derivatives
    # a value of the influence is read once more for the gradient, delta^T J
    values = nonzeros + account.values
    each = nanoseconds + price.element * values + price.multiply_add * around
    if account.values:  # they are put where the influence has them
        each += price.gather * nonzeros
    # the overhead of calls is the only part that a batch does not multiply
    seconds = (batch * each + price.block * blocks) * 1e-9
    chunk, total = _through_time(account, order, price, batch, steps, steps * seconds)
    immediate = account.values or account.num_parameters
    return Method(
        name=_name(order),
        order=order,
        nonzeros=nonzeros,
        density=nonzeros / (account.rows * account.num_parameters),
        groups=sum(len(product.groups) for product in kept),
        largest_support=max(int(p.groups.mask_sizes.max(initial=0)) for p in kept),
        regimes=dict(regimes),
        bytes=_FLOAT * batch * nonzeros,
        flops=batch * (flops + 2 * nonzeros + 2 * immediate + 2 * around),
        seconds=seconds,
        chunk=chunk,
        total_seconds=total,
    )


def _assigned(product: Product, target: Target) -> tuple[GroupCosts, Assignment]:
    """The regimes and blocks that a plan has: by the shipped costs, as carries fit everywhere."""
    costs = group_costs(product.groups, product.dynamics, target)
    shape = product.dynamics.shape
    return costs, choose(product.groups, shape, costs, target, restricted=False)[1]


def _nanoseconds(
    product: Product, costs: GroupCosts, assignment: Assignment, price: Target
) -> float:
    """What the blocks of a product take here, without the overhead of their calls."""
    here = replace(costs, by_regime=price_groups(product.groups, costs.nonzeros, price))
    return sum(
        block_cost(product.groups, here, price, regime, members)
        for regime, members in assignment
        if len(members)
    )


def _through_time(
    account: Account, order: int | None, price: Target, batch: int, steps: int, by_steps: float
) -> tuple[int | None, float]:
    """The steps of a chunk and the predicted seconds of a sequence; None if that is not found."""
    try:
        learner = account.learner(order)
    except OverflowError:
        return None, by_steps
    if learner is None:
        return 1, by_steps
    chunking = learner.chunkings.find("auto", price.name, steps, batch)
    if chunking is None:
        return 1, by_steps
    influence = predicted_seconds(learner, "auto", price.name, steps, batch)
    around = account.forward + account.derivatives
    forward = steps * batch * price.multiply_add * around * 1e-9
    return chunking.steps, forward + influence


def _bptt(account: Account, price: Target, batch: int, steps: int) -> Method:
    """The row of BPTT(T)."""
    each = price.multiply_add * account.backprop + price.element * account.remembered
    seconds = (batch * each + 3 * price.product) * 1e-9
    return Method(
        name=f"BPTT({steps})",
        order=None,
        nonzeros=0,
        density=0.0,
        groups=0,
        largest_support=0,
        regimes={},
        bytes=_FLOAT * batch * steps * account.remembered,
        flops=batch * 2 * account.backprop,
        seconds=seconds,
        chunk=None,
        total_seconds=steps * seconds,
    )
