"""What the automatic choice of chunks takes."""

from dataclasses import replace

import pytest

from tritonsnap import GRU, RNN, RTRL, SnAp
from tritonsnap.online import chunk_choice
from tritonsnap.online.chunk_groups import Gathered, Walked
from tritonsnap.plan.cost import TARGETS


@pytest.fixture(autouse=True)
def _shipped_costs(monkeypatch):
    monkeypatch.setattr(chunk_choice, "calibrated_target", TARGETS.__getitem__)


def found(learner, length=192, target="xla"):
    return learner.chunkings.find("auto", target, length, 8)


@pytest.mark.parametrize("target", ["xla", "scipy", "numpy"])
def test_dense_weights_are_chunked(target: str) -> None:
    for learner in (SnAp(RNN(inputs=8, hidden=64), 1), RTRL(RNN(inputs=8, hidden=64))):
        chunking = found(learner, target=target)
        assert chunking is not None
        assert chunking.stepped is None
        assert 8 <= chunking.steps < 192


@pytest.mark.parametrize("length", [1, 8, 15, 16, 17, 100, 193])
def test_a_chunk_is_shorter_than_its_sequence(length: int) -> None:
    chunking = found(SnAp(RNN(inputs=8, hidden=64), 1), length)
    assert (chunking is None) == (length < 16)
    if chunking is not None:
        assert 8 <= chunking.steps < length


def test_elementwise_blocks_go_together() -> None:
    chunking = found(SnAp(GRU(inputs=64, hidden=512, density=0.004, seed=1), 1))
    assert chunking is not None
    assert len(chunking.elementwise) > 1
    assert chunking.stepped is None


def test_adjoints_are_walked_where_dynamics_are_thin_and_groups_large() -> None:
    for density, way in ((1.0, Gathered), (0.05, Walked)):
        chunking = found(RTRL(RNN(inputs=8, hidden=256, density=density, seed=1)))
        assert chunking is not None
        assert {type(one.way) for one in chunking.groups} == {way}


def test_costs_decide(monkeypatch) -> None:
    learner = SnAp(RNN(inputs=8, hidden=64), 1)
    dear = replace(TARGETS["xla"], multiply_add=10.0)
    monkeypatch.setattr(chunk_choice, "calibrated_target", lambda name: dear)
    assert found(learner) is None


def test_a_choice_is_made_once() -> None:
    learner = SnAp(RNN(inputs=8, hidden=64), 1)
    assert found(learner) is found(learner)
