import numpy as np
import pytest

from tritonsnap.arrays import LIBRARIES, namespace, to_numpy
from tritonsnap.online.optimizers import SGD, Adam, clip_by_norm
from tritonsnap.online.trees import leaves_of, map_tree


@pytest.fixture(autouse=True)
def _float64():
    import jax

    with jax.enable_x64(True):
        yield


def example(like, updates=5):
    rng = np.random.default_rng(1)

    def tree():
        xp = namespace(like)
        return {"a": xp.asarray(rng.normal(size=(3, 2))), "b": (xp.asarray(rng.normal(size=4)),)}

    return tree(), [tree() for _ in range(updates)]


def run(optimizer, params, gradients):
    state = optimizer.init(params)
    for gradient in gradients:
        params, state = optimizer.update(gradient, state, params)
    return [to_numpy(leaf) for leaf in leaves_of(params)]


OPTIMIZERS = [SGD(0.1), SGD(0.1, clip_norm=0.5), Adam(0.01), Adam(0.01, clip_norm=0.5)]


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("ours", OPTIMIZERS)
def test_matches_torch(ours, like):
    import torch

    leaves = [torch.tensor(to_numpy(p)).requires_grad_() for p in leaves_of(example("numpy")[0])]
    kind = torch.optim.SGD if isinstance(ours, SGD) else torch.optim.Adam
    theirs = kind(leaves, lr=ours.learning_rate)
    for gradient in example("numpy")[1]:
        for leaf, value in zip(leaves, leaves_of(gradient), strict=True):
            leaf.grad = torch.tensor(value)
        if ours.clip_norm is not None:
            norm = float(torch.cat([leaf.grad.ravel() for leaf in leaves]).norm())
            for leaf in leaves:
                leaf.grad *= min(1.0, ours.clip_norm / norm)
        theirs.step()
    for found, expected in zip(run(ours, *example(like)), leaves, strict=True):
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("ours", OPTIMIZERS)
def test_matches_optax_inside_jit(ours):
    import jax
    import optax

    theirs = optax.sgd(0.1) if isinstance(ours, SGD) else optax.adam(0.01)
    if ours.clip_norm is not None:
        theirs = optax.chain(optax.clip_by_global_norm(ours.clip_norm), theirs)
    params, gradients = example("jax")
    expected, state = params, theirs.init(params)
    found, our_state = params, ours.init(params)
    update = jax.jit(ours.update)
    for gradient in gradients:
        changes, state = theirs.update(gradient, state, expected)
        expected = optax.apply_updates(expected, changes)
        found, our_state = update(gradient, our_state, found)
    for one, other in zip(leaves_of(found), leaves_of(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("like", LIBRARIES)
def test_arguments_are_left_as_they_are(like):
    params, gradients = example(like)
    before = [to_numpy(leaf).copy() for leaf in leaves_of((params, gradients))]
    run(Adam(0.1, clip_norm=0.1), params, gradients)
    for leaf, value in zip(leaves_of((params, gradients)), before, strict=True):
        np.testing.assert_array_equal(to_numpy(leaf), value)


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("optimizer", [SGD(0.1, clip_norm=1.0), Adam(0.1, clip_norm=1.0)])
def test_float32_stays_float32(optimizer, like):
    xp = namespace(like)
    params, gradients = example(like)
    params, *gradients = (
        map_tree(lambda a: xp.astype(a, xp.float32), t) for t in (params, *gradients)
    )
    assert all(leaf.dtype == np.float32 for leaf in run(optimizer, params, gradients))


def test_small_gradients_are_not_clipped():
    gradients = {"a": np.array([0.3, 0.4])}
    np.testing.assert_array_equal(clip_by_norm(gradients, 1.0)["a"], gradients["a"])
    np.testing.assert_allclose(clip_by_norm(gradients, 0.05)["a"], [0.03, 0.04])
    assert clip_by_norm({"a": np.zeros(2)}, 1.0)["a"].tolist() == [0, 0]


def test_bad_settings_are_refused():
    for make, name in [
        (lambda: SGD(0.0), "learning_rate"),
        (lambda: Adam(-1.0), "learning_rate"),
        (lambda: Adam(float("nan")), "learning_rate"),
        (lambda: SGD(0.1, clip_norm=0.0), "clip_norm"),
        (lambda: Adam(0.1, mean_decay=1.0), "mean_decay"),
    ]:
        with pytest.raises(ValueError, match=f"`{name}`"):
            make()


def test_gradients_of_another_structure_are_refused():
    with pytest.raises(ValueError, match="`gradients` must have the leaves"):
        SGD(0.1).update({"b": np.ones(2)}, SGD(0.1).init({}), {"a": np.ones(2)})
    with pytest.raises(ValueError, match="shapes of `params`"):
        SGD(0.1).update({"a": np.ones((3, 2))}, SGD(0.1).init({}), {"a": np.ones(2)})
