"""The house: which folder may import which, and who may know a framework."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tritonsnap"
ORDER = [
    {"checks", "console", "files"},
    {"arrays", "sparsity", "tuning"},
    {"plan", "formats"},
    {"ops"},
    {"jacobian", "autotune"},
    {"online", "kan"},
    {"numpy", "torch", "jax", "tritonsnap"},
    {"cli"},
    {"__main__"},
]
"""Folders and modules of the package, the lowest first; "tritonsnap" is the package itself."""
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
FRAMEWORKS = {"torch", "triton", "jax", "jaxlib", "jax_triton"}
FILES = sorted(PACKAGE.rglob("*.py"))


def place(path: Path) -> str:
    """The folder or module of a file, as `ORDER` has it."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "tritonsnap" if first == "__init__" else first


def imported(path: Path, *, when_loaded: bool = False) -> Iterator[str]:
    """The modules that a file imports, anywhere or only when it is loaded itself."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative name"
            yield node.module or ""
        elif when_loaded and (
            isinstance(node, (ast.FunctionDef, ast.Lambda)) or _for_types_only(node)
        ):
            continue
        pending.extend(ast.iter_child_nodes(node))


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def own(module: str) -> str | None:
    """The place of one of the package's modules."""
    parts = module.split(".")
    if parts[0] != "tritonsnap":
        return None
    return parts[1] if len(parts) > 1 else "tritonsnap"


def test_every_place_has_a_rank() -> None:
    assert {place(path) for path in FILES} == set(RANK)


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in FILES
        for module in imported(path)
        if (target := own(module)) is not None
        and target != place(path)
        and RANK[target] >= RANK[place(path)]
    ]
    assert not wrong


def test_sparsity_knows_no_framework() -> None:
    known = {m.split(".")[0] for p in (PACKAGE / "sparsity").glob("*.py") for m in imported(p)}
    assert not known & {*FRAMEWORKS, "scipy", "array_api_compat"}


@pytest.mark.parametrize(("one", "other"), [("torch", "jax"), ("jax", "torch")])
def test_what_loads_one_framework_does_not_load_the_other(one: str, other: str) -> None:
    both = [
        path.relative_to(PACKAGE)
        for path in FILES
        if {one, other} <= {module.split(".")[0] for module in imported(path, when_loaded=True)}
    ]
    assert not both


def test_what_loads_a_framework_is_named_after_it_or_after_its_kernels() -> None:
    """The others can be imported where no framework is installed."""
    names = ("torch", "jax", "xla", "triton", "kernels", "primitive", "launch", "device")
    loading = {
        path.stem
        for path in FILES
        if FRAMEWORKS & {module.split(".")[0] for module in imported(path, when_loaded=True)}
    }
    assert not [stem for stem in sorted(loading) if not any(name in stem for name in names)]
