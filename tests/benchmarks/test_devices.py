import pytest

from benchmarks.devices import BATCH, FLOAT, Network, all_reduce, rows_of, table_of
from tritonsnap import RNN, SnAp


def test_an_all_reduce_sends_twice_all_but_ones_own_share() -> None:
    assert all_reduce(800, 1, 1) == (0, 0)
    assert all_reduce(800, 8, 1)[0] == pytest.approx(2 * 700)
    assert all_reduce(800, 1, 8)[0] == pytest.approx(2 * 700)
    assert all_reduce(800, 2, 2)[0] == pytest.approx(400 + 800)  # 400 of each own half, then all
    assert all_reduce(1 << 20, 16, 1)[1] > all_reduce(1 << 20, 8, 1)[1]


def test_accounts_add_up() -> None:
    network = Network(SnAp(RNN(8, 64, density=0.1, seed=1), 2))
    alone = network.account(1)
    assert alone.memory == network.packing.groups.mask.nnz * BATCH * FLOAT
    assert alone.communication == alone.traffic == 0
    for columns, data in ((4, 1), (1, 4), (4, 4)):
        account = network.account(columns, data)
        assert account.devices == columns * data
        assert (
            alone.memory / account.devices <= account.memory < 1.1 * alone.memory / account.devices
        )
        assert account.operations * account.devices >= alone.operations
        assert account.seconds(32) < account.seconds(1)
    assert network.account(1, 4).memory == alone.memory / 4
    assert network.best(16).seconds(32) <= network.account(16).seconds(32)


def test_rows_and_table_name_every_number_of_devices() -> None:
    network = Network(SnAp(RNN(8, 32)))
    rows = list(rows_of("small", network, (1, 4)))
    assert {row.parameters["devices"] for row in rows} == {1, 4}
    assert all(row.value is not None and row.value >= 0 for row in rows)
    assert len(table_of(network, (1, 4)).splitlines()) == 4
