"""The record-by-record engine against the same rule as compiled loops, and at full length."""

import numpy as np
import pytest

from tritonsnap.kan import KAN, Trainer
from tritonsnap.kan.tasks import TASKS

pytest.importorskip("numba")
pytest.importorskip("torch")
from benchmarks.kan_peers import train_compiled


@pytest.mark.parametrize(("name", "records"), [("det4", 20), ("formula3", 1000)])
def test_the_sequential_engine_is_the_compiled_loop(name, records):
    """More records of det4, whose first steps are large, double a rounding error each."""
    task = TASKS[name]
    (x, y), validation = task.records(0, training=records)
    sizes = task.inputs, task.addends, task.inner_points, task.outer_points
    ours, loop = KAN(*sizes, dtype="float64"), KAN(*sizes, dtype="float64")
    Trainer(ours, "sequential", solver="kaczmarz").fit(x, y, epochs=2, progress=False)
    list(train_compiled(loop, x, y, validation, epochs=2))
    for found, expected in zip(ours.functions, loop.functions, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_det4_record_by_record_within_twelve_epochs():
    """The rule of the sequential engine, which takes minutes for this itself (see slow tests)."""
    task = TASKS["det4"]
    (x, y), validation = task.records(0)
    model = KAN(task.inputs, task.addends, task.inner_points, task.outer_points)
    correlations = [point[2] for point in train_compiled(model, x, y, validation, epochs=12)]
    assert max(correlations) >= 0.965
    assert correlations[0] > 0.8
