import threading
import time

import numpy as np
import pytest

from tritonsnap.kan import KAN, Trainer, pearson
from tritonsnap.kan.engines import threads
from tritonsnap.kan.protocol import Server

QUIET = {"progress": False}


def trained(records, epochs=25, **arguments):
    x, y = records
    model = KAN(3, 8, 5, 9, targets=2)
    trainer = Trainer(model, **{"block": 32, "servers": 2, **arguments})
    history = trainer.fit(x, y, epochs=epochs, **QUIET)
    return model, history


def assert_learned(model, records):
    assert (pearson(model.predict(records[0]), records[1]) > 0.96).all()


def total(history, name):
    return sum(getattr(report, name) for report in history)


def test_a_client_that_dies_loses_no_record(records, monkeypatch):
    compute, calls = threads.compute_messages, iter(range(10**6))

    def dying(*arguments):
        if next(calls) == 5:
            raise RuntimeError("a client dies")
        return compute(*arguments)

    monkeypatch.setattr(threads, "compute_messages", dying)
    model, history = trained(records, clients=3)
    assert total(history, "dead_clients") == 1
    assert history[-1].records == 25 * 600
    assert_learned(model, records)


def test_a_block_that_comes_back_last_is_done_by_a_survivor(records, monkeypatch):
    """The other client has nothing left to do when the first one dies."""
    compute, others_done = threads.compute_messages, threading.Event()
    deaths = []

    def dying(*arguments):
        if threading.current_thread().name == "kan-client-0" and not deaths:
            others_done.wait(10)
            deaths.append(1)
            raise RuntimeError("a client dies")
        outcome = compute(*arguments)
        if sum(len(block) for block in done) + 1 >= 18:
            others_done.set()
        done.append([1])
        return outcome

    done = []
    monkeypatch.setattr(threads, "compute_messages", dying)
    _, history = trained(records, clients=2, epochs=1)
    assert history[0].records == 600
    assert history[0].dead_clients == 1


def test_training_ends_when_every_client_died(records, monkeypatch):
    def dying(*arguments):
        raise OSError("no client lives")

    monkeypatch.setattr(threads, "compute_messages", dying)
    with pytest.raises(RuntimeError, match="every client died") as caught:
        trained(records, clients=3)
    assert isinstance(caught.value.__cause__, OSError)


def test_servers_run_one_at_a_time_in_the_threads_of_clients(records, monkeypatch):
    apply, running, seen = Server.apply, [], set()

    def watched(server, message):
        state = [id(server.snapshot.functions.inner)]
        running.append(state)
        assert sum(other == state for other in running) == 1  # nobody else writes these functions
        time.sleep(0.001)
        seen.add(threading.current_thread().name)
        staleness = apply(server, message)
        running.remove(state)
        return staleness

    monkeypatch.setattr(Server, "apply", watched)
    _, history = trained(records, epochs=1, clients=1)
    assert seen == {threading.current_thread().name}
    _, history = trained(records, epochs=2, clients=4)
    assert history[-1].restarts == history[-1].dead_clients == 0
    assert seen <= {threading.current_thread().name, *(f"kan-client-{n}" for n in range(4))}
    assert len(seen) > 1


def test_a_server_that_dies_goes_on_from_its_last_snapshot(records, monkeypatch):
    apply, calls, restarted = Server.apply, iter(range(10**6)), []
    init = Server.__init__

    def dying(server, message):
        if next(calls) in (7, 8, 90):
            restarted.append(server.snapshot)
            raise MemoryError("a server dies")
        return apply(server, message)

    def recorded(server, snapshot, max_staleness):
        init(server, snapshot, max_staleness)
        born.append(snapshot)

    born = []
    monkeypatch.setattr(Server, "apply", dying)
    monkeypatch.setattr(Server, "__init__", recorded)
    model, history = trained(records, clients=2)
    assert total(history, "restarts") == 3
    assert all(any(snapshot is other for other in born) for snapshot in restarted)
    assert_learned(model, records)


def test_a_server_that_dies_again_and_again_ends_the_training(records, monkeypatch):
    def dying(server, message):
        raise MemoryError("a server dies")

    monkeypatch.setattr(Server, "apply", dying)
    with pytest.raises(RuntimeError, match="died 10 times in a row") as caught:
        trained(records)
    assert isinstance(caught.value.__cause__, MemoryError)


def test_what_a_slow_client_sends_too_late_is_dropped(records, monkeypatch):
    compute = threads.compute_messages

    def slow(*arguments):
        outcome = compute(*arguments)
        if threading.current_thread().name == "kan-client-0":
            time.sleep(0.02)
        return outcome

    monkeypatch.setattr(threads, "compute_messages", slow)
    model, history = trained(records, clients=3, max_staleness=3, epochs=30)
    assert total(history, "dropped") > 0
    assert all(age <= 3 for report in history for age in report.staleness)
    assert_learned(model, records)


def test_a_full_queue_makes_clients_wait(records, monkeypatch):
    apply = Server.apply

    def slow(server, message):
        time.sleep(0.001)
        return apply(server, message)

    monkeypatch.setattr(Server, "apply", slow)
    model, history = trained(records, clients=4, queue=1, servers=1)
    assert total(history, "full_queues") > 0
    assert history[-1].records == 25 * 600
    assert_learned(model, records)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_records_that_are_not_finite_are_rejected_and_counted(records, bad):
    x, y = (array.copy() for array in records)
    x[3, 1], x[77, 0], y[500, 1] = bad, bad, bad
    clean = np.delete(np.arange(600), [3, 77, 500])
    model, history = trained((x, y))
    assert all(report.rejected == 3 for report in history)
    assert history[-1].records == 25 * 597
    assert_learned(model, (x[clean], y[clean]))


def test_a_stream_may_begin_with_nothing_but_bad_records():
    trainer = Trainer(KAN(1, 2, 3, 3), block=32)
    report = trainer.partial_fit(np.full((4, 1), np.nan), np.zeros(4))
    assert report.rejected == 4
    assert report.records == 0
    assert trainer.model.functions is None
    trainer.partial_fit(np.linspace(0, 1, 64)[:, None], np.linspace(0, 1, 64))
    assert trainer.model.functions is not None


def test_records_outside_extend_the_domains_and_are_learned(records):
    x, y = records
    inside = np.abs(x).max(axis=1) < 1
    model = KAN(3, 8, 5, 9, targets=2)
    trainer = Trainer(model, block=32, servers=2)
    trainer.fit(x[inside], y[inside], epochs=3, **QUIET)
    assert (model.functions.input_high < 1.1).all()
    trainer.fit(x, y, epochs=25, **QUIET)
    assert (model.functions.input_low <= x.min(axis=0)).all()
    assert (model.functions.input_high >= x.max(axis=0).astype(np.float32)).all()
    assert_learned(model, records)


def test_an_iterator_that_fails_raises_its_own_error():
    def blocks():
        yield np.ones((50, 1)), np.ones(50)
        raise LookupError("the data ended badly")

    with pytest.raises(LookupError, match="ended badly"):
        Trainer(KAN(1, 2, 3, 3)).fit(blocks(), **QUIET)


def test_snapshots_cannot_be_written(records):
    model, _ = trained(records, epochs=1)
    for array in model.functions:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
