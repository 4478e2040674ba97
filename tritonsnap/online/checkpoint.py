"""Trees of arrays in one file, written atomically and checked when read."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import device_of, library_of, namespace, namespace_of, to_numpy
from tritonsnap.files import parse_json, read_arrays, write_arrays
from tritonsnap.online.trees import map_tree, named_leaves

FORMAT = "tritonsnap checkpoint 1"
_CONFIG = "config"
_TREE = "tree/"


def save_checkpoint(path: str | os.PathLike[str], config: dict[str, Any], tree: Any) -> None:
    """Write a tree of arrays and Python numbers, and the configuration it belongs to.

    Parameters
    ----------
    path
        The ``.npz`` file; holds either its old content or all of the new.
    config
        Anything JSON can say.
    tree
        Dicts, tuples, named tuples and lists of arrays of any library.
    """
    arrays = {_CONFIG: np.asarray(json.dumps(config))}
    for name, leaf in named_leaves(tree):
        arrays[_TREE + name] = np.asarray(leaf) if _is_number(leaf) else _stored(leaf)
    write_arrays(path, FORMAT, arrays)


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration in a checkpoint.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged or no checkpoint.
    """
    arrays = read_arrays(path, FORMAT)
    try:
        config = parse_json(str(arrays[_CONFIG]))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: it holds no configuration") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is damaged: its configuration is no object")
    return config


def load_checkpoint(path: str | os.PathLike[str], like: Any) -> Any:
    """The tree in a checkpoint, with the structure, libraries and devices of the tree `like`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, no checkpoint, or its arrays are not those of `like` in name, shape and
        dtype.
    """
    arrays = {
        name.removeprefix(_TREE): array
        for name, array in read_arrays(path, FORMAT).items()
        if name.startswith(_TREE)
    }
    expected = dict(named_leaves(like))
    for name in sorted(expected.keys() ^ arrays.keys()):
        what = "lacks" if name in expected else "holds an unexpected"
        raise ValueError(f"{path} belongs to another configuration: it {what} {name!r}")
    names = iter(expected)

    def restored(template: Any) -> Any:
        name = next(names)
        array = arrays[name]
        if _is_number(template):
            if array.shape != ():
                raise ValueError(f"{path}: {name!r} must be a number, got shape {array.shape}")
            if array.dtype.kind not in "biuf" or not np.isfinite(array):
                raise ValueError(f"{path}: {name!r} must be a number, got {array}")
            return type(template)(array.item())
        reference = _stored(template)
        if array.shape != reference.shape or array.dtype != reference.dtype:
            raise ValueError(
                f"{path} belongs to another configuration: {name!r} is {array.dtype}"
                f"{list(array.shape)}, expected {reference.dtype}{list(reference.shape)}"
            )
        library = library_of(template)
        if library == "numpy":
            return array
        # a JAX array that was put nowhere in particular goes along with any others
        anywhere = library == "jax" and not template.committed
        device = None if anywhere else device_of(template)
        return namespace(library).asarray(array, device=device, dtype=template.dtype)

    return map_tree(restored, like)


def _stored(leaf: Any) -> NDArray[Any]:
    """A leaf as it is written: bfloat16, which NumPy lacks, as float32."""
    xp = namespace_of(leaf)
    if str(leaf.dtype).removeprefix("torch.") == "bfloat16":
        leaf = xp.astype(leaf, xp.float32)
    return to_numpy(leaf)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float)) and not isinstance(leaf, np.generic)
