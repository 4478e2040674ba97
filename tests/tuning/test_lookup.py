"""Which config a lookup takes, whatever the files hold."""

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tritonsnap.tuning import (
    TARGETS,
    ConfigFile,
    Device,
    Entry,
    Milliseconds,
    bucket_of,
    find_config,
    lookup,
    user_directory,
)

A100, H200 = TARGETS[:2]
H100 = Device("NVIDIA H100 PCIe", "sm_90", 114)
DEFAULT, TUNED, OTHER = {"BLOCK": 64}, {"BLOCK": 128}, {"BLOCK": 256}


class FakeKernel:
    name = "fake"
    source = "0123"

    def accepts(self, config, dtype, device):
        return config in (TUNED, OTHER)

    def default(self, sizes, dtype, precision, device):
        return DEFAULT


KERNEL = FakeKernel()


def entry(config=TUNED, dtype="fp32", precision="ieee", p50=1.0, **bucket: int) -> Entry:
    return Entry(bucket or {"rows": 10}, dtype, precision, config, Milliseconds(p50, p50, p50))


def config_file(*entries: Entry, device=H200, source=KERNEL.source, kernel="fake") -> ConfigFile:
    return ConfigFile(kernel, source, device, {"triton": "3.9.0"}, entries)


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITONSNAP_CONFIG_DIR", str(tmp_path / "user"))
    lookup.forget()
    return tmp_path / "user"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lookup, "shipped_directory", lambda: tmp_path / "shipped")
    return tmp_path / "shipped"


def find(device=H200, dtype="fp32", precision="ieee", **sizes: int):
    return find_config(KERNEL, sizes or {"rows": 1024}, dtype, precision, device)


def test_default_without_any_file() -> None:
    assert find() == DEFAULT


def test_exact_device_then_architecture_then_default(user: Path) -> None:
    config_file(entry(OTHER), device=H100).write(user)
    assert find() == OTHER
    assert find(A100) == DEFAULT
    lookup.forget()
    config_file(entry(TUNED)).write(user)
    assert find() == TUNED


def test_user_before_shipped_and_exact_before_similar(user: Path, shipped: Path) -> None:
    config_file(entry(OTHER)).write(shipped)
    config_file(entry(TUNED), device=H100).write(user)
    assert find() == OTHER
    lookup.forget()
    config_file(entry(TUNED)).write(user)
    assert find() == TUNED


def test_found_once_and_remembered(user: Path) -> None:
    path = config_file(entry(TUNED)).write(user)
    assert find() == TUNED
    path.unlink()
    assert find() == TUNED


def test_nearest_bucket_of_equal_dtype_and_precision(user: Path) -> None:
    config_file(entry(TUNED, rows=10), entry(OTHER, rows=20), entry(OTHER, "fp64", rows=10)).write(
        user
    )
    assert find(rows=2**13) == TUNED
    assert find(rows=2**17) == OTHER
    assert find(rows=2**10, dtype="fp64") == OTHER
    assert find(dtype="bf16") == DEFAULT
    assert find(precision="tf32") == DEFAULT
    assert find(columns=1024) == DEFAULT


def test_bucket_is_the_logarithm() -> None:
    assert bucket_of({"a": 0, "b": 1, "c": 1023, "d": 1024}) == {"a": 0, "b": 0, "c": 9, "d": 10}


def test_user_directory(monkeypatch: pytest.MonkeyPatch, user: Path) -> None:
    assert user_directory() == user
    monkeypatch.delenv("TRITONSNAP_CONFIG_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert user_directory() == Path("/x/tritonsnap/configs")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_directory() == Path.home() / ".cache/tritonsnap/configs"


def edited(**changes: object) -> Callable[[dict], dict]:
    return lambda data: {**data, **changes}


def edited_entry(**changes: object) -> Callable[[dict], dict]:
    return lambda data: {**data, "entries": [{**data["entries"][0], **changes}]}


UNUSABLE = {
    "stale source": edited(source="4567"),
    "other kernel": edited(kernel="else"),
    "other device": edited(device=dataclasses.asdict(A100)),
    "unknown schema": edited(schema="tritonsnap.configs/2"),
    "unknown field": edited(comment="new"),
    "unknown field of an entry": edited_entry(comment="new"),
    "unknown config": edited_entry(config={"BLOCK": 100}),
    "config that is no number": edited_entry(config={"BLOCK": True}),
    "time that is none": edited_entry(milliseconds={"p20": 1, "p50": float("nan"), "p80": 1}),
    "missing field": lambda data: {name: data[name] for name in data if name != "source"},
    "entries that are none": edited(entries={"rows": 1}),
    "entry that is none": edited(entries=[3]),
    "device that is none": edited(device="NVIDIA H200"),
    "version that is none": edited(versions={"triton": 3}),
    "list": lambda data: [data],
    "number": lambda data: 3,
}


@pytest.mark.parametrize("edit", UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_file_warns_once_and_is_passed_over(
    edit: Callable[[dict], object], user: Path, shipped: Path
) -> None:
    config_file(entry(OTHER)).write(shipped)
    path = config_file(entry(TUNED)).write(user)
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.warns(RuntimeWarning, match="tuned configs passed over") as caught:
        found = find(), find(rows=2)
    assert found == (OTHER, OTHER)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"{}", b"null"],
    ids=["empty", "truncated", "binary", "deep", "nothing", "null"],
)
def test_damaged_file_warns_and_is_passed_over(content: bytes, user: Path) -> None:
    path = config_file(entry(TUNED)).write(user)
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="tuned configs passed over"):
        assert find() == DEFAULT


def test_every_truncation_is_passed_over(user: Path) -> None:
    path = config_file(entry(TUNED)).write(user)
    content = path.read_bytes()
    for length in range(0, len(content) - 2, 7):
        path.write_bytes(content[:length])
        lookup.forget()
        with pytest.warns(RuntimeWarning):
            assert find() == DEFAULT


def test_folder_in_place_of_the_file(user: Path) -> None:
    ConfigFile.path(user, "fake", H200).mkdir(parents=True)
    with pytest.warns(RuntimeWarning):
        assert find() == DEFAULT


def test_good_entry_beside_an_unknown_config(user: Path) -> None:
    config_file(entry({"BLOCK": 3}), entry(TUNED, rows=20)).write(user)
    with pytest.warns(RuntimeWarning, match="unknown config"):
        assert find() == TUNED


def test_good_files_do_not_warn(user: Path) -> None:
    config_file(entry(TUNED)).write(user)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find() == TUNED
