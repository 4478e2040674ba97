"""What the concurrent KAN is compared with: a compiled sequential loop, an MLP, a B-spline KAN."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tritonsnap.kan import KAN, Functions, pearson

Array = NDArray[Any]
Point = tuple[int, float, float]
"""Records so far, seconds of training so far, validation correlation."""


@numba.njit(cache=True)
def train_records(
    x: Array,
    y: Array,
    inner: Array,
    outer: Array,
    input_low: Array,
    input_high: Array,
    sum_low: Array,
    sum_high: Array,
    step: float,
) -> None:
    """Train record by record, in place: the rule of the engine "sequential" as compiled loops.

    Kaczmarz, the mean convention, one target in standard units.
    """
    records, inputs = x.shape
    knots, addends = inner.shape[1:]
    outer_knots = outer.shape[0]
    knot, offset = np.zeros(inputs, np.int64), np.zeros(inputs, inner.dtype)
    place, rest = np.zeros(addends, np.int64), np.zeros(addends, inner.dtype)
    slope, sums = np.zeros(addends, inner.dtype), np.zeros(addends, inner.dtype)
    for t in range(records):
        sums[:] = 0
        for j in range(inputs):
            low, high = input_low[j], input_high[j]
            if x[t, j] < low:
                input_low[j] = x[t, j] - 0.01 * (high - x[t, j])
            if x[t, j] > high:
                input_high[j] = x[t, j] + 0.01 * (x[t, j] - low)
            r = (x[t, j] - input_low[j]) * ((knots - 1) / (input_high[j] - input_low[j]))
            i = min(int(r), knots - 2)
            knot[j], offset[j] = i, r - i
            for k in range(addends):
                sums[k] += inner[j, i, k] + offset[j] * (inner[j, i + 1, k] - inner[j, i, k])
        output = 0.0
        for k in range(addends):
            u = sums[k] / inputs
            low, high = sum_low[k], sum_high[k]
            if u < low:
                sum_low[k] = u - 0.01 * (high - u)
            if u > high:
                sum_high[k] = u + 0.01 * (u - low)
            scale = (outer_knots - 1) / (sum_high[k] - sum_low[k])
            r = (u - sum_low[k]) * scale
            i = min(int(r), outer_knots - 2)
            place[k], rest[k] = i, r - i
            rise = outer[i + 1, k] - outer[i, k]
            slope[k] = rise * scale
            output += outer[i, k] + rest[k] * rise
        error = step * (y[t] - output / addends)
        for k in range(addends):
            outer[place[k], k] += error * (1 - rest[k])
            outer[place[k] + 1, k] += error * rest[k]
            slope[k] *= error
        for j in range(inputs):
            for k in range(addends):
                inner[j, knot[j], k] += slope[k] * (1 - offset[j])
                inner[j, knot[j] + 1, k] += slope[k] * offset[j]


def train_compiled(
    model: KAN, x: Array, y: Array, validation: tuple[Array, Array], epochs: int, step: float = 0.1
) -> Iterator[Point]:
    """Train a model of one target by the compiled loop, and yield its accuracy each epoch."""
    model.initialize(x, y)
    x, y = model.checked_records(x, y)
    assert model.functions is not None
    arrays: list[Array] = [array.copy() for array in model.functions[:6]]
    target = (y[:, 0] - model.functions.shift[0]) / model.functions.scale[0]
    warm = [array.copy() for array in arrays]
    train_records(x[:2], target[:2], warm[0], warm[1][0], *warm[2:], step)  # compiles
    seconds = 0.0
    for epoch in range(epochs):
        start = time.perf_counter()
        order = np.random.default_rng((model.seed, epoch)).permutation(len(x))
        train_records(x[order], target[order], arrays[0], arrays[1][0], *arrays[2:], step)
        seconds += time.perf_counter() - start
        model.functions = Functions._make([*arrays, *model.functions[6:]])
        predictions = model.predict(validation[0])
        yield (epoch + 1) * len(x), seconds, _correlation(predictions, validation[1])


class SplineLayer(nn.Module):
    """A layer of B-spline functions with a SiLU branch, as efficient-kan computes it.

    The spline bases of all inputs are made by the Cox-de Boor recursion and multiplied with one
    matrix (Liu et al., arXiv 2404.19756, equations 2.10-2.12; the layout of efficient-kan).
    """

    def __init__(self, inputs: int, outputs: int, grid: int = 5, order: int = 3) -> None:
        super().__init__()
        self.order = order
        knots = torch.arange(-order, grid + order + 1) * (2 / grid) - 1
        self.register_buffer("knots", knots.repeat(inputs, 1))  # [inputs, knots]
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.spline = nn.Linear(inputs * (grid + order), outputs, bias=False)
        nn.init.normal_(self.spline.weight, std=0.1 / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map [records, inputs] to [records, outputs]."""
        knots, x = self.get_buffer("knots"), x[..., None]
        bases = ((x >= knots[:, :-1]) & (x < knots[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - knots[:, : -(k + 1)]) / (knots[:, k:-1] - knots[:, : -(k + 1)])
            right = (knots[:, k + 1 :] - x) / (knots[:, k + 1 :] - knots[:, 1:-k])
            bases = left * bases[..., :-1] + right * bases[..., 1:]
        base: Tensor = self.base(nn.functional.silu(x[..., 0]))
        return base + self.spline(bases.flatten(1))


def spline_kan(inputs: int, parameters: int) -> nn.Module:
    """An efficient-kan of two layers with about so many parameters."""
    hidden = max(1, round(parameters / ((inputs + 1) * 9)))
    return nn.Sequential(SplineLayer(inputs, hidden), SplineLayer(hidden, 1))


def perceptron(inputs: int, parameters: int) -> nn.Module:
    """An MLP of two hidden layers with about so many parameters."""
    hidden = 1
    while (hidden + 1) * (inputs + hidden + 4) + 1 <= parameters:
        hidden += 1
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.SiLU(),
        nn.Linear(hidden, hidden),
        nn.SiLU(),
        nn.Linear(hidden, 1),
    )


def count_parameters(network: nn.Module) -> int:
    """The number of trainable values."""
    return sum(parameter.numel() for parameter in network.parameters())


def train_network(
    make: Callable[[], nn.Module],
    x: Array,
    y: Array,
    validation: tuple[Array, Array],
    epochs: int,
    batch: int = 128,
    rate: float = 3e-3,
) -> Iterator[Point]:
    """Train by Adam with cosine decay on standardized data, and yield its accuracy each epoch."""
    torch.manual_seed(0)
    network = make()
    low, high = x.min(axis=0), x.max(axis=0)

    def inputs(values: Array) -> Tensor:
        return torch.from_numpy(((values - low) / (high - low) * 2 - 1).astype(np.float32))

    xs, held_out = inputs(x), inputs(validation[0])
    ys = torch.from_numpy(((y - y.mean()) / y.std()).astype(np.float32))[:, None]
    optimizer = torch.optim.Adam(network.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(x) // batch + 1)
    seconds = 0.0
    for epoch in range(epochs):
        start = time.perf_counter()
        order = torch.randperm(len(xs))
        for chosen in order.split(batch):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(xs[chosen]), ys[chosen]).backward()
            optimizer.step()
            schedule.step()
        seconds += time.perf_counter() - start
        with torch.no_grad():
            predictions = torch.cat([network(part) for part in held_out.split(8192)]).numpy()
        yield (epoch + 1) * len(x), seconds, _correlation(predictions, validation[1])


def _correlation(predictions: Array, targets: Array) -> float:
    return float(pearson(predictions, np.asarray(targets).reshape(predictions.shape)).mean())
