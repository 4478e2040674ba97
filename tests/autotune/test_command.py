"""`python -m autotune`."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from tritonsnap.autotune.command import main
from tritonsnap.ops.kernel import declared_kernels
from tritonsnap.tuning import TARGETS, ConfigFile, Entry, Milliseconds, bucket_of

KERNEL = next(kernel for kernel in declared_kernels() if kernel.name == "csr_finish")
H200 = TARGETS[1]


def tuned(p50: float = 1.0, device=H200, source: str = KERNEL.source) -> ConfigFile:
    times = Milliseconds(p50, p50, p50)
    bucket = bucket_of(KERNEL.large[0])
    entry = Entry(bucket, "i32", "ieee", KERNEL.configs[0], times)
    return ConfigFile(KERNEL.name, source, device, {"triton": "3.9.0"}, (entry,))


def run(command: str, directory: Path, *arguments: str) -> int:
    return main([command, "--directory", str(directory), *arguments])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there to tune")
def test_tune_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tune", tmp_path) == 1
    assert capsys.readouterr().err == "tuning needs a CUDA or ROCm GPU, and torch sees none\n"
    assert not list(tmp_path.iterdir())


def test_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", tmp_path) == 0
    assert "no tuned configs" in capsys.readouterr().out
    tuned().write(tmp_path)
    tuned(device=TARGETS[0], source="old").write(tmp_path)
    (tmp_path / "nvidia-h200" / "torn.json").write_text("{")
    assert run("list", tmp_path) == 0
    stale, fresh, damaged = capsys.readouterr().out.splitlines()
    assert fresh.startswith("fresh    NVIDIA H200 (sm_90): csr_finish, 1 entries (i32)")
    assert stale.startswith("stale    NVIDIA A100")
    assert damaged.startswith("damaged")


def test_merge_keeps_the_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, first, second = tmp_path / "target", tmp_path / "first", tmp_path / "second"
    tuned(2.0).write(target)
    tuned(1.0).write(first)
    tuned(3.0).write(second)
    assert run("merge", target, str(first), str(second)) == 0
    path = ConfigFile.path(target, KERNEL.name, H200)
    assert ConfigFile.read(path) == tuned(1.0)


def test_merge_says_what_it_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, source = tmp_path / "target", tmp_path / "source"
    tuned(source="old").write(source)
    assert run("merge", target, str(source)) == 1
    assert "another version of the kernel" in capsys.readouterr().err
    assert not target.exists()


def test_prune_deletes_what_no_lookup_uses(tmp_path: Path) -> None:
    kept = tuned().write(tmp_path)
    stale = tuned(device=TARGETS[0], source="old").write(tmp_path)
    (tmp_path / "nvidia-h200" / "torn.json").write_text("{")
    good = tuned().entries[0]
    gone = replace(good, config={"num_warps": 3}, bucket={"num_rows": 30})
    mixed = replace(tuned(device=TARGETS[2]), entries=(good, gone)).write(tmp_path)
    assert run("prune", tmp_path) == 0
    assert sorted(tmp_path.rglob("*.json")) == sorted([kept, mixed])
    assert not stale.exists()
    assert ConfigFile.read(mixed).entries == (good,)


def test_unknown_kernel(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no kernel is named 'nothing'; there are: "):
        run("check", tmp_path, "--kernels", "nothing")


def test_python_dash_m(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autotune", "list", "--directory", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "no tuned configs" in done.stdout
