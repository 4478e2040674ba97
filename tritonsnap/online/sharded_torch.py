"""`Sharded` for PyTorch: one learner over a mesh of processes, by columns and rows of the batch."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh

from tritonsnap.arrays import Library
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Params
from tritonsnap.online.chunk_choice import Chunkings, ShareChunkings
from tritonsnap.online.snap import RTRL, SnAp
from tritonsnap.online.trees import map_tree
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.partition import Partition
from tritonsnap.sparsity.indices import ranges

COLUMNS, DATA = "columns", "data"


class Sharded(SnAp):
    """A SnAp or RTRL learner whose influence is spread over a mesh of processes.

    The columns of the influence are spread over the mesh's axis ``columns``, the rows of the batch
    over its axis ``data``, if it has one. Every process steps the network itself for its rows, so
    steps, or chunks of them, need no communication; a gradient is a sum over all processes, as in
    data-parallel training. It equals that of `learner` in one process.

    It has the methods of `learner`: every process calls them with the same parameters and, along
    ``data``, with rows of its own; losses and gradients are summed over all of them.

    Parameters
    ----------
    learner
        The learner in one process, equal in all.
    mesh
        Of `torch.distributed.init_device_mesh`, with an axis ``columns``, and perhaps ``data``.

    Attributes
    ----------
    partition : Partition
        Which process along ``columns`` holds which columns, with balance and values of each.

    Raises
    ------
    TypeError
        If `learner` is no SnAp or RTRL, or `mesh` no DeviceMesh.
    ValueError
        If the mesh has other axes or more processes along ``columns`` than there are columns, or
        the processes were given different learners.
    """

    def __init__(self, learner: SnAp, mesh: DeviceMesh) -> None:
        if type(learner) not in (SnAp, RTRL):  # what others override would be lost
            raise TypeError(
                f"`learner` must be a SnAp or RTRL of a Cell, got {type(learner).__name__}"
            )
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(f"`mesh` must be a DeviceMesh, got {type(mesh).__name__}")
        axes = mesh.mesh_dim_names or ()
        if COLUMNS not in axes or not {COLUMNS, DATA}.issuperset(axes):
            raise ValueError(
                f"`mesh` must have the axes ('columns',) or ('data', 'columns'), got {axes}"
            )
        derived = [n for n, v in vars(SnAp).items() if isinstance(v, cached_property)]
        vars(self).update({n: v for n, v in vars(learner).items() if n not in derived})
        self.learner = learner
        self.mesh = mesh
        self._packing = learner.plan.packing(None if mesh.device_type == "cpu" else "triton")
        group = mesh.get_group(COLUMNS)
        size = dist.get_world_size(group)
        try:
            self.partition = Partition.build(self._packing, size)
        except ValueError as error:
            raise ValueError(f"`mesh` has too many processes along 'columns': {error}") from error
        digests = [""] * size
        dist.all_gather_object(digests, f"{learner.structure.digest} {self._packing.digest}", group)
        if len(set(digests)) > 1:
            raise ValueError(
                "`learner` must be equal in all processes along 'columns', with the same "
                f"packages installed; got {len(set(digests))} different ones"
            )

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """int64: the columns of the influence that this process holds, ascending."""
        return self.partition.columns(self.mesh.get_local_rank(COLUMNS))

    @cached_property
    def structure(self) -> FactorStructure:
        """The factors and the plan of this process's columns."""
        return self.learner.structure.take_columns(self.columns)

    @cached_property
    def chunkings(self) -> ShareChunkings:
        """The ways through a sequence, in chunks as long as those of all other processes."""
        learner = self.learner  # at the price that is shipped: equal on all machines
        whole = Chunkings(learner.structure, learner.dynamics, self._packing.target)
        return ShareChunkings(self.structure, self.dynamics, whole)

    def init(self, batch: int, like: Library = "torch", dtype: str = "float32") -> Carry:
        """A carry of zeros for `batch` rows of this process."""
        if like != "torch":
            raise ValueError(f"`like` must be 'torch', got {like!r}")
        return super().init(batch, like, dtype)

    def sequence(self, *arguments: Any, **options: Any) -> tuple[Any, Any, Carry]:
        """Go through a sequence and add up its gradient; see `Learner.sequence`."""
        loss, gradients, carry = super().sequence(*arguments, **options)
        if isinstance(gradients, tuple):
            own, readout = gradients
            gradients = own, map_tree(lambda one: self._sum(one, DATA), readout)
        return self._sum(loss, DATA), gradients, carry

    def gather(self, carry: Carry) -> Carry:
        """The carry of `learner` for this process's rows: to save, or to go on elsewhere."""
        flat = self.plan.unpack(carry.influence)
        whole = flat.new_zeros((*flat.shape[:-1], self.learner.plan.mask.nnz))
        whole[..., self._values(flat)] = flat
        return carry._replace(influence=self.learner.plan.pack(self._sum(whole, COLUMNS)))

    def scatter(self, carry: Carry) -> Carry:
        """Keep this process's columns of a carry of `learner`: the inverse of `gather`."""
        flat = self.learner.plan.unpack(carry.influence)
        return carry._replace(influence=self.plan.pack(flat[..., self._values(flat)]))

    def _values(self, like: Any) -> Any:
        """Where the values of this process's columns lie among all."""
        mask = self.learner.plan.mask
        sizes = np.diff(mask.support_indptr)[mask.column_kind[self.columns]]
        return torch.as_tensor(ranges(mask.column_starts()[self.columns], sizes)).to(like.device)

    def by_parameter(self, flat: Any) -> Params:
        """A gradient of this process's columns, of all processes together, like the parameters."""
        whole = flat.new_zeros(self.cell.num_parameters)
        whole[torch.as_tensor(self.columns).to(flat.device)] = self._sum(flat, DATA)
        return super().by_parameter(self._sum(whole, COLUMNS))

    def all_gradients(self, flat: Any, others: Params) -> Params:
        """As `by_parameter`, with this process's columns of `others` added."""
        columns = torch.as_tensor(self.columns).to(flat.device)
        return self.by_parameter(flat + self.cell.flat(others)[columns])

    def _sum(self, array: Any, axis: str) -> Any:
        """The sum of an array over the processes along an axis of the mesh."""
        if axis in (self.mesh.mesh_dim_names or ()):
            array = array.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(array, group=self.mesh.get_group(axis))
        return array

    def __repr__(self) -> str:
        return f"Sharded({self.learner!r}, {self.mesh!r})"
