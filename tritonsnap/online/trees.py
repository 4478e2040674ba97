"""Nested dicts, tuples, named tuples and lists of arrays, the same way for every library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` to the leaves of `tree` and the leaves of `others` at the same place.

    Dicts, tuples, named tuples and lists are nodes, None is an empty node, all else is a leaf.

    Raises
    ------
    ValueError
        If one of `others` has not the structure of `tree`.
    """
    if tree is None:
        return None
    if isinstance(tree, dict):
        for other in others:
            if not isinstance(other, dict) or other.keys() != tree.keys():
                raise ValueError(
                    f"expected a dict with the keys {sorted(tree)}, got {_name(other)}"
                )
        return {
            key: map_tree(function, value, *(other[key] for other in others))
            for key, value in tree.items()
        }
    if isinstance(tree, (tuple, list)):
        for other in others:
            if not isinstance(other, (tuple, list)) or len(other) != len(tree):
                raise ValueError(f"expected a sequence of {len(tree)}, got {_name(other)}")
        children = [map_tree(function, *values) for values in zip(tree, *others, strict=True)]
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    return function(tree, *others)


def add_trees(one: Any, other: Any) -> Any:
    """The sums of the leaves of two trees of one structure."""
    return map_tree(lambda a, b: a + b, one, other)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a tree, in order."""
    return [leaf for _, leaf in named_leaves(tree)]


def named_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree with their places, such as ``carry/state`` or ``0/kernel``."""
    if tree is None:
        return
    if isinstance(tree, dict):
        children: Any = tree.items()
    elif hasattr(tree, "_fields"):
        children = zip(tree._fields, tree, strict=True)
    elif isinstance(tree, (tuple, list)):
        children = enumerate(tree)
    else:
        yield prefix, tree
        return
    for key, child in children:
        yield from named_leaves(child, f"{prefix}/{key}" if prefix else str(key))


def _name(value: Any) -> str:
    return f"the keys {sorted(value)}" if isinstance(value, dict) else type(value).__name__
