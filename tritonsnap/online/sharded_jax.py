"""`Sharded` for JAX: one learner over a mesh of devices, by columns and by rows of the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Literal

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tritonsnap.arrays import Library
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Params
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.online.learner import Learner, check_chunk
from tritonsnap.online.sharded_jax_chunks import (
    AlignedChunkings,
    Share,
    aligned_structures,
    stacked_arrays,
)
from tritonsnap.online.snap import RTRL, SnAp
from tritonsnap.online.unroll import Unroll
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.jax_tree import Static
from tritonsnap.plan.partition import Partition

COLUMNS, DATA = "columns", "data"
TARGET = "xla"
"""Blocks for XLA on every device: they divide evenly, which canonical order does not."""


class Sharded(Learner):
    """A SnAp or RTRL learner whose influence is spread over a mesh of devices.

    The columns of the influence are spread over the mesh's axis ``columns``, the rows of the batch
    over its axis ``data``, if it has one. Every device steps the network itself for its rows, so
    steps, or chunks of them, need no communication; a gradient is one sum over all devices, as in
    data-parallel training. It equals that of `learner` on one device.

    It has the methods of `learner`, on global arrays; the rows of the batch must be divisible by
    the size of the axis ``data``. Over several processes (`jax.distributed`) the arrays span all
    of them, as in any JAX program.

    Parameters
    ----------
    learner
        The learner on one device.
    mesh
        With an axis ``columns``, and perhaps ``data``.

    Attributes
    ----------
    partition : Partition
        Which device of the axis ``columns`` holds which columns, with balance and values of each.

    Raises
    ------
    TypeError
        If `learner` is no SnAp or RTRL, or `mesh` no Mesh.
    ValueError
        If the mesh has other axes, or more devices along ``columns`` than there are columns.

    Examples
    --------
    >>> mesh = jax.make_mesh((1, 1), ("columns", "data"))
    >>> from tritonsnap import RNN, SnAp
    >>> learner = Sharded(SnAp(RNN(inputs=2, hidden=8), order=2), mesh)
    >>> [block.shape for block in learner.init(batch=4).influence]
    [(1, 4, 1, 8, 88)]
    """

    def __init__(self, learner: SnAp, mesh: Mesh) -> None:
        if type(learner) not in (SnAp, RTRL):  # what others override would be lost
            raise TypeError(
                f"`learner` must be a SnAp or RTRL of a Cell, got {type(learner).__name__}"
            )
        if not isinstance(mesh, Mesh):
            raise TypeError(f"`mesh` must be a jax.sharding.Mesh, got {type(mesh).__name__}")
        if COLUMNS not in mesh.axis_names or not {COLUMNS, DATA}.issuperset(mesh.axis_names):
            raise ValueError(
                f"`mesh` must have the axes ('columns',) or ('data', 'columns'), "
                f"got {mesh.axis_names}"
            )
        super().__init__(learner.cell)
        self.learner = learner
        # axes of this kind take arguments from wherever they lie
        self.mesh = Mesh(mesh.devices, mesh.axis_names)
        packing = learner.plan.packing(TARGET)
        try:
            self.partition = Partition.build(packing, mesh.shape[COLUMNS], even=True)
        except ValueError as error:
            raise ValueError(f"`mesh` has too many devices along 'columns': {error}") from error

    @cached_property
    def _structures(self) -> list[FactorStructure]:
        """The columns of each device of the axis ``columns``."""
        return aligned_structures(self.learner.structure, self.partition, TARGET)

    @cached_property
    def _shard(self) -> Share:
        """The learner of the first device's columns: the template of the others."""
        shard = object.__new__(Share)
        shard.__dict__.update(self.learner.__dict__, structure=self._structures[0])
        return shard

    @cached_property
    def _arrays(self) -> tuple[list[Any], list[Any]]:
        """The index arrays of the columns, each device's on it; those that all devices share."""
        stacked = stacked_arrays(self._structures)
        shared = jax.tree.leaves(self._shard)[len(stacked) :]
        own = [self._spread(array, P(COLUMNS)) for array in stacked]
        return own, [self._spread(array, P()) for array in shared]

    def _spread(self, array: Any, spec: P) -> Any:
        """An array of the host on all devices."""
        host = np.asarray(array)
        with jax.ensure_compile_time_eval():
            sharding = NamedSharding(self.mesh, spec)
            return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    @cached_property
    def chunkings(self) -> AlignedChunkings:
        """The ways through a sequence that were asked for so far."""
        spread = partial(self._spread, spec=P(COLUMNS))
        return AlignedChunkings(self.learner, self._structures, spread)

    @property
    def _rows(self) -> str | None:
        return DATA if DATA in self.mesh.axis_names else None

    @property
    def _carry_spec(self) -> Carry:
        return Carry(P(self._rows), P(COLUMNS, self._rows), P())

    # ---- the methods of a learner --------------------------------------------------------------

    def init(self, batch: int, like: Library = "jax", dtype: str = "float32") -> Carry:
        """A carry of zeros for `batch` rows, spread over the mesh.

        Blocks of the influence have a leading axis for the devices of the axis ``columns``.
        """
        if like != "jax":
            raise ValueError(f"`like` must be 'jax', got {like!r}")
        self._zero_state(batch, like, dtype)  # checks
        self._check_batch(batch)
        return _init(self, batch, dtype)

    def prepare(self, params: Params) -> Any:
        """What the steps read of the parameters; compute it once per update."""
        self.cell.check_params(params)
        return _prepare(self, params)

    def step(self, ready: Any, carry: Carry, x: Any, reset: Any = None) -> tuple[Carry, Any]:
        """Go one step forward; see `Learner.step`."""
        self._check_step(ready, carry, x, reset)
        return _step(self, ready, carry, x, reset)

    def gradient(self, carry: Carry, dL_dstate: Any) -> Params:
        """The gradient of a loss of the current state; see `Learner.gradient`."""
        self._check_delta(carry, dL_dstate)
        return _gradient(self, carry, dL_dstate)

    def chunking(self, chunk: int | Literal["auto"] | Chunking, xs: Any) -> Chunking | None:
        """How `sequence` goes through `xs`; see `Learner.chunking`."""
        host = self.__dict__.get("host", self)
        if isinstance(chunk, Chunking):
            if not chunk.digest.startswith(host.chunkings.digest):
                raise ValueError(f"`chunk` must be a chunking of {self!r}, got that of another")
            return chunk
        check_chunk(chunk)
        if chunk == "auto" and self.mesh.devices.flat[0].platform != "cpu":
            return None  # its costs are known of no other device
        rows = xs.shape[1] // self.mesh.shape.get(DATA, 1)
        found: Chunking | None = host.chunkings.find(chunk, TARGET, xs.shape[0], rows)
        return found

    def run_sequence(self, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, step by step, without compiling."""
        return self.run(None, unroll)

    def run(self, chunking: Chunking | None, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""

        def local(shard: SnAp, chunking: Chunking | None, arrays: Unroll) -> Any:
            own = arrays._replace(loss_fn=unroll.loss_fn)
            mine = jax.tree.map(lambda array: array[0], chunking)
            loss, gradients, carry = shard.run(mine, own)
            gradients, of_readout = (gradients, None) if own.readout is None else gradients
            gradients = self._sum(gradients, COLUMNS, DATA)
            loss, of_readout = self._sum((loss, of_readout), DATA)
            return own.result(loss, gradients, of_readout, carry)

        series = P(None, self._rows)
        given = Unroll(P(), self._carry_spec, series, series, None, series, series, P())
        specs = (P(COLUMNS), given)
        run = self._on_shards(local, specs, (P(), P(), self._carry_spec))
        result: tuple[Any, Any, Carry] = run(chunking, unroll.arrays)
        return result

    # ---- other numbers of devices --------------------------------------------------------------

    def gather(self, carry: Carry) -> Carry:
        """The carry of `learner` on one device, present on all: to save, or to go on elsewhere."""
        state, flat, step = _gather(self, carry)
        return Carry(state, self.learner.plan.packing(TARGET).pack(flat), step)

    def scatter(self, carry: Carry) -> Carry:
        """A carry of `learner` spread over the mesh: the inverse of `gather`."""
        self._check_batch(carry.state.shape[0])
        flat = self.learner.plan.packing(TARGET).unpack(carry.influence, like=carry.state)
        everywhere = NamedSharding(self.mesh, P())
        return _scatter(self, jax.device_put(carry._replace(influence=flat), everywhere))

    # ---- shards --------------------------------------------------------------------------------

    def _on_shards(
        self, function: Callable[..., Any], in_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """`function` of each device's own learner and of its parts of further arguments.

        Arguments and results that are a `Carry` have the form that `SnAp` gives them.
        """
        tree = jax.tree.structure(self._shard)

        def run(arrays: list[Any], shared: list[Any], *arguments: Any) -> Any:
            shard = jax.tree.unflatten(tree, [*(array[0] for array in arrays), *shared])
            results = function(shard, *jax.tree.map(_own_part, arguments, is_leaf=_is_carry))
            return jax.tree.map(_as_part, results, is_leaf=_is_carry)

        specs = (P(COLUMNS), P(), *in_specs)
        sharded = jax.shard_map(
            run, mesh=self.mesh, in_specs=specs, out_specs=out_specs, check_vma=False
        )
        return partial(sharded, *self._arrays)

    def _sum(self, tree: Any, *axes: str) -> Any:
        """The sum of arrays over the mesh's devices along the given axes."""
        present = tuple(axis for axis in axes if axis in self.mesh.axis_names)
        return jax.tree.map(lambda array: lax.psum(array, present), tree)

    def _check_batch(self, batch: int) -> None:
        parts = self.mesh.shape.get(DATA, 1)
        if batch % parts:
            raise ValueError(
                f"`batch` must be divisible by the {parts} devices of the mesh's axis 'data', "
                f"got {batch}"
            )

    def __repr__(self) -> str:
        return f"Sharded({self.learner!r}, {dict(self.mesh.shape)})"


@partial(jax.jit, static_argnames=("batch", "dtype"))
def _init(learner: Sharded, batch: int, dtype: str) -> Carry:
    rows = batch // learner.mesh.shape.get(DATA, 1)
    init = learner._on_shards(
        lambda shard: shard.init(rows, like="jax", dtype=dtype), (), learner._carry_spec
    )
    carry: Carry = init()
    return carry


@jax.jit
def _prepare(learner: Sharded, params: Params) -> Any:
    return learner._on_shards(lambda shard, params: shard.prepare(params), (P(),), P())(params)


@jax.jit
def _step(learner: Sharded, ready: Any, carry: Carry, x: Any, reset: Any) -> tuple[Carry, Any]:
    rows = P(learner._rows)
    step = learner._on_shards(
        lambda shard, *arguments: shard.step(*arguments),
        (P(), learner._carry_spec, rows, rows),
        (learner._carry_spec, rows),
    )
    stepped: tuple[Carry, Any] = step(ready, carry, x, reset)
    return stepped


@jax.jit
def _gradient(learner: Sharded, carry: Carry, delta: Any) -> Params:
    gradient = learner._on_shards(
        lambda shard, *arguments: learner._sum(shard.gradient(*arguments), COLUMNS, DATA),
        (learner._carry_spec, P(learner._rows)),
        P(),
    )
    summed: Params = gradient(carry, delta)
    return summed


@jax.jit
def _gather(learner: Sharded, carry: Carry) -> tuple[Any, Any, Any]:
    """State, flat influence and step."""

    def local(shard: SnAp, carry: Carry) -> Any:
        flat = shard.plan.packing(TARGET).unpack(carry.influence, like=carry.state)
        state, flat = carry.state, learner._sum(flat, COLUMNS)
        if learner._rows is not None:
            state, flat = (lax.all_gather(one, DATA, tiled=True) for one in (state, flat))
        return state, flat, carry.step

    gathered: tuple[Any, Any, Any]
    gathered = learner._on_shards(local, (learner._carry_spec,), P())(carry)
    return gathered


@jax.jit
def _scatter(learner: Sharded, carry: Carry) -> Carry:
    """A carry of a flat influence, spread."""
    rows = P(learner._rows)
    scattered: Carry = learner._on_shards(
        lambda shard, one: one._replace(
            influence=shard.plan.packing(TARGET).pack(one.influence, "mask")
        ),
        (Carry(rows, rows, P()),),
        learner._carry_spec,
    )(carry)
    return scattered


def _is_carry(value: Any) -> bool:
    return isinstance(value, Carry)


def _own_part(value: Any) -> Any:
    """A carry without the axis for devices that blocks of a sharded influence have."""
    if isinstance(value, Carry) and isinstance(value.influence, tuple):
        return value._replace(influence=tuple(block[0] for block in value.influence))
    return value


def _as_part(value: Any) -> Any:
    """The inverse of `_own_part`."""
    if isinstance(value, Carry):
        return value._replace(influence=tuple(block[None] for block in value.influence))
    return value


def _flatten(learner: Sharded) -> tuple[Any, Static]:
    host = learner.__dict__.get("host", learner)
    digest = f"{type(host.learner).__name__} {host.learner.structure.digest} {host.cell.digest}"
    return learner._arrays, Static(host, f"Sharded {digest} {hash(host.mesh)}")


def _unflatten(static: Static, children: Any) -> Sharded:
    host: Sharded = static.value
    view = object.__new__(Sharded)
    view.__dict__.update(host.__dict__, host=host, _arrays=tuple(children))
    return view


jax.tree_util.register_pytree_node(Sharded, _flatten, _unflatten)
