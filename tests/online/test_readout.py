import numpy as np
import pytest

from tritonsnap import RNN, SnAp
from tritonsnap.arrays import LIBRARIES, namespace, to_numpy
from tritonsnap.online.readout import Readout

ROWS, HIDDEN, OUTPUTS = (3, 4), 5, 6


@pytest.fixture(autouse=True)
def _float64():
    import jax

    with jax.enable_x64(True):
        yield


def example(loss, like):
    rng = np.random.default_rng(0)
    xp = namespace(like)
    readout = Readout(OUTPUTS, loss)
    params = readout.init(HIDDEN, rng, like, "float64")
    params["bias"] = xp.asarray(rng.normal(size=OUTPUTS))
    state = xp.asarray(rng.normal(size=(*ROWS, HIDDEN)))
    y = (
        rng.integers(OUTPUTS, size=ROWS)
        if loss == "cross_entropy"
        else rng.normal(size=(*ROWS, OUTPUTS))
    )
    weight = rng.integers(2, size=ROWS).astype("float64")
    return readout, params, state, xp.asarray(y), xp.asarray(weight)


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_losses_follow_their_definition(loss, like):
    readout, params, state, y, _ = example(loss, like)
    losses = to_numpy(readout(params, state, y))
    outputs = to_numpy(state) @ to_numpy(params["kernel"]) + to_numpy(params["bias"])
    for row in np.ndindex(*ROWS):
        if loss == "mse":
            expected = np.mean((outputs[row] - to_numpy(y)[row]) ** 2)
        else:
            probabilities = np.exp(outputs[row]) / np.exp(outputs[row]).sum()
            expected = -np.log(probabilities[int(to_numpy(y)[row])])
        assert losses[row] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_gradients_match_jax(loss):
    import jax

    readout, params, state, y, weight = example(loss, "jax")

    def total(params, state):
        return (readout(params, state, y) * weight).sum()

    by_params, by_state = jax.grad(total, argnums=(0, 1))(params, state)
    losses, state_gradient, params_gradient = readout.gradients(params, state, y, weight)
    np.testing.assert_array_equal(losses, readout(params, state, y))
    np.testing.assert_allclose(state_gradient, by_state, rtol=1e-12, atol=1e-14)
    for name in params:
        np.testing.assert_allclose(params_gradient[name], by_params[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_gradients_match_torch(loss):
    readout, params, state, y, weight = example(loss, "torch")
    leaves = [state, params["kernel"], params["bias"]]
    for leaf in leaves:
        leaf.requires_grad_()
    (readout(params, state, y) * weight).sum().backward()
    _, state_gradient, params_gradient = readout.gradients(params, state, y, weight)
    found = [state_gradient, params_gradient["kernel"], params_gradient["bias"]]
    for gradient, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(to_numpy(gradient), leaf.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_gradients_match_finite_differences(loss):
    readout, params, state, y, weight = example(loss, "numpy")
    _, state_gradient, params_gradient = readout.gradients(params, state, y, weight)
    step = 1e-6
    for array, gradient in [
        (state, state_gradient),
        (params["kernel"], params_gradient["kernel"]),
        (params["bias"], params_gradient["bias"]),
    ]:
        for place in np.ndindex(*array.shape):
            value = array[place]
            array[place] = value + step
            above = (readout(params, state, y) * weight).sum()
            array[place] = value - step
            below = (readout(params, state, y) * weight).sum()
            array[place] = value
            assert gradient[place] == pytest.approx((above - below) / (2 * step), abs=1e-8)


@pytest.mark.parametrize("like", LIBRARIES)
def test_large_logits_stay_finite(like):
    xp = namespace(like)
    readout = Readout(3)
    params = {"kernel": xp.asarray(np.eye(3)), "bias": xp.asarray(np.zeros(3))}
    state = xp.asarray(np.array([[1e4, -1e4, 0.0]]))
    losses, state_gradient, _ = readout.gradients(params, state, xp.asarray(np.array([1])))
    assert to_numpy(losses)[0] == pytest.approx(2e4)
    np.testing.assert_allclose(to_numpy(state_gradient)[0], [1.0, -1.0, 0.0])


def test_no_weight_means_ones():
    readout, params, state, y, weight = example("mse", "numpy")
    plain = readout.gradients(params, state, y)
    ones = readout.gradients(params, state, y, np.ones_like(weight))
    np.testing.assert_array_equal(plain[1], ones[1])


@pytest.mark.parametrize("like", LIBRARIES)
def test_a_missing_target_of_weight_zero_adds_nothing(like):
    readout, params, state, y, weight = example("mse", like)
    xp = namespace(like)
    missing = xp.where(weight[..., None] == 0, xp.nan, y)
    assert bool(xp.any(xp.isnan(missing)))
    _, state_gradient, params_gradient = readout.gradients(params, state, missing, weight)
    _, expected, by_params = readout.gradients(params, state, y, weight)
    np.testing.assert_array_equal(to_numpy(state_gradient), to_numpy(expected))
    for name in params:
        np.testing.assert_array_equal(to_numpy(params_gradient[name]), to_numpy(by_params[name]))


@pytest.mark.parametrize("missing", [-1, OUTPUTS])
@pytest.mark.parametrize("like", LIBRARIES)
def test_class_ids_of_weight_zero_are_not_looked_at(like, missing):
    readout, params, state, y, weight = example("cross_entropy", like)
    ids = namespace(like).where(weight == 0, missing, y)
    _, state_gradient, params_gradient = readout.gradients(params, state, ids, weight)
    _, expected, by_params = readout.gradients(params, state, y, weight)
    np.testing.assert_array_equal(to_numpy(state_gradient), to_numpy(expected))
    for name in params:
        np.testing.assert_array_equal(to_numpy(params_gradient[name]), to_numpy(by_params[name]))
    with pytest.raises(ValueError, match=rf"`y` must hold class ids in \[0, 6\), got {missing}"):
        readout.gradients(params, state, ids, weight + 1)


@pytest.mark.parametrize("like", LIBRARIES)
def test_masked_class_ids_do_not_reach_a_sequence(like):
    xp = namespace(like)
    rng = np.random.default_rng(0)
    learner = SnAp(RNN(3, 4))
    readout = Readout(OUTPUTS)
    params, of_readout = learner.cell.init(0, like=like), readout.init(4, 0, like=like)
    xs = xp.asarray(rng.normal(size=(5, 2, 3)).astype("float32"))
    ids, mask = rng.integers(OUTPUTS, size=(5, 2)), np.ones((5, 2), "float32")
    mask[1:3, 0] = 0
    found = []
    for missing in (0, -1):
        ids[1:3, 0] = missing
        loss, gradients, _ = learner.sequence(
            params,
            learner.init(2, like=like),
            xs,
            xp.asarray(ids),
            readout,
            readout=of_readout,
            mask=xp.asarray(mask),
        )
        found.append([float(loss), *(to_numpy(one) for tree in gradients for one in tree.values())])
    assert np.isfinite(found[0][0])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_init_is_reproducible_and_typed():
    first, second = (Readout(4).init(8, rng=3) for _ in range(2))
    np.testing.assert_array_equal(first["kernel"], second["kernel"])
    assert first["kernel"].shape == (8, 4)
    assert first["bias"].shape == (4,)
    assert first["kernel"].dtype == np.float32


@pytest.mark.parametrize("bad", [-1, OUTPUTS])
@pytest.mark.parametrize("like", LIBRARIES)
def test_class_ids_outside_the_range_are_refused(like, bad):
    readout, params, state, y, _ = example("cross_entropy", like)
    ids = to_numpy(y).copy()
    ids[0, 0] = bad
    with pytest.raises(ValueError, match=r"`y` must hold class ids in \[0, 6\)"):
        readout(params, state, namespace(like).asarray(ids))


def test_a_bad_class_id_under_jit_gives_nan():
    import jax

    readout, params, state, y, _ = example("cross_entropy", "jax")
    losses = jax.jit(readout)(params, state, y.at[0, 0].set(OUTPUTS))
    assert np.isnan(losses[0, 0])
    assert np.isfinite(losses.ravel()[1:]).all()


def test_a_bad_class_id_in_a_compiled_function_gives_nan():
    torch = pytest.importorskip("torch")
    readout, params, state, y, weight = example("cross_entropy", "torch")
    run = torch.compile(readout.gradients, backend="aot_eager", fullgraph=True)
    for one, other in zip(
        run(params, state, y, weight), readout.gradients(params, state, y, weight), strict=True
    ):
        torch.testing.assert_close(one, other)
    y[0, 0] = OUTPUTS
    losses = run(params, state, y, weight)[0]
    assert bool(torch.isnan(losses[0, 0]))
    assert bool(torch.isfinite(losses.ravel()[1:]).all())


def test_wrong_shapes_and_types_are_refused():
    readout, params, state, y, weight = example("cross_entropy", "numpy")
    with pytest.raises(ValueError, match="`y` must be"):
        readout(params, state, y[0])
    with pytest.raises(TypeError, match="`y` must hold integer"):
        readout(params, state, y.astype(float))
    with pytest.raises(ValueError, match="`state` must be"):
        readout(params, state[..., :-1], y)
    with pytest.raises(ValueError, match="`weight` must be"):
        readout.gradients(params, state, y, weight[0])
    with pytest.raises(ValueError, match="`outputs`"):
        Readout(0)
    with pytest.raises(ValueError, match="`loss`"):
        Readout(2, "hinge")


def test_keys_and_dtypes_are_those_of_a_cell():
    jax = pytest.importorskip("jax")
    one, same, other = (
        Readout(3).init(4, jax.random.key(seed), like="jax")["kernel"] for seed in (1, 1, 2)
    )
    assert bool((one == same).all())
    assert not bool((one == other).all())
    with pytest.raises(ValueError, match="`dtype` must be one of"):
        Readout(3).init(4, dtype="int32")
