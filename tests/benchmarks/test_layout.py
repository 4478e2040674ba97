import numpy as np
import pytest

from benchmarks.traffic.layout import split


def offsets(shape, strides, itemsize=4, start=0):
    """Byte offsets of a tile of a strided array."""
    grids = np.meshgrid(*map(np.arange, shape), indexing="ij")
    return itemsize * (start + sum(g * s for g, s in zip(grids, strides, strict=True)))


def lanes(requests, shape):
    return [np.unique(row).tolist() for row in requests.request.reshape(shape[0], -1)]


def num_requests(tile, mask=None, itemsize=4, num_warps=4):
    mask = np.ones(tile.shape, bool) if mask is None else mask
    requests = split(tile, mask, itemsize, num_warps)
    return len(np.unique(requests.request)), requests.copies


def test_a_lane_takes_sixteen_bytes():
    assert num_requests(offsets((512,), (1,))) == (4, 1)  # 32 lanes * 4 floats each
    assert num_requests(offsets((512,), (1,), itemsize=8), itemsize=8) == (8, 1)
    assert num_requests(offsets((512,), (1,), itemsize=2), itemsize=2) == (4, 1)


def test_all_lanes_have_some_before_one_has_more():
    assert num_requests(offsets((128,), (1,))) == (4, 1)  # one element per lane
    assert num_requests(offsets((128,), (1,)), num_warps=1) == (1, 1)  # four


@pytest.mark.parametrize(("start", "requests"), [(4, 4), (2, 8), (1, 16)])
def test_alignment_narrows_the_vector(start, requests):
    assert num_requests(offsets((512,), (1,), start=start)) == (requests, 1)


def test_strided_elements_move_one_by_one():
    assert num_requests(offsets((512,), (2,))) == (16, 1)


def test_a_ragged_mask_narrows_the_instruction_but_not_the_layout():
    tile = offsets((512,), (1,))
    mask = np.arange(512) < 510  # pairs are equal, quadruples are not
    requests = split(tile, mask, 4, 4).request
    assert len(np.unique(requests)) == 8
    assert requests[:6].tolist() == [0, 0, 1, 1, 0, 0]
    assert num_requests(tile, np.arange(512) < 508) == (4, 1)


def test_small_tiles_are_loaded_by_every_warp():
    assert num_requests(offsets((1,), (1,))) == (1, 4)
    assert num_requests(offsets((64,), (1,))) == (2, 2)
    assert split(np.asarray(0), np.asarray(True), 4, 8).copies == 8


def test_warps_follow_the_contiguous_axis():
    row_major = split(offsets((16, 128), (128, 1)), np.ones((16, 128), bool), 4, 4)
    assert lanes(row_major, (16, 128)) == [[row] for row in range(16)]
    assert row_major.copies == 1
    column_major = split(offsets((128, 16), (1, 128)), np.ones((128, 16), bool), 4, 4)
    assert np.array_equal(
        column_major.request.reshape(128, 16).T, row_major.request.reshape(16, 128)
    )


def test_narrow_rows_share_a_warp():
    # 4 lanes a row, 8 rows a warp
    requests = split(offsets((16, 16), (1000, 1)), np.ones((16, 16), bool), 4, 2)
    assert lanes(requests, (16, 16)) == [[0]] * 8 + [[1]] * 8
