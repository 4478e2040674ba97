"""Compile every config that a launch may use, and reject those that spill. Needs no GPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from tritonsnap.autotune.caches import read_all
from tritonsnap.autotune.compile import Report, compile_kernel, faults_of
from tritonsnap.ops.kernel import Kernel, declared_kernels
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
            # of the others every precision is the full one
            for precision in kernel.precisions if dtype == "fp32" else ("ieee",):
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


def compile_all(builds: Sequence[Build]) -> Iterator[Report | Exception]:
    """What compiling each of `builds` gives, in order, on all processors.

    Their kernels are those of `declared_kernels`.
    """
    # a process takes as long to start as so many builds to compile
    workers = min(os.cpu_count() or 1, len(builds) // 16)
    parts = ([build.kernel.name for build in builds], *list(zip(*builds, strict=True))[1:])
    if workers < 2:
        yield from map(_compile, *parts)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(_compile, *parts)


def _compile(
    name: str, dtype: str, precision: str, config: Config, device: Device
) -> Report | Exception:
    try:
        return compile_kernel(_kernels()[name], dtype, precision, config, device)
    except Exception as error:
        return RuntimeError(str(error))  # the compiler's own may not pass between processes


@functools.cache
def _kernels() -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in declared_kernels()}


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
    reports = tqdm(
        compile_all(builds), desc="compile", unit="config", total=len(builds), disable=None
    )
    for build, report in zip(builds, reports, strict=True):
        if isinstance(report, Exception):
            failures.append(f"{build}: does not compile: {report}")
        else:
            failures += [f"{build}: {fault}" for fault in faults_of(report, build.device)]
    return failures
