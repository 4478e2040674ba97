"""What only torch or JAX has: sparse Jacobians, cells of functions, sparse matrices, devices."""

from typing import Any

import numpy as np
from corruptions import Entry

import tritonsnap as ts

ROWS, COLS = np.repeat(np.arange(4), 2), np.repeat(np.arange(4), 2) + np.tile([0, 1], 4)
PATTERN = ts.SparsityPattern.from_coo(ROWS, COLS, (4, 5))


def neighbors(x: Any) -> Any:
    """A function whose Jacobian has `PATTERN`."""
    return x[1:] * x[:-1]


def jacobian_entries(face: Any, x: Any, sparse: str) -> list[Entry]:
    """The sparse Jacobians of a library, at an array of five numbers."""
    projection = face.make_jacobian_projection(PATTERN)

    def differentiated(kind: str) -> Any:
        def call(**options: Any) -> Any:
            return getattr(face, kind)(**options)(x)

        return call

    def verified(**options: Any) -> Any:
        return face.verify_projection(options.pop("f"), options.pop("projection"), x, **options)

    options = {"f": neighbors, "projection": projection, "argnums": 0, "has_aux": False}
    more = {"holomorphic": False, "chunk_size": 2, "format": sparse}
    return [
        Entry(
            "make_jacobian_projection",
            face.make_jacobian_projection,
            {
                "mask": PATTERN,
                "keep": PATTERN,
                "mode": "auto",
                "order": "largest_first",
                "dense_threshold": 0.8,
            },
        ),
        Entry(
            "make_jacobian_projection/tree",
            face.make_jacobian_projection,
            {"mask": {"a": PATTERN.to_dense(), "b": (ROWS, COLS, (4, 5))}},
        ),
        Entry(
            "verify_projection",
            verified,
            {**options, "holomorphic": False, "probes": 1, "seed": 0},
        ),
        Entry("sp_jacrev", differentiated("sp_jacrev"), {**options, **more}),
        Entry("sp_jacfwd", differentiated("sp_jacfwd"), {**options, **more}),
    ]


def torch_entries() -> list[Entry]:
    """What `tritonsnap.torch` has beside the ops."""
    import torch

    import tritonsnap.torch as face

    values = torch.arange(8, dtype=torch.float64)
    matrix = torch.zeros(3, 3, requires_grad=True)

    def function(params: Any, state: Any, x: Any) -> Any:
        return torch.tanh(state @ params["w"] + x)

    cell = {"f": function, "params": {"w": matrix.detach()}, "inputs": 3, "hidden": 3}
    return [
        *jacobian_entries(face, torch.arange(5.0), "coo"),
        Entry("from_sparse", face.from_sparse, {"matrix": face.to_coo(values, PATTERN)}),
        *(
            Entry(to.__name__, to, {"pattern": PATTERN, "values": values})
            for to in (face.to_coo, face.to_csr, face.to_csc)
        ),
        Entry("FunctionCell", ts.FunctionCell, cell),
    ]


def jax_entries() -> list[Entry]:
    """What `tritonsnap.jax` has beside the ops."""
    import jax
    from jax.sharding import Mesh

    import tritonsnap.jax as face
    from tritonsnap.tuning import TARGETS

    values = jax.numpy.arange(8, dtype="float32")

    def function(params: Any, state: Any, x: Any) -> Any:
        return jax.numpy.tanh(state @ params["w"] + x)

    def lowered(**arguments: Any) -> None:
        with face.lower_for(**arguments):
            pass

    cell = {
        "f": function,
        "params": {"w": jax.numpy.zeros((3, 3))},
        "inputs": 3,
        "hidden": 3,
        "immediate": None,
        "dynamics": None,
    }
    learner = ts.SnAp(ts.RNN(2, 4, density=0.5), 2)
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("columns",))
    return [
        *jacobian_entries(face, jax.numpy.arange(5.0), "bcoo"),
        Entry("from_bcoo", face.from_bcoo, {"matrix": face.to_bcoo(values, PATTERN)}),
        Entry("from_bcsr", face.from_bcsr, {"matrix": face.to_bcsr(values, PATTERN)}),
        Entry("to_bcoo", face.to_bcoo, {"pattern": PATTERN, "values": values}),
        Entry("to_bcsr", face.to_bcsr, {"pattern": PATTERN, "values": values}),
        Entry("lower_for", lowered, {"device": TARGETS[1]}),
        Entry("FunctionCell", ts.FunctionCell, cell),
        Entry("Sharded", face.Sharded, {"learner": learner, "mesh": mesh}),
    ]
