"""Tests that need a process of their own run through `test_own_processes.py`."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("tritonsnap", deadline=None, max_examples=60)
settings.load_profile("tritonsnap")

HERE = Path(__file__).parent
LONGEST = (HERE / "test_own_processes.py", HERE / "benchmarks" / "test_interpreter.py")
OWN_PROCESS = (HERE / "kernels", HERE / "aot", HERE / "lowering")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]
    for folder in OWN_PROCESS:
        if collection_path == folder and not any(path.is_relative_to(folder) for path in named):
            return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes minutes, which other processes then need not wait for at the end.

    Skip the tests whose name or parameters are a library that is not installed.
    """
    items.sort(key=lambda item: item.path not in LONGEST)
    for library in ("jax", "torch"):
        if importlib.util.find_spec(library) is None:
            skip = pytest.mark.skip(reason=f"{library} is not installed")
            for item in items:
                parameters = getattr(item, "callspec", None)
                if library in item.name or (parameters and library in parameters.params.values()):
                    item.add_marker(skip)
