"""The file of tuned configs: what is written is read, and concurrent writers lose nothing."""

import json
import subprocess
import sys
from pathlib import Path

from tritonsnap.tuning import TARGETS, ConfigFile, Entry, Milliseconds

H200 = TARGETS[1]


def entry(log: int, p50: float = 1.0, block: int = 128) -> Entry:
    times = Milliseconds(p50 / 2, p50, p50 * 2)
    return Entry({"rows": log, "columns": 3}, "fp32", "ieee", {"BLOCK": block}, times)


def config_file(*entries: Entry, source: str = "0123") -> ConfigFile:
    return ConfigFile("fake", source, H200, {"triton": "3.9.0"}, entries)


def test_round_trip(tmp_path: Path) -> None:
    file = config_file(entry(3), entry(4))
    path = file.write(tmp_path)
    assert path == tmp_path / "nvidia-h200" / "fake.json"
    assert ConfigFile.read(path) == file


def test_file_is_sorted_indented_json(tmp_path: Path) -> None:
    path = config_file(entry(3)).write(tmp_path)
    text = path.read_text()
    data = json.loads(text)
    assert text == json.dumps(data, indent=2, sort_keys=True) + "\n"
    assert data["device"] == {"name": "NVIDIA H200", "arch": "sm_90", "units": 132}
    assert data["entries"][0]["milliseconds"] == {"p20": 0.5, "p50": 1.0, "p80": 2.0}


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    config_file(entry(3)).add_to(tmp_path / "a")
    config_file(entry(4)).add_to(tmp_path / "a")
    config_file(entry(4)).add_to(tmp_path / "b")
    path = config_file(entry(3)).add_to(tmp_path / "b")
    assert path.read_bytes() == (tmp_path / "a" / "nvidia-h200" / "fake.json").read_bytes()


def test_new_entry_replaces_the_old_one(tmp_path: Path) -> None:
    config_file(entry(3, 1.0)).add_to(tmp_path)
    path = config_file(entry(3, 9.0)).add_to(tmp_path)
    assert ConfigFile.read(path).entries == (entry(3, 9.0),)


def test_faster_entry_stays_when_merging(tmp_path: Path) -> None:
    for p50 in (2.0, 1.0, 3.0):
        path = config_file(entry(3, p50)).add_to(tmp_path, keep_faster=True)
    assert ConfigFile.read(path).entries == (entry(3, 1.0),)


def test_entries_of_another_source_and_damaged_files_go(tmp_path: Path) -> None:
    config_file(entry(3), source="old").add_to(tmp_path)
    path = config_file(entry(4)).add_to(tmp_path)
    assert ConfigFile.read(path).entries == (entry(4),)
    path.write_text("{")
    config_file(entry(5)).add_to(tmp_path)
    assert ConfigFile.read(path).entries == (entry(5),)


WRITER = """
import sys
from pathlib import Path
from tritonsnap.tuning import TARGETS, ConfigFile, Entry, Milliseconds

directory, first = Path(sys.argv[1]), int(sys.argv[2])
for log in range(first, 60, 2):
    times = Milliseconds(1.0, 1.0, 1.0)
    entry = Entry({"rows": log}, "fp32", "ieee", {"BLOCK": 128}, times)
    path = ConfigFile("fake", "0123", TARGETS[1], {}, (entry,)).add_to(directory)
    ConfigFile.read(path)
"""


def test_two_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(first)])
        for first in (0, 1)
    ]
    path = ConfigFile.path(tmp_path, "fake", H200)
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            ConfigFile.read(path)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert sorted(item.bucket["rows"] for item in ConfigFile.read(path).entries) == list(range(60))
    assert [item.name for item in path.parent.iterdir()] == ["fake.json"]
