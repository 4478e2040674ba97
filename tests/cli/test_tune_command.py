"""`tritonsnap tune`, without a GPU."""

import pytest

from tritonsnap.cli import main


def test_it_says_that_it_needs_a_gpu(capsys, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["tune", "--directory", str(tmp_path)]) == 1
    assert "needs a CUDA or ROCm GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_it_says_that_it_needs_torch(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["tune", "--directory", str(tmp_path)]) == 1
    assert "pip install 'tritonsnap[torch]'" in capsys.readouterr().err


def test_it_writes_to_the_users_configs(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITONSNAP_CONFIG_DIR", str(tmp_path / "mine"))
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    assert str(tmp_path / "mine") in "".join(capsys.readouterr().out.split())


def test_it_names_the_kernels_that_there_are(tmp_path):
    with pytest.raises(SystemExit, match=r"no kernel is named 'nonsense'; there are: .*snap1_step"):
        main(["tune", "--kernels", "nonsense", "--directory", str(tmp_path)])
