"""Mistakes of the user, told in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Ends the command with exit code 2 and its message on one line."""


@contextmanager
def told_to_user() -> Iterator[None]:
    """Turn what the library raises about its arguments into words about options.

    The library names an argument in backticks: `` `update_every` `` becomes ``--update-every``.
    """
    try:
        yield
    except (ValueError, ImportError) as error:
        message = re.sub(r"`([a-z_]+)`", lambda name: option(name[1]), str(error))
        raise UserError(" ".join(message.split())) from error


def option(name: str) -> str:
    """The option that sets an argument."""
    return "--" + name.replace("_", "-")
