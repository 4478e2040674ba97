"""`LinearMap`: one weight matrix, bias or elementwise parameter of a cell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import library_of, namespace_of
from tritonsnap.online.backend import index_like
from tritonsnap.plan.compact import compact
from tritonsnap.sparsity.pattern import SparsityPattern


@dataclass(frozen=True)
class LinearMap:
    """A parameter W that adds ``source @ W`` to one preactivation.

    Attributes
    ----------
    name
        The parameter's name.
    source
        What it reads: "input", "one" (a bias), or the name of a part of the state.
    target
        The preactivation that it feeds.
    shape
        (inputs, units) of the kernel.
    pattern : pattern [inputs, units], or None
        Where a sparse kernel has its parameters; None if it is dense.

    A dense kernel is stored as [inputs, units], a bias as [units], a sparse kernel as its values
    [nnz] in canonical order: the parameters of one unit are consecutive.
    """

    name: str
    source: str
    target: str
    shape: tuple[int, int]
    pattern: SparsityPattern | None = None

    @property
    def num_parameters(self) -> int:
        """Parameters: the nonzeros of a sparse kernel."""
        return self.shape[0] * self.shape[1] if self.pattern is None else self.pattern.nnz

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The shape in which the parameter is stored."""
        if self.pattern is not None:
            return (self.pattern.nnz,)
        return (self.shape[1],) if self.source == "one" else self.shape

    @property
    def rows(self) -> NDArray[np.integer]:
        """The source of each parameter, in canonical order."""
        if self.pattern is not None:
            return self.pattern.rows
        return np.tile(np.arange(self.shape[0]), self.shape[1])

    @property
    def units(self) -> NDArray[np.integer]:
        """The unit that each parameter feeds, in canonical order."""
        if self.pattern is not None:
            return self.pattern.cols
        return np.repeat(np.arange(self.shape[1]), self.shape[0])

    @cached_property
    def support(self) -> SparsityPattern:
        """The pattern of the kernel [inputs, units]; full if it is dense."""
        return SparsityPattern.full(self.shape) if self.pattern is None else self.pattern

    @cached_property
    def place(self) -> Any:
        """[nnz]: where the parameters of a sparse kernel lie in the dense one, row by row."""
        return compact(self.rows.astype(np.int64) * self.shape[1] + self.units)

    def with_place(self, place: Any) -> LinearMap:
        """The same map with another array for `place`: an operand of a program."""
        view = replace(self)
        view.__dict__["place"] = place
        return view

    def flat(self, values: Any) -> Any:
        """The parameter as [p] in canonical order."""
        if self.pattern is not None or self.source == "one":
            return values
        return values.T.reshape(self.num_parameters)

    def shaped(self, flat: Any) -> Any:
        """The inverse of `flat`."""
        if self.pattern is not None or self.source == "one":
            return flat
        return flat.reshape(self.shape[::-1]).T

    def dense(self, values: Any) -> Any:
        """The kernel as a dense [inputs, units]."""
        if self.pattern is None:
            return values.reshape(self.shape)
        xp, library = namespace_of(values), library_of(values)
        size = self.shape[0] * self.shape[1]
        if library == "jax":
            zeros = xp.zeros(size, dtype=values.dtype)
            place = xp.asarray(self.place)
            return zeros.at[place].set(values, unique_indices=True).reshape(self.shape)
        zeros = xp.zeros(size, dtype=values.dtype, device=values.device)
        place = index_like(values, self.place)
        if library == "torch":  # in place vmap could not map the values alone
            return zeros.index_put((place,), values).reshape(self.shape)
        zeros[place] = values
        return zeros.reshape(self.shape)
