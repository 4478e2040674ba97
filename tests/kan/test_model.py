import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import evaluate, jacobian

from tritonsnap.kan import KAN, predict


@pytest.mark.parametrize("convention", ["mean", "sum"])
def test_prediction_is_the_definition(records, convention):
    x, y = records
    model = KAN(3, 5, 4, 7, targets=2, convention=convention, dtype="float64")
    model.initialize(x, y)
    functions = model.functions
    expected = [jacobian(functions, row, convention)[0] for row in x[:20]]
    expected = functions.shift + functions.scale * np.array(expected)
    np.testing.assert_allclose(model.predict(x[:20]), expected, rtol=1e-12, atol=1e-12)


def test_a_function_of_one_variable_by_hand():
    model = KAN(1, 1, 3, 2, dtype="float64")
    model.initialize(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]))
    model.functions = model.functions._replace(
        inner=np.array([0.0, 4.0, 2.0]).reshape(1, 3, 1),
        outer=np.array([-1.0, 1.0]).reshape(1, 2, 1),
        input_low=np.array([0.0]),
        input_high=np.array([2.0]),
        sum_low=np.array([0.0]),
        sum_high=np.array([4.0]),
        shift=np.array([10.0]),
        scale=np.array([2.0]),
    )
    x = np.array([[-5.0], [0.0], [0.5], [1.0], [1.5], [2.0], [9.0]])
    # f = 0 0 2 4 3 2 2, g = f / 2 - 1
    expected = 10 + 2 * (np.array([0, 0, 2, 4, 3, 2, 2]) / 2 - 1)
    np.testing.assert_allclose(model.predict(x)[:, 0], expected, rtol=1e-14)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_libraries_agree(model, records, library):
    x = records[0].astype(np.float32) * 1.5  # partly outside of the domains
    single = KAN.from_json(json.dumps({**json.loads(model.to_json()), "dtype": "float32"}))
    array = pytest.importorskip("torch").from_numpy(x) if library == "torch" else jnp.asarray(x)
    found = single.predict(array)
    assert isinstance(found, type(array))
    np.testing.assert_allclose(np.asarray(found), single.predict(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_a_record_with_a_nan_has_no_prediction_and_spoils_no_other(model, records, library):
    x = records[0][:4].astype(np.float32)
    holed = x.copy()
    holed[1, 0] = np.nan
    arrays = {"numpy": np.asarray, "jax": jnp.asarray}
    array = arrays.get(library) or pytest.importorskip("torch").from_numpy
    single = KAN.from_json(json.dumps({**json.loads(model.to_json()), "dtype": "float32"}))
    found, expected = (np.asarray(single.predict(array(given))) for given in (holed, x))
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(np.delete(found, 1, 0), np.delete(expected, 1, 0))


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["bool", "int32", "float16", ">f8"])
def test_inputs_of_every_real_dtype_are_taken(model, library, dtype):
    x = np.array([[0, 1, 1], [1, 0, 1]])
    if dtype == ">f8" and library != "numpy":
        pytest.skip("only NumPy has other orders of bytes")
    arrays = {"numpy": np.asarray, "jax": jnp.asarray}
    array = arrays.get(library) or pytest.importorskip("torch").from_numpy
    found = np.asarray(model.predict(array(x.astype(dtype))))
    np.testing.assert_allclose(found, model.predict(x.astype(float)), rtol=1e-5, atol=1e-5)


def test_gradients_in_torch_and_jax_are_the_jacobian(model, records):
    torch = pytest.importorskip("torch")
    x = records[0][:1]
    functions = model.functions
    _, by_inner, by_outer = jacobian(functions, x[0], "mean")
    scale = functions.scale[:, None, None, None]
    arrays = model.functions_in("torch")
    inner, outer = (array.requires_grad_() for array in arrays[:2])

    def output(inner, outer):
        return predict(arrays._replace(inner=inner, outer=outer), torch.from_numpy(x))[0]

    found = torch.autograd.functional.jacobian(output, (inner, outer))
    np.testing.assert_allclose(found[0], scale * by_inner, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found[1], scale * by_outer, rtol=1e-10, atol=1e-12)
    with jax.enable_x64(True):
        gradient = jax.jit(jax.jacobian(lambda f, x: predict(f, x)[0]))
        found = gradient(model.functions_in("jax"), jnp.asarray(x))
        np.testing.assert_allclose(found.inner, scale * by_inner, rtol=1e-10, atol=1e-12)


def test_outside_its_domain_a_function_keeps_its_end_value(model):
    functions = model.functions
    far = np.vstack([functions.input_low - 100, functions.input_high + 100])
    ends = np.vstack([functions.input_low, functions.input_high])
    np.testing.assert_array_equal(model.predict(far), model.predict(ends))


def test_resampling_onto_a_finer_grid_changes_nothing(model, records):
    before = model.predict(records[0])
    model.resample(inner_points=2 * 3 + 1, outer_points=3 * 6 + 1)
    assert (model.inner_points, model.outer_points) == (7, 19)
    assert model.functions.inner.shape == (3, 7, 5)
    np.testing.assert_allclose(model.predict(records[0]), before, rtol=1e-12, atol=1e-12)


def test_resampling_to_any_grid_interpolates(model):
    values = model.functions.outer[1, :, 2]
    model.resample(outer_points=10)
    expected = [evaluate(values, 0, 1, x)[0] for x in np.linspace(0, 1, 10)]
    np.testing.assert_allclose(model.functions.outer[1, :, 2], expected, rtol=1e-12)


def test_domains_have_a_margin_of_one_percent(records):
    x, y = records
    model = KAN(3, 5, 4, 7, targets=2, dtype="float64")
    model.initialize(x, y)
    span = x.max(axis=0) - x.min(axis=0)
    np.testing.assert_allclose(model.functions.input_low, x.min(axis=0) - 0.01 * span)
    np.testing.assert_allclose(model.functions.input_high, x.max(axis=0) + 0.01 * span)


def test_constant_columns_do_no_harm():
    x, y = np.ones((50, 2)), np.ones(50)
    model = KAN(2, 3, 3, 4)
    model.initialize(x, y)
    np.testing.assert_allclose(model.predict(x), np.ones((50, 1)), atol=2)
    assert np.isfinite(model.predict(x)).all()


def test_parameters_counts_the_knots():
    assert KAN(25, 200, 5, 22).parameters == 29_400
    assert KAN(3, 5, 4, 7, targets=2).parameters == 5 * (3 * 4 + 2 * 7)


@pytest.mark.parametrize("name", ["npz", "json"])
def test_a_saved_model_is_the_model(model, records, tmp_path, name):
    model.records = 12
    model.freeze()
    if name == "npz":
        model.save(tmp_path / "model.npz")
        loaded = KAN.load(tmp_path / "model.npz")
    else:
        loaded = KAN.from_json(model.to_json())
    np.testing.assert_array_equal(loaded.predict(records[0]), model.predict(records[0]))
    assert loaded.frozen
    assert loaded.records == 12
    assert repr(loaded) == repr(model)


def test_an_untrained_model_is_saved_too(tmp_path):
    KAN(3, 5, 4, 7, convention="sum").save(tmp_path / "model.npz")
    loaded = KAN.load(tmp_path / "model.npz")
    assert loaded.functions is None
    assert loaded.inner_step == 5 / 3


def test_damaged_files_are_refused(model, tmp_path):
    path = tmp_path / "model.npz"
    path.write_bytes(b"not an archive")
    with pytest.raises(ValueError, match="damaged"):
        KAN.load(path)
    with pytest.raises(FileNotFoundError):
        KAN.load(tmp_path / "none.npz")
    text = json.loads(model.to_json())
    with pytest.raises(ValueError, match=r"expected 'tritonsnap\.KAN/1'"):
        KAN.from_json("{}")
    with pytest.raises(ValueError, match="not JSON"):
        KAN.from_json("{")
    with pytest.raises(ValueError, match="`inner` must have the shape"):
        KAN.from_json(json.dumps({**text, "inner": [1, 2]}))
    with pytest.raises(ValueError, match="'scale' is missing"):
        KAN.from_json(json.dumps({key: value for key, value in text.items() if key != "scale"}))
    with pytest.raises(ValueError, match="`shift` holds NaN"):
        KAN.from_json(json.dumps({**text, "shift": [float("nan"), 0.0]}))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"inputs": 0}, "inputs"),
        ({"inner_points": 1}, "inner_points"),
        ({"convention": "median"}, "convention"),
        ({"dtype": "int8"}, "dtype"),
        ({"outer_step": -1.0}, "outer_step"),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    sizes = {"inputs": 2, "addends": 2, "inner_points": 2, "outer_points": 2}
    with pytest.raises(ValueError, match=f"`{name}`"):
        KAN(**{**sizes, **arguments})


def test_wrong_records_are_named(model):
    with pytest.raises(ValueError, match=r"`x` must have the shape \[records, 3\]"):
        model.predict(np.zeros((4, 2)))
    with pytest.raises(ValueError, match="no domains yet"):
        KAN(3, 5, 4, 7).predict(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="finite"):
        KAN(1, 1, 2, 2).initialize(np.array([[np.nan]]), np.zeros(1))


def test_the_model_loads_neither_torch_nor_jax():
    code = (
        "import sys, numpy as np, tritonsnap.kan as kan; "
        "model = kan.KAN(2, 3, 3, 4); model.initialize(np.eye(2), np.ones(2)); "
        "model.predict(np.eye(2)); print({'torch', 'jax', 'triton', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
