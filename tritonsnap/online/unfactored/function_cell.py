"""`FunctionCell`: any function of torch or JAX as a cell."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tritonsnap.arrays import Library, library_of, library_of_arguments, namespace
from tritonsnap.checks import check_instance, check_integer
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.online.backend import transforms
from tritonsnap.online.cell import Params, check_dtype
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.online.trees import leaves_of, map_tree, named_leaves
from tritonsnap.online.unfactored.cell import Jacobians, JacobianValues, UnfactoredCell, Work
from tritonsnap.sparsity.pattern import SparsityPattern

_POINTS = 16
"""At how many points torch looks for nonzeros; some more check what was found."""


class FunctionPrepared(NamedTuple):
    """What a step reads of the parameters: all of them."""

    params: Any


class FunctionCell(UnfactoredCell):
    """A recurrent cell that is any function ``new_state = f(params, state, x)`` of torch or JAX.

    Its Jacobians are taken by automatic differentiation, in as few passes as their patterns allow
    (see `tritonsnap.jax.sp_jacrev`), so it works with `SnAp`, `RTRL`, `UORO` and `BPTT`. A `Cell`
    in factored form is faster: it needs no passes.

    Parameters
    ----------
    f
        A differentiable function of one row: of the parameters, a state [hidden] and an input
        [inputs] to the new state [hidden]. It is mapped over the batch by `vmap`. Several parts of
        a state, as an LSTM has, go one behind the other.
    params
        Parameters: a dict of arrays, nested as you like; what `init` returns. Their shapes count.
    inputs, hidden
        The sizes of x and of the state.
    immediate
        Where ``df/dparams`` may be nonzero: a tree like `params` of patterns [hidden, size of the
        leaf], in any form that `make_jacobian_projection` takes. By default it is found by
        `detect_pattern`: in JAX from the operations (needs asdex), in torch by looking at the given
        parameters with 16 random states and inputs. So give it where a branch, such as a unit of
        `relu` that is off for nearly all of these, may hide an entry.
    dynamics
        Where ``df/dstate`` [hidden, hidden] may be nonzero: the union of all paths from the old
        state to the new one. By default it is found in the same way. JAX sees structure only, so
        give it where weights are sparse.

    Raises
    ------
    TypeError
        If `f` is no function, or the parameters are no arrays of one of the two libraries.
    ValueError
        If the patterns do not fit, or miss a nonzero of a Jacobian at a random point.

    Examples
    --------
    A module of torch::

        module = torch.nn.GRUCell(3, 16)
        cell = FunctionCell(
            lambda params, state, x: torch.func.functional_call(module, params, (x, state)),
            dict(module.named_parameters()),
            inputs=3,
            hidden=16,
        )
    """

    def __init__(
        self,
        f: Callable[[Any, Any, Any], Any],
        params: Params,
        *,
        inputs: int,
        hidden: int,
        immediate: Any = None,
        dynamics: Any = None,
    ) -> None:
        if not callable(f):
            raise TypeError(f"`f` must be a function, got {type(f).__name__}")
        check_instance("params", params, dict)
        leaves = dict(named_leaves(params, "params"))
        self.library = library_of_arguments(leaves)
        if self.library == "numpy" or not leaves:
            raise TypeError("`params` must hold arrays of torch or JAX: NumPy cannot differentiate")
        self.f = f
        self.params = params
        self.inputs = check_integer("inputs", inputs, 1)
        self.hidden = check_integer("hidden", hidden, 1)
        self.shapes = {name: tuple(leaf.shape) for name, leaf in leaves.items()}
        self._check_output()
        self._immediate, self._dynamics = self._patterns(immediate, dynamics)
        read_from_operations = self.library == "jax" and immediate is None and dynamics is None
        if not read_from_operations:  # else the patterns are supersets by construction
            projection = self.projection()
            for seed in range(_POINTS, _POINTS + 4):
                self._sparse.verify_projection(
                    self.call, projection, *self._example(seed), argnums=(0, 1)
                )

    # ---- structure -----------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Rows of the state."""
        return self.hidden

    @property
    def maps(self) -> tuple[LinearMap, ...]:
        """None of the parameters are known to be linear maps."""
        return ()

    @property
    def dynamics_pattern(self) -> SparsityPattern:
        """Where ``df/dstate`` [hidden, hidden] may be nonzero."""
        return self._dynamics

    @cached_property
    def immediate_pattern(self) -> SparsityPattern:
        """Where ``df/dparams`` [hidden, parameters] may be nonzero, all leaves side by side."""
        rows, cols, begin = [], [], 0
        for pattern in self._immediate.values():
            rows.append(pattern.rows)
            cols.append(pattern.cols.astype(np.int64) + begin)
            begin += pattern.shape[1]
        return SparsityPattern.from_coo(
            np.concatenate(rows), np.concatenate(cols), (self.hidden, begin)
        )

    @cached_property
    def digest(self) -> str:
        """Equal for cells of the same function object and patterns, within a process."""
        parts = (self.inputs, self.hidden, self.shapes, id(self.f), self.dynamics_pattern.digest)
        content = f"{parts!r}{self.immediate_pattern.digest}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @cached_property
    def work(self) -> Work:
        """The FLOPs that the framework counts in `f`; a derivative pass has twice as many."""
        count = importlib.import_module(f"tritonsnap.online.unfactored.{self.library}_flops")
        step = count.count_flops(self.call, *self._example(0)) // 2
        projection = self.projection()
        passes, of_state = projection.num_passes, of_state_alone(projection).num_passes
        return Work(step, 2 * passes * step, 2 * of_state * step, passes)

    def projection(self, keep: SparsityPattern | None = None) -> JacobianProjection:
        """The coloring of both Jacobians, each by its own pattern; `keep` is what D is kept at."""
        masks = (self._immediate, self.dynamics_pattern)
        kept = masks if keep is None else (self._immediate, keep)
        projection: JacobianProjection = self._sparse.make_jacobian_projection(masks, keep=kept)
        return projection

    # ---- values --------------------------------------------------------------------------------

    def init(self, rng: Any = None, like: Library | None = None, dtype: str = "float32") -> Params:
        """The parameters that the cell was made with, in a dtype; `rng` is not used.

        Raises
        ------
        ValueError
            If `like` is another library than that of the parameters, or the dtype is none.
        """
        check_dtype(dtype)
        if like not in (None, self.library):
            raise ValueError(f"`like` must be {self.library!r}, the library of `f`, got {like!r}")
        xp = namespace(self.library)

        def copied(leaf: Any) -> Any:
            leaf = leaf.detach() if self.library == "torch" else leaf
            return xp.asarray(leaf, dtype=getattr(xp, dtype), copy=True)

        params: Params = map_tree(copied, self.params)
        return params

    def check_params(self, params: Params) -> None:
        """Raise an error that names the parameter unless all are there in their shapes."""
        check_instance("params", params, dict)
        given = {f"params/{name}": leaf for name, leaf in named_leaves(params)}
        if given.keys() != self.shapes.keys():
            raise ValueError(f"`params` must have {sorted(self.shapes)}, got {sorted(given)}")
        if library_of_arguments(given) != self.library:
            raise TypeError(f"`params` must hold arrays of {self.library}, the library of `f`")
        for name, shape in self.shapes.items():
            if tuple(given[name].shape) != shape:
                raise ValueError(
                    f"`{name}` must have shape {shape}, got {tuple(given[name].shape)}"
                )

    def prepare(self, params: Params) -> FunctionPrepared:
        """What a step reads of the parameters."""
        self.check_params(params)
        return FunctionPrepared(params)

    def step(self, ready: FunctionPrepared | Params, state: Any, x: Any) -> Any:
        """The new state [batch, hidden] from the old one and an input [batch, inputs]."""
        params = ready if isinstance(ready, dict) else ready.params
        return transforms(self.library).vmap(self.f, (None, 0, 0))(params, state, x)

    def make_jacobians(self, dynamics: SparsityPattern) -> ProjectedJacobians:
        """The Jacobians by automatic differentiation, those of the dynamics where asked for."""
        return ProjectedJacobians(self, self.projection(dynamics))

    def push_forward(self, ready: Any, state: Any, x: Any, tangent: Any) -> tuple[Any, Any]:
        """The new state, and the tangent in it of one in the old state."""
        library = transforms(self.library)
        mapped = library.vmap(self.f, (None, 0, 0))
        pushed: tuple[Any, Any] = library.jvp(
            lambda state: mapped(ready.params, state, x), (state,), (tangent,)
        )
        return pushed

    def pull_back(self, ready: Any, state: Any, x: Any, adjoint: Any) -> tuple[Params, Any]:
        """The gradients in the parameters, summed over the batch, and in the old state."""
        library = transforms(self.library)
        mapped = library.vmap(self.f, (None, 0, 0))
        _, back = library.vjp(lambda params, state: mapped(params, state, x), ready.params, state)
        gradients: tuple[Params, Any] = back(adjoint)
        return gradients

    def immediate_products(
        self, ready: FunctionPrepared, states: Any, xs: Any, adjoints: Any
    ) -> Any:
        """Products of adjoints and immediate Jacobians, summed over time."""
        library, xp = transforms(self.library), namespace(self.library)
        over_time = library.vmap(self.f, (None, 0, 0))

        def of_row(states: Any, xs: Any, adjoints: Any) -> Any:
            _, back = library.vjp(lambda params: over_time(params, states, xs), ready.params)

            def flat(adjoint: Any) -> Any:
                leaves = self.leaves(back(adjoint)[0]).values()
                return xp.concat([leaf.reshape(-1) for leaf in leaves])

            return library.vmap(flat)(adjoints)

        return library.vmap(of_row)(states, xs, adjoints)

    def shaped(self, flat: Any) -> Params:
        """Numbers [parameters] as a tree of parameters."""
        pieces, begin = [], 0
        for shape in self.shapes.values():
            size = math.prod(shape)
            pieces.append(flat[begin : begin + size].reshape(shape))
            begin += size
        return self._tree(dict(zip(self.shapes, pieces, strict=True)))

    def call(self, leaves: dict[str, Any], state: Any, x: Any) -> Any:
        """`f` of one row as a function of the leaves of its parameters by name."""
        return self.f(self._tree(leaves), state, x)

    def leaves(self, params: Params) -> dict[str, Any]:
        """The leaves of a tree of parameters by name, in the order of the Jacobian's columns."""
        found: list[Any] = []
        map_tree(lambda _, leaf: found.append(leaf), self.params, params)
        return dict(zip(self.shapes, found, strict=True))

    # ---- helpers -------------------------------------------------------------------------------

    @property
    def _sparse(self) -> Any:
        return importlib.import_module(f"tritonsnap.jacobian.{self.library}")

    def _tree(self, leaves: dict[str, Any]) -> Params:
        rest = iter([leaves[name] for name in self.shapes])
        tree: Params = map_tree(lambda _: next(rest), self.params)
        return tree

    def _example(self, seed: int) -> tuple[dict[str, Any], Any, Any]:
        """The given parameters, a state and an input, drawn."""
        xp, rng = namespace(self.library), np.random.default_rng(seed)
        leaves = self.leaves(self.params)
        if self.library == "torch":
            leaves = {name: leaf.detach() for name, leaf in leaves.items()}
        like = next(iter(leaves.values()))

        def drawn(size: int) -> Any:
            values = xp.asarray(rng.normal(size=size), dtype=like.dtype)
            return values.to(like.device) if self.library == "torch" else values

        return leaves, drawn(self.hidden), drawn(self.inputs)

    def _check_output(self) -> None:
        output = self.call(*self._example(0))
        if library_of(*leaves_of(output)) != self.library or isinstance(output, (tuple, dict)):
            raise TypeError(f"`f` must return one array, got {type(output).__name__}")
        if tuple(output.shape) != (self.hidden,):
            raise ValueError(
                f"`f` must map a state [{self.hidden}] to a state [{self.hidden}], "
                f"got shape {list(output.shape)}"
            )

    def _patterns(
        self, immediate: Any, dynamics: Any
    ) -> tuple[dict[str, SparsityPattern], SparsityPattern]:
        found: Any = ({}, None)
        if immediate is None or dynamics is None:
            found = self._detected()
        given = found[0] if immediate is None else self._given(immediate)
        own = SparsityPattern.of(found[1] if dynamics is None else dynamics)
        for name, shape in self.shapes.items():
            expected = (self.hidden, math.prod(shape))
            if given[name].shape != expected:
                raise ValueError(
                    f"`immediate` at {name!r} must have shape {expected}, got {given[name].shape}"
                )
        if own.shape != (self.hidden, self.hidden):
            raise ValueError(
                f"`dynamics` must have shape {(self.hidden, self.hidden)}, got {own.shape}"
            )
        return {name: given[name] for name in self.shapes}, own

    def _detected(self) -> tuple[dict[str, SparsityPattern], SparsityPattern]:
        """The patterns of both Jacobians; in torch all that is nonzero at one of several points."""
        detect = self._sparse.detect_pattern
        if self.library == "jax":
            found: Any = detect(self.call, *self._example(0), argnums=(0, 1))
            return found
        looks = [
            detect(self.call, *self._example(seed), argnums=(0, 1), probes=1, seed=seed)
            for seed in range(_POINTS)
        ]
        (first, own), rest = looks[0], looks[1:]
        leaves = {
            name: mask.union(*(look[0][name] for look in rest)) for name, mask in first.items()
        }
        return leaves, own.union(*(look[1] for look in rest))

    def _given(self, immediate: Any) -> dict[str, SparsityPattern]:
        try:
            masks = self._masks(self.params, immediate)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError("`immediate` must be a tree like `params`") from error
        return {
            name: SparsityPattern.of(mask) for name, mask in zip(self.shapes, masks, strict=True)
        }

    def _masks(self, params: Any, masks: Any) -> list[Any]:
        """The masks at the leaves of `params`; a mask may itself be a tuple."""
        if isinstance(params, dict):
            children = [(params[key], masks[key]) for key in params]
        elif isinstance(params, (tuple, list)):
            children = list(zip(params, masks, strict=True))
        else:
            return [masks]
        return [mask for child in children for mask in self._masks(*child)]

    def __repr__(self) -> str:
        name = getattr(self.f, "__name__", type(self.f).__name__)
        return f"FunctionCell({name}, inputs={self.inputs}, hidden={self.hidden})"


class ProjectedJacobians(Jacobians):
    """The Jacobians of a `FunctionCell`, in as few passes as their colorings allow.

    Parameters
    ----------
    cell
        The cell.
    projection
        The colorings of its two Jacobians.
    """

    def __init__(self, cell: FunctionCell, projection: JacobianProjection) -> None:
        self.cell = cell
        self.projection = projection

    def __call__(self, ready: FunctionPrepared, state: Any, x: Any, dense: bool) -> JacobianValues:
        """See `Jacobians`."""
        cell = self.cell

        def with_state(leaves: dict[str, Any], state: Any, x: Any) -> tuple[Any, Any]:
            new = cell.call(leaves, state, x)
            return new, new

        of_row = cell._sparse.sp_jacrev(
            with_state, self.projection, argnums=(0, 1), has_aux=True, format="data"
        )
        mapped = transforms(cell.library).vmap(of_row, (None, 0, 0))
        (immediate, dynamics), new = mapped(cell.leaves(ready.params), state, x)
        xp = namespace(cell.library)
        values = [immediate[name] for name in cell.shapes]
        if dense:
            dynamics = self._dense(xp, dynamics)
        return JacobianValues(new, xp.concat(values, axis=-1), dynamics)

    def dynamics(self, ready: FunctionPrepared, state: Any, x: Any) -> Any:
        """See `Jacobians`."""
        cell = self.cell
        of_row = cell._sparse.sp_jacrev(
            lambda state, x: cell.f(ready.params, state, x),
            of_state_alone(self.projection),
            format="data",
        )
        return transforms(cell.library).vmap(of_row)(state, x)

    def _dense(self, xp: Any, values: Any) -> Any:
        """[batch, hidden, hidden] from values."""
        kept = self.projection["[1]"]
        hidden = self.cell.hidden
        place = kept.coordinates[:, 0] * hidden + kept.coordinates[:, 1]
        flat = xp.zeros((values.shape[0], hidden * hidden), dtype=values.dtype)
        if self.cell.library == "jax":
            flat = flat.at[:, place].set(values, unique_indices=True)
        else:
            flat = flat.to(values.device)
            flat[:, place.long().to(values.device)] = values
        return flat.reshape(-1, hidden, hidden)


def of_state_alone(projection: JacobianProjection) -> JacobianProjection:
    """The part of a cell's projection that is of the dynamics."""
    return JacobianProjection({"": projection["[1]"]})
