"""One of two processes that hold a sharded learner."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from networks import largest_difference, problem
from torch.distributed.device_mesh import init_device_mesh

import tritonsnap.torch as tst
from tritonsnap import BPTT, GRU, LSTM, RNN, RTRL, LeakyRNN, SnAp
from tritonsnap.online.checkpoint import load_checkpoint, save_checkpoint
from tritonsnap.online.optimizers import Adam
from tritonsnap.online.trees import leaves_of

STEPS, BATCH = 6, 4
LEARNERS = (
    SnAp(GRU(3, 12)),
    SnAp(GRU(30, 12, density=0.2, input_density=0.3, seed=1), 2),
    SnAp(RNN(5, 64, density=0.05, seed=1), 3),
    RTRL(RNN(4, 16)),
)
CHUNKED = (
    *LEARNERS,
    SnAp(GRU(3, 9), 2),
    SnAp(RNN(3, 11)),
    SnAp(RNN(4, 16, density=0.2, input_density=0.5, seed=1)),
    SnAp(LSTM(3, 8, density=0.3, seed=1)),
    SnAp(LSTM(3, 7)),
    SnAp(LeakyRNN(3, 8, density=0.3, seed=1, learn_leak=True), 2),
    RTRL(GRU(3, 8, density=0.3, seed=1)),
)


def check_sequence(learner, mesh) -> None:
    """The same loss, gradients and carry as in one process; each holds its share."""
    given = problem(learner.cell, "torch", STEPS, batch=BATCH)
    loss, gradients, carry = given.run(learner)
    own_rows = rows(mesh)
    for name in ("xs", "ys", "mask", "resets"):
        setattr(given, name, getattr(given, name)[:, own_rows])
    sharded = tst.Sharded(learner, mesh)
    found_loss, found, own = given.run(sharded)
    assert found_loss == pytest.approx(loss, rel=1e-13)
    assert largest_difference(found, gradients) < 1e-12
    held = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(held, torch.tensor([sharded.plan.mask.nnz]))
    if mesh.size(0) == 1 or mesh.ndim == 1:
        assert sum(int(count) for count in held) == learner.plan.mask.nnz
    np.testing.assert_array_equal(
        sharded.partition.values[mesh.get_local_rank("columns")], sharded.plan.mask.nnz
    )
    gathered = sharded.gather(own)
    for one, other in zip(gathered.influence, carry.influence, strict=True):
        torch.testing.assert_close(one, other[own_rows], rtol=0, atol=1e-12)
    for one, other in zip(sharded.scatter(gathered).influence, own.influence, strict=True):
        assert torch.equal(one, other)
    ready = sharded.prepare(given.params)
    carry, state = sharded.step(ready, own, given.xs[0])
    gradient = sharded.gradient(carry, state)
    assert {n: g.shape for n, g in gradient.items()} == {
        n: g.shape for n, g in given.params.items()
    }


def check_chunks(learner, mesh) -> None:
    """Chunks give what steps of one process give, from an influence that is not zero."""
    given = problem(learner.cell, "torch", STEPS, batch=BATCH)
    given.readout = given.loss.init(learner.cell.rows, 1, like="torch", dtype="float64")
    _, _, begin = given.run(learner, chunk=1)
    loss, gradients, carry = given.run(learner, begin, chunk=1)
    _, after, end = given.run(learner, carry, chunk=1)
    own_rows = rows(mesh)
    for name in ("xs", "ys", "mask", "resets"):
        setattr(given, name, getattr(given, name)[:, own_rows])
    sharded = tst.Sharded(learner, mesh)
    spread = sharded.scatter(of_rows(begin, own_rows))
    for chunk in (4, STEPS):
        found_loss, found, own = given.run(sharded, spread, chunk=chunk)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert largest_difference(found, gradients) < 1e-12
        check_carry(sharded.gather(own), of_rows(carry, own_rows))
    _, found, own = given.run(sharded, own, chunk=chunk)
    assert largest_difference(found, after) < 1e-12
    check_carry(sharded.gather(own), of_rows(end, own_rows))


def check_carry(found, expected) -> None:
    assert found.step == expected.step
    arrays = (found.state, *found.influence), (expected.state, *expected.influence)
    for one, other in zip(*arrays, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def of_rows(carry, chosen: slice):
    influence = tuple(block[chosen] for block in carry.influence)
    return carry._replace(state=carry.state[chosen], influence=influence)


def check_automatic_chunks(mesh) -> None:
    """All processes go as many steps at once, though they hold different columns."""
    learner = LEARNERS[-1]
    sharded = tst.Sharded(learner, mesh)
    xs = torch.zeros(96, 8, learner.cell.inputs)
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(steps, torch.tensor([sharded.chunking("auto", xs).steps]))
    assert steps[0] == steps[1] > 1


def rows(mesh) -> slice:
    if "data" not in mesh.mesh_dim_names:
        return slice(None)
    share = BATCH // mesh.size(mesh.mesh_dim_names.index("data"))
    begin = mesh.get_local_rank("data") * share
    return slice(begin, begin + share)


def check_saving(mesh, folder: Path) -> None:
    """Training that is interrupted and resumed equals training that is not, bit for bit."""
    learner = tst.Sharded(LEARNERS[1], mesh)
    given = problem(learner.cell, "torch", STEPS, batch=BATCH)
    optimizer = Adam(learning_rate=0.01)

    def train(state, begin: int, stop: int):
        params, moments, carry = state
        for t in range(begin, stop):
            pieces = (array[t : t + 1] for array in (given.xs, given.ys))
            _, (own, _), carry = learner.sequence(
                params, carry, *pieces, given.loss, readout=given.readout
            )
            params, moments = optimizer.update(own, moments, params)
        return params, moments, carry

    start = (given.params, optimizer.init(given.params), learner.init(BATCH, dtype="float64"))
    whole = train(start, 0, STEPS)
    path = folder / f"part {dist.get_rank()}.npz"
    save_checkpoint(path, {}, train(start, 0, 3))
    resumed = train(load_checkpoint(path, start), 3, STEPS)
    for one, other in zip(leaves_of(resumed), leaves_of(whole), strict=True):
        assert torch.equal(one, other)
    params = [torch.zeros_like(whole[0]["input_reset"]) for _ in range(2)]
    dist.all_gather(params, whole[0]["input_reset"].contiguous())
    assert torch.equal(*params)


def check_errors(mesh) -> None:
    learner = LEARNERS[0]
    with pytest.raises(TypeError, match="`learner` must be a SnAp"):
        tst.Sharded(BPTT(learner.cell), mesh)
    with pytest.raises(TypeError, match="`mesh` must be a DeviceMesh"):
        tst.Sharded(learner, dist.group.WORLD)
    with pytest.raises(ValueError, match="`mesh` must have the axes"):
        tst.Sharded(learner, init_device_mesh("cpu", (2,), mesh_dim_names=("model",)))
    with pytest.raises(ValueError, match="`learner` must be equal in all processes"):
        tst.Sharded(SnAp(RNN(2, 8, density=0.5, seed=dist.get_rank())), mesh)
    with pytest.raises(ValueError, match="`like` must be 'torch'"):
        tst.Sharded(learner, mesh).init(4, like="numpy")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    columns = init_device_mesh("cpu", (2,), mesh_dim_names=("columns",))
    for learner in LEARNERS:
        check_sequence(learner, columns)
    data = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "columns"))
    check_sequence(LEARNERS[1], data)
    for learner in CHUNKED:
        check_chunks(learner, columns)
    check_chunks(LEARNERS[1], data)
    check_automatic_chunks(columns)
    check_saving(columns, Path(sys.argv[1]))
    check_errors(columns)
    dist.destroy_process_group()
