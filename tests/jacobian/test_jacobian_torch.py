from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sparse_functions import CASES

from tritonsnap.sparsity import SparsityPattern

torch = pytest.importorskip("torch")
from torch.func import functional_call, jacfwd, jacrev, jvp, vmap
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from tritonsnap.torch import (
    JacobianProjection,
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)

Function = Callable[..., Any]
INPUT = np.linspace(-1, 1, 6)


class Namespace:
    """torch under the few names of NumPy that the functions need."""

    exp, sin, tanh, roll, concatenate = (
        torch.exp,
        torch.sin,
        torch.tanh,
        torch.roll,
        torch.cat,
    )
    einsum = torch.einsum


def case(name: str, dtype: torch.dtype = torch.float64) -> tuple[Function, tuple[Any, ...], Any]:
    """A function, its arguments, and the mask of its Jacobian in the first."""
    function, args = CASES[name]
    f = functools.partial(function, Namespace)
    exact = pytree.tree_map(torch.as_tensor, args)
    args = pytree.tree_map(lambda leaf: leaf.to(dtype), exact)
    return f, args, mask_of(jacrev(f)(*exact), exact[0])


def mask_of(jacobian: Any, argument: Any) -> Any:
    blocks = pytree.tree_leaves(jacobian)
    leaves, spec = pytree.tree_flatten(argument)
    per_output = [blocks[i : i + len(leaves)] for i in range(0, len(blocks), len(leaves))]
    masks = [
        torch.cat([block[i].reshape(-1, leaf.numel()) for block in per_output]) != 0
        for i, leaf in enumerate(leaves)
    ]
    return pytree.tree_unflatten(masks, spec)


def assert_trees_close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    found_leaves, found_spec = pytree.tree_flatten(found)
    leaves, spec = pytree.tree_flatten(expected)
    assert found_spec == spec
    for one, other in zip(found_leaves, leaves, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["auto", "row", "column", "both"])
@pytest.mark.parametrize("name", CASES)
def test_equals_jacrev(name: str, mode: str) -> None:
    f, args, mask = case(name)
    projection = make_jacobian_projection(mask, mode=mode)
    verify_projection(f, projection, *args)
    expected = jacrev(f)(*args)
    assert_trees_close(sp_jacrev(f, projection, format="dense")(*args), expected)
    assert_trees_close(sp_jacrev(f, projection, format="dense", chunk_size=2)(*args), expected)
    assert_trees_close(sp_jacfwd(f, projection, format="dense")(*args), jacfwd(f)(*args))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "convolution", "stencil"])
def test_low_precision(name: str, dtype: torch.dtype, tolerance: float) -> None:
    f, args, mask = case(name, dtype)
    projection = make_jacobian_projection(mask)
    found = sp_jacrev(f, projection, format="dense")(*args)
    assert_trees_close(found, jacrev(f)(*args), tolerance)
    verify_projection(f, projection, *args)


def test_formats_agree() -> None:
    f, args, mask = case("rnn")
    projection = make_jacobian_projection(mask)
    data = sp_jacrev(f, projection, format="data")(*args)
    coo = sp_jacrev(f, projection)(*args)
    dense = jacrev(f)(*args)
    for name, leaf in args[0].items():
        expected = dense[name].reshape(-1, leaf.numel())
        pattern = projection[f"[{name!r}]"].pattern
        np.testing.assert_allclose(pattern.to_dense(data[name]), expected, atol=1e-15)
        torch.testing.assert_close(coo[name].to_dense(), expected)
        assert not coo[name].is_coalesced()


def test_a_number_of_a_number() -> None:
    x, projection = torch.tensor(0.5), make_jacobian_projection(np.ones((1, 1)))
    assert sp_jacrev(torch.sin, projection, format="dense")(x) == jacrev(torch.sin)(x)


def test_parameters_of_a_module() -> None:
    module = torch.nn.GRUCell(3, 4).double()
    generator = torch.Generator().manual_seed(0)
    x, state = (torch.randn(size, generator=generator, dtype=torch.float64) for size in (3, 4))
    parameters = dict(module.named_parameters())

    def f(parameters: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        return functional_call(module, parameters, (x, state))

    mask = detect_pattern(f, parameters, state)
    projection = make_jacobian_projection(mask)
    assert projection.num_passes == 1
    verify_projection(f, projection, parameters, state)
    found = sp_jacrev(f, projection, format="dense")(parameters, state)
    assert_trees_close(found, jacrev(f)(parameters, state))


def test_lists_tuples_and_what_is_no_tensor() -> None:
    x = torch.as_tensor(INPUT)

    def f(tree: Any) -> torch.Tensor:
        return tree[0] * tree[1][0] ** tree[2] + (0 if tree[3] is None else 1)

    mask = [np.eye(6), (np.eye(6),)]
    tree = [x, (x.exp(),), 2, None]
    found = sp_jacrev(f, make_jacobian_projection(mask), format="data")(tree)
    torch.testing.assert_close(found[0], x.exp() ** 2)
    torch.testing.assert_close(found[1][0], 2 * x * x.exp())
    assert found[2:] == [2, None]


def test_argnums_aux_and_keyword_arguments() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, *, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        return scale * x.sin() * y, 2 * x

    x, y = torch.as_tensor(INPUT), torch.as_tensor(INPUT**2)
    for mode in ("row", "column"):
        projection = make_jacobian_projection((np.eye(6), np.eye(6)), mode=mode)
        jacobian = sp_jacrev(f, projection, argnums=(0, -1), has_aux=True, format="data")
        (in_x, in_y), aux = jacobian(x, y, scale=3.0)
        torch.testing.assert_close(in_x, 3 * x.cos() * y)
        torch.testing.assert_close(in_y, 3 * x.sin())
        torch.testing.assert_close(aux, 2 * x)


@pytest.mark.parametrize("mode", ["row", "column", "both"])
def test_complex(mode: str) -> None:
    z = torch.as_tensor(INPUT + 1j * INPUT[::-1])
    projection = make_jacobian_projection(np.eye(6) + np.eye(6, k=-1), mode=mode)

    def holomorphic(z: torch.Tensor) -> torch.Tensor:
        return z.sin() * (1 + 2j) + torch.cat([z[:1] * 0, z[:-1] ** 2])

    def real(z: torch.Tensor) -> torch.Tensor:
        return z.real**2 * z.imag + torch.cat([z[:1].real * 0, z[:-1].imag])

    derivative = torch.diag(z.cos() * (1 + 2j)) + torch.diag(2 * z[:-1], -1)
    for differentiate in (sp_jacrev, sp_jacfwd):
        found = differentiate(holomorphic, projection, holomorphic=True, format="dense")(z)
        torch.testing.assert_close(found, derivative)
    verify_projection(holomorphic, projection, z, holomorphic=True)
    found = sp_jacrev(real, projection, format="dense")(z)
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(real, z))
    verify_projection(real, projection, z)
    found = sp_jacfwd(lambda x: holomorphic(x + 0j), projection, format="dense")(z.real)
    x = z.real + 0j
    torch.testing.assert_close(found, torch.diag(x.cos() * (1 + 2j)) + torch.diag(2 * x[:-1], -1))


def test_integer_leaves() -> None:
    def f(tree: dict[str, torch.Tensor]) -> torch.Tensor:
        return tree["x"][tree["i"]] ** 2

    tree = {"x": torch.as_tensor(INPUT), "i": torch.tensor([1, 3])}
    projection = make_jacobian_projection({"x": np.eye(6)[[1, 3]], "i": np.ones((2, 2))})
    found = sp_jacrev(f, projection, allow_int=True)(tree)
    torch.testing.assert_close(found["x"].to_dense()[[0, 1], [1, 3]], 2 * tree["x"][tree["i"]])
    assert not found["i"].to_dense().any()
    with pytest.raises(TypeError, match=r"\['i'\].*allow_int"):
        sp_jacrev(f, projection)(tree)
    verify_projection(f, projection, tree)


def test_sparse_leaf() -> None:
    pattern = SparsityPattern.random((5, 5), 0.4)
    indices = torch.tensor(np.stack([pattern.cols, pattern.rows]))
    state = torch.linspace(-1, 1.5, 5, dtype=torch.float64)

    def f(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.tanh(torch.sparse.mm(params["w"], state[:, None])[:, 0] + params["b"])

    def of_values(values: torch.Tensor) -> torch.Tensor:
        dense = torch.zeros(5, 5, dtype=torch.float64).index_put(tuple(indices), values)
        return torch.tanh(dense @ state)

    values = torch.linspace(-1, 1.5, 10, dtype=torch.float64)
    weights = torch.sparse_coo_tensor(indices, values, (5, 5), is_coalesced=True)
    params = {"w": weights, "b": torch.zeros(5, dtype=torch.float64)}
    mask = {"w": (pattern.cols, np.arange(10), (5, 10)), "b": np.eye(5)}
    expected = jacrev(of_values)(values)
    for dense_threshold in (0.8, 1e-9):  # one color; a color for each row
        projection = make_jacobian_projection(mask, mode="row", dense_threshold=dense_threshold)
        found = sp_jacrev(f, projection)(params)
        torch.testing.assert_close(found["w"].to_dense(), expected)
        verify_projection(f, projection, params)
    spoiled = {**mask, "w": (pattern.cols[1:], np.arange(1, 10), (5, 10))}
    with pytest.raises(ValueError, match=r"\['w'\].*columns \(0\)"):
        verify_projection(f, make_jacobian_projection(spoiled, mode="row"), params)
    with pytest.raises(ValueError, match="mode='row'"):
        sp_jacrev(f, make_jacobian_projection(mask, mode="column"))(params)
    with pytest.raises(TypeError, match=r"\['w'\].*COO"):
        sp_jacrev(f, projection)({**params, "w": weights.to_sparse_csr()})
    detected = detect_pattern(f, params)
    assert detected["w"] == SparsityPattern.from_coo(*mask["w"])


def test_masks_of_every_kind() -> None:
    dense = np.tri(6, 6, 1) * np.tri(6, 6, 1).T
    rows, cols = np.nonzero(dense)
    twice = np.r_[rows, rows[::-1]], np.r_[cols, cols[::-1]]  # unsorted, with duplicates
    tensor = torch.tensor(dense)
    kinds = [
        dense.astype(bool),
        tensor,
        scipy.sparse.csr_array(dense),
        tensor.to_sparse_coo(),
        tensor.to_sparse_csr(),
        torch.sparse_coo_tensor(np.stack(twice), torch.ones(2 * len(rows)), (6, 6)),
        (*twice, (6, 6)),
        SparsityPattern.from_dense(dense),
    ]

    def f(tree: dict[str, torch.Tensor]) -> torch.Tensor:
        padded = torch.nn.functional.pad(tree["x"], (1, 1))
        return padded[:-2].sin() + tree["x"] ** 2 + padded[2:].cos()

    tree = {"x": torch.as_tensor(INPUT)}
    expected = jacrev(f)(tree)
    for mask in kinds:
        projection = make_jacobian_projection({"x": mask})
        assert projection.num_passes == 3
        assert_trees_close(sp_jacrev(f, projection, format="dense")(tree), expected)


def test_keep() -> None:
    f, args, mask = case("two_steps")
    keep = {"w": np.tile(np.eye(5), (1, 5)), "u": np.ones((5, 15))}
    projection = make_jacobian_projection(mask, keep=keep)
    found = sp_jacrev(f, projection, format="dense")(*args)
    expected = jacrev(f)(*args)
    for name in expected:
        kept = torch.as_tensor(keep.get(name, 1.0)) * expected[name].reshape(5, -1)
        torch.testing.assert_close(found[name].reshape(5, -1), kept)
    verify_projection(f, projection, *args)


def test_one_missing_nonzero_is_caught() -> None:
    f, args, mask = case("gru")
    for name in mask:
        rows, cols = torch.nonzero(mask[name]).T
        spoiled = {**mask, name: mask[name].clone()}
        spoiled[name][rows[4], cols[4]] = False
        with pytest.raises(ValueError, match=rf"\['{name}'\].*\({rows[4]}"):
            verify_projection(f, make_jacobian_projection(spoiled), *args)


def test_errors_name_the_path() -> None:
    f, args, mask = case("rnn")
    projection = make_jacobian_projection(mask)
    with pytest.raises(ValueError, match=r"lacks the leaves .*\['b'\]"):
        sp_jacrev(f, projection)({name: args[0][name] for name in ("w", "u")}, *args[1:])
    with pytest.raises(ValueError, match=r"\['u'\].* 20 entries.* 15 columns"):
        sp_jacrev(f, projection)({**args[0], "u": torch.ones(4, 1, 5)}, *args[1:])
    with pytest.raises(ValueError, match=r"`f` returns 1 entries.* 5 rows"):
        sp_jacrev(lambda *xs: f(*xs).sum(), projection)(*args)
    with pytest.raises(TypeError, match="outputs of `f` must be tensors"):
        sp_jacrev(lambda *xs: (f(*xs), 1), make_jacobian_projection(mask, mode="column"))(*args)
    with pytest.raises(ValueError, match=r"`mask` at leaf .*\['w'\].*2-D"):
        make_jacobian_projection({**mask, "w": np.ones(25)})
    with pytest.raises(ValueError, match="`format`"):
        sp_jacrev(f, projection, format="bcoo")


def test_transformations() -> None:
    f, args, mask = case("two_steps")
    projection = make_jacobian_projection(mask)
    dense, reference = sp_jacrev(f, projection, format="dense"), jacrev(f)
    tangents = pytree.tree_map(torch.ones_like, args)
    states = torch.stack([args[1], 2 * args[1], -args[1]])

    def transformed(jacobian: Function) -> Any:
        def of_state(state: torch.Tensor) -> Any:
            return jacobian(args[0], state, *args[2:])

        def loss(params: Any) -> torch.Tensor:
            return sum((leaf**2).sum() for leaf in jacobian(params, *args[1:]).values())

        return {
            "jacrev": jacrev(of_state)(args[1]),
            "jacfwd": jacfwd(of_state)(args[1]),
            "jvp": jvp(jacobian, args, tangents)[1],
            "grad": torch.func.grad(loss)(args[0]),
            "vmap": vmap(of_state)(states),
        }

    assert_trees_close(transformed(dense), transformed(reference))
    assert_trees_close(dense(*args), reference(*args))


def test_no_work_for_other_leaves() -> None:
    params = {f"w{size}": torch.ones(size, size) for size in range(3, 12)}
    x = torch.ones(12, 1)

    def f(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum(torch.tanh(w.sin() @ x[: len(w)])[:3, 0] for w in params.values())

    def of_one(w7: torch.Tensor) -> torch.Tensor:
        return f({**params, "w7": w7})

    def flops(run: Function, *args: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            run(*args)
        return counter.get_total_flops()

    mask = np.repeat(np.eye(3, 7), 7, axis=1)
    masks = {name: np.zeros((3, w.numel())) for name, w in params.items()} | {"w7": mask}
    among_nine = sp_jacrev(f, make_jacobian_projection(masks, mode="row"))
    alone = sp_jacrev(of_one, make_jacobian_projection(mask, mode="row"))
    forward = flops(f, params)
    assert flops(among_nine, params) == flops(alone, params["w7"]) == forward + 2 * 7**2


def test_autograd_goes_through() -> None:
    x = torch.tensor(INPUT, requires_grad=True)
    projection = make_jacobian_projection(np.eye(6))
    sp_jacrev(torch.sin, projection, format="data")(x).sum().backward()
    torch.testing.assert_close(x.grad, -x.detach().sin())


def test_files_of_both_libraries_are_one(tmp_path: Any) -> None:
    f, args, mask = case("rnn")
    projection = make_jacobian_projection(mask)
    projection.save(tmp_path / "projection.npz")
    loaded = JacobianProjection.load(tmp_path / "projection.npz")
    found, expected = (sp_jacrev(f, p, format="data")(*args) for p in (loaded, projection))
    assert_trees_close(found, expected, 0)


def test_detect_pattern_needs_more_than_the_given_point() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * x.roll(1)  # at zero all derivatives vanish

    zero = torch.zeros(6, dtype=torch.float64)
    expected = SparsityPattern.from_dense(np.eye(6) + np.roll(np.eye(6), 1, axis=0))
    assert detect_pattern(f, zero) == expected


def test_detect_pattern_of_nothing_and_without_probes() -> None:
    x = torch.as_tensor(INPUT)
    tree = {"x": x, "none": x[:0]}
    found = detect_pattern(lambda tree: tree["x"][:2], tree)
    assert (found["x"].nnz, found["none"].shape) == (2, (2, 0))
    assert detect_pattern(lambda x: x[:0], x).shape == (0, len(INPUT))
    with pytest.raises(ValueError, match="`probes`"):
        detect_pattern(torch.sin, x, probes=0)
