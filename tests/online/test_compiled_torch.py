"""`torch.compile` of a whole sequence, whose plans it never traces."""

import pytest
from networks import largest_difference, named, problem
from stacks import stack_problem

from tritonsnap import GRU, RNN, RTRL, SnAp, Stack
from tritonsnap.arrays import to_numpy

torch = pytest.importorskip("torch")

LEARNERS = {
    "steps": (lambda: SnAp(RNN(inputs=2, hidden=3), 1), 1),
    "elementwise chunks": (lambda: SnAp(GRU(inputs=2, hidden=3), 1), 2),
    "walked chunks": (lambda: RTRL(RNN(inputs=2, hidden=9, density=0.2)), 2),
    "chunks of values": (lambda: RTRL(GRU(inputs=2, hidden=3, reset="before")), 2),
    "stack": (lambda: SnAp(Stack([RNN(inputs=2, hidden=3), RNN(inputs=3, hidden=3)])), 2),
}


def squared(readout, state, y):
    """A loss that only autodiff can differentiate."""
    return ((state @ readout["kernel"] + readout["bias"] - y[..., None]) ** 2).mean(-1)


@pytest.mark.parametrize(("make", "chunk"), LEARNERS.values(), ids=LEARNERS)
def test_a_compiled_sequence_is_the_plain_one(make, chunk: int) -> None:
    torch._dynamo.reset()
    learner = make()
    draw = stack_problem if isinstance(learner.cell, Stack) else problem
    given = draw(learner.cell, "torch", 2)
    carry = learner.init(3, like="torch", dtype="float64")

    def run(learner, params, readout, carry, xs):
        return learner.sequence(
            params, carry, xs, given.ys, squared, given.mask, given.resets,
            readout=readout, chunk=chunk,
        )  # fmt: skip

    arguments = (given.params, given.readout, carry, given.xs)
    expected = run(make(), *arguments)
    compiled = torch.compile(
        lambda *arguments: run(learner, *arguments), backend="eager", fullgraph=True
    )
    found = compiled(*arguments)
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-12)
    assert largest_difference(named(*found[1]), named(*expected[1])) < 1e-12
    assert abs(to_numpy(found[2].state - expected[2].state)).max() == pytest.approx(0, abs=1e-12)
