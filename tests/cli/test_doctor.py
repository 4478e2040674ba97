import importlib.metadata
import importlib.util
import os
from typing import NamedTuple

import pytest

from tritonsnap import masked_dsmm
from tritonsnap.cli import doctor, main
from tritonsnap.tuning import TARGETS, ConfigFile, Entry, Milliseconds, bucket_of
from tritonsnap.tuning.lookup import forget

H200 = TARGETS[1]


@pytest.fixture
def examined(capsys):
    """Run the command and return its exit code and its sections by title."""

    def run():
        code = main(["doctor"])
        head, *sections = capsys.readouterr().out.split("\n\n")
        return code, head, {title: lines for title, *lines in map(str.splitlines, sections)}

    return run


def test_it_names_versions_and_tries_every_installed_library(examined):
    code, head, sections = examined()
    assert code == 0
    assert head.startswith("tritonsnap 0.")
    assert list(sections) == ["packages", "backends", "launch configs", "what to do"]
    assert sections["packages"][0].split() == ["numpy", importlib.metadata.version("numpy")]
    tried = [line.split()[0] for line in sections["backends"]]
    assert tried == [n for n in ("numpy", "torch", "jax") if importlib.util.find_spec(n)]
    assert all("works on" in line for line in sections["backends"])


def test_what_is_missing_comes_with_the_command_that_installs_it(examined, monkeypatch):
    def version(distribution):
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, _, sections = examined()
    assert code == 0
    assert all(line.endswith("not installed") for line in sections["packages"])
    assert "  for plots: pip install 'tritonsnap[plots]'" in sections["what to do"]


def test_a_broken_library_is_told_and_fails(examined, monkeypatch):
    def broken(d, x, plan):
        raise OSError("libfoo.so: no such file\nsecond line")

    monkeypatch.setattr(doctor.ts, "masked_dsmm", broken)
    code, _, sections = examined()
    assert code == 1
    assert sections["backends"][0].endswith("does not work: libfoo.so: no such file")
    assert any("repair or reinstall numpy" in line for line in sections["what to do"])


def test_wrong_values_are_no_success(monkeypatch):
    monkeypatch.setattr(doctor.ts, "masked_dsmm", lambda *given: masked_dsmm(*given) + 1)
    with pytest.raises(ArithmeticError, match="wrong values"):
        doctor.compute_somewhere("numpy")


def test_a_gpu_that_a_library_does_not_see_is_told(monkeypatch):
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidiactl")
    advice = list(doctor.advice_on_gpus({"numpy": "cpu", "torch": "cuda:0", "jax": "TFRT_CPU_0"}))
    assert advice == ["jax does not see the NVIDIA GPU: pip install 'jax[cuda13]'"]
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert not list(doctor.advice_on_gpus({"torch": "cpu", "jax": "cpu:0"}))


def test_the_gpu_is_that_of_torch_or_else_of_jax(monkeypatch):
    class Gpu(NamedTuple):
        platform: str = "gpu"
        compute_capability: str = "9.0"
        device_kind: str = "NVIDIA H200"
        core_count: int = 132

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert doctor.gpu_at_hand({"numpy": "cpu", "jax": Gpu()}) == H200
    amd = Gpu(compute_capability="gfx942:sramecc+", device_kind="AMD Instinct MI300X")
    assert doctor.gpu_at_hand({"jax": amd}).arch == "gfx942"
    assert doctor.gpu_at_hand({"jax": Gpu(platform="cpu")}) is None
    assert doctor.gpu_at_hand({"numpy": "cpu"}) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert doctor.gpu_at_hand({"jax": Gpu()}) is None


def test_configs_come_with_their_origin(tmp_path, monkeypatch, examined):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    from tritonsnap.ops.kernel import declared_kernels

    monkeypatch.setenv("TRITONSNAP_CONFIG_DIR", str(tmp_path))
    kernel = next(k for k in declared_kernels() if "fp32" in k.dtypes and len(k.configs) > 1)
    config = next(c for c in kernel.configs if kernel.accepts(c, "fp32", H200))
    bucket = bucket_of(kernel.large[0])
    entry = Entry(bucket, "fp32", kernel.precisions[0], config, Milliseconds(1.0, 1.0, 1.0))
    forget()
    ConfigFile(kernel.name, kernel.source, H200, {}, (entry,)).write(tmp_path)
    monkeypatch.setattr(doctor, "gpu_at_hand", lambda devices: H200)
    _, _, sections = examined()
    lines = {line.split()[0]: line for line in sections["launch configs"]}
    assert f"(tuned, {tmp_path}" in lines[kernel.name]
    assert all(f"{name} {value}" in lines[kernel.name] for name, value in config.items())
    others = [lines[k.name] for k in declared_kernels() if k is not kernel]
    assert all(line.endswith("(default)") for line in others)
    # a damaged file is passed over, and named in what to do
    forget()
    ConfigFile.path(tmp_path, kernel.name, H200).write_text("{")
    _, _, sections = examined()
    assert any("tuned configs passed over" in line for line in sections["what to do"])
    forget()
