from typing import NamedTuple

import numpy as np
import pytest

from tritonsnap.arrays import LIBRARIES, library_of, namespace, to_numpy
from tritonsnap.files import write_arrays
from tritonsnap.online.checkpoint import load_checkpoint, read_config, save_checkpoint


class Pair(NamedTuple):
    left: object
    right: object


def tree(like, scale=1.0):
    xp = namespace(like)
    return {
        "params": (
            {"kernel": xp.asarray(np.arange(6, dtype="float32").reshape(2, 3) * scale)},
            None,
        ),
        "carry": Pair(xp.asarray(np.array([True, False])), [xp.asarray(np.int32(7))]),
        "step": int(3 * scale),
        "seconds": 0.5 * scale,
    }


@pytest.mark.parametrize("like", LIBRARIES)
def test_a_tree_survives_a_file(like, tmp_path):
    path = tmp_path / "checkpoint.npz"
    save_checkpoint(path, {"hidden": 3}, tree(like))
    found = load_checkpoint(path, tree(like, scale=2.0))
    assert read_config(path) == {"hidden": 3}
    assert isinstance(found["carry"], Pair)
    assert found["params"][1] is None
    assert (found["step"], found["seconds"]) == (3, 0.5)
    for one, other in [
        (found["params"][0]["kernel"], tree(like)["params"][0]["kernel"]),
        (found["carry"].left, tree(like)["carry"].left),
        (found["carry"].right[0], tree(like)["carry"].right[0]),
    ]:
        assert library_of(one) == like
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


@pytest.mark.parametrize("like", ["torch", "jax"])
def test_bfloat16_survives_a_file(like, tmp_path):
    xp = namespace(like)
    values = xp.asarray([1.5, -0.1, 3e38], dtype=xp.bfloat16)
    save_checkpoint(tmp_path / "halves.npz", {}, {"a": values})
    found = load_checkpoint(tmp_path / "halves.npz", {"a": xp.zeros_like(values)})["a"]
    assert found.dtype == values.dtype
    assert bool((found == values).all())


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"a": np.ones(3)}, r"'a' is float64\[2\], expected float64\[3\]"),
        ({"a": np.ones(2, "float32")}, "expected float32"),
        ({"a": np.ones(2), "b": np.ones(2)}, "lacks 'b'"),
        ({}, "unexpected 'a'"),
        ({"a": 1}, "must be a number"),
    ],
)
def test_another_tree_is_refused(template, message, tmp_path):
    path = tmp_path / "checkpoint.npz"
    save_checkpoint(path, {}, {"a": np.ones(2)})
    with pytest.raises(ValueError, match=message):
        load_checkpoint(path, template)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    with pytest.raises(FileNotFoundError):
        read_config(path)
    path.write_bytes(b"not an archive")
    with pytest.raises(ValueError, match=r"checkpoint\.npz"):
        read_config(path)
    save_checkpoint(path, {}, {"a": np.arange(1000.0)})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(path, {"a": np.arange(1000.0)})
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(path, {"a": np.arange(1000.0)})
    write_arrays(path, "something else", {"a": np.ones(2)})
    with pytest.raises(ValueError, match="something else"):
        read_config(path)
    write_arrays(path, "tritonsnap checkpoint 1", {"a": np.ones(2)})
    with pytest.raises(ValueError, match="no configuration"):
        read_config(path)


def test_a_failed_save_keeps_the_old_file(tmp_path):
    path = tmp_path / "checkpoint.npz"
    save_checkpoint(path, {}, {"a": np.ones(2)})
    with pytest.raises(TypeError):
        save_checkpoint(path, {}, {"a": object()})
    assert load_checkpoint(path, {"a": np.zeros(2)})["a"].tolist() == [1, 1]
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_optimizers_of_torch_and_optax_go_on_where_they_were(tmp_path):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    path = tmp_path / "checkpoint.npz"

    def torch_optimizer(start):
        weight = torch.tensor(start, requires_grad=True)
        return weight, torch.optim.Adam([weight], lr=0.1)

    def torch_steps(weight, optimizer, number):
        for _ in range(number):
            weight.grad = 2 * weight.detach() + 1
            optimizer.step()

    weight, optimizer = torch_optimizer([1.0, 2.0])
    torch_steps(weight, optimizer, 2)
    save_checkpoint(path, {}, {"weight": weight, "optimizer": optimizer.state_dict()})
    torch_steps(weight, optimizer, 2)
    other, resumed = torch_optimizer([0.0, 0.0])
    torch_steps(other, resumed, 1)  # makes the moments that the file has
    loaded = load_checkpoint(path, {"weight": other, "optimizer": resumed.state_dict()})
    resumed.load_state_dict(loaded["optimizer"])
    with torch.no_grad():
        other.copy_(loaded["weight"])
    torch_steps(other, resumed, 2)
    assert torch.equal(other, weight)

    adam = optax.adam(0.1)

    def optax_steps(state, number):
        for _ in range(number):
            params, moments = state
            updates, moments = adam.update(2 * params + 1, moments)
            state = optax.apply_updates(params, updates), moments
        return state

    params = jax.numpy.asarray([1.0, 2.0])
    start = (params, adam.init(params))
    save_checkpoint(path, {}, optax_steps(start, 2))
    found, expected = optax_steps(load_checkpoint(path, start), 2), optax_steps(start, 4)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, two)


def test_jax_arrays_go_back_to_where_they_were(tmp_path):
    jax = pytest.importorskip("jax")
    path = tmp_path / "checkpoint.npz"
    anywhere = jax.numpy.ones(3)
    there = jax.device_put(anywhere, jax.devices()[0])
    save_checkpoint(path, {}, (anywhere, there))
    assert [one.committed for one in load_checkpoint(path, (anywhere, there))] == [False, True]
