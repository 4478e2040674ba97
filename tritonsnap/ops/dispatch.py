"""From the public function of an op to its face for the caller's array library."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from tritonsnap.arrays import library_of_arguments


def face_of(op: str, **arrays: Any) -> ModuleType:
    """The module of an op that works on the arrays' library.

    Parameters
    ----------
    op : str
        The op's package, ``"tritonsnap.ops.coo_to_csr"``.
    **arrays
        The arguments of the call that are arrays, by name.

    Raises
    ------
    TypeError
        If they belong to different libraries, or one is no array.
    """
    return importlib.import_module(f"{op}.{library_of_arguments(arrays)}")
