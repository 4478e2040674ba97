"""Public functions with small valid arguments, which the fuzz tests then corrupt."""

from typing import Any

import numpy as np
from corruptions import Entry

import tritonsnap as ts
from tritonsnap.sparsity import Compression, Projection


def _immediate() -> ts.SparsityPattern:
    return ts.SparsityPattern.from_coo(np.repeat(np.arange(5), 3), np.arange(15), (5, 15))


def _plan() -> ts.DsmmPlan:
    dynamics = ts.SparsityPattern.random((5, 5), 0.4, 1)
    mask = ts.snap_pattern(dynamics, _immediate(), 2)
    return ts.DsmmPlan(mask, mask, dynamics)


def op_entries() -> list[Entry]:
    """The ops, which have a face for each array library."""
    rng = np.random.default_rng(0)
    plan = _plan()
    d, delta = rng.normal(size=(2, 5, 5)), rng.normal(size=(2, 5))
    j = rng.normal(size=(2, plan.mask.nnz))
    values = rng.normal(size=(2, plan.dynamics.nnz))
    a, b = rng.normal(size=(2, 6)), rng.normal(size=(2, 3))
    pattern = ts.SparsityPattern.from_coo([0, 1, 2, 2], [0, 1, 0, 1], (3, 2))
    projection = Projection.of(Compression.of(pattern, mode="row"))
    structure = ts.FactorStructure(
        plan=plan,
        unit=np.repeat(np.arange(5), 3),
        target=np.zeros(15, np.int64),
        source=np.tile(np.arange(3), 5),
        num_units=5,
        num_targets=1,
        num_sources=3,
    )
    factors = ts.Factors(rng.normal(size=(2, 1, 5)), rng.normal(size=(2, 3)), structure)
    options = {"row_scale": delta, "precision": "ieee", "form": "values"}
    compressed = rng.normal(size=(2, 2, 2))
    immediate = Projection.of(Compression.of(_immediate(), mode="row"))
    structure = ts.CompressedStructure(plan, immediate)
    compressed_immediate = ts.Compressed(rng.normal(size=(2, 1, 15)), structure)
    return [
        Entry("masked_dsmm", ts.masked_dsmm, {"d": d, "x": j, "plan": plan}),
        Entry("masked_dsmm/values", ts.masked_dsmm, {"d": values, "x": j, "plan": plan, **options}),
        Entry("masked_outer", ts.masked_outer, {"r": j, "x": j, "plan": plan, "form": "dense"}),
        Entry("update", ts.influence_update, {"d": d, "j": j, "immediate": j, "plan": plan}),
        Entry(
            "update/factors",
            ts.influence_update,
            {"d": values, "j": j, "immediate": factors, "plan": plan, **options},
        ),
        Entry(
            "gradient",
            ts.influence_gradient,
            {"delta": delta, "j": j, "plan": plan, "sum_batch": True, "packed": False},
        ),
        Entry(
            "step",
            ts.influence_step,
            {"d": values, "j": j, "immediate": factors, "delta": delta, "plan": plan, **options},
        ),
        Entry(
            "update/compressed",
            ts.influence_update,
            {"d": d, "j": j, "immediate": compressed_immediate, "plan": plan},
        ),
        Entry("coo_to_csr", ts.coo_to_csr, {"rows": np.array([0, 2, 1, 2]), "num_rows": 3}),
        Entry("mix", ts.mix, {"a": a, "b": b, "positions": np.array([0, 2, 5])}),
        Entry(
            "gather_compressed",
            ts.gather_compressed,
            {"compressed": compressed, "projection": projection},
        ),
    ]


def structure_entries() -> list[Entry]:
    """Patterns, plans and factors: the host's side."""
    plan = _plan()
    pattern = ts.SparsityPattern.random((4, 6), 0.4, 0)
    square = ts.SparsityPattern.random((4, 4), 0.4, 0)
    rows, cols = pattern.rows.copy(), pattern.cols.copy()
    factors = {
        "unit": np.repeat(np.arange(5), 3),
        "target": np.zeros(15, np.int64),
        "source": np.tile(np.arange(3), 5),
        "num_units": 5,
        "num_targets": 1,
        "num_sources": 3,
    }
    immediate = Projection.of(Compression.of(_immediate(), mode="row"))
    of = ts.SparsityPattern
    columns = {
        "shape": pattern.shape,
        "support_indptr": pattern.support_indptr.copy(),
        "support_rows": pattern.support_rows.copy(),
        "column_kind": pattern.column_kind.copy(),
    }
    return [
        Entry("from_coo", of.from_coo, {"rows": rows, "cols": cols, "shape": (4, 6)}),
        Entry("from_columns", of.from_columns, columns),
        Entry("from_dense", of.from_dense, {"matrix": pattern.to_dense().astype(float)}),
        Entry("full", of.full, {"shape": (2, 3)}),
        Entry("identity", of.identity, {"size": 3}),
        Entry("random", of.random, {"shape": (4, 5), "density": 0.3, "seed": 0}),
        Entry("union", pattern.union, {"other": pattern}),
        Entry("product", square.product, {"other": pattern}),
        Entry("contains", pattern.contains, {"other": pattern}),
        Entry("positions", pattern.positions, {"other": pattern}),
        Entry("take_columns", pattern.take_columns, {"columns": np.array([0, 3])}),
        Entry("to_dense", pattern.to_dense, {"values": np.ones(pattern.nnz)}),
        Entry("values_of", pattern.values_of, {"dense": np.ones((4, 6))}),
        Entry("of", of.of, {"source": (rows, cols, (4, 6))}),
        Entry(
            "snap_pattern",
            ts.snap_pattern,
            {"dynamics": square, "immediate": pattern, "order": 2},
        ),
        Entry("color_rows", ts.color_rows, {"pattern": pattern, "order": "largest_first"}),
        Entry("color_columns", ts.color_columns, {"pattern": pattern, "order": "dsatur"}),
        Entry(
            "DsmmPlan",
            ts.DsmmPlan,
            {"x": pattern, "mask": pattern, "dynamics": square, "segments": (2, 4)},
        ),
        Entry("packing", plan.packing, {"target": "xla", "regime": ts.Regime.DENSE}),
        Entry(
            "CompressedStructure", ts.CompressedStructure, {"plan": plan, "projection": immediate}
        ),
        Entry("FactorStructure", ts.FactorStructure, {"plan": plan, **factors}),
    ]


def online_entries() -> list[Entry]:
    """Cells, learners and readouts."""
    rng = np.random.default_rng(0)
    cell = ts.GRU(inputs=2, hidden=3, density=0.7)
    readout = ts.Readout(2)
    readout_params = readout.init(3, dtype="float64")
    state, y = rng.normal(size=(2, 3)), rng.integers(0, 2, 2)
    entries = [
        Entry(
            kind.__name__,
            kind,
            {"inputs": 2, "hidden": 3, "density": 0.5, "input_density": 0.9, "seed": 0},
        )
        for kind in (ts.RNN, ts.LeakyRNN, ts.GRU, ts.LSTM)
    ]
    entries += [
        Entry("cell.init", cell.init, {"rng": 0, "like": "numpy", "dtype": "float64"}),
        Entry("Readout", ts.Readout, {"outputs": 2, "loss": "mse"}),
        Entry("readout.init", readout.init, {"hidden": 3, "rng": 0, "like": "numpy"}),
        Entry(
            "readout.gradients",
            readout.gradients,
            {"params": readout_params, "state": state, "y": y},
        ),
        Entry("SnAp", ts.SnAp, {"cell": cell, "order": 1}),
        Entry("BPTT", ts.BPTT, {"cell": cell}),
        Entry("Linear", ts.Linear, {"inputs": 2, "outputs": 3, "density": 0.5, "seed": 0}),
        Entry("LayerNorm", ts.LayerNorm, {"units": 3, "epsilon": 1e-5}),
        Entry("Skip", ts.Skip, {"source": 0, "how": "sum"}),
    ]
    layers = [ts.RNN(inputs=2, hidden=3), ts.Linear(3, 2), ts.RNN(inputs=2, hidden=3)]
    stack = ts.Stack(layers, exact=True)
    entries += [
        Entry("Stack", ts.Stack, {"layers": layers, "exact": True}),
        Entry("stack.init", stack.init, {"rng": 0, "like": "numpy", "dtype": "float64"}),
    ]
    learners = {
        "SnAp": ts.SnAp(cell, 2),
        "BPTT": ts.BPTT(cell),
        "StackSnAp": ts.SnAp(stack, 2),
        "StackBPTT": ts.BPTT(stack),
    }
    for name, learner in learners.items():
        entries += learner_entries(name, learner, chunk=2 if name == "SnAp" else 1)
    return entries


def learner_entries(name: str, learner: Any, chunk: int = 1) -> list[Entry]:
    """The methods of a learner of two inputs."""
    rng = np.random.default_rng(0)
    carry = learner.init(2, dtype="float64")
    params = learner.cell.init(0, dtype="float64")
    readout, width = ts.Readout(2), learner.num_outputs
    return [
        Entry(f"{name}.init", learner.init, {"batch": 2, "like": "numpy", "dtype": "float32"}),
        Entry(f"{name}.prepare", learner.prepare, {"params": params}),
        Entry(
            f"{name}.step",
            learner.step,
            {
                "ready": params,
                "carry": carry,
                "x": rng.normal(size=(2, 2)),
                "reset": np.array([True, False]),
            },
        ),
        Entry(
            f"{name}.gradient",
            learner.gradient,
            {"carry": carry, "dL_dstate": rng.normal(size=(2, width))},
        ),
        Entry(
            f"{name}.sequence",
            learner.sequence,
            {
                "params": params,
                "carry": carry,
                "xs": rng.normal(size=(4, 2, 2)),
                "ys": rng.integers(0, 2, (4, 2)),
                "loss_fn": readout,
                "mask": np.ones((4, 2)),
                "resets": np.zeros((4, 2), bool),
                "readout": readout.init(width, dtype="float64"),
                "chunk": chunk,
            },
        ),
    ]


def kan_entries() -> list[Entry]:
    """Kolmogorov-Arnold networks."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(40, 2)), rng.uniform(size=40)
    sizes = {"inputs": 2, "addends": 3, "inner_points": 3, "outer_points": 4, "targets": 1}
    kan = ts.kan

    def fit(**arguments: object) -> object:
        trainer = kan.Trainer(kan.KAN(**sizes), block=8)
        return trainer.fit(**arguments, epochs=1)

    trained = kan.KAN(**sizes)
    kan.Trainer(trained, engine="sequential", block=8).fit(x, y)
    return [
        Entry("KAN", kan.KAN, {**sizes, "convention": "mean", "dtype": "float64", "seed": 0}),
        Entry(
            "Trainer",
            kan.Trainer,
            {"model": trained, "engine": "threads", "clients": 1, "block": 8, "select": 0.5},
        ),
        Entry(
            "Trainer/rates",
            kan.Trainer,
            {
                "model": trained,
                "servers": 2,
                "solver": "newton-kaczmarz",
                "step": 0.5,
                "damping": 0.3,
                "clip": 2.0,
                "partial": 0.5,
                "max_staleness": 3,
                "queue": 4,
            },
        ),
        Entry("Trainer.fit", fit, {"x": x, "y": y, "validation": (x, y)}),
        Entry(
            "Trainer.fit/options",
            lambda **options: kan.Trainer(kan.KAN(**sizes), block=8).fit(
                x, y, validation=(x, y), **options
            ),
            {"epochs": 1, "report_every": 20, "patience": 2, "until": 0.5, "progress": False},
        ),
        Entry("pearson", kan.pearson, {"predictions": y, "targets": y}),
        Entry("error", kan.root_mean_square_error, {"predictions": y, "targets": y}),
        Entry("predict", trained.predict, {"x": x}),
    ]
