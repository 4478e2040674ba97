"""The distributed engine on a Ray of this machine."""

import numpy as np
import pytest

from tritonsnap.kan import KAN, Trainer, pearson

ray = pytest.importorskip("ray", reason="ray is not installed (extra `distributed`)")
from tritonsnap.kan.engines import ray as engine

QUIET = {"progress": False}


@pytest.fixture(scope="module", autouse=True)
def _local_ray():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def model_of(seed=0):
    return KAN(3, 8, 5, 9, targets=2, seed=seed)


def test_one_client_is_the_sequential_engine(records):
    remote, sequential = model_of(), model_of()
    settings = {"block": 100, "servers": 2, "partial": 0.5}
    history = Trainer(remote, "ray", **settings).fit(*records, epochs=2, **QUIET)
    Trainer(sequential, "sequential", **settings).fit(*records, epochs=2, **QUIET)
    for found, expected in zip(remote.functions, sequential.functions, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert history[-1].records == 1200
    assert not remote.functions.inner.flags.writeable


def test_several_clients_learn_and_are_stale(records):
    x, y = records
    model = model_of()
    trainer = Trainer(model, "ray", clients=2, servers=2, block=32)
    history = trainer.fit(x, y, epochs=12, **QUIET)
    assert (pearson(model.predict(x), y) > 0.9).all()
    assert max(history[-1].staleness) >= 1


def test_a_client_that_dies_loses_no_record(records, tmp_path, monkeypatch):
    died = tmp_path / "died"
    compute = engine._compute

    def dying(*arguments):
        import os

        if not died.exists():
            died.touch()
            os._exit(1)
        return compute(*arguments)

    monkeypatch.setattr(engine, "_compute", dying)
    history = Trainer(model_of(), "ray", clients=2, block=100).fit(*records, **QUIET)
    assert history[0].dead_clients >= 1
    assert history[0].records == 600


def test_a_server_that_dies_goes_on_from_its_last_snapshot(records, tmp_path, monkeypatch):
    died = tmp_path / "died"

    class Dying(engine._ServerActor):
        def apply(self, message):
            import os

            if self._server.snapshot.version == 3 and not died.exists():
                died.touch()
                os._exit(1)
            return super().apply(message)

    monkeypatch.setattr(engine, "_ServerActor", Dying)
    trainer = Trainer(model_of(), "ray", block=100)
    history = trainer.fit(*records, epochs=2, **QUIET)
    assert sum(report.restarts for report in history) == 1
    assert history[-1].records == 1200
    assert np.isfinite(trainer.model.predict(records[0])).all()


def test_divergence_is_told(records):
    trainer = Trainer(
        model_of(), "ray", solver="kaczmarz", step=1e4, clip=np.inf, block=64, clients=1
    )
    with pytest.raises(FloatingPointError, match="`step`"):
        trainer.fit(*records, **QUIET)


def test_workers_that_die_again_and_again_end_the_training(records, monkeypatch):
    def dying(*arguments):
        raise OSError("no client lives")

    monkeypatch.setattr(engine, "_compute", dying)
    with pytest.raises(RuntimeError, match="died 10 times in a row"):
        Trainer(model_of(), "ray", block=100).fit(*records, **QUIET)
