"""Blocks of records on a GPU, where Triton kernels make a step; the functions stay there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tritonsnap.arrays import import_library, to_numpy
from tritonsnap.kan.data import Block
from tritonsnap.kan.engines import Plan
from tritonsnap.kan.functions import Functions
from tritonsnap.kan.metrics import Meter
from tritonsnap.kan.protocol import Outcome, split_addends
from tritonsnap.kan.step import apply_change, kept_records, train_step


class OneDevice:
    """One client and one server on one torch device.

    Parameters
    ----------
    functions : Functions
        What to train, in NumPy.
    plan : Plan
        Who does what.
    device : str
        Of torch. On the CPU a step runs without Triton.
    """

    def __init__(self, functions: Functions, plan: Plan, device: str) -> None:
        self._torch = import_library("torch")
        self._rule = plan.rule
        self._groups = split_addends(functions.inner.shape[-1], plan.groups)
        self._device = device
        self._functions = Functions(*(self._on_device(array) for array in functions))

    @property
    def functions(self) -> Functions:
        """The newest functions, copied from the device."""
        return Functions(*(np.array(to_numpy(array)) for array in self._functions))

    def train(self, blocks: Iterable[Block], meter: Meter) -> None:
        """Train on every block."""
        errors = []
        for number, block in enumerate(blocks):
            addends = self._groups[number % len(self._groups)]
            x, y = self._on_device(block.x), self._on_device(block.y)
            change, squared_error = train_step(self._functions, x, y, self._rule, addends)
            # new tensors: whoever holds the old functions keeps them whole
            self._functions = apply_change(self._functions, change, addends)
            meter.count_message(0)
            records = len(x)
            errors.append(squared_error * records)  # read at the end, so that nothing waits
            meter.count_block(Outcome((), records, kept_records(records, self._rule.select), 0.0))
        if errors:
            scale = self._functions.scale
            meter.squared_error += float((sum(errors) / scale**2).mean())

    def _on_device(self, array: Any) -> Any:
        return self._torch.tensor(array, device=self._device)


def open_engine(functions: Functions, plan: Plan) -> OneDevice:
    """Start the engine on the current GPU.

    Raises
    ------
    ImportError
        If torch is not installed.
    RuntimeError
        If it sees no GPU.
    """
    if not import_library("torch").cuda.is_available():
        raise RuntimeError('the engine "triton" needs a GPU, and torch sees none')
    return OneDevice(functions, plan, "cuda")
