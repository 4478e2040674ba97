"""Files that lose nothing: atomic writes, `.npz` without pickle, errors that name the file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

if sys.platform != "win32":
    import fcntl

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
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                arrays = {m.filename.removesuffix(".npy"): _read(archive, m) for m in members}
        except _DAMAGE as error:
            raise ValueError(f"{path} is damaged or not a tritonsnap file: {error}") from error
    found = str(arrays.pop(_FORMAT_KEY, "no format"))
    if found != format:
        raise ValueError(f"{path} holds {found!r}, expected {format!r}")
    return arrays


def parse_json(text: str) -> Any:
    """What a JSON text says.

    Raises
    ------
    ValueError
        If it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON text is nested too deeply") from error


_DAMAGE = (
    *(zipfile.BadZipFile, EOFError, KeyError, IndexError, OSError, OverflowError),
    *(NotImplementedError, RuntimeError, SyntaxError, TypeError, ValueError),
)
"""What zipfile and NumPy raise over a file that is none of theirs."""


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """An array that takes no more memory than the file: nothing is compressed, or believed."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename!r} is compressed")
    content = archive.read(member)
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"{member.filename!r} is of the unknown version {version}")
    shape, by_column, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError(f"{member.filename!r} holds Python objects")
    values = np.frombuffer(content, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if by_column else "C").copy()


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Read and rewrite files of a folder, which is made, while no other process does so."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # which has no such locks
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside `path` that takes its place if the block ends well, and goes if not."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
