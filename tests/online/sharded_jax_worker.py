"""A process of its own: sharded learners on forced CPU devices, or on one of several processes."""

import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from networks import largest_difference, problem

import tritonsnap.jax as tsj
from tritonsnap import BPTT, GRU, LSTM, RNN, RTRL, SnAp
from tritonsnap.online.checkpoint import load_checkpoint, save_checkpoint
from tritonsnap.online.unroll import Unroll
from tritonsnap.plan.blocks import Regime

STEPS, BATCH = 6, 4


def assert_equal_trees(one, other) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def check_sequence(learner, mesh, *stepped: Regime, steps: int = STEPS):
    """The same loss, gradients and carry as of one learner in NumPy, with the influence spread."""
    loss, gradients, carry = problem(learner.cell, "numpy", steps, batch=BATCH).run(learner)
    given = problem(learner.cell, "jax", steps, batch=BATCH)
    sharded = tsj.Sharded(learner, mesh)
    found_loss, found, spread = given.run(sharded)
    assert found_loss == pytest.approx(loss, rel=1e-13)
    assert largest_difference(found, gradients) < 1e-12
    for block in spread.influence:
        assert len(block.sharding.device_set) == mesh.size
        assert all(s.data.nbytes * mesh.size == block.nbytes for s in block.addressable_shards)
    check_gathered(sharded.gather(spread), carry, learner)
    check_chunks(sharded, given, spread, carry, *stepped)
    return sharded, given, spread


def check_chunks(sharded, given, spread, carry, *stepped: Regime) -> None:
    """Chunks from an influence that is not zero give what steps of one learner in NumPy give.

    Blocks of the regimes `stepped` are stepped beside the others.
    """
    steps = len(given.xs) // 2
    costs = sharded.chunkings.costs("xla")
    chosen = {n: cost.regime for n, cost in enumerate(costs) if cost.regime not in stepped}
    chunking = sharded.chunkings.make("xla", steps, [chosen])
    assert bool(chunking.stepped_numbers) == bool(stepped)
    source = problem(sharded.cell, "numpy", len(given.xs), batch=BATCH)
    loss, gradients, carry = source.run(sharded.learner, carry, chunk=1)
    found_loss, found, end = given.run(sharded, spread, chunk=chunking if stepped else steps)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found, gradients) < 1e-12
    check_gathered(sharded.gather(end), carry, sharded.learner)
    if stepped:
        check_programs(sharded, given, spread, chunking)


def check_programs(sharded, given, spread, chunking) -> None:
    """A program of chunks talks as often as one of steps: for the sums at its end."""
    counts = []
    for way in (None, chunking):
        unroll = Unroll(given.params, spread, *given.sequence, given.readout)
        program = str(jax.make_jaxpr(lambda way=way, unroll=unroll: sharded.run(way, unroll))())
        counts.append(program.count("psum"))
        assert not any(name in program for name in ("all_gather", "all_to_all", "ppermute"))
    assert counts[0] == counts[1] > 0


def check_gathered(gathered, carry, learner) -> None:
    """What a sharded learner holds is what one in NumPy holds."""
    np.testing.assert_allclose(gathered.state, carry.state, rtol=0, atol=1e-12)
    found = learner.plan.packing("xla").unpack(gathered.influence)
    np.testing.assert_allclose(found, learner.plan.unpack(carry.influence), rtol=0, atol=1e-12)
    assert int(gathered.step) == carry.step


def check_steps(sharded, given) -> None:
    """Steps talk to nobody, gradients are one sum; both equal those of one learner."""
    results = []
    source = problem(sharded.cell, "numpy", STEPS, batch=BATCH)
    for one, has, like in ((sharded.learner, source, "numpy"), (sharded, given, "jax")):
        carry = one.init(BATCH, like=like, dtype="float64")
        ready = one.prepare(has.params)
        for t in range(2):
            carry, state = one.step(ready, carry, has.xs[t], has.resets[t])
        results.append({**one.gradient(carry, state + 1), "state": state})
    assert largest_difference(results[1], results[0]) < 1e-12
    step = jax.jit(tsj.Sharded.step).lower(sharded, ready, carry, given.xs[0], given.resets[0])
    gradient = jax.jit(tsj.Sharded.gradient).lower(sharded, carry, carry.state)
    assert not talks(step.compile().as_text())
    assert talks(gradient.compile().as_text()) == {"all-reduce"}


def talks(program: str) -> set[str]:
    kinds = {"all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"}
    return {kind for kind in kinds if f" {kind}(" in program or f" {kind}-start(" in program}


def check_saving(sharded, given, middle, folder: Path) -> None:
    """A run that is interrupted and resumed equals one that is not, bit for bit."""
    whole = given.run(sharded, middle)
    save_checkpoint(folder / "spread.npz", {}, middle)
    save_checkpoint(folder / "gathered.npz", {}, sharded.gather(middle))
    fresh = sharded.init(BATCH, dtype="float64")
    resumed = load_checkpoint(folder / "spread.npz", fresh)
    assert_equal_trees(given.run(sharded, resumed), whole)
    alone = sharded.learner.init(BATCH, "jax", "float64")
    alone = load_checkpoint(folder / "gathered.npz", alone)
    assert_equal_trees(sharded.scatter(alone), middle)


def check_errors(mesh) -> None:
    learner = SnAp(RNN(inputs=2, hidden=4, density=0.5))
    with pytest.raises(TypeError, match="`learner` must be a SnAp"):
        tsj.Sharded(BPTT(learner.cell), mesh)
    with pytest.raises(TypeError, match="`mesh` must be a"):
        tsj.Sharded(learner, 4)
    with pytest.raises(ValueError, match="`mesh` must have the axes"):
        tsj.Sharded(learner, jax.make_mesh((2, 2), ("columns", "model")))
    tiny = RNN(inputs=1, hidden=1)  # three parameters
    with pytest.raises(ValueError, match=r"`mesh` has too many devices.* at most 3.* got 4"):
        tsj.Sharded(SnAp(tiny), jax.make_mesh((4,), ("columns",)))
    sharded = tsj.Sharded(learner, mesh)
    xs = jax.numpy.zeros((4, BATCH, 2))
    with pytest.raises(ValueError, match="`chunk` must be a chunking of Sharded"):
        sharded.chunking(learner.chunking(2, xs), xs)
    assert sharded.chunking("auto", xs) is None
    with pytest.raises(ValueError, match="`batch` must be divisible by the 2 devices"):
        sharded.init(3)
    with pytest.raises(ValueError, match="`like`"):
        sharded.init(4, like="torch")
    with pytest.raises(ValueError, match="`params`"):
        sharded.prepare({})


def on_four_devices(folder: Path) -> None:
    mesh = jax.make_mesh((2, 2), ("data", "columns"))
    learner = SnAp(GRU(30, 12, density=0.2, input_density=0.3, seed=1), 2)
    sharded, given, spread = check_sequence(learner, mesh)
    check_steps(sharded, given)
    check_saving(sharded, given, spread, folder)
    columns = jax.make_mesh((4,), ("columns",))
    sparse = SnAp(RNN(5, 64, density=0.05, seed=1), 3)
    check_sequence(sparse, columns, Regime.ELEMENTWISE, steps=4)
    large = tsj.Sharded(SnAp(RNN(3, 256)), columns)
    assert large.chunking("auto", jax.numpy.zeros((192, BATCH, 3))).steps > 1
    check_sequence(SnAp(RNN(3, 20)), columns, steps=4)
    check_sequence(RTRL(LSTM(2, 4)), columns, steps=4)
    check_errors(mesh)


def on_one_of_two_processes(folder: Path, process: int, address: str) -> None:
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    assert (len(jax.devices()), len(jax.local_devices())) == (4, 2)
    learner = RTRL(RNN(4, 16))
    loss, gradients, carry = problem(learner.cell, "numpy", STEPS, batch=BATCH).run(learner)
    given = problem(learner.cell, "jax", STEPS, batch=BATCH)
    sharded = tsj.Sharded(learner, jax.make_mesh((2, 2), ("columns", "data")))
    # the influence spans both processes, and so do the index arrays of chunks
    found_loss, found, spread = given.run(sharded, chunk=STEPS // 2)
    assert found_loss == pytest.approx(loss, rel=1e-13)
    assert largest_difference(found, gradients) < 1e-12
    assert not spread.influence[0].is_fully_addressable
    gathered = sharded.gather(spread)
    check_gathered(gathered, carry, learner)
    path = folder / f"{process}.npz"
    save_checkpoint(path, {}, gathered)
    again = sharded.scatter(load_checkpoint(path, gathered))
    assert_equal_trees(sharded.gather(again), gathered)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    if sys.argv[2:]:
        on_one_of_two_processes(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        assert len(jax.devices()) == 4, os.environ.get("XLA_FLAGS")
        on_four_devices(Path(sys.argv[1]))
