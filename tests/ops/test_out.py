"""`out` of an update and of a step: the same bits in the memory that is given."""

import functools
from typing import Any

import numpy as np
import pytest
from influences import REGIMES, compressed_structure, snap_problem

from tritonsnap import Compressed, Factors, influence_step, influence_update
from tritonsnap.arrays import import_library, to_numpy

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tritonsnap.ops.influence_update.torch_out import _step_out, _update_out
from tritonsnap.plan.torch_operator import call_key

KINDS = ["factors", "compressed", "values"]
PLANS = [(1, None), (2, REGIMES[1]), (2, REGIMES[2]), (None, None)]
BATCH = 3


class Problem:
    """Operands of `influence_update` and `influence_step` on a small plan."""

    def __init__(
        self, order: int | None, regime: Any, kind: str, library: str = "torch", dtype: str = ""
    ) -> None:
        self.plan, structure, random = snap_problem(order, regime)
        colors = compressed_structure(self.plan, random)
        xp = import_library(library) if library == "torch" else np

        def draw(*shape: int) -> Any:
            values = xp.asarray(random.standard_normal(shape))
            return values if not dtype else values.to(getattr(torch, dtype))

        units, columns = self.plan.mask.shape
        self.d, self.j = draw(self.plan.dynamics.nnz), self.plan.pack(draw(BATCH, self.plan.x.nnz))
        self.delta, self.scale = draw(units), draw(BATCH, units)
        self.immediate: Any = {
            "factors": Factors(draw(2, units), draw(BATCH, 4), structure),
            "compressed": Compressed(draw(BATCH, colors.num_colors, columns), colors),
            "values": self.plan.pack(draw(BATCH, self.plan.x.nnz)),
        }[kind]

    def update(self, **more: Any) -> Any:
        options = {"row_scale": self.scale, "form": "values"} | more
        j = options.pop("j", self.j)
        return influence_update(self.d, j, self.immediate, self.plan, **options)

    def step(self, **more: Any) -> Any:
        return influence_step(
            self.d, self.j, self.immediate, self.delta, self.plan, form="values", **more
        )


def same_bits(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(bits(one), bits(other))


def bits(array: Any) -> np.ndarray:
    wide = array.float() if getattr(array, "dtype", None) == torch.bfloat16 else array
    return to_numpy(wide)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", PLANS)
def test_out_holds_the_same_bits(plan: Any, kind: str, library: str) -> None:
    problem = Problem(*plan, kind, library)
    assert problem.plan.packing_for(problem.j[0]).in_place
    expected, gradient = problem.update(), problem.step()[1]
    fresh = tuple(block * np.nan for block in problem.j)
    for out in (fresh, problem.j):
        found = problem.update(out=out)
        assert all(one is other for one, other in zip(found, out, strict=True))
        same_bits(found, expected)
    problem = Problem(*plan, kind, library)
    influence, own = problem.step(out=problem.j)
    assert influence[0] is problem.j[0]
    same_bits([own], [gradient])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex128"])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_out_of_other_dtypes(kind: str, dtype: str) -> None:
    problem = Problem(1, None, kind, dtype=dtype)
    expected = problem.update()
    version = problem.j[0]._version
    same_bits(problem.update(out=problem.j), expected)
    assert problem.j[0]._version > version  # autograd notices what is written


def test_j_may_be_repeated_along_batch_axes() -> None:
    for library in ("numpy", "torch"):
        problem = Problem(1, None, "factors", library)
        j = tuple(block[:1] for block in problem.j)
        expected = problem.update(j=j)
        same_bits(problem.update(j=j, out=tuple(block * np.nan for block in expected)), expected)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_does_not_fit_is_refused(library: str) -> None:
    problem = Problem(1, None, "values", library)
    (j,) = problem.j
    flat = problem.plan.unpack(problem.j)
    single = j.astype(np.float32) if library == "numpy" else j.float()
    shared = np.concatenate([j, j]) if library == "numpy" else torch.cat([j, j])
    wide = (shared[:BATCH],), (shared[1 : 1 + BATCH],)
    refused: list[tuple[str, Any, Any]] = [
        ("`out` must be a tuple of 1 blocks", problem.j, j),
        ("`out` takes the blocks of a packed `j`", flat, problem.j),
        (r"`out\[0\]` must have the batch axes \[3\]", problem.j, (j[:2],)),
        (r"`out\[0\]` must have shape", problem.j, (j[..., :2],)),
        (r"`out\[0\]` must have the dtype", problem.j, (single,)),
        (r"`out\[0\]` must be contiguous", problem.j, (shared[::2],)),
        (r"`out\[0\]` shares memory", *wide),
        (r"`out\[0\]` shares memory", problem.j, problem.immediate),
    ]
    for message, given, out in refused:
        with pytest.raises(ValueError, match=message):
            problem.update(j=given, out=out)
    if library == "torch":
        with pytest.raises(ValueError, match=r"one device.*`out"):
            problem.update(out=(j.to("meta"),))
    else:
        j.flags.writeable = False
        with pytest.raises(ValueError, match=r"`out\[0\]` must be contiguous and writeable"):
            problem.update(out=(j,))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_out_is_all_of_j_or_none_of_it(library: str) -> None:
    problem = Problem(2, REGIMES[2], "values", library)
    assert problem.plan.packing_for(*problem.j).in_place
    assert len(problem.j) > 1
    first, *others = problem.j
    with pytest.raises(ValueError, match=r"`out\[0\]` shares memory.*all blocks of it"):
        problem.update(out=(first, *(one + 0 for one in others)))


@pytest.mark.parametrize("call", ["update", "step"])
def test_no_derivatives_and_no_vmap(call: str) -> None:
    problem = Problem(1, None, "factors")
    run = functools.partial(getattr(problem, call), out=problem.j)
    problem.d.requires_grad_()
    with pytest.raises(ValueError, match="`out` has no derivatives"):
        run()
    with torch.no_grad():
        run()
    problem.d = problem.d.detach()
    transforms = [
        lambda: torch.func.vmap(lambda _: run()[0])(torch.ones(2)),
        lambda: torch.func.jvp(lambda _: run()[0], (torch.ones(2),), (torch.ones(2),)),
        lambda: torch.func.grad(lambda x: x + 0 * run()[1].sum())(torch.ones(())),
    ]
    for transform in transforms:
        with pytest.raises(ValueError, match="`out` has no derivatives and cannot be mapped"):
            transform()


def operators(problem: Problem) -> list[Any]:
    """Each operator with its arguments, J being an operand or written over."""
    packing, structure = problem.plan.packing(), problem.immediate.structure
    operands, cases = [*problem.immediate[:-1], problem.d], []
    for operator, rows in ((_update_out, []), (_step_out, [problem.delta])):
        for over in (False, True):
            options = ("values", False, bool(rows), "ieee", structure, over)
            out = [block.clone() for block in problem.j]
            given = [*operands, *rows, *(() if over else problem.j)]
            key = call_key(packing, operator.name, *options)
            cases.append((operator.operator, (given, out, key)))
    return cases


@pytest.mark.parametrize("plan", PLANS[:3])
def test_opcheck(plan: Any) -> None:
    problem = Problem(*plan, "factors")
    for operator, arguments in operators(problem):
        torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_to_one_graph(backend: str) -> None:
    torch._dynamo.reset()
    problem = Problem(2, REGIMES[1], "factors")

    def two_steps(d: Any, j: Any, gains: Any, sources: Any, delta: Any) -> Any:
        immediate = Factors(gains, sources, problem.immediate.structure)
        j = influence_update(d, j, immediate, problem.plan, form="values", out=j)
        return influence_step(d, j, immediate, delta, problem.plan, form="values", out=j)

    arguments = problem.d, problem.j, *problem.immediate[:-1], problem.delta
    clones = problem.d, tuple(block.clone() for block in problem.j), *arguments[2:]
    compiled = torch.compile(two_steps, fullgraph=True, backend=backend)
    with torch.no_grad():
        expected, gradient = two_steps(*arguments)
        found, own = compiled(*clones)
    same_bits([*found, own], [*expected, gradient])
    same_bits(clones[1], expected)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_snap1_step_on_a_gpu_is_one_operator_where_it_is_traced(
    given: bool, compiled: bool
) -> None:
    torch._dynamo.reset()
    problem = Problem(1, None, "factors")
    packing = problem.plan.packing("triton")
    graphs = []

    def step(j: Any, d: Any, gains: Any, sources: Any, delta: Any) -> Any:
        immediate = Factors(gains, sources, problem.immediate.structure)
        more = {"out": j} if given else {}
        return influence_step(d, j, immediate, delta, problem.plan, form="values", **more)

    with FakeTensorMode(), torch.device("cuda"):
        tensors = problem.d, *problem.immediate[:-1], problem.delta
        fakes = [torch.empty(one.shape, dtype=one.dtype) for one in tensors]
        j = (torch.empty(BATCH, *packing.shapes("x")[0], dtype=torch.float64),)
        if compiled:
            backend = lambda module, _: (graphs.append(module), module.forward)[1]  # noqa: E731
            step = torch.compile(step, fullgraph=True, backend=backend)
        else:
            graphs.append(make_fx(step)(j, *fakes))
        (influence,), gradient = step(j, *fakes)
    names = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    own = "tritonsnap.influence_step_out.default"
    assert [name for name in names if "tritonsnap" in name] == [own]
    assert influence.device.type == gradient.device.type == "cuda"
    assert influence.shape == j[0].shape
    assert gradient.shape == (problem.plan.mask.shape[1],)


def test_in_jax_out_says_that_j_is_dead() -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        problem = Problem(2, REGIMES[1], "factors", "numpy")
        as_jax = functools.partial(jax.tree.map, jax.numpy.asarray)
        expected = problem.update()
        gains, sources, structure = problem.immediate
        problem.immediate = Factors(as_jax(gains), as_jax(sources), structure)
        problem.d, problem.scale = as_jax(problem.d), as_jax(problem.scale)
        j = problem.plan.pack(as_jax(problem.plan.unpack(problem.j)))
        found = problem.update(j=j, out=j)
        np.testing.assert_allclose(
            problem.plan.unpack(found), problem.plan.unpack(expected), rtol=1e-12
        )
        for out in (tuple(block + 0 for block in j), j[:-1], j[0]):
            with pytest.raises(ValueError, match="`out` must be `j` itself"):
                problem.update(j=j, out=out)
