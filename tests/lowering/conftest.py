"""Programs lowered for a GPU in a process that has none, by way of JAX's CUDA plugin."""

import importlib.util
import os
from pathlib import Path

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    raise pytest.UsageError("a process that interprets cannot compile; unset TRITON_INTERPRET")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in ("jax_triton", "jax_cuda13_plugin"):
        if importlib.util.find_spec(module) is None:
            for item in items:
                if item.path.is_relative_to(Path(__file__).parent):
                    item.add_marker(pytest.mark.skip(reason=f"{module} is not installed"))
