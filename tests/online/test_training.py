import json
import os
import signal
import threading
import time
from itertools import product
from typing import get_args

import numpy as np
import pytest

from tritonsnap.arrays import LIBRARIES, to_numpy
from tritonsnap.online import training
from tritonsnap.online.checkpoint import save_checkpoint
from tritonsnap.online.configuration import MethodName, TrainingConfig
from tritonsnap.online.evaluation import held_out_bits
from tritonsnap.online.training import Budget, Run
from tritonsnap.online.trees import map_tree, named_leaves

TEXT = "the quick brown fox jumps over the lazy dog. " * 60
SMALL = {"hidden": 12, "batch": 3, "update_every": 5, "learning_rate": 0.01}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def assert_same(state, other):
    found, expected = (
        {name: leaf for name, leaf in named_leaves(tree) if name != "seconds"}
        for tree in (state, other)
    )
    assert found.keys() == expected.keys()
    for name, leaf in found.items():
        one, two = (
            value if isinstance(value, (int, float)) else to_numpy(value)
            for value in (leaf, expected[name])
        )
        np.testing.assert_array_equal(one, two, err_msg=name)


@pytest.mark.parametrize("backend", LIBRARIES)
@pytest.mark.parametrize("task", ["text", "copy"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(task, backend, text, tmp_path):
    config = TrainingConfig(
        task=task, text=text if task == "text" else None, backend=backend, density=0.5, **SMALL
    )
    whole = Run(config, tmp_path / "whole")
    assert whole.train(Budget(steps=60))
    Run(config, tmp_path / "parts").train(Budget(steps=25))
    second = Run(config, tmp_path / "parts", resume=True)
    assert second.state.step == 25
    second.train(Budget(steps=60))
    assert_same(second.state, whole.state)
    assert second.evaluate() == whole.evaluate()


RULES = {
    "SnAp-2": {"order": 2, "density": 0.3},
    "RTRL": {"method": "rtrl"},
    "RFLO": {"method": "rflo"},
    "UORO": {"method": "uoro"},
    "BPTT": {"method": "bptt"},
}


@pytest.mark.parametrize(
    ("rule", "backend"),
    # in JAX those that have a program of their own
    [*product(RULES, ("numpy", "torch")), ("UORO", "jax"), ("BPTT", "jax")],
)
def test_every_rule_goes_on_bit_for_bit(rule, backend, text, tmp_path):
    small = SMALL | {"hidden": 4, "cell": "rnn"} | RULES[rule]
    config = TrainingConfig(text=text, backend=backend, **small)
    whole = Run(config, tmp_path / "whole")
    whole.train(Budget(steps=20))
    Run(config, tmp_path / "parts").train(Budget(steps=10))
    second = Run(config, tmp_path / "parts", resume=True)
    second.train(Budget(steps=20))
    assert_same(second.state, whole.state)


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        ("torch", {"influence_dtype": "bfloat16"}),
        ("jax", {"influence_dtype": "bfloat16"}),
        ("numpy", {"influence_dtype": "float16"}),
        ("numpy", {"influence_dtype": "float16", "layers": 2}),
    ],
)
def test_halves_resume_bit_for_bit(backend, settings, text, tmp_path):
    config = TrainingConfig(text=text, backend=backend, **SMALL | {"hidden": 6} | settings)
    whole = Run(config, tmp_path / "whole")
    whole.train(Budget(steps=20))
    Run(config, tmp_path / "parts").train(Budget(steps=10))
    second = Run(config, tmp_path / "parts", resume=True)
    second.train(Budget(steps=20))
    one, other = (save_and_read(run.state.carry, tmp_path) for run in (second, whole))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def save_and_read(tree, folder):
    save_checkpoint(folder / "tree.npz", {}, tree)
    with np.load(folder / "tree.npz") as file:
        return {name: file[name] for name in file if name != "config"}


@pytest.mark.parametrize("update_every", [1, 3])
@pytest.mark.parametrize("method", ["snap", "uoro"])
def test_parameters_change_every_k_steps(method, update_every, text, tmp_path):
    settings = SMALL | {"update_every": update_every, "hidden": 6}
    config = TrainingConfig(text=text, backend="numpy", method=method, optimizer="sgd", **settings)
    run = Run(config, tmp_path / "run")
    learner, readout, params, carry = run.learner, run.readout, run.state.params, run.state.carry
    batch, _ = run.task.read(run.state.stream, 6)
    optimizer, slots = run.optimizer, run.state.optimizer
    run.train(Budget(steps=6))
    for start in range(0, 6, update_every):
        total = None
        for t in range(start, start + update_every):
            carry, state = learner.step(params[0], carry, batch.inputs[t], batch.resets[t])
            weight = batch.mask[t] / batch.mask[start : start + update_every].sum()
            _, delta, own = readout.gradients(params[1], state, batch.targets[t], weight)
            new = (learner.gradient(carry, delta), own)
            total = new if total is None else map_tree(lambda a, b: a + b, total, new)
        params, slots = optimizer.update(total, slots, params)
    for (name, found), (_, expected) in zip(
        named_leaves(run.state.params), named_leaves(params), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=name)


def stacked(backend, exact, text):
    small = {**SMALL, "hidden": 4, "cell": "rnn"}
    return TrainingConfig(text=text, backend=backend, layers=2, exact=exact, **small)


@pytest.mark.parametrize("exact", [False, True])
def test_stacks_train_and_go_on_bit_for_bit(exact, text, tmp_path):
    config = stacked("numpy", exact, text)
    whole = Run(config, tmp_path / "whole")
    assert whole.train(Budget(steps=20))
    Run(config, tmp_path / "parts").train(Budget(steps=10))
    second = Run(config, tmp_path / "parts", resume=True)
    second.train(Budget(steps=20))
    assert_same(second.state, whole.state)
    assert second.evaluate() == whole.evaluate()


def test_stacks_train_alike_in_jax(text, tmp_path):
    runs = [Run(stacked(like, True, text), tmp_path / like) for like in ("numpy", "jax")]
    for run in runs:
        run.train(Budget(steps=10))
    states = [dict(named_leaves(run.state.params)) for run in runs]
    for name, value in states[0].items():
        np.testing.assert_allclose(to_numpy(states[1][name]), value, atol=1e-4)


@pytest.mark.parametrize("backend", LIBRARIES)
def test_it_learns_and_writes_its_files(backend, text, tmp_path):
    out = tmp_path / "run"
    config = TrainingConfig(text=text, backend=backend, **SMALL | {"hidden": 24, "batch": 8})
    run = Run(config, out)
    run.train(Budget(steps=1500))
    figures = run.evaluate()
    assert figures["held_out_bits_per_character"] < figures["unigram_entropy"] - 1
    assert len((out / "sample.txt").read_text()) == 601
    assert json.loads((out / "config.json").read_text())["hidden"] == 24
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [250, 500, 750, 1000, 1250, 1500, 1500]
    assert rows[0]["bits_per_character"] > rows[-2]["bits_per_character"]
    assert rows[-1]["held_out_bits_per_character"] == figures["held_out_bits_per_character"]
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_libraries_agree_on_what_they_learn(text, tmp_path):
    for library in LIBRARIES:
        pytest.importorskip(library)
    params = []
    for backend in LIBRARIES:
        run = Run(TrainingConfig(text=text, backend=backend, **SMALL), tmp_path / backend)
        run.train(Budget(steps=20))
        params.append({name: to_numpy(leaf) for name, leaf in named_leaves(run.state.params)})
    for other in params[1:]:
        for name, value in params[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_the_copy_limit_grows(tmp_path):
    config = TrainingConfig(
        task="copy", backend="numpy", hidden=32, batch=16, update_every=4, learning_rate=0.01
    )
    run = Run(config, tmp_path / "copy")
    run.train(Budget(steps=2000))
    assert run.evaluate()["copy_length"] >= 3


@pytest.mark.parametrize("method", get_args(MethodName))
@pytest.mark.parametrize("cell", ["rnn", "leaky", "gru", "lstm", "lru"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_method_runs(method, cell, optimizer, text, tmp_path):
    config = TrainingConfig(
        text=text, backend="numpy", cell=cell, method=method, optimizer=optimizer, **SMALL
    )
    run = Run(config, tmp_path / "run")
    run.train(Budget(steps=10))
    assert np.isfinite(run.evaluate()["held_out_bits_per_character"])


def test_exactly_so_many_steps(text, tmp_path):
    run = Run(TrainingConfig(text=text, backend="numpy", **SMALL), tmp_path / "run")
    run.train(Budget(steps=13))
    assert run.state.step == 13


def test_seconds_bound_the_training_time(text, tmp_path):
    run = Run(TrainingConfig(text=text, backend="numpy", **SMALL), tmp_path / "run")
    begun = time.perf_counter()
    run.train(Budget(seconds=0.5))
    assert 0.5 <= run.state.seconds < 1.5
    assert time.perf_counter() - begun < 3
    step = run.state.step
    run.train(Budget(seconds=0.5))
    assert run.state.step == step


def test_held_out_score_matches_reading_the_text_in_one_go(text, tmp_path):
    run = Run(TrainingConfig(text=text, backend="numpy", **SMALL), tmp_path / "run")
    run.train(Budget(steps=200))
    cell, task = run.learner.cell, run.task
    forward = run.learner, run.readout, run.state.params, task, "numpy"
    state, total = np.zeros((1, 12), np.float32), 0.0
    whole = np.concatenate([task.train[-500:], task.held_out])
    ready = cell.prepare(run.state.params[0])
    for place in range(len(whole) - 1):
        x = np.eye(task.inputs, dtype=np.float32)[whole[place]][None]
        state = cell.step(ready, state, x)
        if place >= 499:
            loss = run.readout(run.state.params[1], state, whole[place + 1][None])
            total += float(loss[0]) / np.log(2)
    assert held_out_bits(*forward) == pytest.approx(total / len(task.held_out), rel=0.02)


def test_ctrl_c_keeps_what_was_learned(text, tmp_path):
    config = TrainingConfig(text=text, backend="numpy", **SMALL)
    run = Run(config, tmp_path / "run")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    handler = signal.getsignal(signal.SIGINT)
    assert not run.train(Budget(seconds=60))
    assert signal.getsignal(signal.SIGINT) is handler
    assert run.state.step > 0
    assert_same(Run(config, tmp_path / "run", resume=True).state, run.state)


def test_a_crash_loses_at_most_one_checkpoint_interval(text, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SECONDS_PER_CHECKPOINT", 0.0)
    config = TrainingConfig(text=text, backend="numpy", **SMALL)
    run = Run(config, tmp_path / "run")
    reads, read = [], run.task.read

    def failing(state, steps):
        reads.append(steps)
        if len(reads) == 120:
            raise MemoryError
        return read(state, steps)

    run.task.read = failing
    with pytest.raises(MemoryError):
        run.train(Budget(steps=5000))
    resumed = Run(config, tmp_path / "run", resume=True)
    assert resumed.state.step == 119 * 5
    # rows after the checkpoint would be written twice
    assert [row["step"] for row in resumed.metrics.rows] == [250, 500]


def test_metrics_after_the_checkpoint_and_cut_off_lines_are_dropped(text, tmp_path):
    config = TrainingConfig(text=text, backend="numpy", **SMALL)
    Run(config, tmp_path / "run").train(Budget(steps=10))
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99}\n{"step"')
    resumed = Run(config, tmp_path / "run", resume=True)
    assert [row["step"] for row in resumed.metrics.rows] == [10]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"task": "image"}, "task"),
        ({"backend": "cupy"}, "backend"),
        ({"hidden": 0}, "hidden"),
        ({"layers": 0}, "layers"),
        ({"exact": True}, "exact"),
        ({"order": 0}, "order"),
        ({"influence_dtype": "bfloat16", "backend": "numpy"}, "influence_dtype"),
        ({"influence_dtype": "float16", "method": "bptt"}, "influence_dtype"),
        ({"batch": 0}, "batch"),
        ({"update_every": -1}, "update_every"),
        ({"density": 0.0}, "density"),
        ({"density": 1.5}, "density"),
        ({"density": float("nan")}, "density"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"seed": -1}, "seed"),
        ({"task": "copy", "text": "a.txt"}, "text"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        TrainingConfig(**settings)


def test_bad_budgets_are_refused():
    with pytest.raises(ValueError, match="exclude"):
        Budget(steps=1, seconds=1.0)
    with pytest.raises(ValueError, match="`steps`"):
        Budget(steps=0)
    with pytest.raises(ValueError, match="`seconds`"):
        Budget(seconds=-1.0)


def test_a_run_is_neither_overwritten_nor_mixed_with_another(text, tmp_path):
    config = TrainingConfig(text=text, backend="numpy", **SMALL)
    Run(config, tmp_path / "run").train(Budget(steps=5))
    with pytest.raises(ValueError, match="already holds a run"):
        Run(config, tmp_path / "run")
    other = TrainingConfig(text=text, backend="numpy", **SMALL | {"hidden": 13})
    with pytest.raises(ValueError, match="hidden is 12 there, 13 here"):
        Run(other, tmp_path / "run", resume=True)
    (tmp_path / "text.txt").write_text(TEXT[::-1])
    with pytest.raises(ValueError, match="another configuration: stream"):
        Run(config, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"holds no checkpoint\.npz"):
        Run(config, tmp_path / "empty", resume=True)
