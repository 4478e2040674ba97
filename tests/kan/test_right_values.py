"""Accuracies that are known from outside, on the problems they are known for."""

import numpy as np
import pytest

from tritonsnap.kan import KAN, Trainer, root_mean_square_error
from tritonsnap.kan.tasks import TASKS

QUIET = {"progress": False}


def best_of(name, epochs=None, until=None, corrupt=0.0, seed=0, **arguments):
    """The best validation report of a task's model."""
    task = TASKS[name]
    (x, y), validation = task.records(seed)
    if corrupt:
        random = np.random.default_rng(1)
        wrong = random.random(len(y)) < corrupt
        y = np.where(wrong, random.permutation(y), y)
    model = KAN(task.inputs, task.addends, task.inner_points, task.outer_points)
    history = Trainer(model, **arguments).fit(
        x, y, epochs=epochs or task.epochs, validation=validation, until=until, **QUIET
    )
    return max(history, key=lambda report: report.pearson), validation[1].std()


def test_det4_by_blocks_within_six_epochs():
    report, deviation = best_of("det4", 6, until=0.965, select=1.0, block=128)
    assert report.pearson >= 0.965
    assert report.rmse / deviation < 0.28


def test_formula3_to_one_percent():
    """Twelve of the 36 epochs with small steps, which average what is left."""
    task = TASKS["formula3"]
    (x, y), (held_out, expected) = task.records(0)
    model = KAN(task.inputs, task.addends, task.inner_points, task.outer_points)
    for epochs, step in ((24, 1.0), (12, 0.2)):
        Trainer(model, step=step, clip=np.inf, block=128).fit(x, y, epochs=epochs, **QUIET)
    error = root_mean_square_error(model.predict(held_out), expected[:, None])
    assert error / np.sqrt((expected**2).mean()) < 0.01


def test_areas_of_triangles():
    report, _ = best_of("triangle", until=0.94)
    assert report.pearson >= 0.94


@pytest.mark.slow
def test_det4_record_by_record_within_twelve_epochs():
    report, deviation = best_of(
        "det4", 12, until=0.965, engine="sequential", solver="kaczmarz", step=0.1
    )
    assert report.pearson >= 0.965
    assert report.rmse / deviation < 0.28


@pytest.mark.parametrize(
    ("epochs", "clients"),
    [(3, 1), *(pytest.param(6, clients, marks=pytest.mark.slow) for clients in (1, 2))],
)
def test_five_percent_of_wrong_targets_cost_little(epochs, clients):
    clean, _ = best_of("det4", epochs, clients=clients)
    wrong, _ = best_of("det4", epochs, corrupt=0.05, clients=clients)
    assert clean.pearson > 0.9
    assert wrong.pearson > clean.pearson - 0.03


def test_blocks_in_threads_are_sooner_as_good_as_record_by_record():
    """About thirty times sooner, on any machine, for NumPy pays each call once for a block."""
    task = TASKS["formula3"]
    (x, y), validation = task.records(0)
    seconds = {}
    for engine, solver in (("threads", "newton-kaczmarz"), ("sequential", "kaczmarz")):
        model = KAN(task.inputs, task.addends, task.inner_points, task.outer_points)
        history = Trainer(model, engine, solver=solver).fit(
            x, y, validation=validation, until=0.98, report_every=1000, **QUIET
        )
        assert history[-1].pearson >= 0.98
        seconds[engine] = history[-1].seconds
    assert seconds["threads"] < seconds["sequential"] / 3


@pytest.mark.slow
def test_det5_in_ten_million_records():
    task = TASKS["det5"]
    (x, y), validation = task.records(0, training=10_000_000)
    model = KAN(task.inputs, task.addends, task.inner_points, task.outer_points)
    trainer = Trainer(model, solver=task.solver)
    assert trainer.fit(x, y, validation=validation, **QUIET)[-1].pearson >= 0.80
