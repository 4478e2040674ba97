from collections.abc import Iterator

import pytest


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Float64 in JAX."""
    import jax

    with jax.enable_x64(True):
        yield
