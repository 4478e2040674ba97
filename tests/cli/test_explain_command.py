import pytest

from tritonsnap.cli import main

SMALL = ["explain", "--library", "numpy", "--hidden", "16", "--inputs", "2", "--density", "0.2"]


def test_it_prints_the_table_and_draws_the_masks(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "masks.png"
    assert main([*SMALL, "--orders", "2", "rtrl", "--steps", "9", "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["SnAp-2", "RTRL", "BPTT(9)"]
    assert lines[-1] == f"masks are in {plot}"
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "value"), [("--orders", "0"), ("--orders", "x"), ("--hidden", "0"), ("--batch", "0")]
)
def test_bad_values_name_their_option(option, value, capsys):
    try:
        code = main([*SMALL, option, value])
    except SystemExit as end:
        code = end.code
    message = capsys.readouterr().err
    assert code == 2
    assert message.count("\n") == 1
    assert option in message
