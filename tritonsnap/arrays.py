"""Which array library a value belongs to, found without importing any that is not loaded."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_choice

Library = Literal["numpy", "torch", "jax"]
LIBRARIES: tuple[Library, ...] = ("numpy", "torch", "jax")


def library_of(*arrays: Any) -> Library:
    """Name the array library that all `arrays` belong to.

    Python numbers and None go with any library.

    Raises
    ------
    TypeError
        If an argument is no array, or the arrays belong to different libraries.
    """
    found: dict[Library, type] = {}
    for array in arrays:
        if array is None or isinstance(array, (bool, int, float, complex)):
            continue
        found[_library_of_one(array)] = type(array)
    if len(found) > 1:
        names = ", ".join(f"{library} ({kind.__name__})" for library, kind in found.items())
        raise TypeError(f"all arrays must belong to one library, got {names}")
    return next(iter(found), "numpy")


def library_of_arguments(
    required: Mapping[str, Any],
    *,
    packed: Mapping[str, Any] | None = None,
    optional: Mapping[str, Any] | None = None,
) -> Library:
    """Name the array library that all arguments of a call belong to.

    Parameters
    ----------
    required
        By name, arguments that must be arrays.
    packed
        Arguments that are arrays, or tuples or lists of arrays.
    optional
        Arguments that are arrays or None.

    Raises
    ------
    TypeError
        That names the argument, if one is no array, or the libraries differ.
    ValueError
        If torch's tensors lie on different devices. JAX says so itself.
    """
    found: dict[Library, str] = {}
    named = list(required.items())
    for name, blocks in (packed or {}).items():
        if isinstance(blocks, (tuple, list)):
            named += [(f"{name}[{number}]", block) for number, block in enumerate(blocks)]
        else:
            named.append((name, blocks))
    named += [(name, array) for name, array in (optional or {}).items() if array is not None]
    for name, array in named:
        library = _find_library(array)
        if library is None:
            raise TypeError(
                f"`{name}` must be a NumPy array, a torch tensor or a JAX array, "
                f"got {type(array).__name__}"
            )
        found.setdefault(library, name)
    if len(found) > 1:
        names = ", ".join(f"{library} (`{name}`)" for library, name in found.items())
        raise TypeError(f"all arrays must belong to one library, got {names}")
    if "torch" in found:
        _check_one_device(named)
    return next(iter(found), "numpy")


def _check_one_device(named: Iterable[tuple[str, Any]]) -> None:
    found: dict[Any, str] = {}
    for name, tensor in named:
        found.setdefault(tensor.device, name)
    if len(found) > 1:
        names = ", ".join(f"{device} (`{name}`)" for device, name in found.items())
        raise ValueError(f"all tensors must lie on one device, got {names}")


def _library_of_one(array: Any) -> Library:
    library = _find_library(array)
    if library is None:
        raise TypeError(
            f"expected a NumPy array, a torch tensor or a JAX array, got {type(array).__name__}"
        )
    return library


def _find_library(array: Any) -> Library | None:
    if isinstance(array, (np.ndarray, np.generic)) and not isinstance(array, np.ma.MaskedArray):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    return None


def dtype_name(array: Any) -> str:
    """The name of an array's dtype in messages, such as float32; it tells a foreign byte order."""
    dtype = array.dtype
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return f"{dtype.name} in another byte order than this machine's"
    return str(dtype).removeprefix("torch.")


def import_library(library: str) -> Any:
    """Import torch or jax, or say with which command to install it.

    Raises
    ------
    ValueError
        If `library` is not one of `LIBRARIES`.
    ImportError
        If it is not installed; the message names the pip command.
    """
    check_choice("library", library, LIBRARIES)
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise ImportError(
            f"{library} is not installed; run: pip install 'tritonsnap[{library}]'"
        ) from error


def fastest_library() -> Library:
    """JAX if it is installed, else torch, else NumPy; found without importing any."""
    for library in ("jax", "torch"):
        if importlib.util.find_spec(library) is not None:
            return library
    return "numpy"


def namespace(library: Library) -> Any:
    """The array-API namespace of a library (torch's by way of array-api-compat)."""
    if library == "numpy":
        return np
    if library == "torch" and "torch" in sys.modules:
        import array_api_compat.torch  # a statement, because torch.compile follows no other import

        return array_api_compat.torch
    module = import_library(library)
    return module.numpy if library == "jax" else importlib.import_module("array_api_compat.torch")


def namespace_of(*arrays: Any) -> Any:
    """The array-API namespace that all `arrays` belong to (see `library_of`)."""
    return namespace(library_of(*arrays))


def to_numpy(array: Any) -> NDArray[Any]:
    """A NumPy array of the same values; no copy where the memory can be shared."""
    if _library_of_one(array) == "torch":
        return array.detach().cpu().numpy()
    return np.asarray(array)


def device_of(array: Any) -> Any:
    """The device of an array, as its library names it."""
    return array_api_compat.device(array)
