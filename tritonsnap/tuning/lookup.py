"""Which config to launch a kernel with: tuned here, tuned elsewhere, or a sane default."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from tritonsnap.tuning.cache import CacheError, ConfigFile, Entry
from tritonsnap.tuning.device import Device

Config = Mapping[str, int]
"""Block sizes by argument name, and the launch options ``num_warps`` and ``num_stages``."""

Sizes = Mapping[str, int]
"""The sizes of a problem that its best config depends on."""


class Tunable(Hashable, Protocol):
    """What the lookup must know of a kernel (`tritonsnap.ops.kernel.Kernel` has it)."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def source(self) -> str: ...  # noqa: D102

    def accepts(self, config: Config, dtype: str, device: Device) -> bool: ...  # noqa: D102

    def default(self, sizes: Sizes, dtype: str, precision: str, device: Device) -> Config: ...  # noqa: D102


def shipped_directory() -> Path:
    """The caches that come with the package."""
    return Path(__file__).parent / "configs"


def user_directory() -> Path:
    """The user's caches: ``$TRITONSNAP_CONFIG_DIR``, or a folder of the user's cache directory."""
    if named := os.environ.get("TRITONSNAP_CONFIG_DIR"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tritonsnap" / "configs"


def bucket_of(sizes: Sizes) -> dict[str, int]:
    """The floor of the base-2 logarithm of each size; 0 for a size of 0."""
    return {name: max(size.bit_length() - 1, 0) for name, size in sizes.items()}


class Found(NamedTuple):
    """A config, and the file it is from; None for the kernel's default."""

    config: Config
    path: Path | None


def find_config(
    kernel: Tunable, sizes: Sizes, dtype: str, precision: str, device: Device
) -> Config:
    """Find the config to launch a kernel with.

    The first of: what an earlier call found, the user's cache and the shipped one for this very
    device, both for another device of its architecture, the kernel's default. In a file the
    nearest bucket of equal dtype and precision wins. A file that cannot be used is named in a
    warning, once, and passed over.

    Parameters
    ----------
    kernel : Kernel
        What is launched.
    sizes : dict of str to int
        The problem's sizes.
    dtype, precision : str
        As in `Entry`.
    device : Device
        Where it runs.
    """
    return locate_config(kernel, sizes, dtype, precision, device).config


def locate_config(
    kernel: Tunable, sizes: Sizes, dtype: str, precision: str, device: Device
) -> Found:
    """Find what `find_config` does, and say where it is from."""
    return _find(kernel, tuple(sorted(bucket_of(sizes).items())), dtype, precision, device)


@functools.cache
def _find(
    kernel: Tunable,
    bucket: tuple[tuple[str, int], ...],
    dtype: str,
    precision: str,
    device: Device,
) -> Found:
    wanted = dict(bucket)
    for path, file in _candidates(kernel, device, (user_directory(), shipped_directory())):
        usable = [
            entry
            for entry in file.entries
            if (entry.dtype, entry.precision) == (dtype, precision)
            and entry.bucket.keys() == wanted.keys()
            and kernel.accepts(entry.config, dtype, device)
        ]
        if usable:
            best = min(usable, key=lambda entry: (_distance(entry, wanted), entry.key))
            return Found(best.config, path)
    default = kernel.default({name: 2**log for name, log in bucket}, dtype, precision, device)
    return Found(default, None)


def forget() -> None:
    """Read the files again at the next lookup."""
    _find.cache_clear()
    _warned.clear()


def _distance(entry: Entry, wanted: Mapping[str, int]) -> int:
    return sum(abs(entry.bucket[name] - log) for name, log in wanted.items())


def _candidates(
    kernel: Tunable, device: Device, directories: tuple[Path, ...]
) -> Iterator[tuple[Path, ConfigFile]]:
    exact = [ConfigFile.path(directory, kernel.name, device) for directory in directories]
    others = [
        path
        for directory in directories
        for path in sorted(directory.glob(f"*/{kernel.name}.json"))
        if path not in exact
    ]
    for path in (*exact, *others):
        try:
            file = ConfigFile.read(path)
        except FileNotFoundError:
            continue
        except CacheError as error:
            _warn_once(path, str(error))
            continue
        if file.kernel != kernel.name:
            _warn_once(path, f"{path} holds configs of {file.kernel!r}")
        elif path in exact and file.device.name != device.name:
            _warn_once(path, f"{path} holds configs of {file.device.name!r}")
        elif file.device.arch != device.arch:
            continue
        elif file.source != kernel.source:
            _warn_once(path, f"{path} was tuned for another version of the kernel")
        else:
            for entry in file.entries:
                if not kernel.accepts(entry.config, entry.dtype, device):
                    _warn_once(path, f"{path} holds the unknown config {dict(entry.config)}")
            yield path, file


_warned: set[Path] = set()


def _warn_once(path: Path, reason: str) -> None:
    if path not in _warned:
        _warned.add(path)
        warnings.warn(f"tuned configs passed over: {reason}", RuntimeWarning, stacklevel=7)
