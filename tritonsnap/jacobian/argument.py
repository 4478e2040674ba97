"""`Argument`: a call of a function and the arrays to differentiate in. No framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Argument(ABC):
    """A call of `f`, with the arguments to differentiate in flattened to named arrays.

    Parameters
    ----------
    f, args, kwargs
        The call.
    argnums
        Which arguments to differentiate in, counted from the front.
    has_aux
        Whether `f` returns ``(output, aux)``.
    tree
        The tree of these arguments.
    leaves
        Its leaves by path.
    values
        The arrays to differentiate in by path: of a sparse leaf, its stored values.
    """

    f: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    argnums: int | tuple[int, ...]
    has_aux: bool
    tree: Any
    leaves: Mapping[str, Any]
    values: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        argnums: int | Sequence[int],
        has_aux: bool,
    ) -> Self:
        """Flatten the arguments that `argnums` names."""
        numbers = argument_numbers(argnums, len(args))
        if isinstance(argnums, int):
            return cls(f, args, kwargs, numbers[0], has_aux, *cls._flatten(args[numbers[0]]))
        selected = tuple(args[number] for number in numbers)
        return cls(f, args, kwargs, numbers, has_aux, *cls._flatten(selected))

    @classmethod
    @abstractmethod
    def _flatten(cls, selected: Any) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
        """Its tree, leaves and values."""

    @abstractmethod
    def _join(self, leaves: list[Any]) -> Any:
        """The tree with these leaves."""

    @abstractmethod
    def _with_values(self, path: str, values: Any) -> Any:
        """A leaf with other values."""

    def unflatten(self, leaves: Mapping[str, Any]) -> Any:
        """A tree like the argument, with some leaves replaced."""
        return self._join([leaves.get(path, leaf) for path, leaf in self.leaves.items()])

    def call(self, changed: Mapping[str, Any]) -> tuple[Any, Any]:
        """Output and aux of `f` with some of the values changed."""
        selected = self.unflatten(
            {path: self._with_values(path, values) for path, values in changed.items()}
        )
        args = list(self.args)
        if isinstance(self.argnums, int):
            args[self.argnums] = selected
        else:
            for number, argument in zip(self.argnums, selected, strict=True):
                args[number] = argument
        result = self.f(*args, **self.kwargs)
        if not self.has_aux:
            return result, None
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError(
                f"`f` must return its output and one thing more where `has_aux` is True, "
                f"got {type(result).__name__}"
            )
        output, aux = result
        return output, aux


def argument_numbers(argnums: int | Sequence[int], num_args: int) -> tuple[int, ...]:
    """Positions of the arguments to differentiate in, counted from the front.

    Raises
    ------
    TypeError
        If `argnums` is no integer or sequence of integers.
    ValueError
        If a number is out of range or appears twice.
    """
    if not isinstance(argnums, (int, Sequence)) or isinstance(argnums, (bool, str)):
        raise TypeError(f"`argnums` must be an integer or several, got {argnums!r}")
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not numbers or not all(isinstance(number, int) for number in numbers):
        raise TypeError(f"`argnums` must be an integer or several, got {argnums!r}")
    if any(not -num_args <= number < num_args for number in numbers):
        raise ValueError(f"`argnums` is {argnums!r}, but `f` got {num_args} positional arguments")
    positive = tuple(number % num_args for number in numbers)
    if len(set(positive)) != len(positive):
        raise ValueError(f"`argnums` names an argument twice: {argnums!r}")
    return positive
