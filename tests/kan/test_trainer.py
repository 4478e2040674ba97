import itertools
import sys
import time

import numpy as np
import pytest

from tritonsnap.kan import KAN, History, Trainer, pearson, root_mean_square_error
from tritonsnap.kan.engines.triton import OneDevice

QUIET = {"progress": False}


def small_model(**arguments):
    return KAN(3, 8, 5, 9, targets=2, **arguments)


def bits(model):
    return [array.tobytes() for array in model.functions]


@pytest.mark.parametrize("engine", ["threads", "processes", "sequential"])
@pytest.mark.parametrize("solver", ["newton-kaczmarz", "kaczmarz"])
@pytest.mark.parametrize("convention", ["mean", "sum"])
def test_training_learns_both_targets(records, engine, solver, convention):
    x, y = records
    model = small_model(convention=convention)
    trainer = Trainer(model, engine, solver=solver, block=32, servers=2)
    trainer.fit(x, y, epochs=25, **QUIET)
    assert (pearson(model.predict(x), y) > 0.97).all()
    assert trainer.history[-1].train_error < 0.4 * trainer.history[0].train_error


@pytest.mark.parametrize("unit", [1e-30, 1e25])
def test_the_unit_of_the_targets_does_not_matter(records, unit):
    x, y = (array.astype(np.float32) for array in records)
    plain, scaled = small_model(), small_model()
    first, second = (
        Trainer(model, block=64).fit(x, targets, epochs=2, **QUIET)
        for model, targets in ((plain, y), (scaled, y * np.float32(unit)))
    )
    np.testing.assert_allclose(scaled.predict(x) / unit, plain.predict(x), rtol=1e-3, atol=1e-3)
    assert second[-1].train_error == pytest.approx(first[-1].train_error, rel=1e-3)


def test_equal_seeds_and_one_client_give_equal_bits(records):
    models = [small_model(seed=5) for _ in range(2)]
    for model in models:
        Trainer(model, clients=1, servers=3, block=32, partial=0.5).fit(*records, epochs=3, **QUIET)
    assert bits(models[0]) == bits(models[1])
    other = small_model(seed=6)
    Trainer(other, clients=1, servers=3, block=32, partial=0.5).fit(*records, epochs=3, **QUIET)
    assert bits(other) != bits(models[0])


def test_one_client_in_threads_is_the_sequential_engine(records):
    threaded, sequential = small_model(), small_model()
    Trainer(threaded, "threads", clients=1, servers=2, block=64).fit(*records, epochs=2, **QUIET)
    Trainer(sequential, "sequential", block=64).fit(*records, epochs=2, **QUIET)
    assert bits(threaded) == bits(sequential)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("solver", ["newton-kaczmarz", "kaczmarz"])
def test_the_gpu_engine_is_the_sequential_engine(records, solver, device, monkeypatch):
    """On the CPU torch runs the same step without kernels."""
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    monkeypatch.setattr(
        "tritonsnap.kan.engines.triton.open_engine",
        lambda functions, plan: OneDevice(functions, plan, device),
    )
    models = [small_model(dtype="float64") for _ in range(2)]
    reports = []
    for model, engine in zip(models, ("triton", "sequential"), strict=True):
        trainer = Trainer(model, engine, solver=solver, block=64, partial=0.5)
        reports.append(trainer.fit(*records, epochs=2, **QUIET)[-1])
    x = records[0]
    np.testing.assert_allclose(models[0].predict(x), models[1].predict(x), rtol=1e-7, atol=1e-9)
    assert reports[0].train_error == pytest.approx(reports[1].train_error)
    assert reports[0].updates == reports[1].updates


def test_without_a_gpu_its_engine_says_so(records):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="needs a GPU"):
        Trainer(small_model(), "triton").fit(*records, **QUIET)


@pytest.mark.parametrize("name", ["npz", "json"])
def test_saved_loaded_and_trained_on_is_never_saved(records, tmp_path, name):
    settings = {"clients": 1, "block": 64}
    never = small_model()
    trainer = Trainer(never, **settings)
    trainer.fit(*records, epochs=2, **QUIET)
    if name == "npz":
        never.save(tmp_path / "m.npz")
        saved = KAN.load(tmp_path / "m.npz")
    else:
        saved = KAN.from_json(never.to_json())
    trainer.fit(*records, epochs=2, **QUIET)
    Trainer(saved, **settings).fit(*records, epochs=2, **QUIET)
    assert bits(saved) == bits(never)
    assert saved.records == never.records == 4 * 600


def test_a_checkpoint_goes_on_as_if_never_ended(records, tmp_path):
    path = tmp_path / "trainer.npz"
    validation = tuple(array[:100] for array in records)
    arguments = {"engine": "sequential", "block": 64, "clip": np.inf, "select": 0.5}
    whole = Trainer(small_model(), **arguments)
    whole.fit(*records, epochs=4, validation=validation, **QUIET)
    first = Trainer(small_model(), **arguments)
    first.fit(*records, epochs=2, validation=validation, checkpoint=path, **QUIET)
    resumed = Trainer.load(path)
    assert resumed.settings == first.settings
    assert resumed.seconds == first.seconds
    history = resumed.fit(*records, epochs=2, validation=validation, **QUIET)
    assert bits(resumed.model) == bits(whole.model)
    assert [report.pearson for report in history] == [report.pearson for report in whole.history]
    whole.model.save(path)
    with pytest.raises(ValueError, match=r"expected 'tritonsnap\.kan\.Trainer/1'"):
        Trainer.load(path)


def test_blocks_from_an_iterator_need_not_fit_in_memory(records):
    x, y = records
    pulled = []

    def blocks():
        for first in range(0, 600, 100):
            pulled.append(first)
            yield x[first : first + 100], y[first : first + 100]

    trainer = Trainer(small_model(), block=64, select=1.0)
    history = trainer.fit(blocks(), report_every=200, **QUIET)
    assert [report.records for report in history] == [200, 400, 600]
    assert pulled == list(range(0, 600, 100))
    assert history[0].updates == 200
    with pytest.raises(ValueError, match="records for every epoch"):
        trainer.fit(iter([(x, y)]), epochs=2, **QUIET)
    trainer.fit([(x, y)], epochs=2, **QUIET)
    assert trainer.model.records == 600 + 600 + 1200
    with pytest.raises(TypeError, match="pairs"):
        trainer.fit([x], **QUIET)


def test_an_endless_stream(records):
    x, y = records
    trainer = Trainer(small_model(), block=50)
    for number in itertools.islice(itertools.cycle(range(0, 600, 50)), 100):
        report = trainer.partial_fit(x[number : number + 50], y[number : number + 50])
    assert report.epoch == 100
    assert report.records == 5000
    assert not trainer.history  # nothing grows with the stream
    assert (pearson(trainer.model.predict(x), y) > 0.9).all()


def test_reports_measure_what_happened(records):
    x, y = records
    trainer = Trainer(small_model(), clients=2, servers=2, block=50, select=0.2, max_staleness=9)
    history = trainer.fit(x, y, epochs=2, validation=(x, y), **QUIET)
    report = history[1]
    assert report.records == 1200
    assert report.updates == 240
    assert report.share_selected == pytest.approx(0.2)
    assert sum(report.staleness.values()) == 2 * 12  # a message to each server for each block
    assert report.updates_per_second == pytest.approx(0.2 * report.records_per_second)
    assert report.messages_per_second > 0
    assert 0 < report.seconds == trainer.seconds
    predictions = trainer.model.predict(x)
    assert report.pearson == pytest.approx(
        np.mean([np.corrcoef(predictions[:, t], y[:, t])[0, 1] for t in range(2)])
    )
    assert report.rmse == pytest.approx(
        np.mean(np.sqrt(((predictions - y) ** 2).mean(axis=0))), rel=1e-5
    )
    assert History.from_json(history.to_json()).to_json() == history.to_json()


def test_selection_takes_the_large_residuals_first(records):
    """Among records that are known already, those that are not get all the updates."""
    x, y = records
    model = small_model()
    trainer = Trainer(model, "sequential", block=100, select=0.1, clip=np.inf, step=0.5)
    known = model.initialize(x, y) or model.predict(x)
    known[::10] += 3.0
    before = np.abs(model.predict(x) - known)[::10].mean()
    trainer.fit(x, known, epochs=1, **QUIET)
    assert np.abs(model.predict(x) - known)[::10].mean() < 0.7 * before


def test_frozen_domains_stay(records):
    x, y = records
    model = small_model()
    trainer = Trainer(model, block=64)
    trainer.fit(x[:300], y[:300], **QUIET)
    model.freeze()
    before = model.functions
    trainer.fit(3 * x[300:], y[300:], **QUIET)
    for name in ("input_low", "input_high", "sum_low", "sum_high"):
        np.testing.assert_array_equal(getattr(model.functions, name), getattr(before, name))
    assert bits(model) != [array.tobytes() for array in before]


@pytest.mark.parametrize("part", ["inner", "outer"])
def test_a_step_of_zero_keeps_functions(records, part):
    model = small_model(**{f"{part}_step": 0.0})
    model.initialize(*records)
    before = getattr(model.functions, part)
    Trainer(model, block=64).fit(*records, **QUIET)
    np.testing.assert_array_equal(getattr(model.functions, part), before)


def test_training_goes_on_after_resampling(records):
    x, y = records
    model = small_model()
    trainer = Trainer(model, block=64)
    trainer.fit(x, y, epochs=3, **QUIET)
    model.resample(inner_points=9, outer_points=17)
    trainer.fit(x, y, epochs=3, **QUIET)
    assert model.functions.inner.shape == (3, 9, 8)
    assert trainer.history[-1].train_error < trainer.history[2].train_error


def test_early_stop_takes_the_best_functions(records):
    x, y = records
    random = np.random.default_rng(0)
    noise = random.normal(size=y.shape)
    trainer = Trainer(small_model(), clients=1, block=64)
    history = trainer.fit(
        x[:100], noise[:100], epochs=200, validation=(x[500:], noise[500:]), patience=3, **QUIET
    )
    assert len(history) < 100
    best = min(report.rmse for report in history)
    found = root_mean_square_error(trainer.model.predict(x[500:]), noise[500:]).mean()
    assert found == pytest.approx(best, rel=1e-6)


def test_training_ends_once_it_is_good_enough(records):
    history = Trainer(small_model(), block=64).fit(
        *records, epochs=100, validation=records, until=0.9, **QUIET
    )
    assert len(history) < 40
    assert history[-1].pearson >= 0.9 > history[-2].pearson if len(history) > 1 else True


def test_the_progress_bar_shows_the_accuracy_on_a_terminal(records, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    Trainer(small_model(), block=64).fit(*records, epochs=2, validation=records)
    shown = capsys.readouterr().err
    assert "1.20k" in shown
    assert "pearson=" in shown
    assert "rmse=" in shown


def test_the_plot_is_a_picture(records, tmp_path):
    pytest.importorskip("matplotlib")
    trainer = Trainer(small_model(), block=64)
    with pytest.raises(ValueError, match="validated"):
        trainer.fit(*records, **QUIET).plot(tmp_path / "plot.png")
    trainer.fit(*records, epochs=2, validation=records, **QUIET).plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("engine", ["threads", "processes", "sequential"])
def test_divergence_is_told_and_leaves_the_model(records, engine):
    model = small_model()
    model.initialize(*records)
    before = bits(model)
    trainer = Trainer(model, engine, solver="kaczmarz", step=1e4, clip=np.inf, block=64)
    with pytest.raises(FloatingPointError, match="`step`"):
        trainer.fit(*records, **QUIET)
    assert bits(model) == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"engine": "fibers"},
        {"solver": "newton"},
        {"clients": 0},
        {"servers": 9},
        {"select": 0.0},
        {"partial": 1.5},
        {"step": -1.0},
        {"damping": 0.0},
        {"queue": 0},
        {"max_staleness": -1},
        {"engine": "sequential", "clients": 2},
        {"block": 8, "clip": 2.0},
    ],
)
def test_wrong_arguments_are_named(arguments):
    name = list(arguments)[-1]
    with pytest.raises(ValueError, match=f"`{name}`"):
        Trainer(small_model(), **arguments)


def test_wrong_data_is_named(records):
    x, y = records
    trainer = Trainer(small_model())
    with pytest.raises(ValueError, match=r"`y` must have the shape \[records, 2\]"):
        trainer.fit(x, y[:, 0], **QUIET)
    with pytest.raises(ValueError, match="equally many"):
        trainer.fit(x, y[:-1], **QUIET)
    with pytest.raises(ValueError, match="`epochs`"):
        trainer.fit(x, y, epochs=0, **QUIET)
    with pytest.raises(ValueError, match="need `validation`"):
        trainer.fit(x, y, patience=3, **QUIET)


def test_correlation_of_constants_is_zero():
    assert pearson(np.ones((5, 1)), np.arange(5.0)[:, None]) == 0


def test_training_does_not_take_longer_than_it_says(records):
    trainer = Trainer(small_model(), block=64)
    start = time.perf_counter()
    trainer.fit(*records, epochs=3, **QUIET)
    assert trainer.seconds <= time.perf_counter() - start
