"""The SnAp masks: which parameter can influence which unit within n steps."""

from __future__ import annotations

from tritonsnap.checks import check_instance, check_integer
from tritonsnap.sparsity.pattern import SparsityPattern


def snap_pattern(
    dynamics: SparsityPattern, immediate: SparsityPattern, order: int | None
) -> SparsityPattern:
    """The pattern of the influence that SnAp-n keeps: that of ``I + A I + ... + A^(n-1) I``.

    Parameters
    ----------
    dynamics : pattern [m, m]
        Where ``D = ds_t/ds_{t-1}`` may be nonzero: the union of all paths from state to state.
    immediate : pattern [m, p]
        Where ``I = df/dtheta`` may be nonzero.
    order
        The number of steps n >= 1, or None for no limit, which is exact RTRL.

    Returns
    -------
    SparsityPattern [m, p]

    Raises
    ------
    ValueError
        If the shapes do not fit or `order` is below 1.
    TypeError
        If `order` is no integer.

    References
    ----------
    Menick et al., "Practical Real Time Recurrent Learning with a Sparse Approximation",
    ICLR 2021, section 3.

    Examples
    --------
    >>> chain = SparsityPattern.from_coo([1, 2], [0, 1], (3, 3))
    >>> snap_pattern(chain, SparsityPattern.identity(3), 2).to_dense().astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    check_instance("dynamics", dynamics, SparsityPattern)
    check_instance("immediate", immediate, SparsityPattern)
    if dynamics.shape[0] != dynamics.shape[1]:
        raise ValueError(f"`dynamics` must be square, got shape {dynamics.shape}")
    if immediate.shape[0] != dynamics.shape[0]:
        raise ValueError(
            f"`immediate` must have {dynamics.shape[0]} rows as `dynamics` has, "
            f"got shape {immediate.shape}"
        )
    check_order(order)
    kinds = immediate.distinct_columns()
    mask = kinds
    steps = 1
    while order is None or steps < order:
        grown = kinds | (dynamics @ mask)
        if grown == mask:
            break
        mask = grown
        steps += 1
    return mask.take_columns(immediate.column_kind)


def check_order(order: int | None) -> None:
    """Raise unless `order` is None or an integer of at least 1."""
    if order is not None:
        check_integer("order", order, 1, allowed="an integer or None")
