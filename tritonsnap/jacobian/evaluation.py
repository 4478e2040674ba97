"""A Jacobian from passes and gathers, in whichever framework makes the passes. No framework."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tritonsnap.checks import check_choice, check_flag, check_instance, check_integer
from tritonsnap.jacobian.argument import Argument
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.jacobian.rules import Kind, Rules
from tritonsnap.sparsity.compression import Projection

AnyArgument = TypeVar("AnyArgument", bound=Argument)


class Passes(ABC, Generic[AnyArgument]):
    """What a framework brings: VJPs by row color, JVPs by column color, and its arrays.

    Attributes
    ----------
    argument
        Its kind of `Argument`.
    sparse
        The name of the format that is its sparse matrix.
    """

    argument: type[AnyArgument]
    sparse: ClassVar[str]

    @abstractmethod
    def kind_of(self, value: Any) -> Kind:
        """Whether an array is integer (or bool), real or complex."""

    @abstractmethod
    def size_of(self, value: Any) -> int:
        """How many entries an array has."""

    @abstractmethod
    def cast(self, array: Any, dtype: Any) -> Any:
        """The array in another dtype."""

    @abstractmethod
    def zeros(self, size: int, like: Any) -> Any:
        """Zeros of the dtype of a tree of arrays."""

    @abstractmethod
    def join(self, parts: Sequence[Any]) -> Any:
        """Arrays flattened one after the other, as one row."""

    @abstractmethod
    def gather(self, compressed: Any, leaf: Projection) -> Any:
        """The op `gather_compressed`."""

    def local(self, projection: JacobianProjection, argument: AnyArgument) -> JacobianProjection:
        """The projection where the argument is."""
        return projection

    @abstractmethod
    def check_output(self, projection: JacobianProjection, output: Any, rules: Rules) -> None:
        """Raise unless the output has the size of the masks, and a dtype that the rules allow."""

    @abstractmethod
    def pull(
        self,
        projection: JacobianProjection,
        argument: AnyArgument,
        paths: Sequence[str],
        chunk_size: int | None,
        rules: Rules,
    ) -> tuple[dict[str, Any], Any, Any]:
        """One VJP per row color in all leaves of a group at once, ``[colors, p]`` each.

        And the output of `f`, checked, and its aux.
        """

    @abstractmethod
    def push(
        self,
        leaf: Projection,
        argument: AnyArgument,
        path: str,
        chunk_size: int | None,
        rules: Rules,
    ) -> Any:
        """One JVP per column color: ``[colors, m]``."""

    @abstractmethod
    def to_sparse(self, values: Any, leaf: Projection) -> Any:
        """A sparse matrix ``[m, p]`` of values in canonical order."""

    @abstractmethod
    def to_dense(
        self,
        values: Mapping[str, Any],
        projection: JacobianProjection,
        argument: AnyArgument,
        output: Any,
        rules: Rules,
    ) -> Any:
        """The tree of dense arrays, outputs outside and inputs inside, of dense Jacobians."""

    def evaluate(
        self,
        projection: JacobianProjection,
        argument: AnyArgument,
        chunk_size: int | None,
        rules: Rules,
    ) -> tuple[dict[str, Any], Any, Any]:
        """The Jacobian's values per leaf, the output of `f`, and its aux."""
        projection.check_leaves(
            {path: self.size_of(value) for path, value in argument.values.items()}
        )
        for path, value in argument.values.items():
            rules.check_input(path, self.kind_of(value), value.dtype)
        inexact = [p for p, value in argument.values.items() if self.kind_of(value) != "integer"]
        by_rows: dict[str, Any] = {}
        output, aux = None, None
        for paths in projection.row_groups(inexact):
            pulled, output, aux = self.pull(projection, argument, paths, chunk_size, rules)
            by_rows |= pulled
        if output is None:
            output, aux = argument.call({})
            self.check_output(projection, output, rules)
        values = {}
        for path, value in argument.values.items():
            leaf = projection[path]
            parts = [by_rows[path]] if path in by_rows else []
            if path in inexact and leaf.compression.columns is not None:
                pushed = self.push(leaf, argument, path, chunk_size, rules)
                parts.append(pushed if rules.forward else self.cast(pushed, value.dtype))
            if not parts:  # an integer leaf, or an empty mask
                like = value if path in inexact and not rules.forward else output
                values[path] = self.zeros(leaf.pattern.nnz, like)
                continue
            both = leaf.compression.mode == "both"
            values[path] = self.gather(self.join(parts) if both else parts[0], leaf)
        return values, output, aux

    def jacobian_function(
        self,
        f: Callable[..., Any],
        projection: JacobianProjection,
        argnums: int | Sequence[int],
        has_aux: bool,
        chunk_size: int | None,
        format: str,
        rules: Rules,
    ) -> Callable[..., Any]:
        """What `sp_jacrev` and `sp_jacfwd` return."""
        check_function(f, projection, has_aux)
        check_choice("format", format, (self.sparse, "dense", "data"))
        if chunk_size is not None:
            check_integer("chunk_size", chunk_size, 1, allowed="None or an integer")

        @functools.wraps(f)
        def jacobian(*args: Any, **kwargs: Any) -> Any:
            argument = self.argument.of(f, args, kwargs, argnums, has_aux)
            local = self.local(projection, argument)
            values, output, aux = self.evaluate(local, argument, chunk_size, rules)
            if format == "dense":
                result = self.to_dense(values, local, argument, output, rules)
            elif format == "data":
                result = argument.unflatten(values)
            else:
                sparse = {path: self.to_sparse(values[path], local[path]) for path in values}
                result = argument.unflatten(sparse)
            return (result, aux) if has_aux else result

        return jacobian


def check_function(f: Callable[..., Any], projection: JacobianProjection, has_aux: bool) -> None:
    """Raise a `TypeError` that names the argument unless all are of their kinds."""
    if not callable(f):
        raise TypeError(f"`f` must be a function, got {type(f).__name__}")
    check_instance("projection", projection, JacobianProjection)
    check_flag("has_aux", has_aux)
