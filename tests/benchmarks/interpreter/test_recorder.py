import numpy as np
import pytest
import torch
import triton
from triton.runtime.errors import InterpreterError

from benchmarks.traffic.recorder import record
from tests.benchmarks.interpreter.toy_kernels import (
    copy_kernel,
    gather_kernel,
    matmul_kernel,
    scale_kernel,
    transpose_kernel,
)


def ragged_kernel_arguments():
    """A copy whose programs differ: stride 1 over 1000 elements, the last program with a tail."""
    return torch.zeros(1000), torch.arange(1000.0), 1000, 1


def test_contiguous_copy_moves_what_it_uses():
    out, x = torch.zeros(1024), torch.arange(1024.0)
    with record() as launches:
        copy_kernel[(2,)](out, x, 1024, 1, BLOCK=512)
    assert torch.equal(out, x)
    (launch,) = launches
    assert (launch.kernel, launch.programs, launch.sampled) == ("copy_kernel", 2, 2)
    for counts in (launch.counts["p_in", "read"], launch.counts["p_out", "write"]):
        assert counts.useful == counts.requested == 4096
        assert counts.sectors == counts.request_sectors == 128
        assert counts.requests == 8
        assert counts.efficiency == counts.coalescing == 1
    assert set(launch.counts) == {("p_in", "read"), ("p_out", "write")}


def test_stride_two_uses_half():
    out, x = torch.zeros(2048), torch.arange(2048.0)
    with record() as launches:
        copy_kernel[(2,)](out, x, 1024, 2, BLOCK=512)
    counts = launches[0].counts["p_in", "read"]
    assert (counts.useful, counts.sectors) == (4096, 256)
    assert counts.requests == 32  # lanes cannot take more than one element
    assert counts.efficiency == counts.coalescing == 0.5


def test_masked_tail():
    with record() as launches:
        copy_kernel[(2,)](*ragged_kernel_arguments(), BLOCK=512)
    counts = launches[0].counts["p_out", "write"]
    assert counts.useful == 4000
    assert counts.sectors == 125
    assert counts.requests == 8


def test_gather_of_a_known_pattern():
    # Every lane of a warp reads another sector; each sector is read by four warps.
    index = torch.arange(128, dtype=torch.int32) % 32 * 8
    out, x = torch.zeros(128), torch.arange(256.0)
    with record() as launches:
        gather_kernel[(1,)](out, x, index, BLOCK=128)
    assert torch.equal(out, x[index.long()])
    counts = launches[0].counts["p_in", "read"]
    assert counts.useful == 32 * 4
    assert counts.sectors == 32
    assert (counts.requests, counts.request_sectors) == (4, 128)
    assert counts.requested == 512
    assert counts.efficiency == counts.coalescing == 0.125


def test_transposed_tile_is_coalesced_on_either_side():
    x = torch.arange(64.0 * 64).reshape(64, 64)
    out = torch.zeros(64, 64)
    with record() as launches:
        transpose_kernel[(2, 2)](out, x, 64, 64, ROWS=32, COLS=32)
    assert torch.equal(out, x.T)
    for counts in launches[0].counts.values():
        assert counts.efficiency == counts.coalescing == 1
        assert counts.requests == 4 * 32 * 32 / 128


def test_a_strided_column_moves_a_sector_per_element():
    x = torch.arange(64.0 * 64).reshape(64, 64)
    out = torch.zeros(64)
    with record() as launches:
        copy_kernel[(1,)](x, x, 64, 64, BLOCK=64)
        copy_kernel[(1,)](out, out, 64, 1, BLOCK=64, num_warps=2)
    column, row = launches
    assert column.counts["p_out", "read"].efficiency == 0.125  # shared memory: the first argument
    assert row.counts["p_out", "read"].requests == 2


def test_reads_and_writes_in_place_are_counted_apart():
    x = torch.ones(128)
    with record() as launches:
        scale_kernel[(1,)](x, torch.tensor([3.0]), BLOCK=128)
    assert x.eq(3).all()
    counts = launches[0].counts
    assert counts["p_x", "read"].useful == counts["p_x", "write"].useful == 512
    assert counts["p_scale", "read"].requests == 4  # every warp loads it
    assert launches[0].total("p_x").useful == 1024
    assert launches[0].total(direction="read").useful == 516


def test_reuse_within_a_program_counts_once_between_programs_twice():
    x = torch.ones(256)
    with record() as launches:
        scale_kernel[(2,)](x, torch.tensor([3.0]), BLOCK=128, num_warps=1)
        gather_kernel[(1,)](x, torch.ones(8), torch.zeros(256, dtype=torch.int64), BLOCK=256)
    assert launches[0].counts["p_scale", "read"].sectors == 2
    assert launches[1].counts["p_in", "read"].sectors == 1


def test_padding_is_never_useful():
    out, x = torch.zeros(128), torch.zeros(128)
    padding = np.arange(128) % 8 >= 6
    with record(padding={"p_in": padding}) as launches:
        copy_kernel[(1,)](out, x, 128, 1, BLOCK=128)
    assert launches[0].counts["p_in", "read"].efficiency == 0.75
    assert launches[0].counts["p_out", "write"].efficiency == 1


def test_views_are_aligned_as_their_storage_is():
    storage = torch.zeros(136)
    with record() as launches:
        copy_kernel[(1,)](torch.zeros(128), storage[1:129], 128, 1, BLOCK=128, num_warps=1)
    counts = launches[0].counts["p_in", "read"]
    assert counts.sectors == 17
    assert counts.requests == 4


def test_dot_flops():
    a, b = torch.ones(16, 32), torch.ones(32, 64)
    with record() as launches:
        matmul_kernel[(1,)](torch.zeros(16, 64), a, b, M=16, N=64, K=32)
    assert launches[0].dot_flops == 2 * 16 * 32 * 64


def test_access_outside_the_arguments_is_an_error():
    with record(), pytest.raises(InterpreterError, match=r"copy_kernel.*outside its arguments"):
        copy_kernel[(1,)](torch.zeros(128), torch.zeros(100), 128, 1, BLOCK=128)


def test_the_interpreter_is_left_as_it_was():
    arguments = ragged_kernel_arguments()
    with record() as launches:
        copy_kernel[(2,)](*arguments, BLOCK=512)
    arguments[0].zero_()
    copy_kernel[(2,)](*arguments, BLOCK=512)
    assert torch.equal(*arguments[:2])
    assert len(launches) == 1


def test_a_sample_estimates_the_whole():
    x = torch.zeros(2**15 - 100)
    size = len(x)
    launches = []
    for programs in (None, 16):
        with record(programs) as recorded:
            copy_kernel[(triton.cdiv(size, 128),)](x, x, size, 1, BLOCK=128)
        launches += recorded
    full, sampled = launches
    assert (sampled.programs, sampled.sampled) == (256, 16)
    assert sampled.total().sectors == pytest.approx(full.total().sectors, rel=0.01)
    assert sampled.total().requests == pytest.approx(full.total().requests, rel=0.01)
