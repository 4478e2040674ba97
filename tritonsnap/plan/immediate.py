"""`ImmediateStructure`: where an immediate Jacobian that is not given as values enters a plan."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from tritonsnap.checks import check_instance
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing


@dataclass(frozen=True, eq=False)
class ImmediateStructure(ABC):
    """What an immediate Jacobian's operands are to the blocks of a plan's packings.

    Parameters
    ----------
    plan
        The plan whose influence it is added to.
    """

    plan: DsmmPlan
    host: Self | None = field(default=None, repr=False, kw_only=True)
    _layouts: dict[str, tuple[Any, ...]] = field(default_factory=dict, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        check_instance("plan", self.plan, DsmmPlan)

    @cached_property
    @abstractmethod
    def digest(self) -> str:
        """A hash of the content, equal in every process."""

    @abstractmethod
    def canonical(self) -> Any:
        """The part of values in canonical order; lists its index arrays in ``ARRAYS``."""

    @abstractmethod
    def _lay_out_all(self, packing: Packing) -> tuple[Any, ...]:
        """The part of each block; parts list their index arrays in ``ARRAYS``."""

    def layout(self, packing: Packing) -> tuple[Any, ...]:
        """The part of each block of a packing of the plan."""
        key = packing.digest
        if key not in self._layouts:
            self._layouts[key] = self._lay_out_all(packing)
        return self._layouts[key]

    def with_layouts(self, plan: DsmmPlan, layouts: dict[str, tuple[Any, ...]]) -> Self:
        """The same structure over `plan`, made `with_arrays`, with the layouts that fit it."""
        structure = copy.copy(self)
        structure.__dict__.pop("_jax_arrays", None)
        for name, value in (
            ("plan", plan),
            ("host", self.host or self),
            ("_layouts", layouts),
        ):
            object.__setattr__(structure, name, value)
        return structure
