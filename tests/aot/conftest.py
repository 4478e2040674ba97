"""Triton's compiler, with a cache of its own for the run."""

import os
import tempfile
from collections.abc import Iterator

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    raise pytest.UsageError("a process that interprets cannot compile; unset TRITON_INTERPRET")


@pytest.fixture(scope="session", autouse=True)
def _cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TRITON_CACHE_DIR"] = directory
        yield
