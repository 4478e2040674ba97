"""`DsmmPlan`: everything about ``M * (D X)`` that the patterns decide."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tritonsnap.arrays import library_of
from tritonsnap.checks import check_choice, check_instance, check_integer
from tritonsnap.files import read_arrays, write_arrays
from tritonsnap.plan.assignment import count_flops
from tritonsnap.plan.blocks import Regime
from tritonsnap.plan.cost import TARGETS
from tritonsnap.plan.packing import Packing, parts_of
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.pattern import SparsityPattern

FORMAT = "tritonsnap.DsmmPlan/1"
_DEFAULT_TARGET = "scipy" if importlib.util.find_spec("scipy") else "numpy"


class DsmmPlan:
    """The plan of a masked dense-sparse product ``M * (D X)``, built once from patterns.

    Columns with equal supports are grouped; a group's part is a small product
    ``D[S, R] @ X[R, C]``, for which each target (NumPy, SciPy, XLA) chooses a regime by its cost
    model. A plan holds no values. In JAX it is a pytree (for plans made before JAX is imported:
    once `tritonsnap.jax` is): pass it to a jitted function as an argument, since closing over it
    would make its index arrays constants of the program.

    Parameters
    ----------
    x : pattern [k, p]
        The pattern of X.
    mask : pattern [m, p]
        The pattern M of the result; for the recurrence of an influence the same as `x`.
    dynamics : pattern [m, k], optional
        Where D may be nonzero; without it, everywhere. Entries of a dense D outside of it count
        as zero.
    segments
        Columns at which a new segment begins: groups of one row do not reach across segments.

    Attributes
    ----------
    x, mask
        The patterns given.
    dynamics : pattern [m, k]
        The entries of D that some group really needs: the order of D given as values.
    groups : ColumnGroups
        The columns that share supports.
    host : DsmmPlan
        The plan whose arrays lie on the host: itself, except for one made `with_arrays`.

    Raises
    ------
    ValueError
        If the shapes do not fit each other.

    Examples
    --------
    >>> pattern = SparsityPattern.from_dense([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    >>> plan = DsmmPlan(pattern, pattern)
    >>> plan
    DsmmPlan(M 3 x 3 with 4 nonzeros, X 3 x 3 with 4 nonzeros, D 3 x 3 with 5 needed, 3 groups)
    """

    def __init__(
        self,
        x: SparsityPattern,
        mask: SparsityPattern,
        dynamics: SparsityPattern | None = None,
        *,
        segments: Sequence[int] = (),
    ) -> None:
        check_instance("x", x, SparsityPattern)
        check_instance("mask", mask, SparsityPattern)
        if dynamics is not None:
            check_instance("dynamics", dynamics, SparsityPattern)
        if not isinstance(segments, (tuple, list)):
            raise TypeError(f"`segments` must be a list of integers, got {type(segments).__name__}")
        if x.shape[1] != mask.shape[1]:
            raise ValueError(
                f"`x` and `mask` must have equally many columns, got {x.shape} and {mask.shape}"
            )
        if dynamics is not None and dynamics.shape != (mask.shape[0], x.shape[0]):
            raise ValueError(
                f"`dynamics` must have shape {(mask.shape[0], x.shape[0])} "
                f"(rows of `mask`, rows of `x`), got {dynamics.shape}"
            )
        self.x = x
        self.mask = mask
        self.segments = tuple(check_integer("segments", start) for start in segments)
        self.groups = ColumnGroups.build(x, mask, self.segments)
        self.restricted = (
            dynamics is not None and dynamics.nnz < dynamics.shape[0] * (dynamics.shape[1])
        )
        needed = _needed_entries(self.groups)
        self.dynamics = needed if dynamics is None else _intersection(dynamics, needed)
        self._default_target: str | None = None
        self._packings: dict[tuple[str, Regime | None], Packing] = {}
        self._transposed: DsmmPlan | None = None
        self.host = self
        if "jax" in sys.modules:
            importlib.import_module("tritonsnap.plan.jax_tree")

    def take_columns(self, columns: ArrayLike) -> DsmmPlan:
        """The plan of some columns of X and M, in ascending order.

        Columns do not depend on each other, so every column of its products is the same as in
        this plan's. It needs fewer entries of D.

        Raises
        ------
        ValueError
            If the columns are out of range or do not ascend.
        """
        x, mask = self.x.take_columns(columns), self.mask.take_columns(columns)
        chosen = np.asarray(columns)
        if np.any(np.diff(chosen) <= 0):
            raise ValueError("`columns` must ascend")
        segments = np.unique(np.searchsorted(chosen, self.segments))
        plan = DsmmPlan(x, mask, self.dynamics, segments=segments.tolist())
        plan.restricted = self.restricted
        return plan

    # ---- packings ------------------------------------------------------------------------------

    def packing(self, target: str | None = None, regime: Regime | None = None) -> Packing:
        """How a target organises this plan.

        Parameters
        ----------
        target
            One of `TARGETS`; by default the best for NumPy arrays on this machine.
        regime
            Forces the regime of all groups that have more than one row, to compare regimes.

        Raises
        ------
        ValueError
            If there is no such target.
        """
        name = target or self._default_target or default_target()
        check_choice("target", name, sorted(TARGETS))
        if regime is not None:
            check_instance("regime", regime, Regime)
        key = (name, regime)
        if key not in self._packings:
            self._packings[key] = self._build_packing(name, regime)
        return self._packings[key]

    def _build_packing(self, name: str, regime: Regime | None) -> Packing:
        return Packing.build(self.groups, self.dynamics, TARGETS[name], self.restricted, regime)

    def packing_for(self, *arrays: Any) -> Packing:
        """The packing for the library that `arrays` belong to."""
        library = library_of(*arrays)
        if library == "torch":
            from tritonsnap.plan.torch_layout import torch_packing

            return torch_packing(self, arrays[0])
        if library == "jax":
            from tritonsnap.plan.jax_target import jax_packing

            return jax_packing(self)
        return self.packing()

    def with_packing(self, packing: Packing) -> DsmmPlan:
        """The same plan with `packing` in place of the one it has for that target.

        A packing for "numpy" or "scipy" also becomes the one for NumPy arrays.
        """
        plan = copy.copy(self)
        if packing.target.name in ("numpy", "scipy"):
            plan._default_target = packing.target.name
        plan._packings = {**self._packings, (packing.target.name, None): packing}
        plan._transposed = None
        plan.host = plan
        return plan

    def with_arrays(self, target: str, arrays: list[Any]) -> DsmmPlan:
        """The same plan whose packing for `target` reads `arrays`, as operands of a program."""
        plan = self.with_packing(self.packing(target).with_arrays(arrays))
        plan.host = self.host
        return plan

    def pack(self, values: Any) -> tuple[Any, ...]:
        """Turn flat values ``[..., nnz(x)]`` into the blocks of their library."""
        return self.packing_for(values).pack(values, "x")

    def unpack(self, blocks: tuple[Any, ...], like: Any = None) -> Any:
        """Turn blocks of M into flat values ``[..., nnz(mask)]``.

        `like` gives the library, dtype and batch axes (all of its axes but the last) of the result
        where a plan without groups has no blocks.
        """
        return self.packing_for(*blocks).unpack(blocks, "mask", like=like)

    # ---- what it says --------------------------------------------------------------------------

    @property
    def regime(self) -> list[Regime]:
        """The regime of each group on the default target."""
        return list(self.packing().regimes)

    @property
    def bytes(self) -> int:
        """Bytes of structure that the packed ops read on the default target."""
        return self.packing().structure_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations of one product in the regimes of the default target."""
        packing = self.packing()
        assignment = tuple(part for block in packing.blocks for part in parts_of(block))
        return count_flops(self.groups, packing.costs, assignment)

    def transpose(self) -> DsmmPlan:
        """The plan of ``X * (D^T M)``, whose packed values have the same layout.

        ``masked_dsmm(d_transposed, r, plan.transpose())`` is the adjoint of
        ``masked_dsmm(d, x, plan)`` in x. It serves products: columns that only X has lie in none
        of its groups.
        """
        if self._transposed is None:
            self._transposed = _TransposedPlan(self)
        return self._transposed

    @cached_property
    def digest(self) -> str:
        """A hash of the content, equal in every process."""
        parts = (self.x.digest, self.mask.digest, self.dynamics.digest, self.restricted)
        content = repr((*parts, self.segments)).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to an ``.npz`` file, atomically."""
        arrays = {
            **self.x._arrays("x."),
            **self.mask._arrays("mask."),
            **self.dynamics._arrays("dynamics."),
            "restricted": np.asarray(self.restricted),
            "segments": np.asarray(self.segments, np.int64),
        }
        write_arrays(path, FORMAT, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DsmmPlan:
        """Read a plan that `save` wrote.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is not a plan, or is damaged.
        """
        arrays = read_arrays(path, FORMAT)
        x, mask, dynamics = (
            SparsityPattern._from_arrays(arrays, Path(path), prefix)
            for prefix in ("x.", "mask.", "dynamics.")
        )
        try:
            plan = cls(x, mask, dynamics, segments=arrays["segments"].tolist())
            plan.restricted = bool(arrays["restricted"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no valid plan: {error}") from error
        return plan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DsmmPlan) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        def named(name: str, pattern: SparsityPattern, word: str) -> str:
            rows, cols = pattern.shape
            return f"{name} {rows} x {cols} with {pattern.nnz} {word}"

        parts = [
            named("M", self.mask, "nonzeros"),
            named("X", self.x, "nonzeros"),
            named("D", self.dynamics, "needed"),
            f"{len(self.groups)} groups",
        ]
        return f"DsmmPlan({', '.join(parts)})"


class _TransposedPlan(DsmmPlan):
    """A plan whose packings are those of another one, transposed: the layouts are the same."""

    def __init__(self, plan: DsmmPlan) -> None:
        super().__init__(plan.mask, plan.x, plan.dynamics.transpose(), segments=plan.segments)
        if plan.host is not plan:
            self.host = plan.host.transpose()
        self.restricted = plan.restricted
        self.groups = plan.groups.transposed
        self._transposed = plan
        self._original = plan

    def _build_packing(self, name: str, regime: Regime | None) -> Packing:
        return self._original.packing(name, regime).transposed


def default_target() -> str:
    """The best target for NumPy arrays here: "scipy" where SciPy is installed."""
    return _DEFAULT_TARGET


def _needed_entries(groups: ColumnGroups) -> SparsityPattern:
    """The pattern [m, k] of the entries of D that lie in some group's rows and columns."""
    written = groups.mask.kinds_as_columns(groups.mask_kind)
    read = groups.x.kinds_as_columns(groups.x_kind)
    return written @ read.T


def _intersection(one: SparsityPattern, other: SparsityPattern) -> SparsityPattern:
    """The positions that are in both patterns."""
    sizes = np.diff(other.support_indptr)[other.column_kind]
    if int(sizes.sum()) == other.shape[0] * other.shape[1]:
        return one
    marks = np.zeros((other.num_kinds, other.shape[0]), bool)
    kind = np.repeat(np.arange(other.num_kinds), np.diff(other.support_indptr))
    marks[kind, other.support_rows] = True
    kept = marks[other.column_kind[one.cols], one.rows]
    return SparsityPattern.from_coo(one.rows[kept], one.cols[kept], one.shape)
