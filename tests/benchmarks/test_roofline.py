from benchmarks.roofline import H200, Device


def test_the_slower_of_transfers_and_arithmetic_counts():
    device = Device("toy", bandwidth=100.0, ieee=10.0, tf32=80.0)
    assert device.seconds(200, 10) == 2
    assert device.seconds(200, 40) == 4
    assert device.seconds(200, 40, "tf32") == 2


def test_one_gigabyte_on_an_h200():
    assert round(1e6 * H200.seconds(1e9, 0)) == 233
