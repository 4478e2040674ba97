"""Files that lose nothing: atomic writes, `.npz` without pickle, errors that name the file."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_FORMAT_KEY = "format"


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` so that `path` holds either its old content or all of the new one."""
    path = Path(path)
    encoded = data.encode() if isinstance(data, str) else data
    with _replacing(path) as file:
        file.write(encoded)


def write_arrays(
    path: str | os.PathLike[str], format: str, arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write named arrays to an ``.npz`` file, atomically, with a `format` that readers check."""
    with _replacing(Path(path)) as file:
        np.savez(file, allow_pickle=False, **{_FORMAT_KEY: np.asarray(format), **arrays})


def read_arrays(path: str | os.PathLike[str], format: str) -> dict[str, NDArray[Any]]:
    """Read what `write_arrays` wrote.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no ``.npz`` file, is damaged, or has another format.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except OSError as error:
        if error.filename is not None:  # it cannot be opened; without a name it is a bad offset
            raise
        raise ValueError(f"{path} is damaged or not a tritonsnap file: {error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a tritonsnap file: {error}") from error
    except TypeError as error:  # a bare .npy loads as an array, which is no archive
        raise ValueError(f"{path} is not an .npz archive") from error
    found = str(arrays.pop(_FORMAT_KEY, "no format"))
    if found != format:
        raise ValueError(f"{path} holds {found!r}, expected {format!r}")
    return arrays


class _replacing:  # noqa: N801 - reads as a statement
    """A temporary file beside `path` that takes its place when the block ends well."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> IO[bytes]:
        self.file = tempfile.NamedTemporaryFile(
            dir=self.path.parent, prefix=f".{self.path.name}.", delete=False
        )
        return self.file

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.file.flush()
            os.fsync(self.file.fileno())
        self.file.close()
        if kind is None:
            os.replace(self.file.name, self.path)
        else:
            os.unlink(self.file.name)
