import importlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tritonsnap.cli import main
from tritonsnap.online.configuration import TrainingConfig
from tritonsnap.online.training import Run
from tritonsnap.online.trees import named_leaves

SMALL = ["--backend", "numpy", "--hidden", "8", "--batch", "2", "--update-every", "4"]


def train(*arguments):
    return main(["train", *map(str, arguments)])


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 30)
    return path


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def failing(capsys):
    """Run a command that must end with exit code 2 and one line; returns the line."""

    def run(*arguments):
        try:
            code = train(*arguments)
        except SystemExit as end:
            code = end.code
        message = capsys.readouterr().err
        assert code == 2
        assert message.count("\n") == 1
        assert re.match("tritonsnap( train)?: error: ", message)
        return message

    return run


def test_text_ends_with_its_score(text, tmp_path, capsys):
    assert train(*SMALL, "--text", text, "--steps", 20, "--out", tmp_path / "run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("held-out bits per character: ")
    assert 0 < float(lines[-1].split()[-1]) < 10
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoint.npz",
        "config.json",
        "loss.png",
        "metrics.jsonl",
        "sample.txt",
    ]


def test_copy_ends_with_its_length(tmp_path, capsys):
    arguments = [*SMALL, "--task", "copy", "--steps", 20, "--out", tmp_path / "run"]
    assert train(*arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "copy length reached: 1"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_torch_takes_a_gpu_that_it_sees(device, torch, text, tmp_path, monkeypatch):
    made = []

    class Recording:
        """Stands for a GPU: notes what would be put there."""

        def __init__(self, name):
            self.name = name

        def __enter__(self):
            made.append(self.name)

        def __exit__(self, *error):
            made.append("left")

    zeros = torch.zeros
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    monkeypatch.setattr(torch, "zeros", lambda *size, device=None, **more: zeros(*size, **more))
    monkeypatch.setattr(torch, "device", Recording)
    arguments = [*SMALL[2:], "--backend", "torch", "--text", text, "--steps", 4]
    assert train(*arguments, "--out", tmp_path / "run") == 0
    assert made == (["cuda", "left"] if device == "cuda" else [])
    assert train(*arguments, "--out", tmp_path / "other", "--device", "cpu") == 0
    assert len(made) == (2 if device == "cuda" else 0)


def test_a_run_lies_where_torch_makes_its_tensors(torch, text, tmp_path):
    config = TrainingConfig(text=str(text), backend="torch", hidden=8, batch=2)
    with torch.device("meta"):
        state = Run(config, tmp_path / "run").state
    tensors = [leaf for _, leaf in named_leaves(state) if isinstance(leaf, torch.Tensor)]
    assert len(tensors) > 10
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("name", ["nowhere", "meta", "cuda:99"])
def test_a_device_that_cannot_compute_is_refused(name, torch, failing, text, tmp_path):
    chosen = [*SMALL[2:], "--text", text, "--out", tmp_path / "run", "--device", name]
    assert f"--device: torch cannot compute on '{name}'" in failing(*chosen, "--backend", "torch")
    assert "--device goes with --backend torch only" in failing(*chosen, "--backend", "numpy")
    assert not (tmp_path / "run").exists()


def test_several_layers(text, tmp_path, capsys):
    arguments = ["--layers", 2, "--exact", "--order", 2, "--cell", "rnn", "--steps", 8]
    assert train(*SMALL, "--text", text, *arguments, "--out", tmp_path / "run") == 0
    said = capsys.readouterr().err
    assert "text: 2 layers, each a rnn of 8 units, density 1, exact snap-2" in said
    assert re.search(r"about [\d.e-]+ s a time step", said)


def test_directories_are_numbered_by_default(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert train(*SMALL, "--text", text, "--steps", 4) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["text-1", "text-2"]


def test_resume_needs_no_other_option(text, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(*SMALL, "--text", text, "--steps", 8, "--out", out) == 0
    assert train("--resume", "--out", out, "--steps", 16) == 0
    steps = [line.split(",")[0] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == ['{"step": 8', '{"step": 8', '{"step": 16', '{"step": 16']


def test_ctrl_c_says_where_and_exits_130(text, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "tritonsnap", "train", *SMALL, "--text", text, "--out", out]
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + 60
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not (metrics.exists() and metrics.stat().st_size):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert f"tritonsnap train --resume --out {out}" in errors
    assert (out / "checkpoint.npz").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--order", "0"),
        ("--layers", "0"),
        ("--density", "0"),
        ("--density", "1.5"),
        ("--density", "dense"),
        ("--hidden", "-3"),
        ("--influence-dtype", "int8"),
        ("--batch", "0"),
        ("--update-every", "0"),
        ("--learning-rate", "0"),
        ("--steps", "0"),
        ("--seconds", "-1"),
        ("--seed", "-1"),
        ("--method", "rtrl2"),
        ("--backend", "cupy"),
        ("--text", "/no/such/file"),
    ],
)
def test_bad_values_name_their_option(option, value, failing, tmp_path):
    assert option in failing("--out", tmp_path / "run", option, value)
    assert not (tmp_path / "run").exists()


def test_unknown_options_and_commands_are_refused(failing, capsys):
    assert "--colour" in failing("--colour")
    with pytest.raises(SystemExit) as end:
        main(["fly"])
    assert end.value.code == 2
    assert "fly" in capsys.readouterr().err


def test_a_text_that_is_no_text_is_refused(failing, tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe\x00" * 100)
    assert "not UTF-8" in failing("--text", path, "--out", tmp_path / "run")
    path.write_text("short")
    assert "--text" in failing("--text", path, "--out", tmp_path / "run")
    assert "--text" in failing("--text", tmp_path, "--out", tmp_path / "run")


def test_an_unwritable_directory_is_refused(failing, text, tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert "--out" in failing(*SMALL, "--text", text, "--out", file / "run")
    assert "--out" in failing(*SMALL, "--text", text, "--out", file)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_refused(failing, text, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "--out" in failing(*SMALL, "--text", text, "--out", tmp_path / "locked" / "run")


def test_checkpoints_that_do_not_fit_are_refused(failing, text, tmp_path, capsys):
    out = tmp_path / "run"
    assert "--resume needs --out" in failing("--resume")
    assert "--resume" in failing("--resume", "--out", out)
    assert train(*SMALL, "--text", text, "--steps", 4, "--out", out) == 0
    capsys.readouterr()
    assert "--out" in failing(*SMALL, "--text", text, "--out", out)
    message = failing("--resume", "--out", out, "--hidden", 9)
    assert "hidden is 8 there, 9 here" in message
    checkpoint = out / "checkpoint.npz"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    assert "damaged" in failing("--resume", "--out", out)


def test_a_backend_that_is_not_installed_names_its_command(failing, monkeypatch, tmp_path):
    find = importlib.import_module

    def missing(name, *rest):
        if name == "torch":
            raise ModuleNotFoundError(name="torch")
        return find(name, *rest)

    monkeypatch.setattr("tritonsnap.arrays.importlib.import_module", missing)
    message = failing("--backend", "torch", "--out", tmp_path / "run")
    assert "pip install 'tritonsnap[torch]'" in message


def test_numpy_needs_neither_torch_nor_jax(text, tmp_path):
    script = (
        "import sys\n"
        "from tritonsnap.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert not {'torch', 'jax', 'triton'} & sys.modules.keys()\n"
    )
    arguments = ["train", *SMALL, "--text", text, "--steps", "4", "--out", tmp_path / "run"]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as end:
        train("--help")
    assert end.value.code == 0
    text = capsys.readouterr().out
    for option in ("--task", "--text", "--backend", "--order", "--seconds", "--resume"):
        assert option in text
