import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tritonsnap import GRU, RNN, SnAp
from tritonsnap.sparsity import SparsityPattern, snap_pattern


def immediate_of(weights):
    """One column for each nonzero of ``weights[to, from]``, by `to`, then by `from`."""
    to, _ = np.nonzero(weights)
    return SparsityPattern.from_coo(to, np.arange(len(to)), (len(weights), len(to)))


def mask_of(weights, order):
    weights = np.asarray(weights)
    dynamics = SparsityPattern.from_dense(weights)
    return snap_pattern(dynamics, immediate_of(weights), order).to_dense().astype(int)


@pytest.mark.parametrize(
    ("order", "rows"),
    [
        (1, ["111000", "000100", "000011"]),
        (2, ["111111", "000100", "111011"]),
        (3, ["111111", "000100", "111111"]),
        (4, ["111111", "000100", "111111"]),
        (None, ["111111", "000100", "111111"]),
    ],
)
def test_known_masks(order, rows):
    mask = mask_of([[1, 1, 1], [0, 1, 0], [1, 0, 1]], order)
    assert ["".join(map(str, row)) for row in mask] == rows


@pytest.mark.parametrize("order", [1, 2, 5, None])
def test_a_diagonal_has_a_diagonal_mask(order):
    np.testing.assert_array_equal(mask_of(np.eye(4), order), np.eye(4))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 6), st.integers(0, 7), st.sampled_from([1, 2, 3, 4, 50, None]), st.data())
def test_masks_are_sums_of_boolean_powers(m, p, order, data):
    dynamics = data.draw(arrays(bool, (m, m)))
    immediate = data.draw(arrays(bool, (m, p)))
    expected, reached = immediate.copy(), immediate.astype(int)
    for _ in range((m + 1 if order is None else order) - 1):
        reached = (dynamics.astype(int) @ reached > 0).astype(int)
        expected |= reached > 0
    mask = snap_pattern(
        SparsityPattern.from_dense(dynamics), SparsityPattern.from_dense(immediate), order
    )
    np.testing.assert_array_equal(mask.to_dense(), expected)


@pytest.mark.parametrize(
    ("units", "density", "rnn", "gru"),
    [
        (128, 1 / 4, (99.2, 74.4, 0.0), (99.2, 42.1, 0.0)),
        (256, 1 / 16, (99.6, 93.4, 34.5), (99.6, 82.0, 0.0)),
        (512, 1 / 64, (99.8, 98.2, 86.6), (99.8, 95.2, 32.1)),
    ],
)
@pytest.mark.parametrize("kind", [RNN, GRU])
def test_sparsity_of_the_paper(kind, units, density, rnn, gru):
    cell = kind(inputs=1, hidden=units, density=density, seed=1)
    names = np.repeat([m.name for m in cell.maps], [m.num_parameters for m in cell.maps])
    recurrent = np.flatnonzero([name.startswith("recurrent") for name in names])
    for order, percent in zip((1, 2, 3), rnn if kind is RNN else gru, strict=True):
        mask = SnAp(cell, order).plan.mask.take_columns(recurrent)
        assert 100 * (1 - mask.density) == pytest.approx(percent, abs=1.5)


@pytest.mark.parametrize("kind", [RNN, GRU])
@pytest.mark.parametrize("order", [1, 2, None])
def test_input_weights_follow_the_recurrent_graph(kind, order):
    cell = kind(inputs=9, hidden=6, density=0.3, input_density=0.4, seed=2)
    paths = np.logical_or.reduce(
        [np.eye(6, dtype=bool)] * (kind is GRU)
        + [linear.pattern.to_dense().T for linear in cell.recurrent_maps()]
    )
    mask = SnAp(cell, order).plan.mask.to_dense()
    support = np.eye(6, dtype=bool)
    for _ in range((order or 7) - 1):
        support |= paths @ support
    begin = 0
    for linear in cell.maps:
        columns = mask[:, begin : begin + linear.num_parameters]
        np.testing.assert_array_equal(columns, support[:, linear.units])
        begin += linear.num_parameters


@pytest.mark.parametrize(
    ("order", "kind"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)]
)
def test_wrong_orders(order, kind):
    identity = SparsityPattern.identity(3)
    with pytest.raises(kind, match="`order`"):
        snap_pattern(identity, identity, order)
    with pytest.raises(kind, match="`order`"):
        SnAp(RNN(inputs=1, hidden=2), order)


def test_orders_may_be_numpy_integers():
    identity = SparsityPattern.identity(3)
    assert snap_pattern(identity, identity, np.int64(2)) == identity


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="`dynamics` must be square"):
        snap_pattern(SparsityPattern.full((2, 3)), SparsityPattern.full((2, 3)), 1)
    with pytest.raises(ValueError, match="`immediate` must have 3 rows"):
        snap_pattern(SparsityPattern.identity(3), SparsityPattern.full((2, 3)), 1)
