"""Clients in processes of their own."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tritonsnap.kan import KAN, Trainer, pearson
from tritonsnap.kan.engines import processes

QUIET = {"progress": False}


def model_of(seed=0):
    return KAN(3, 8, 5, 9, targets=2, dtype="float64", seed=seed)


def test_one_client_is_the_sequential_engine(records):
    models = [model_of() for _ in range(3)]
    settings = {"block": 64, "servers": 2, "partial": 0.5}
    for model, engine in zip(models, ("processes", "processes", "sequential"), strict=True):
        Trainer(model, engine, **settings).fit(*records, epochs=2, **QUIET)
    for first, second, sequential in zip(*(model.functions for model in models), strict=True):
        assert first.tobytes() == second.tobytes()
        np.testing.assert_allclose(first, sequential, rtol=1e-6, atol=1e-9)


def test_two_clients_learn(records):
    x, y = records
    model = model_of()
    trainer = Trainer(model, "processes", clients=2, servers=2, block=32)
    history = trainer.fit(x, y, epochs=25, **QUIET)
    assert (pearson(model.predict(x), y) > 0.96).all()
    assert history[-1].records == 25 * 600


def test_a_process_that_dies_loses_no_record_and_is_replaced(records):
    trainer = Trainer(model_of(), "processes", clients=2, block=32)
    trainer.fit(*records, **QUIET)
    victim = trainer._engine._workers[0]._process

    def blocks():
        for first in range(0, 600, 60):
            if first == 300:
                victim.kill()
                victim.wait()
            yield tuple(array[first : first + 60] for array in records)

    report = trainer.fit(blocks(), **QUIET)[-1]
    assert report.dead_clients == 1
    assert report.records == 1200
    trainer.fit(*records, **QUIET)
    assert all(worker.lives for worker in trainer._engine._workers)


def test_an_error_in_a_worker_is_the_callers(records):
    worker = processes.Worker()
    try:
        with pytest.raises(TypeError, match="compute_messages"):
            worker.compute("nonsense")
        assert worker.lives
    finally:
        worker.stop()
    with pytest.raises((EOFError, OSError, ValueError)):
        worker.compute("nonsense")


def test_workers_end_with_their_trainer(records):
    trainer = Trainer(model_of(), "processes", clients=2, block=64)
    trainer.fit(*records, **QUIET)
    started = [worker._process for worker in trainer._engine._workers]
    del trainer
    assert all(process.poll() is not None for process in started)


def test_a_script_needs_no_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from tritonsnap.kan import KAN, Trainer\n"
        "x = np.random.default_rng(0).random((300, 2))\n"
        "Trainer(KAN(2, 3, 3, 4), 'processes', clients=2, block=50).fit("
        "x, x.sum(axis=1), progress=False)\n"
        "print('done')\n"
    )
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    run = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert run.stdout == "done\n"
    assert run.stderr == ""
