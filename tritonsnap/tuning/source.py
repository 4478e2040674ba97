"""A kernel's source as a hash that only its meaning changes."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from typing import Any


def source_hash(function: Any) -> str:
    """Hash a Triton kernel and the Triton functions that it calls.

    Line numbers, comments, docstrings, decorators and layout leave the hash as it is.

    Parameters
    ----------
    function : triton.JITFunction
        The kernel; a plain Python function works too.
    """
    sources: dict[str, str] = {}
    _collect(function, sources)
    text = "\n".join(sources[name] for name in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _collect(function: Any, sources: dict[str, str]) -> None:
    python = getattr(function, "fn", function)
    name = f"{python.__module__}.{python.__qualname__}"
    if name in sources:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(python))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:] or [ast.Pass()]
    sources[name] = ast.unparse(tree)
    names = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
    for used in (python.__globals__.get(name) for name in names):
        if callable(getattr(used, "fn", None)) and hasattr(used, "arg_names"):
            _collect(used, sources)
