"""Run a trained network forward: score held-out text, generate new text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tritonsnap.arrays import Library, namespace, to_numpy
from tritonsnap.online.learner import Learner
from tritonsnap.online.readout import Readout
from tritonsnap.online.tasks import TextTask
from tritonsnap.online.tasks.stream import one_hot

HELD_OUT_ROWS = 128
WARM_UP = 100


def held_out_bits(
    learner: Learner, readout: Readout, params: tuple[Any, Any], task: TextTask, library: Library
) -> float:
    """Mean bits per character on the held-out text.

    The text is read in `HELD_OUT_ROWS` windows side by side, each after `WARM_UP` characters of
    context that do not count.
    """
    xp = namespace(library)
    inputs, targets, mask = task.held_out_windows(HELD_OUT_ROWS, WARM_UP)
    state = _zero_state(learner, HELD_OUT_ROWS, library)
    advance = _compiled(library, learner.cell.step)
    score = _compiled(library, readout)
    ready = learner.cell.prepare(params[0])
    total = 0.0
    for ids, following, counted in zip(inputs, targets, mask, strict=True):
        state = advance(ready, state, xp.asarray(one_hot(ids, task.inputs)))
        if counted.any():
            losses = to_numpy(score(params[1], learner.output_of(state), xp.asarray(following)))
            total += float((losses * counted).sum())
    return total / math.log(2) / len(task.held_out)


def generate_text(
    learner: Learner,
    readout: Readout,
    params: tuple[Any, Any],
    task: TextTask,
    library: Library,
    length: int = 600,
    seed: int = 0,
) -> str:
    """Text drawn character by character, going on from the end of the training text."""
    xp = namespace(library)
    rng = np.random.default_rng(seed)
    state = _zero_state(learner, 1, library)
    advance = _compiled(library, learner.cell.step)
    ready = learner.cell.prepare(params[0])
    ids = list(task.train[-WARM_UP:])
    for place in range(len(ids) + length - 1):
        state = advance(ready, state, xp.asarray(one_hot(np.asarray([ids[place]]), task.inputs)))
        if place == len(ids) - 1:
            logits = to_numpy(readout.outputs_of(params[1], learner.output_of(state)))[0]
            # the largest of logits plus Gumbel noise is a draw from their softmax
            ids.append(int(np.argmax(logits + rng.gumbel(size=logits.shape))))
    return task.decode(np.asarray(ids[-length:]))


def _zero_state(learner: Learner, rows: int, library: Library) -> Any:
    return namespace(library).asarray(np.zeros((rows, learner.cell.rows), np.float32))


def _compiled(library: Library, function: Callable[..., Any]) -> Callable[..., Any]:
    if library != "jax":
        return function
    import jax

    compiled: Callable[..., Any] = jax.jit(function)
    return compiled
