"""List, merge and prune directories of tuned configs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tritonsnap.ops.kernel import Kernel
from tritonsnap.tuning import CacheError, ConfigFile


def read_all(directory: Path) -> Iterator[tuple[Path, ConfigFile | CacheError]]:
    """Every file of a directory, or why it cannot be read."""
    for path in sorted(directory.glob("*/*.json")):
        try:
            yield path, ConfigFile.read(path)
        except CacheError as error:
            yield path, error


def describe(directory: Path, kernels: Iterable[Kernel]) -> list[str]:
    """A line for each file: what it holds, and whether it is used."""
    sources = {kernel.name: kernel.source for kernel in kernels}
    lines = []
    for path, file in read_all(directory):
        if isinstance(file, CacheError):
            lines.append(f"damaged  {file}")
            continue
        state = "fresh" if sources.get(file.kernel) == file.source else "stale"
        kinds = ", ".join(sorted({entry.dtype for entry in file.entries}))
        lines.append(
            f"{state:8} {file.device.name} ({file.device.arch}): {file.kernel}, "
            f"{len(file.entries)} entries ({kinds})  {path}"
        )
    return lines


def merge(sources: Iterable[Path], directory: Path, kernels: Iterable[Kernel]) -> list[str]:
    """Add the fresh entries of other directories; of two for one size the faster stays.

    Returns
    -------
    list of str
        A line for each file that was passed over, and why.
    """
    hashes = {kernel.name: kernel.source for kernel in kernels}
    passed_over = []
    for path, file in (item for source in sources for item in read_all(source)):
        if isinstance(file, CacheError):
            passed_over.append(str(file))
        elif hashes.get(file.kernel) != file.source:
            passed_over.append(f"{path} was tuned for another version of the kernel")
        else:
            file.add_to(directory, keep_faster=True)
    return passed_over


def prune(directory: Path, kernels: Iterable[Kernel]) -> list[Path]:
    """Delete the files that no lookup uses: damaged ones and those of other kernel versions.

    Entries whose config the kernel no longer has are taken out of the files that stay.

    Returns
    -------
    list of Path
        What was deleted or rewritten.
    """
    known = {kernel.name: kernel for kernel in kernels}
    changed = []
    for path, file in read_all(directory):
        if isinstance(file, CacheError):
            path.unlink()
            changed.append(path)
            continue
        kernel = known.get(file.kernel)
        if kernel is None or kernel.source != file.source:
            path.unlink()
            changed.append(path)
            continue
        kept = tuple(
            entry
            for entry in file.entries
            if kernel.accepts(entry.config, entry.dtype, file.device)
        )
        if len(kept) < len(file.entries):
            file.with_entries(kept).write(directory)
            changed.append(path)
    return changed
