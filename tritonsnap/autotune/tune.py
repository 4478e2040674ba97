"""Time every config of a kernel on the GPU at hand and keep the best of each size."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from tritonsnap.autotune.compile import compile_kernel, faults_of
from tritonsnap.autotune.runner import Runner, WrongResultError, verify
from tritonsnap.ops.kernel import Kernel
from tritonsnap.tuning import (
    CacheError,
    Config,
    ConfigFile,
    Device,
    Entry,
    Sizes,
    bucket_of,
)


class Task(NamedTuple):
    """One entry to find."""

    kernel: Kernel
    sizes: Sizes
    dtype: str
    precision: str


def usable(kernel: Kernel, dtype: str, precision: str, config: Config, device: Device) -> bool:
    """Whether a config compiles for a device, without spills and within its shared memory."""
    try:
        report = compile_kernel(kernel, dtype, precision, config, device)
    except Exception:  # Triton's compiler raises what it likes; such a config is none to use
        return False
    return not faults_of(report, device)


def tune(
    kernels: Iterable[Kernel],
    runner: Runner,
    directory: Path,
    is_usable: Callable[[Kernel, str, str, Config, Device], bool] = usable,
) -> list[str]:
    """Find the best config of every kernel, size, dtype and precision, and write each at once.

    Sizes that the directory has fresh entries for are passed over, so an interrupted run goes on
    where it was.

    Parameters
    ----------
    kernels : iterable of Kernel
        What to tune.
    runner : Runner
        Runs and times kernels.
    directory : Path
        Where the entries go.
    is_usable : callable
        Tells before a config is run whether it may be.

    Returns
    -------
    list of str
        Configs whose results were wrong, a line each; none of them is kept.
    """
    wrong: list[str] = []
    tasks = [task for kernel in kernels for task in _missing(kernel, runner.device, directory)]
    for task in tqdm(tasks, desc=f"tune for {runner.device.name}", unit="entry", disable=None):
        entry = _best(task, runner, is_usable, wrong)
        if entry is not None:
            file = ConfigFile(
                task.kernel.name, task.kernel.source, runner.device, _versions(), (entry,)
            )
            file.add_to(directory)
    return wrong


def _missing(kernel: Kernel, device: Device, directory: Path) -> Iterator[Task]:
    try:
        file = ConfigFile.read(ConfigFile.path(directory, kernel.name, device))
        done = {entry.key for entry in file.entries} if file.source == kernel.source else set()
    except (FileNotFoundError, CacheError):
        done = set()
    for sizes in kernel.large:
        bucket = tuple(sorted(bucket_of(sizes).items()))
        for dtype in kernel.dtypes:
            for precision in kernel.precisions:
                if (dtype, precision, bucket) not in done:
                    yield Task(kernel, sizes, dtype, precision)


def _best(
    task: Task,
    runner: Runner,
    is_usable: Callable[[Kernel, str, str, Config, Device], bool],
    wrong: list[str],
) -> Entry | None:
    kernel, sizes, dtype, precision = task
    problem = kernel.problem(**sizes)
    expected = runner.expected(kernel, problem, dtype)
    best: Entry | None = None
    for config in kernel.configs:
        if not is_usable(kernel, dtype, precision, config, runner.device):
            continue
        try:
            verify(runner, kernel, problem, config, dtype, precision, expected)
        except WrongResultError as error:
            wrong.append(str(error))
            continue
        times = runner.time(kernel, problem, config, dtype, precision)
        if best is None or times.p50 < best.milliseconds.p50:
            best = Entry(bucket_of(sizes), dtype, precision, config, times)
    return best


def _versions() -> dict[str, str]:
    return {
        name: importlib.import_module(name).__version__
        for name in ("tritonsnap", "torch", "triton")
        if importlib.util.find_spec(name) is not None
    }
