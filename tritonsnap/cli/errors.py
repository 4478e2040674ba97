"""Mistakes of the user, told in one line."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tritonsnap.files import write_atomically


class UserError(Exception):
    """Ends the command with exit code 2 and its message on one line."""


@contextmanager
def told_to_user(**other_names: str) -> Iterator[None]:
    """Turn what the library raises about its arguments into words about options.

    The library names an argument in backticks: `` `update_every` `` becomes ``--update-every``.

    Parameters
    ----------
    **other_names
        Options by the arguments that they set, where the two have different names.
    """
    try:
        yield
    except (ValueError, ImportError) as error:
        message = re.sub(
            r"`([a-z_]+)`", lambda name: option(other_names.get(name[1], name[1])), str(error)
        )
        raise UserError(" ".join(message.split())) from error


def option(name: str) -> str:
    """The option that sets an argument."""
    return "--" + name.replace("_", "-")


def check_plot(option: str, path: str | None) -> None:
    """Refuse a picture that cannot be drawn or written, as `check_writable` does a file.

    Raises
    ------
    UserError
        If matplotlib is not installed, or the file cannot be written.
    """
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            f"{option}: matplotlib is not installed; run: pip install 'tritonsnap[plots]'"
        )
    check_writable(option, path)


def check_writable(option: str, path: str | None) -> None:
    """Refuse a file that cannot be written before time is spent on its content; make its folder.

    Raises
    ------
    UserError
        If it cannot be written; it names the option.
    """
    if path is None:
        return
    file = Path(path)
    try:
        if file.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        file.parent.mkdir(parents=True, exist_ok=True)
        probe = file.with_name(f".{file.name}.{os.getpid()}")
        write_atomically(probe, b"")
        probe.unlink()
    except OSError as error:
        raise UserError(f"{option}: cannot write to {path}: {error.strerror}") from error
