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


def test_it_explains_stacks(capsys):
    assert main([*SMALL, "--cell", "lru", "--density", "1", "--layers", "2", "--exact"]) == 0
    assert capsys.readouterr().out.startswith("Stack of LRU(16), LRU(16) with 2 inputs, exact")


def test_it_explains_a_network_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_network.py").write_text(
        "import tritonsnap as ts\nnetwork = ts.RNN(inputs=2, hidden=3)\nname = 'none'\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "--network", "own_network:network"]) == 0
    assert capsys.readouterr().out.startswith("RNN of 3 units and 2 inputs")
    for text, why in (
        ("own_network:name", "got str"),
        ("own_network:nothing", "no attribute"),
        ("no_such_module:network", "No module named"),
        (":network", "MODULE:NAME"),
    ):
        assert main([*SMALL, "--network", text]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert f"--network {text}" in message
        assert why in message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--orders", text) for text in ("0", "x")),
        *((option, "0") for option in ("--hidden", "--batch", "--layers")),
    ],
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
