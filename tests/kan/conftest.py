import numpy as np
import pytest

from tritonsnap.kan import KAN
from tritonsnap.kan.tasks import determinants, formula3


@pytest.fixture
def records():
    """A small smooth problem: 600 records of 3 inputs and 2 targets."""
    random = np.random.default_rng(7)
    x = random.uniform(-1, 2, (600, 3))
    y = np.stack([np.sin(x[:, 0]) * x[:, 1], x[:, 2] ** 2 - x[:, 0]], axis=1)
    return x, y


@pytest.fixture
def model(records):
    """A model in float64 with random functions of all kinds."""
    x, y = records
    model = KAN(3, 5, 4, 7, targets=2, dtype="float64", seed=3)
    model.initialize(x, y)
    random = np.random.default_rng(11)
    outer = model.functions.outer + random.normal(size=model.functions.outer.shape)
    model.functions = model.functions._replace(outer=outer)
    return model


@pytest.fixture(scope="session")
def det4():
    """Training and held-out records of 4x4 determinants."""
    x, y = determinants(120_000, 4, seed=0)
    return (x[:100_000], y[:100_000]), (x[100_000:], y[100_000:])


@pytest.fixture(scope="session")
def formula():
    x, y = formula3(12_000, seed=0)
    return (x[:10_000], y[:10_000]), (x[10_000:], y[10_000:])
