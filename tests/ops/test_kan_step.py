import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tritonsnap.ops import kan_step

torch = pytest.importorskip("torch")

KNOTS, OUTER_KNOTS, TARGETS = 4, 7, 2
LIBRARIES = {"numpy": np.asarray, "torch": torch.from_numpy, "jax": jnp.asarray}


@pytest.fixture(params=[np.float64, np.float32])
def arrays(request):
    """Positions with some on knots and ends, values and weights, of 9 records, 3 x 5."""
    random = np.random.default_rng(5)
    inner_positions = random.uniform(0, KNOTS - 1, (9, 3))
    outer_positions = random.uniform(0, OUTER_KNOTS - 1, (9, 5))
    inner_positions[0], outer_positions[0] = KNOTS - 1, OUTER_KNOTS - 1
    inner_positions[1], outer_positions[1] = 0, 2
    made = {
        "inner_positions": inner_positions,
        "outer_positions": outer_positions,
        "inner": random.normal(size=(3, KNOTS, 5)),
        "outer": random.normal(size=(TARGETS, OUTER_KNOTS, 5)),
        "inner_weights": random.normal(size=(9, 5)),
        "outer_weights": random.normal(size=(TARGETS, 9)),
        "slopes": random.normal(size=(TARGETS, 9, 5)),
    }
    return {name: array.astype(request.param) for name, array in made.items()}


def hats(positions, knots):
    """Hat vectors [records, columns, knots], entry by entry."""
    hat = np.zeros((*positions.shape, knots))
    for place, position in np.ndenumerate(np.asarray(positions, float)):
        for n in range(knots):
            hat[(*place, n)] = max(0.0, 1 - abs(position - n))
    return hat


def run(library, arrays):
    """All five functions on arrays of a library."""
    given = {name: LIBRARIES[library](array) for name, array in arrays.items()}
    sums, rises = kan_step.outer_values(given["outer_positions"], given["outer"])
    results = {
        "inner_sums": kan_step.inner_sums(given["inner_positions"], given["inner"]),
        "inner_change": kan_step.inner_change(
            given["inner_positions"], given["inner_weights"], KNOTS
        ),
        "sums": sums,
        "rises": rises,
        "outer_change": kan_step.outer_change(
            given["outer_positions"], given["outer_weights"], OUTER_KNOTS
        ),
        "gram": kan_step.gram(
            given["inner_positions"],
            given["outer_positions"],
            given["slopes"],
            inner_knots=KNOTS,
            outer_knots=OUTER_KNOTS,
            inner_gain=0.3,
            outer_gain=0.7,
        ),
    }
    return {name: np.asarray(result) for name, result in results.items()}


@pytest.mark.parametrize("library", LIBRARIES)
def test_all_are_sums_of_dense_hat_vectors(arrays, library):
    with jax.enable_x64(arrays["inner"].dtype == np.float64):
        found = run(library, arrays)
    wide = {name: array.astype(float) for name, array in arrays.items()}
    inner_hats = hats(wide["inner_positions"], KNOTS)
    outer_hats = hats(wide["outer_positions"], OUTER_KNOTS)
    knot = np.minimum(np.floor(wide["outer_positions"]), OUTER_KNOTS - 2).astype(int)
    columns = np.arange(5)
    # the gradient of each target's output of each record by all values, one row of J
    by_outer = np.zeros((TARGETS, 9, TARGETS, 5, OUTER_KNOTS))
    for target in range(TARGETS):
        by_outer[target, :, target] = outer_hats
    by_inner = np.einsum("tjn,atk->atjnk", inner_hats, wide["slopes"])
    rows = [matrix.reshape(TARGETS * 9, -1) for matrix in (by_inner, by_outer)]
    expected = {
        "inner_sums": np.einsum("tjn,jnk->tk", inner_hats, wide["inner"]),
        "inner_change": np.einsum("tjn,tk->jnk", inner_hats, wide["inner_weights"]),
        "sums": np.einsum("tkn,ank->at", outer_hats, wide["outer"]),
        "rises": wide["outer"][:, knot + 1, columns] - wide["outer"][:, knot, columns],
        "outer_change": np.einsum("tkn,at->ank", outer_hats, wide["outer_weights"]),
        "gram": 0.3 * rows[0] @ rows[0].T + 0.7 * rows[1] @ rows[1].T,
    }
    tolerance = 1e-12 if arrays["inner"].dtype == np.float64 else 2e-5
    for name, value in expected.items():
        assert found[name].dtype == arrays["inner"].dtype
        np.testing.assert_allclose(found[name], value, tolerance, tolerance, err_msg=name)


def test_equal_input_gives_equal_bits(arrays):
    first, second = run("numpy", arrays), run("numpy", arrays)
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: kan_step.inner_sums(a[:, :2], a), ValueError, "`inner` must have 3 axes"),
        (
            lambda a: kan_step.inner_sums(a[:, :2], a[:3].reshape(3, 3, 1)),
            ValueError,
            "`positions` must have 3 columns",
        ),
        (
            lambda a: kan_step.outer_values(a, a.reshape(1, 3, 3).astype(np.float32)),
            TypeError,
            "all be float32 or all float64",
        ),
        (lambda a: kan_step.inner_change(a, a, 1), ValueError, "`knots` must have at least 2"),
        (lambda a: kan_step.outer_change(a, a[:, :2], 3), ValueError, "must have 3 records"),
        (
            lambda a: kan_step.gram(
                a, a[:2], a[None], inner_knots=2, outer_knots=2, inner_gain=1, outer_gain=1
            ),
            ValueError,
            "must agree",
        ),
        (
            lambda a: kan_step.inner_sums(a, torch.zeros(3, 2, 1, dtype=torch.float64)),
            TypeError,
            "one library",
        ),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones((3, 3)))


def test_jax_maps_over_leading_axes(arrays):
    """As over an ensemble of models on the same records."""
    given = {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}
    positions, inner, outer = given["inner_positions"], given["inner"], given["outer"]
    sums = jax.vmap(lambda one: kan_step.inner_sums(positions, one))(jnp.stack([inner, 2 * inner]))
    expected = kan_step.inner_sums(positions, inner)
    np.testing.assert_allclose(sums, jnp.stack([expected, 2 * expected]), rtol=1e-6)
    places = jnp.stack([given["outer_positions"], given["outer_positions"] / 2])
    found = jax.vmap(kan_step.outer_values, in_axes=(0, None))(places, outer)
    for number, place in enumerate(places):
        for one, other in zip(found, kan_step.outer_values(place, outer), strict=True):
            np.testing.assert_allclose(one[number], other, rtol=1e-6)
