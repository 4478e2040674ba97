"""From an array to the face of `kan_step` for its library."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import library_of


def face_of(*arrays: Any) -> Any:
    """Find the module that works on the arrays' library.

    Raises
    ------
    TypeError
        If they belong to different libraries, or one is no array.
    """
    face: Any
    library = library_of(*arrays)
    if library == "torch":  # import statements, because torch.compile follows no other import
        from tritonsnap.ops.kan_step import torch as face
    elif library == "jax":
        from tritonsnap.ops.kan_step import jax as face
    else:
        from tritonsnap.ops.kan_step import numpy as face
    return face
