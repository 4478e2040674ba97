"""From recorded launches to the figures of a kernel: bytes, ratios, operations, predicted time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.roofline import Device, Precision
from benchmarks.traffic.layout import SECTOR
from benchmarks.traffic.problem import Problem
from benchmarks.traffic.recorder import Counts, record


@dataclass(frozen=True)
class Run:
    """A kernel made ready for one problem.

    Parameters
    ----------
    launch
        Launches the kernel, or several, on CPU tensors.
    influence
        The names of the kernels' arguments that hold J or J'.
    flops
        Operations of the whole launch outside ``tl.dot``.
    padding
        By argument name, which elements of its storage are padding.
    """

    launch: Callable[[], object]
    influence: tuple[str, ...]
    flops: float = 0
    padding: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """How to run one kernel, or one way to update J, on any problem.

    Parameters
    ----------
    name
        As in tables.
    prepare
        Makes it ready for a problem.
    precision
        Of its multiply-adds.
    most_programs
        How many programs of a launch are enough, for a kernel that takes long to interpret.
    """

    name: str
    prepare: Callable[[Problem], Run]
    precision: Precision = "ieee"
    most_programs: int = 256


@dataclass(frozen=True)
class Traffic:
    """What a kernel moves and computes for the whole of a problem.

    Parameters
    ----------
    influence_bytes
        One read and one write of J, without padding: the unit of `l1_ratio` and `l2_ratio`.
    influence
        Counts of the arguments that hold J.
    total
        Counts of all arguments.
    flops
        Floating-point operations, two per multiply-add.
    precision
        Of the multiply-adds.
    """

    influence_bytes: float
    influence: Counts
    total: Counts
    flops: float
    precision: Precision

    @property
    def l1_bytes(self) -> float:
        """Bytes of the sectors of all warp requests."""
        return SECTOR * self.total.request_sectors

    @property
    def l2_bytes(self) -> float:
        """Bytes of the distinct sectors of each program."""
        return SECTOR * self.total.sectors

    @property
    def l1_ratio(self) -> float:
        """All operands' L1 bytes over useful bytes of J."""
        return self.l1_bytes / self.influence_bytes

    @property
    def l2_ratio(self) -> float:
        """All operands' L2 bytes over useful bytes of J."""
        return self.l2_bytes / self.influence_bytes

    @property
    def intensity(self) -> float:
        """Operations per byte of L2 traffic."""
        return self.flops / self.l2_bytes

    def seconds(self, device: Device) -> float:
        """Predict the time from L2 traffic and operations, as if nothing else cost any.

        An operand that several programs read, such as D, may come from L2 instead of memory: where
        those dominate, this is too long.
        """
        return device.seconds(self.l2_bytes, self.flops, self.precision)


def measure_traffic(kernel: Kernel, problem: Problem, programs: int | None = None) -> Traffic:
    """Run a kernel in the interpreter and count.

    Parameters
    ----------
    kernel, problem
        What to run on what.
    programs
        Run at most that many programs of each launch and scale; by default, run all.
    """
    run = kernel.prepare(problem)
    with record(programs, run.padding) as launches:
        run.launch()
    influence, total, flops = Counts(), Counts(), run.flops
    for launch in launches:
        influence += launch.total(*run.influence)
        total += launch.total()
        flops += launch.dot_flops
    return Traffic(
        problem.influence_bytes,
        influence * problem.scale,
        total * problem.scale,
        flops * problem.scale,
        kernel.precision,
    )
