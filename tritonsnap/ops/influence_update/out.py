"""What the `out` of an update must be."""

from __future__ import annotations

from typing import Any, NamedTuple

from tritonsnap.ops.arguments import Form, Influence
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.factors import Factors
from tritonsnap.plan.packing import Packing


class Operands(NamedTuple):
    """What an update reads."""

    d: Any
    form: Form
    j: Influence
    immediate: Factors | Compressed | Influence
    row_scale: Any
    delta: Any = None

    @property
    def added(self) -> list[Any]:
        """The arrays of the immediate Jacobian."""
        if isinstance(self.immediate, Influence):
            return list(self.immediate.blocks)
        return list(self.immediate[:-1])

    @property
    def rows(self) -> list[Any]:
        """Those that have a value for each row of the state."""
        return [one for one in (self.row_scale, self.delta) if one is not None]

    @property
    def arrays(self) -> list[Any]:
        """All arrays."""
        return [*self.added, self.d, *self.rows, *self.j.blocks]

    @property
    def batch_axes(self) -> list[tuple[int, ...]]:
        """Those of each operand, which broadcast to the result's."""
        own = [*(tuple(one.shape[:-1]) for one in self.rows), self.j.batch]
        own.append(tuple(self.d.shape[: -2 if self.form == "dense" else -1]))
        if isinstance(self.immediate, Influence):
            return [*own, self.immediate.batch]
        matrix, *vector = (tuple(one.shape) for one in self.added)
        return [*own, matrix[:-2], *(shape[:-1] for shape in vector)]


def check_out(out: Any, j: Influence, packing: Packing, batch: tuple[int, ...], dtype: Any) -> None:
    """Raise unless a result with these batch axes and this dtype can be written to `out`.

    Raises
    ------
    ValueError
        That names `out`.
    """
    if j.flat:
        raise ValueError(
            "`out` takes the blocks of a packed `j`: flat values are converted to and fro, so pack "
            "`j` by `plan.pack` once"
        )
    lead = packing.check_blocks("out", out, "mask")
    for number, block in enumerate(out):
        if lead != batch:
            raise ValueError(
                f"`out[{number}]` must have the batch axes {list(batch)} of the result, "
                f"got {list(lead)}"
            )
        if block.dtype != dtype:
            raise ValueError(
                f"`out[{number}]` must have the dtype {dtype} of the result, got {block.dtype}"
            )


def check_in_place(packing: Packing, written_over: bool) -> None:
    """Raise where `out` is `j` though the kernels of the packing need both."""
    if written_over and not packing.in_place:
        raise ValueError(
            "`out` must not be `j` with this plan, whose kernels read what others have written "
            "(`plan.packing_for(*j).in_place` is False): give it memory of its own"
        )


def shares_memory(number: int) -> str:
    """The message of an error about a block of `out`."""
    return (
        f"`out[{number}]` shares memory with another argument: `out` may be `j`, all blocks of it, "
        "and nothing else"
    )
