"""The arguments that the ops share, read and checked once for all faces."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from tritonsnap.arrays import dtype_name
from tritonsnap.checks import check_choice, check_instance
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors
from tritonsnap.plan.flat_values import Side
from tritonsnap.plan.packing import Packing

Form = Literal["values", "dense"]
PRECISIONS = ("ieee", "tf32x3", "tf32")
_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


class Influence(NamedTuple):
    """Values of a sparse operand as an op received them, and as blocks."""

    values: Any
    blocks: tuple[Any, ...]
    batch: tuple[int, ...]

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays it was given as."""
        return self.values if isinstance(self.values, tuple) else (self.values,)

    @property
    def flat(self) -> bool:
        """Whether it was given flat: then the result is given back flat."""
        return not isinstance(self.values, tuple)


def read_influence(name: str, x: Any, packing: Packing, side: Side) -> Influence:
    """Blocks of a sparse operand that is given flat ``[..., nnz]`` or packed.

    Raises
    ------
    ValueError, TypeError
        That name `name`, for a wrong shape or dtype.
    """
    if isinstance(x, (tuple, list)):
        batch = packing.check_blocks(name, x, side)
        for number, block in enumerate(x):
            check_float(f"{name}[{number}]", block)
        return Influence(tuple(x), tuple(x), batch)
    pattern = packing.groups.x if side == "x" else packing.groups.mask
    pattern.check_values(name, x)
    check_float(name, x)
    return Influence(x, packing.pack(x, side), tuple(x.shape[:-1]))


def give_back(
    given: Influence, blocks: tuple[Any, ...], packing: Packing, *others: tuple[Any, int]
) -> Any:
    """Blocks of a result on M in the form that `given` had: flat or packed.

    `others` are the other operands of the op, each with how many axes are its own. Where the plan
    has no blocks, they tell the batch axes and the dtype of the flat result.
    """
    if not given.flat:
        return blocks
    like = given.values if blocks else without_values((given.values, 1), *others)
    return packing.unpack(blocks, like=like)


def without_values(*operands: tuple[Any, int]) -> Any:
    """``[..., 0]``, of the batch axes and the dtype that operands with so many own axes have."""
    parts = []
    for array, axes in operands:
        batch = array.shape[: array.ndim - axes]
        parts.append(array[(..., *[slice(0)] * axes)].reshape(*batch, 0))
    return sum(parts[1:], parts[0])


def with_own_axes(d: Any, form: Form, row_scale: Any, immediate: Any = None) -> Any:
    """The operands of a product beside X, each with how many axes are its own."""
    found = [(d, 2 if form == "dense" else 1)]
    if row_scale is not None:
        found.append((row_scale, 1))
    if isinstance(immediate, Factors):
        found += [(immediate.gains, 2), (immediate.sources, 1)]
    elif isinstance(immediate, Compressed):
        found.append((immediate.values, 2))
    return found


def read_pair(r: Any, x: Any, packing: Packing) -> tuple[Influence, Influence]:
    """The operands of an outer product: values on M and on X whose batch axes fit each other.

    Raises
    ------
    ValueError, TypeError
        That name `r` or `x`, for a wrong shape or dtype.
    """
    left, right = read_influence("r", r, packing, "mask"), read_influence("x", x, packing, "x")
    if left.flat != right.flat:
        raise ValueError("`r` and `x` must be both flat or both packed")
    first_array(r)
    if not compatible(left.batch, right.batch):
        raise ValueError(
            f"`r` must have batch axes that broadcast with the {list(right.batch)} of `x`, "
            f"got {list(left.batch)}"
        )
    return left, right


def first_array(r: Any) -> Any:
    """The first array of the operand `r` of an outer product, flat or packed.

    Raises
    ------
    ValueError
        If it has none.
    """
    if not isinstance(r, (tuple, list)):
        return r
    if not r:
        raise ValueError("`r` holds no blocks, so no dtype: give `r` and `x` flat")
    return r[0]


def dynamics_form(
    d: Any, plan: DsmmPlan, batch: tuple[int, ...], stated: Form | None = None
) -> Form:
    """Whether `d` is a dense ``[..., m, k]`` or the values ``[..., nnz]`` on `plan.dynamics`.

    Where both shapes fit, the form `stated` by the caller decides.

    Raises
    ------
    ValueError
        If neither fits, not the stated one, or both while none is stated.
    """
    shape, nnz = tuple(d.shape), plan.dynamics.nnz
    matrix = plan.dynamics.shape
    check_float("d", d)
    as_dense = shape[-2:] == matrix and compatible(shape[:-2], batch)
    as_values = len(shape) > 0 and shape[-1] == nnz and compatible(shape[:-1], batch)
    if stated is not None:
        check_form(stated)
        as_dense, as_values = as_dense and stated == "dense", as_values and stated == "values"
    if as_dense and as_values:
        if len(shape) == len(batch) + 2:
            return "dense"
        raise ValueError(
            f"`d` of shape {list(shape)} may be a dense matrix {list(matrix)} as well as {nnz} "
            'values per batch row: say which by `form="dense"` or `form="values"`'
        )
    if as_dense:
        return "dense"
    if as_values:
        return "values"
    raise ValueError(
        f"`d` must have shape [..., {matrix[0]}, {matrix[1]}] (dense) or [..., {nnz}] (values on "
        f"`plan.dynamics`) with batch axes that broadcast with {list(batch)}, got {list(shape)}"
        + ("" if stated is None else f" as {stated}")
    )


def check_rows(name: str, array: Any, rows: int, batch: tuple[int, ...]) -> None:
    """Raise unless `array` is ``[..., rows]`` with batch axes that broadcast with `batch`."""
    check_float(name, array)
    shape = tuple(array.shape)
    if not shape or shape[-1] != rows or not compatible(shape[:-1], batch):
        raise ValueError(
            f"`{name}` must have shape [..., {rows}] with batch axes that broadcast with "
            f"{list(batch)}, got {list(shape)}"
        )


def check_batch(name: str, given: Influence, batch: tuple[int, ...]) -> None:
    """Raise unless the batch axes of an operand broadcast with `batch`."""
    if not compatible(given.batch, batch):
        raise ValueError(
            f"`{name}` must have batch axes that broadcast with {list(batch)}, "
            f"got {list(given.batch)}"
        )


def check_float(name: str, array: Any) -> None:
    """Raise a `TypeError` that names `name` unless `array` holds floating-point numbers."""
    dtype = dtype_name(array)
    if dtype not in _FLOATS:
        raise TypeError(f"`{name}` must have a floating-point dtype, got {dtype}")


def check_plan(plan: Any) -> None:
    """Raise unless `plan` is a `DsmmPlan`."""
    check_instance("plan", plan, DsmmPlan)


def check_form(form: str) -> None:
    """Raise unless `form` is "values" or "dense"."""
    check_choice("form", form, ("values", "dense"))


def check_precision(precision: str) -> None:
    """Raise unless `precision` is one of `PRECISIONS`."""
    check_choice("precision", precision, PRECISIONS)


def compatible(lead: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """Whether batch axes `lead` and `batch` broadcast with each other."""
    pairs = zip(lead[::-1], batch[::-1], strict=False)
    return all(one == other or 1 in (one, other) for one, other in pairs)
