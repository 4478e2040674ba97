"""Compile every config that a launch may use, and reject those that spill. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from tritonsnap.autotune.caches import read_all
from tritonsnap.autotune.compile import compile_kernel, faults_of
from tritonsnap.ops.kernel import Kernel
from tritonsnap.tuning import TARGETS, CacheError, Config, ConfigFile, Device


class Build(NamedTuple):
    """One kernel to compile."""

    kernel: Kernel
    dtype: str
    precision: str
    config: Config
    device: Device

    def __str__(self) -> str:
        """One line, as in a table of failures and in a test's name."""
        config = " ".join(f"{name}={value}" for name, value in self.config.items())
        return f"{self.kernel.name} {self.dtype} {self.precision} {config} on {self.device.arch}"


def default_builds(kernel: Kernel) -> Iterator[Build]:
    """Every default config of a kernel, for each of `TARGETS`."""
    for device in TARGETS:
        for dtype in kernel.dtypes:
            for precision in kernel.precisions:
                seen: list[Config] = []
                for sizes in (*kernel.small, *kernel.large):
                    config = kernel.default(sizes, dtype, precision, device)
                    if config not in seen:
                        seen.append(config)
                        yield Build(kernel, dtype, precision, config, device)


def tuned_builds(kernel: Kernel, file: ConfigFile) -> Iterator[Build]:
    """Every config of a file that is not stale."""
    if (file.kernel, file.source) == (kernel.name, kernel.source):
        seen: list[tuple[str, str, Config]] = []
        for entry in file.entries:
            build = (entry.dtype, entry.precision, entry.config)
            if build not in seen:
                seen.append(build)
                yield Build(kernel, *build, file.device)


def check(kernels: Iterable[Kernel], directories: Iterable[Path]) -> list[str]:
    """Compile the default configs and those of the caches.

    Parameters
    ----------
    kernels : iterable of Kernel
        What to compile.
    directories : iterable of Path
        Where the caches are.

    Returns
    -------
    list of str
        What is wrong, a line each.
    """
    failures: list[str] = []
    files: list[ConfigFile] = []
    for _, file in (item for directory in directories for item in read_all(directory)):
        if isinstance(file, CacheError):
            failures.append(str(file))
        else:
            files.append(file)
    builds = [
        build
        for kernel in kernels
        for source in (default_builds(kernel), *(tuned_builds(kernel, file) for file in files))
        for build in source
    ]
    for build in tqdm(builds, desc="compile", unit="config"):
        try:
            report = compile_kernel(*build)
        except Exception as error:
            failures.append(f"{build}: does not compile: {error}")
            continue
        failures += [f"{build}: {fault}" for fault in faults_of(report, build.device)]
    return failures
