"""How a Triton kernel declares itself, and the list of all that did.

A kernel is a ``@triton.jit`` function and one `Kernel` beside it, both in the op's ``kernels.py``,
the only file that imports triton. From the declaration alone the launcher finds a config, the
interpreter tests and the GPU tests compare the kernel with its reference, the ahead-of-time tests
and ``python -m autotune check`` compile it for every target, ``tune`` times it, and the traffic
recorder counts its memory accesses. So adding a kernel means adding one declaration.

Conventions of the kernels:

- Arguments come in the order inputs, sizes, outputs, constexprs: `jax_triton.triton_call` appends
  the outputs to what it is given.
- A program id is widened to int64 before anything is multiplied by it, so no offset overflows; a
  test reads this off the compiled kernel. A size counts as 32 bits wide, which Triton makes of
  every number that fits: ``i_batch * units * UNIT``, not ``i_batch * (units * UNIT)``. Only
  offsets in a tile that constants bound may be narrower. A loop variable is widened with
  ``tl.cast(i, tl.int64)``, for the interpreter makes it a Python int.
- Every masked load has ``other=``, and every output element has one program that writes it.
- A mask that ends in the middle of a thread's 16 bytes costs wide loads: run whole blocks without
  a mask and the rest with one.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from tritonsnap.tuning import Config, Device, Sizes, bucket_of, find_config, source_hash

Grid = tuple[int, ...]
Arguments = Mapping[str, Any]

DTYPES: Mapping[str, str] = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
}
"""Triton's names of the dtypes and the array libraries'."""

OPTIONS = ("num_warps", "num_stages")
"""The launch options of a config; its other names are constexprs of the kernel."""


MOST_PROGRAMS = (1 << 16) - 1
"""That NVIDIA's GPUs run along the second or third axis of a grid."""


@dataclass(frozen=True)
class Problem:
    """The operands of one launch, in NumPy.

    Parameters
    ----------
    arguments : dict
        Arrays (real values in float64, whatever the dtype of the launch) and sizes by argument
        name. An output that is listed here is updated in place.
    outputs : dict of str to tuple of int
        The shape of each output.
    sizes : dict of str to int
        What the config is looked up by.
    """

    arguments: Arguments
    outputs: Mapping[str, tuple[int, ...]]
    sizes: Sizes


@dataclass(frozen=True, eq=False)
class Kernel:
    """A Triton kernel and all that one must know to launch, test, compile and tune it.

    Parameters
    ----------
    function : triton.JITFunction
        The kernel.
    signature : dict of str to str
        The type of each run-time argument, in order: ``"i64"``, a pointer ``"*i32"``, ``"*T"``
        for a pointer to the dtype of the launch, or ``"*A"`` for one to that in which its values
        are added: float64 for float64, float32 for all others.
    dtypes : tuple of str
        What T may be.
    configs : tuple of dict
        What the tuner tries; a tuned config outside of it is not used. Results must not depend
        on it: a size class is a `constants` of its own declaration.
    heuristic : callable
        ``heuristic(sizes, dtype, precision, device) -> config``, for a device that nobody tuned;
        the sizes are rounded down to powers of two.
    grid : callable
        ``grid(arguments) -> tuple of int``; the arguments include those of the config.
    problem : callable
        ``problem(**sizes) -> Problem``, the same one for the same sizes.
    reference : callable
        ``reference(**arguments) -> dict`` of the outputs in NumPy, from a problem's arguments.
    small, large : tuple of dict
        Sizes to test and to tune with. A default config is checked for both.
    constants : dict
        Constexprs that set this declaration apart from others of the same function.
    name : str, optional
        The function's, unless several declarations share it.
    precisions : tuple of str
        What the constexpr ``PRECISION`` of a kernel that uses `tl.dot` may be.
    shared_bytes : callable, optional
        ``shared_bytes(config, dtype) -> int``, an estimate; a default config loses stages until
        it fits the device.
    wide_loads, wide_stores : bool
        Whether it moves 16 bytes a thread; tests read it off the compiled kernel.
    wide_dtypes : tuple of str
        The dtypes for which `wide_loads` and `wide_stores` hold; all, if empty.
    dots : bool
        Whether it uses `tl.dot`, so tensor cores wherever the precision allows them.
    max_registers : int
        The bound on registers per thread that the compiled kernel is held to.
    """

    function: Any
    signature: Mapping[str, str]
    dtypes: tuple[str, ...]
    configs: tuple[Config, ...]
    heuristic: Callable[[Sizes, str, str, Device], Config]
    grid: Callable[[Arguments], Grid]
    problem: Callable[..., Problem]
    reference: Callable[..., Mapping[str, NDArray[Any]]]
    small: tuple[Sizes, ...]
    large: tuple[Sizes, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    precisions: tuple[str, ...] = ("ieee",)
    shared_bytes: Callable[[Config, str], int] | None = None
    wide_loads: bool = False
    wide_stores: bool = False
    wide_dtypes: tuple[str, ...] = ()
    dots: bool = False
    max_registers: int = 128

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.function.__name__)

    @functools.cached_property
    def source(self) -> str:
        """`source_hash` of the function."""
        return source_hash(self.function)

    def accepts(self, config: Config, dtype: str, device: Device) -> bool:
        """Whether a tuned config is one of this kernel's and fits the device."""
        return config in self.configs and self._fits(config, dtype, device)

    def default(self, sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
        """The config for a device that nobody tuned."""
        rounded = {name: 2**log for name, log in bucket_of(sizes).items()}
        config = dict(self.heuristic(rounded, dtype, precision, device))
        while not self._fits(config, dtype, device) and config.get("num_stages", 1) > 1:
            config["num_stages"] -= 1
        return config

    def config(self, sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
        """The config to launch with (see `tritonsnap.tuning.find_config`)."""
        return find_config(self, sizes, dtype, precision, device)

    def constexprs(self, config: Config, precision: str, *, hip: bool) -> dict[str, Any]:
        """All constexpr arguments of a launch."""
        blocks = {name: value for name, value in config.items() if name not in OPTIONS}
        if self.dots:
            # AMD's compiler has no tf32x3; three bfloat16 terms carry float32's 24 bits as well
            name = "bf16x6" if hip and precision == "tf32x3" else precision
            return {**self.constants, **blocks, "PRECISION": name}
        return {**self.constants, **blocks}

    def programs(self, arguments: Arguments) -> Grid:
        """The grid of a launch, from all its arguments and those of its config.

        Raises
        ------
        ValueError
            If it has more programs than a GPU runs along an axis.
        """
        grid = self.grid(arguments)
        if max(grid[1:], default=0) > MOST_PROGRAMS:
            raise ValueError(
                f"`{self.name}` needs a grid of {grid}, but a GPU takes at most {MOST_PROGRAMS} "
                "along its second and third axis: give fewer batch rows (or rows) at once"
            )
        return grid

    def pointer_dtype(self, argument: str, dtype: str) -> str | None:
        """What an argument points to in a launch with T = `dtype`; None for a number."""
        kind = self.signature[argument]
        named = {"*T": dtype, "*A": "fp64" if dtype == "fp64" else "fp32"}
        return named.get(kind, kind[1:]) if kind.startswith("*") else None

    def _fits(self, config: Config, dtype: str, device: Device) -> bool:
        return self.shared_bytes is None or self.shared_bytes(config, dtype) <= device.shared_memory


class KernelLaunch(NamedTuple):
    """One launch but for its outputs.

    Attributes
    ----------
    kernel
        What to run.
    arguments : dict
        Its arguments but for outputs by name.
    outputs : dict
        The shape of each output by name, in order.
    sizes
        What the config is looked up by.
    precision
        Of `tl.dot`.
    in_place
        Whether `out` may be `x`.
    """

    kernel: Kernel
    arguments: dict[str, Any]
    outputs: Mapping[str, tuple[int, ...]]
    sizes: Sizes
    precision: str = "ieee"
    in_place: bool = False


def config_space(**values: Sequence[int]) -> tuple[Config, ...]:
    """All combinations of the values of each name."""
    return tuple(
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    )


def declared_kernels() -> tuple[Kernel, ...]:
    """Every `Kernel` of every op, by name; an op's module may keep a family of them in a dict.

    Raises
    ------
    ValueError
        If two share a name.
    """
    import tritonsnap.ops

    found: dict[str, Kernel] = {}
    for kernel in _walk(tritonsnap.ops.__path__):
        if found.setdefault(kernel.name, kernel) is not kernel:
            raise ValueError(f"two kernels are named {kernel.name!r}")
    return tuple(found[name] for name in sorted(found))


def _walk(path: Sequence[str]) -> Iterator[Kernel]:
    for op in pkgutil.iter_modules(path, "tritonsnap.ops."):
        if op.ispkg:
            package = importlib.import_module(op.name)
            if any(module.name == "kernels" for module in pkgutil.iter_modules(package.__path__)):
                module = importlib.import_module(f"{op.name}.kernels")
                for item in vars(module).values():
                    items = item.values() if isinstance(item, Mapping) else (item,)
                    yield from (item for item in items if isinstance(item, Kernel))
