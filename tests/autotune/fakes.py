"""A kernel and a GPU that exist in NumPy alone."""

from dataclasses import dataclass, field

import numpy as np

from tritonsnap.ops.kernel import Kernel, Problem, config_space
from tritonsnap.tuning import TARGETS, Milliseconds


def double(x, n, y, BLOCK):
    """Stands in for a Triton function."""


def problem(n: int) -> Problem:
    return Problem({"x": np.arange(n, dtype=float), "n": n}, {"y": (n,)}, {"n": n})


KERNEL = Kernel(
    double,
    signature={"x": "*T", "n": "i32", "y": "*T"},
    dtypes=("fp32", "fp64"),
    configs=config_space(BLOCK=(32, 64, 128), num_warps=(4,)),
    heuristic=lambda *_: {"BLOCK": 32, "num_warps": 4},
    grid=lambda arguments: (1,),
    problem=problem,
    reference=lambda x, n: {"y": 2 * x},
    small=({"n": 3},),
    large=({"n": 16}, {"n": 1024}),
)


@dataclass
class FakeRunner:
    """Takes `milliseconds` for each block size; those in `wrong` leave an element unwritten."""

    milliseconds: dict[int, float]
    wrong: tuple[int, ...] = ()
    interrupt_after: int | None = None
    device = TARGETS[1]
    log: list[tuple] = field(default_factory=list)

    def expected(self, kernel, problem, dtype):
        return kernel.reference(**problem.arguments)

    def run(self, kernel, problem, config, dtype, precision):
        self.log.append(("run", problem.sizes["n"], dtype, config["BLOCK"]))
        outputs = dict(kernel.reference(**problem.arguments))
        if config["BLOCK"] in self.wrong:
            outputs["y"] = np.append(outputs["y"][:-1], np.nan)
        return outputs

    def time(self, kernel, problem, config, dtype, precision):
        if self.interrupt_after is not None and len(self.log) > self.interrupt_after:
            raise KeyboardInterrupt
        self.log.append(("time", problem.sizes["n"], dtype, config["BLOCK"]))
        p50 = self.milliseconds[config["BLOCK"]]
        return Milliseconds(p50, p50, p50)
