"""Which dtypes may be differentiated. No framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["integer", "real", "complex"]


@dataclass(frozen=True)
class Rules:
    """What `jacfwd` (forward) and `jacrev` demand of dtypes.

    Parameters
    ----------
    forward
        Whether the rules are those of `sp_jacfwd`.
    holomorphic
        Whether the function maps complex to complex and is differentiated as such.
    allow_int
        Whether integer leaves pass; their Jacobians are zero.
    """

    forward: bool
    holomorphic: bool
    allow_int: bool

    def check_input(self, path: str, kind: Kind, dtype: Any) -> None:
        """Raise a `TypeError` that names the leaf unless its dtype may be differentiated in."""
        if kind == "integer":
            if not self.allow_int:
                allowed = "" if self.forward else ", or `allow_int=True`"
                raise TypeError(f"leaf {path!r} is {dtype}: it must be real or complex{allowed}")
        elif self.holomorphic and kind == "real":
            raise TypeError(f"`holomorphic=True` needs complex inputs, leaf {path!r} is {dtype}")
        elif self.forward and kind == "complex" and not self.holomorphic:
            raise TypeError(
                f"leaf {path!r} is {dtype}: `sp_jacfwd` needs real inputs or `holomorphic=True`"
            )

    def check_output(self, kind: Kind, dtype: Any) -> None:
        """Raise a `TypeError` unless an output of this dtype may be differentiated."""
        if kind == "integer":
            raise TypeError(f"outputs of `f` must be real or complex, got {dtype}")
        if self.holomorphic and kind == "real":
            raise TypeError(f"`holomorphic=True` needs complex outputs of `f`, got {dtype}")
        if not self.forward and kind == "complex" and not self.holomorphic:
            raise TypeError(
                f"`sp_jacrev` needs real outputs of `f` or `holomorphic=True`, got {dtype}"
            )
