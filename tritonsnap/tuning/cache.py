"""The file of tuned configs of one kernel on one device: readable JSON, checked when read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from tritonsnap.files import locked, write_atomically
from tritonsnap.tuning.device import Device

SCHEMA = "tritonsnap.configs/1"


class CacheError(ValueError):
    """A file of tuned configs that cannot be used, and why."""


class Milliseconds(NamedTuple):
    """The 20 %, 50 % and 80 % quantiles of a config's time."""

    p20: float
    p50: float
    p80: float


@dataclass(frozen=True)
class Entry:
    """The best config of one bucket of sizes.

    Parameters
    ----------
    bucket : dict of str to int
        The floor of the base-2 logarithm of each size (see `bucket_of`).
    dtype : str
        ``"fp32"``, ``"i32"`` and so on.
    precision : str
        ``"ieee"``, ``"tf32x3"`` or ``"tf32"``.
    config : dict of str to int
        Block sizes, ``num_warps``, ``num_stages``.
    milliseconds : Milliseconds
        What it took.
    """

    bucket: Mapping[str, int]
    dtype: str
    precision: str
    config: Mapping[str, int]
    milliseconds: Milliseconds

    @property
    def key(self) -> tuple[str, str, tuple[tuple[str, int], ...]]:
        """What an entry is the best config of; two entries of a file never share it."""
        return self.dtype, self.precision, tuple(sorted(self.bucket.items()))


@dataclass(frozen=True)
class ConfigFile:
    """What one file holds.

    Parameters
    ----------
    kernel : str
        The kernel's name.
    source : str
        `source_hash` of the kernel that was tuned.
    device : Device
        Where it was tuned.
    versions : dict of str to str
        Of the software that it was tuned with.
    entries : tuple of Entry
        Sorted by dtype, precision and bucket.
    """

    kernel: str
    source: str
    device: Device
    versions: Mapping[str, str]
    entries: tuple[Entry, ...] = field(default=())

    @staticmethod
    def path(directory: Path, kernel: str, device: Device) -> Path:
        """Where a directory of caches keeps the file."""
        return directory / device.slug / f"{kernel}.json"

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Read a file.

        Raises
        ------
        FileNotFoundError
            If there is none.
        CacheError
            If it is damaged, not such a file, or holds a field that is not known.
        """
        try:
            return cls._parse(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise CacheError(f"{path}: {error}") from error

    @classmethod
    def _parse(cls, data: Any) -> ConfigFile:
        names = {"schema", *(item.name for item in fields(cls))}
        header = _object(data, "the file", names)
        if header["schema"] != SCHEMA:
            raise ValueError(f"`schema` must be {SCHEMA!r}, got {header['schema']!r}")
        device = _object(header["device"], "`device`", {"name", "arch", "units"})
        if not isinstance(header["entries"], list):
            raise ValueError("`entries` must be a list")
        return cls(
            kernel=_text(header["kernel"], "`kernel`"),
            source=_text(header["source"], "`source`"),
            device=Device(
                _text(device["name"], "`name`"),
                _text(device["arch"], "`arch`"),
                _integer(device["units"], "`units`"),
            ),
            versions={
                name: _text(version, "a version")
                for name, version in _object(header["versions"], "`versions`").items()
            },
            entries=tuple(_parse_entry(entry) for entry in header["entries"]),
        )

    def with_entries(self, entries: Iterable[Entry]) -> ConfigFile:
        """The same file with other entries, sorted; of those with equal keys the last."""
        by_key = {entry.key: entry for entry in entries}
        return replace(self, entries=tuple(by_key[key] for key in sorted(by_key)))

    def write(self, directory: Path) -> Path:
        """Replace the file in `directory`; a reader sees the old content or all of the new."""
        path = self.path(directory, self.kernel, self.device)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {"schema": SCHEMA, **asdict(self)}
        for entry, source in zip(data["entries"], self.entries, strict=True):
            entry["milliseconds"] = source.milliseconds._asdict()
        write_atomically(path, json.dumps(data, indent=2, sort_keys=True) + "\n")
        return path

    def add_to(self, directory: Path, *, keep_faster: bool = False) -> Path:
        """Write these entries beside those already there that were tuned on the same source.

        Processes that do so at once wait for each other, so no entry is lost.

        Parameters
        ----------
        directory : Path
            The directory of caches.
        keep_faster : bool
            Of two entries with equal keys keep the faster, not the one of this file.
        """
        path = self.path(directory, self.kernel, self.device)
        with locked(path.parent):
            try:
                found = self.read(path)
                old = found.entries if found.source == self.source else ()
            except (FileNotFoundError, CacheError):
                old = ()
            both = (*old, *self.entries)
            if keep_faster:
                both = tuple(sorted(both, key=lambda entry: -entry.milliseconds.p50))
            return self.with_entries(both).write(directory)


def _parse_entry(data: Any) -> Entry:
    entry = _object(data, "an entry", {item.name for item in fields(Entry)})
    times = _object(entry["milliseconds"], "`milliseconds`", set(Milliseconds._fields))
    for name, time in times.items():
        if isinstance(time, bool) or not isinstance(time, (int, float)) or not time >= 0:
            raise ValueError(f"`{name}` must be a time in milliseconds, got {time!r}")
    return Entry(
        bucket={
            name: _integer(size, f"`{name}`")
            for name, size in _object(entry["bucket"], "`bucket`").items()
        },
        dtype=_text(entry["dtype"], "`dtype`"),
        precision=_text(entry["precision"], "`precision`"),
        config={
            name: _integer(value, f"`{name}`")
            for name, value in _object(entry["config"], "`config`").items()
        },
        milliseconds=Milliseconds(**times),
    )


def _object(value: Any, what: str, names: set[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, got {type(value).__name__}")
    if names is not None and set(value) != names:
        missing, unknown = sorted(names - set(value)), sorted(set(value) - names)
        raise ValueError(f"{what} lacks {missing} and has the unknown fields {unknown}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a string, got {value!r}")
    return value


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} must be an integer, got {value!r}")
    return value
