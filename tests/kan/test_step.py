import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import jacobian

from tritonsnap.kan import KAN, Rule, train_step
from tritonsnap.kan.functions import activate, extend_domain
from tritonsnap.kan.step import clip_residuals, damped_solution, largest_residuals

RULE = Rule("kaczmarz", "mean", 0.1, 1.0, 1.0, 0.3, 1.0, 1.0, None, adapt=True)


def dense_jacobian(functions, x, convention):
    """Rows (target, record) of the inner and of the outer part."""
    rows = [jacobian(functions, record, convention) for record in x]
    outputs = np.stack([row[0] for row in rows], axis=1)
    inner = np.stack([row[1] for row in rows], axis=1).reshape(outputs.size, -1)
    outer = np.stack([row[2] for row in rows], axis=1).reshape(outputs.size, -1)
    return outputs, inner, outer


def expected_change(functions, x, y, rule, inputs, addends):
    """The rule by dense Jacobians; KAN.md's G is J J^T times 1 / s_2 and 1 / (s_1 s_2)."""
    s1, s2 = (1 / inputs, 1 / addends) if rule.convention == "mean" else (1.0, 1.0)
    outputs, inner, outer = dense_jacobian(functions, x, rule.convention)
    errors = ((y - functions.shift) / functions.scale).T - outputs
    weights = rule.step * errors.ravel()
    if rule.solver == "newton-kaczmarz":
        gram = (
            rule.inner_step * inner @ inner.T / (s1 * s2) + rule.outer_step * outer @ outer.T / s2
        )
        ridge = rule.damping * np.trace(gram) / len(gram) * np.eye(len(gram))
        weights = np.linalg.solve(rule.concurrency * gram + ridge, weights)
    inner_change = rule.inner_step * weights @ inner / (s1 * s2)
    outer_change = rule.outer_step * weights @ outer / s2
    return (
        inner_change.reshape(functions.inner.shape),
        outer_change.reshape(functions.outer.shape),
        (errors**2).mean(axis=1) * functions.scale**2,
    )


@pytest.mark.parametrize("convention", ["mean", "sum"])
@pytest.mark.parametrize("solver", ["kaczmarz", "newton-kaczmarz"])
@pytest.mark.parametrize("count", [1, 17])
def test_the_change_is_the_rule_by_dense_jacobians(records, convention, solver, count):
    x, y = (array[:count] for array in records)
    model = KAN(3, 5, 4, 7, targets=2, convention=convention, dtype="float64")
    model.initialize(*records)
    rule = Rule(solver, convention, 0.7, 1.3, 0.6, 0.2, 2.0, 1.0, None, adapt=True)
    change, squared_error = train_step(model.functions, x, y, rule)
    inner, outer, error = expected_change(model.functions, x, y, rule, 3, 5)
    np.testing.assert_allclose(change.inner, inner, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(change.outer, outer, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(squared_error, error, rtol=1e-12)


def test_one_record_by_hand():
    """f = (0, 2) and g = (0, 1, 4) at x = 1/4: u = 1/2, y = 1/2, e = 1/2, slope 1."""
    model = KAN(1, 1, 2, 3, dtype="float64")
    model.initialize(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]))
    ones = np.ones(1)
    functions = model.functions._replace(
        inner=np.array([[[0.0], [2.0]]]),
        outer=np.array([[[0.0], [1.0], [4.0]]]),
        input_low=0 * ones,
        input_high=ones,
        sum_low=0 * ones,
        sum_high=2 * ones,
        shift=0 * ones,
        scale=ones,
    )
    change, error = train_step(functions, np.array([[0.25]]), np.array([[1.0]]), RULE)
    np.testing.assert_allclose(change.outer.ravel(), 0.1 * 0.5 * np.array([0.5, 0.5, 0]))
    np.testing.assert_allclose(change.inner.ravel(), 0.1 * 0.5 * 1 * np.array([0.75, 0.25]))
    np.testing.assert_allclose(error, 0.25)


def test_newton_kaczmarz_corrects_a_record_by_its_step(model, records):
    """A full undamped step would fit the record, up to the change of its slopes."""
    x, y = (array[:1] for array in records)
    rule = dataclasses.replace(RULE, solver="newton-kaczmarz", step=1e-6, damping=1e-12)
    change, before = train_step(model.functions, x, y, rule)
    moved = model.functions._replace(
        inner=model.functions.inner + change.inner, outer=model.functions.outer + change.outer
    )
    _, after = train_step(moved, x, y, rule)
    np.testing.assert_allclose(np.sqrt(after / before), 1 - 1e-6, rtol=1e-9)


def test_sum_and_mean_train_alike_with_their_own_steps(records):
    x, y = records
    predictions = {}
    for convention in ("mean", "sum"):
        model = KAN(3, 5, 4, 7, targets=2, convention=convention, dtype="float64")
        model.initialize(x, y)
        rule = dataclasses.replace(
            RULE,
            convention=convention,
            inner_step=model.inner_step,
            outer_step=model.outer_step,
        )
        change, _ = train_step(model.functions, x[:50], y[:50], rule)
        model.functions = model.functions._replace(
            inner=model.functions.inner + change.inner, outer=model.functions.outer + change.outer
        )
        predictions[convention] = model.predict(x)
    np.testing.assert_allclose(predictions["sum"], predictions["mean"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("solver", ["kaczmarz", "newton-kaczmarz"])
def test_libraries_agree(model, records, library, solver):
    x, y = (array[:40] for array in records)
    rule = dataclasses.replace(RULE, solver=solver, select=0.5, clip=2.0)
    expected, error = train_step(model.functions, x, y, rule)
    if library == "torch":
        torch = pytest.importorskip("torch")
        functions = model.functions_in("torch")
        found, found_error = train_step(functions, torch.from_numpy(x), torch.from_numpy(y), rule)
    else:
        with jax.enable_x64(True):
            functions = model.functions_in("jax")
            step = jax.jit(lambda functions, x, y: train_step(functions, x, y, rule))
            found, found_error = step(functions, jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(np.asarray(found_error), error, rtol=1e-12)
    for name, value in expected._asdict().items():
        np.testing.assert_allclose(
            np.asarray(getattr(found, name)), value, rtol=1e-8, atol=1e-10, err_msg=name
        )


def test_some_addends_alone(model, records):
    x, y = (array[:20] for array in records)
    whole, _ = train_step(model.functions, x, y, RULE)
    part, _ = train_step(model.functions, x, y, RULE, slice(1, 3))
    # BLAS adds in another order for another width
    np.testing.assert_allclose(part.inner, whole.inner[..., 1:3], rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(part.outer, whole.outer[..., 1:3])
    np.testing.assert_array_equal(part.sum_low, whole.sum_low[1:3])


def test_a_domain_moves_to_a_value_outside_and_widens_by_one_percent():
    low, high = np.array([0.0, 0.0]), np.array([10.0, 10.0])
    values = np.array([[5.0, -2.0], [12.0, 3.0]])
    lower, higher = extend_domain(np, low, high, values)
    np.testing.assert_allclose(lower, [0.0, -2 - 0.01 * 12])
    np.testing.assert_allclose(higher, [12 + 0.01 * 12, 10.0])


def test_records_outside_are_used_within_the_extended_domain(model):
    functions = model.functions
    x = functions.input_high[None] + 3.0
    used, activations = activate(functions, x, "mean", adapt=True)
    assert (used.input_high > x[0]).all()
    assert (activations.input_positions < 3).all()
    np.testing.assert_array_equal(used.inner, functions.inner)
    frozen, activations = activate(functions, x, "mean")
    np.testing.assert_array_equal(frozen.input_high, functions.input_high)
    np.testing.assert_array_equal(activations.input_positions, [[3, 3, 3]])


def test_slopes_vanish_outside_of_a_domain_that_stays(model):
    functions = model.functions._replace(sum_high=model.functions.sum_low + 1e-9)
    _, activations = activate(functions, np.zeros((4, 3)), "mean")
    assert not activations.slopes.any()


def test_clipping_bounds_by_the_median():
    errors = np.array([[1.0, -2.0, 3.0, -4.0, 100.0]])
    clipped = clip_residuals(np, errors, 2.0)
    bound = 2 * 1.4826 * 3
    np.testing.assert_allclose(clipped, [[1, -2, 3, -4, bound]])


def test_selection_takes_the_largest_in_order():
    errors = np.array([[1.0, -5.0, 0.0, 2.0], [0.0, 0.0, 4.0, 0.0]])
    np.testing.assert_array_equal(largest_residuals(np, errors, 0.5), [1, 2])
    np.testing.assert_array_equal(largest_residuals(np, errors, 0.01), [1])


def test_damped_solution_solves_the_system():
    gram = np.array([[2.0, 1.0], [1.0, 4.0]])
    errors = np.array([[1.0, -2.0]])
    solution = damped_solution(np, gram.copy(), errors, 0.5, 3.0)
    np.testing.assert_allclose((3 * gram + 1.5 * np.eye(2)) @ solution[0], errors[0])
