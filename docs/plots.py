"""A hook of mkdocs: pages show the benchmarks' plots by their paths in the repository."""

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the plots to the site."""
    root = Path(config.config_file_path).parent
    for path in sorted((root / "benchmarks" / "results").glob("*/*.png")):
        name = path.relative_to(root).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links out of the folder of the pages into links within the site."""
    return markdown.replace("](../benchmarks/results/", "](benchmarks/results/")
