"""Record what Triton kernels load and store, by running them in the interpreter."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import triton
from numpy.typing import NDArray
from triton.runtime import interpreter

from benchmarks.traffic.layout import SECTOR, split
from benchmarks.traffic.problem import spread_sample

Direction = Literal["read", "write"]


@dataclass
class Counts:
    """What one argument of a launch moved in one direction (see `benchmarks.traffic`).

    Numbers of a sampled launch are scaled to all its programs, so they need not be whole.

    Parameters
    ----------
    useful
        Bytes of the distinct elements of each program, summed over programs.
    sectors
        Distinct sectors of each program, summed over programs.
    requested
        Bytes of all accessed lanes.
    requests
        Warp requests.
    request_sectors
        Sectors of the warp requests.
    """

    useful: float = 0
    sectors: float = 0
    requested: float = 0
    requests: float = 0
    request_sectors: float = 0

    @property
    def efficiency(self) -> float:
        """Useful bytes over the bytes of the distinct sectors of each program."""
        return self.useful / (SECTOR * self.sectors) if self.sectors else math.nan

    @property
    def coalescing(self) -> float:
        """Requested bytes over the bytes of request sectors."""
        return (
            self.requested / (SECTOR * self.request_sectors) if self.request_sectors else math.nan
        )

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Counts(*(mine + others for mine, others in pairs))

    def __mul__(self, factor: float) -> Counts:
        return Counts(*(number * factor for number in astuple(self)))


@dataclass
class Launch:
    """One recorded kernel launch.

    Parameters
    ----------
    kernel
        The name of the kernel.
    programs, sampled
        How many programs the launch has, and how many of them ran.
    counts
        By argument name and direction. Memory that several arguments share counts for the first.
    dot_flops
        Floating-point operations of all ``tl.dot``, two per multiply-add.
    """

    kernel: str
    programs: int
    sampled: int
    counts: dict[tuple[str, Direction], Counts] = field(default_factory=dict)
    dot_flops: float = 0

    def total(self, *arguments: str, direction: Direction | None = None) -> Counts:
        """Sum over the named arguments (all, if none is named) and over directions."""
        return sum(
            (
                counts
                for (name, way), counts in self.counts.items()
                if (not arguments or name in arguments) and direction in (None, way)
            ),
            Counts(),
        )


@contextmanager
def record(
    programs: int | None = None, padding: Mapping[str, NDArray[np.bool_]] | None = None
) -> Iterator[list[Launch]]:
    """Record every kernel launch of the block, in order.

    Parameters
    ----------
    programs
        Run at most that many programs of each launch, and scale the counts to all. The outputs
        are then incomplete. By default, run all.
    padding
        By argument name, which elements of its storage, flat, are padding and so never useful.

    Yields
    ------
    list of Launch
        Grows with each launch.

    Raises
    ------
    RuntimeError
        If Triton does not interpret.
    triton.runtime.errors.InterpreterError
        In the block, if a kernel accesses memory outside its arguments.

    Examples
    --------
    >>> with record() as launches:
    ...     copy_kernel[(4,)](p_out, p_in, 512, BLOCK=128)
    >>> launches[0].counts["p_in", "read"].efficiency
    1.0
    """
    if not triton.knobs.runtime.interpret:
        raise RuntimeError("set TRITON_INTERPRET=1 before triton is imported")
    builder = _RecordingBuilder(programs, padding or {})
    with (
        patch.object(interpreter, "interpreter_builder", builder),
        patch.object(interpreter.interpreter_semantic, "builder", builder),
        patch.object(interpreter, "GridExecutor", _RecordingExecutor),
    ):
        yield builder.launches


@dataclass
class _Argument:
    """The memory of one tensor argument; offsets count from its storage, taken as aligned."""

    name: str
    storage: int
    start: int
    stop: int
    itemsize: int

    @classmethod
    def of(cls, name: str, tensor: Any) -> _Argument:
        itemsize = tensor.element_size()
        span = 1 + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        start = tensor.data_ptr()
        stop = start + itemsize * (span if tensor.numel() else 0)
        return cls(name, tensor.untyped_storage().data_ptr(), start, stop, itemsize)


class _RecordingExecutor(interpreter.GridExecutor):
    """Runs the sampled programs of a launch and tells the builder what its arguments are."""

    grid: Any

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        builder = interpreter.interpreter_builder
        num_warps = kwargs.get("num_warps", 4)
        signature = inspect.signature(self.fn)
        named = {name: value for name, value in kwargs.items() if name in signature.parameters}
        values = signature.bind(*args, **named).arguments
        grid = self.grid(values) if callable(self.grid) else self.grid
        tensors = {name: value for name, value in values.items() if hasattr(value, "data_ptr")}
        sampled = builder.begin_launch(self.fn.__name__, grid, tensors, num_warps)
        self.grid = (sampled,)  # the builder gives each its true place in the grid
        super().__call__(*args, **kwargs)
        builder.end_launch()


class _RecordingBuilder(interpreter.InterpreterBuilder):
    """The interpreter's builder, taking notes."""

    def __init__(self, programs: int | None, padding: Mapping[str, NDArray[np.bool_]]) -> None:
        super().__init__()
        self.most_programs = programs
        self.padding = padding
        self.launches: list[Launch] = []

    # ---- launches and programs ---------------------------------------------------------------

    def begin_launch(
        self, kernel: str, grid: tuple[int, ...], tensors: Mapping[str, Any], num_warps: int
    ) -> int:
        """Prepare a launch and return how many programs to run."""
        self.true_grid = (*grid, 1, 1)[:3]
        programs = math.prod(self.true_grid)
        self.sample = spread_sample(programs, self.most_programs)
        self.arguments = [_Argument.of(name, tensor) for name, tensor in tensors.items()]
        self.num_warps = num_warps
        self.touched: dict[tuple[str, Direction], list[NDArray[np.int64]]] = {}
        self.launches.append(Launch(kernel, programs, len(self.sample)))
        return len(self.sample)

    def end_launch(self) -> None:
        """Close the last program and scale the counts to all programs."""
        self._end_program()
        launch = self.launches[-1]
        scale = launch.programs / launch.sampled if launch.sampled else 1
        if scale != 1:
            launch.counts = {key: counts * scale for key, counts in launch.counts.items()}
            launch.dot_flops *= scale

    def set_grid_dim(self, nx: int, ny: int, nz: int) -> None:
        super().set_grid_dim(*self.true_grid)

    def set_grid_idx(self, x: int, y: int, z: int) -> None:
        self._end_program()
        super().set_grid_idx(*map(int, np.unravel_index(self.sample[x], self.true_grid)))

    def _end_program(self) -> None:
        """Count what the program touched; the next one starts with an empty L1."""
        itemsizes = {argument.name: argument.itemsize for argument in self.arguments}
        for (name, direction), pieces in self.touched.items():
            elements = np.unique(np.concatenate(pieces))
            counts = self._counts(name, direction)
            counts.sectors += len(np.unique(elements * itemsizes[name] // SECTOR))
            if name in self.padding:
                elements = elements[~self.padding[name].ravel()[elements]]
            counts.useful += len(elements) * itemsizes[name]
        self.touched.clear()

    def _counts(self, name: str, direction: Direction) -> Counts:
        return self.launches[-1].counts.setdefault((name, direction), Counts())

    # ---- what kernels do ---------------------------------------------------------------------

    def create_masked_load(self, ptrs: Any, mask: Any, *rest: Any) -> Any:
        self._access(ptrs, mask, "read")
        return super().create_masked_load(ptrs, mask, *rest)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self._access(ptrs, mask, "write")
        return super().create_masked_store(ptrs, value, mask, *rest)

    def create_atomic_rmw(self, operation: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self._access(ptr, mask, "read")
        self._access(ptr, mask, "write")
        return super().create_atomic_rmw(operation, ptr, value, mask, *rest)

    def create_dot(self, a: Any, b: Any, *rest: Any) -> Any:
        self.launches[-1].dot_flops += 2 * a.data.size * b.data.shape[-1]
        return super().create_dot(a, b, *rest)

    def _access(self, ptrs: Any, mask: Any, direction: Direction) -> None:
        """Count one access of a tile, and note its elements."""
        pointers = ptrs.data.astype(np.int64)
        active = np.broadcast_to(mask.data, pointers.shape)
        while active.any():
            argument = self._owner(int(pointers[active][0]))
            owned = active & (pointers >= argument.start) & (pointers < argument.stop)
            self._access_argument(argument, pointers - argument.storage, owned, direction)
            active = active & ~owned

    def _owner(self, pointer: int) -> _Argument:
        for argument in self.arguments:
            if argument.start <= pointer < argument.stop:
                return argument
        kernel, program = self.launches[-1].kernel, self.grid_idx
        raise ValueError(
            f"{kernel}, program {program}, accesses memory outside its arguments "
            + ", ".join(argument.name for argument in self.arguments)
        )

    def _access_argument(
        self,
        argument: _Argument,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
        direction: Direction,
    ) -> None:
        request, copies = split(offsets, mask, argument.itemsize, self.num_warps)
        copies = copies if direction == "read" else 1
        request, touched = request[mask.ravel()], offsets[mask]
        sectors = touched // SECTOR
        # One key for each (request, sector); only the keys' distinctness matters.
        keys = request * (sectors.max() - sectors.min() + 1) + sectors - sectors.min()
        counts = self._counts(argument.name, direction)
        counts.requested += touched.size * argument.itemsize
        counts.requests += copies * len(np.unique(request))
        counts.request_sectors += copies * len(np.unique(keys))
        key = argument.name, direction
        self.touched.setdefault(key, []).append(touched // argument.itemsize)
