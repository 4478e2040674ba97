"""The other learning rules, and what surrounds them: `explain`, optimizers, tasks, partitions."""

import numpy as np
from corruptions import Entry
from entry_points import learner_entries

import tritonsnap as ts
from tritonsnap.kan.tasks import TASKS
from tritonsnap.online.optimizers import SGD, Adam
from tritonsnap.online.tasks import CopyTask, TextTask
from tritonsnap.plan import Partition


def rule_entries() -> list[Entry]:
    """Learners on NumPy."""
    gru, lru = ts.GRU(inputs=2, hidden=3, density=0.7), ts.LRU(inputs=2, hidden=3)
    layers = [ts.RNN(2, 3), ts.LayerNorm(3), ts.Skip(0, "sum"), ts.LeakyRNN(3, 3)]
    learners = {
        "RTRL": ts.RTRL(gru),
        "UORO": ts.UORO(gru, seed=1),
        "RFLO": ts.RFLO(gru),
        "half": ts.SnAp(gru, 2, influence_dtype="float16"),
        "LRU": ts.SnAp(lru),
        "LSTM": ts.SnAp(ts.LSTM(inputs=2, hidden=3)),
        "StackRTRL": ts.RTRL(ts.Stack(layers, exact=True)),
    }
    entries = []
    for name, learner in learners.items():
        chunk = 2 if name in ("RTRL", "RFLO", "half") else 1
        entries += learner_entries(name, learner, chunk)
    entries += [
        Entry("SnAp/float16", ts.SnAp, {"cell": gru, "order": 2, "influence_dtype": "float16"}),
        Entry("RTRL", ts.RTRL, {"cell": gru, "influence_dtype": "float16"}),
        Entry("RFLO", ts.RFLO, {"cell": gru, "influence_dtype": "float16"}),
        Entry("UORO", ts.UORO, {"cell": gru, "seed": 3}),
        Entry(
            "ts.LRU",
            ts.LRU,
            {
                "inputs": 2,
                "hidden": 3,
                "density": 1.0,
                "input_density": 0.9,
                "min_radius": 0.1,
                "max_radius": 0.9,
                "max_phase": 1.0,
            },
        ),
        Entry("GRU/reset", ts.GRU, {"inputs": 2, "hidden": 3, "reset": "before"}),
        Entry("Stack/skips", ts.Stack, {"layers": layers, "exact": False}),
    ]
    return entries


def tool_entries() -> list[Entry]:
    """What is used beside the learners."""
    cell = ts.GRU(inputs=2, hidden=3, density=0.7)
    tree = {"a": np.ones(3), "b": np.ones((2, 2))}
    adam = Adam(0.1)
    moments = adam.init(tree)
    packing = ts.SnAp(ts.RNN(2, 8, density=0.4), 2).plan.packing("triton")
    return [
        Entry(
            "explain",
            ts.explain,
            {"cell": cell, "orders": (1, 2, None), "batch": 2, "steps": 8, "library": "numpy"},
        ),
        Entry("SGD", SGD, {"learning_rate": 0.1, "clip_norm": 0.9}),
        Entry("Adam", Adam, {"learning_rate": 0.1}),
        Entry("Adam.init", adam.init, {"params": tree}),
        Entry("Adam.update", adam.update, {"gradients": tree, "state": moments, "params": tree}),
        Entry("SGD.update", SGD(0.1).update, {"gradients": tree, "state": (), "params": tree}),
        Entry("Partition.build", Partition.build, {"packing": packing, "num_devices": 2}),
        Entry("CopyTask", CopyTask, {"rows": 2, "seed": 0}),
        Entry("TextTask", TextTask, {"text": "some text to learn, not long" * 9, "rows": 2}),
        Entry("records", TASKS["formula3"].records, {"seed": 0, "training": 20}),
    ]
