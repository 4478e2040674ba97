"""Files from strangers: cut short, with flipped bits, with one array changed, of another kind.

A reader gives what the file says, or raises a `ValueError` that names the file. It runs no code
from the file and takes no more memory than the file could fill.
"""

import io
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonsnap as ts
from tritonsnap.jacobian.projection import JacobianProjection, build_projection
from tritonsnap.kan import KAN, Trainer
from tritonsnap.online.checkpoint import load_checkpoint, read_config, save_checkpoint
from tritonsnap.sparsity.coloring import Coloring

PATTERN = ts.SparsityPattern.random((5, 8), 0.4, 0)
PROJECTION = build_projection([("['a']", PATTERN)], [], "auto", "largest_first", 0.8)
TREE = {"weights": np.arange(6.0), "step": 3}


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is written and read."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], Any]

    def __str__(self) -> str:
        return self.name


def _trained() -> Trainer:
    rng = np.random.default_rng(0)
    model = KAN(inputs=2, addends=3, inner_points=3, outer_points=4)
    trainer = Trainer(model, engine="sequential", block=8)
    trainer.fit(rng.uniform(size=(20, 2)), rng.uniform(size=20))
    return trainer


TRAINER = _trained()
KINDS = [
    Kind("pattern", PATTERN.save, ts.SparsityPattern.load),
    Kind("plan", ts.DsmmPlan(PATTERN, PATTERN).save, ts.DsmmPlan.load),
    Kind("coloring", ts.color_rows(PATTERN).save, Coloring.load),
    Kind(
        "checkpoint",
        lambda p: save_checkpoint(p, {"a": 1}, TREE),
        lambda p: load_checkpoint(p, TREE),
    ),
    Kind("checkpoint's configuration", lambda p: save_checkpoint(p, {"a": 1}, TREE), read_config),
    Kind("projection", PROJECTION.save, JacobianProjection.load),
    Kind("model", TRAINER.model.save, KAN.load),
    Kind("trainer", TRAINER.save, Trainer.load),
]


def broken(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The file cut short and with flipped bits."""
    draw = random.Random(0)
    for size in sorted({0, 1, 4, len(content) - 1, *draw.sample(range(len(content)), 30)}):
        yield f"cut to {size} bytes", content[:size]
    for _ in range(150):
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        yield f"bit {bit} of byte {place} flipped", bytes(flipped)
    yield "twice", content + content
    yield "zeros", bytes(len(content))


class Bomb:
    """Says so when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("code from the file was run",)


def changed(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The file with one array left out or changed."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        others = {key: value for key, value in arrays.items() if key != name}
        yield f"without {name}", _archive(others)
        replacements = {
            "empty": array.ravel()[:0],
            "with an axis more": array[None],
            "a string": np.asarray("seven"),
            "a number": np.asarray(7),
            "of NaN": np.full(array.shape, np.nan),
            "of negative numbers": np.full(array.shape, -3),
            "of huge numbers": np.full(array.shape, 2**62),
            "of complex numbers": np.full(array.shape, 1j),
            "too long": np.concatenate([array.ravel(), array.ravel()]),
            "of JSON": np.asarray('{"a": [1, {"b": null}]}'),
        }
        for what, replacement in replacements.items():
            yield f"{name} {what}", _archive({**others, name: replacement})
        yield f"{name} pickled", _archive({**others, name: np.array([Bomb()], object)})
        yield f"{name} of a hostile size", _hostile(others, name)
    yield "a bare array", _bytes(lambda file: np.save(file, np.ones(3)))
    yield "a pickle", pickle.dumps(Bomb())
    yield "another archive", _archive({"a": np.ones(3)})


def _bytes(write: Callable[[io.BytesIO], None]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _archive(arrays: dict[str, Any]) -> bytes:
    return _bytes(lambda file: np.savez(file, **arrays))


def _hostile(arrays: dict[str, Any], name: str) -> bytes:
    """An archive in which the header of one array promises a petabyte."""
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**47,)}
    member = _bytes(lambda file: np.lib.format.write_array_header_1_0(file, header))
    file = io.BytesIO(_archive(arrays))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{name}.npy", member)
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("damage", [broken, changed])
def test_no_file_does_harm(kind: Kind, damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    kind.write(path)
    kind.read(path)
    faults = []
    for what, content in damage(path.read_bytes()):
        path.write_bytes(content)
        try:
            kind.read(path)
        except ValueError as error:
            if str(path) not in str(error):
                faults.append(f"{what}: {error} - does not name the file")
        except Exception as error:
            faults.append(f"{what}: {type(error).__name__} {error}")
    assert not faults, "\n".join(faults)
