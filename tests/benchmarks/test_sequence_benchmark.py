import pytest

jax = pytest.importorskip("jax")

from benchmarks import sequence
from tritonsnap import RNN, SnAp


def test_the_masked_baseline_is_the_same_gradient(monkeypatch) -> None:
    monkeypatch.setattr(sequence, "INPUTS", 3)
    cell = RNN(inputs=3, hidden=6, density=0.5, seed=1)
    problem, learner = sequence.Problem(cell, 5), SnAp(cell, 2)
    flat = problem.masked_afterwards(learner)[0]()
    carry = learner.init(sequence.BATCH, like="jax")
    _, gradients, _ = learner.sequence(
        problem.params, carry, problem.xs, problem.ys, sequence.squared_error, chunk=1
    )
    expected = learner.by_parameter(flat)
    for name, value in gradients.items():
        assert jax.numpy.allclose(value, expected[name], rtol=1e-4, atol=1e-4)
