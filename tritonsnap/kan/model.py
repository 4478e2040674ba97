"""`KAN`: a Kolmogorov-Arnold network of piecewise-linear functions."""

from __future__ import annotations

import os
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tritonsnap.arrays import device_of, library_of_arguments, namespace
from tritonsnap.checks import check_choice, check_integer, check_number
from tritonsnap.kan import storage
from tritonsnap.kan.functions import (
    Convention,
    Functions,
    grid_positions,
    layer_scales,
    predict,
)
from tritonsnap.ops import kan_step

_MARGIN = 0.01
_CHUNK = 8192
_DTYPES = ("float32", "float64")


class KAN:
    """A Kolmogorov-Arnold network whose functions are piecewise linear.

    Each of `addends` hidden sums u_k adds one inner function of every input; a prediction adds one
    outer function of every hidden sum:

        u_k = s_1 sum_j f_kj(x_j)        y = s_2 sum_k g_k(u_k)

    A function is given by its values on a uniform grid over its domain and keeps its end value
    outside. Domains and the unit of the targets come from the first data; until then a model
    predicts nothing. Source: Polar and Poluektov, "Training Kolmogorov-Arnold networks",
    arXiv 2305.08194; Machine Learning 114:185 (2025).

    Parameters
    ----------
    inputs : int
        Number of inputs.
    addends : int
        Number of hidden sums.
    inner_points, outer_points : int
        Points of an inner and of an outer function, at least 2.
    targets : int
        Number of targets; each has outer functions of its own, the inner ones are shared.
    convention : {"mean", "sum"}
        ``"mean"``: s_1 = 1 / inputs, s_2 = 1 / addends; ``"sum"``: both are 1.
    inner_step, outer_step : float, optional
        Factors of what a trainer adds to the inner and to the outer functions; 0 keeps them as
        they are. By default 1 and 1 for ``"mean"``, and for ``"sum"`` addends / inputs and
        1 / addends, with which both conventions train alike.
    dtype : {"float32", "float64"}
        Of all numbers.
    seed : int
        Of the initial inner functions and of the order of training records.

    Attributes
    ----------
    functions : Functions or None
        The numbers, as read-only NumPy arrays; None until the first data.
    frozen : bool
        Whether domains stay as they are in training; see `freeze`.
    epochs, records, updates : int
        How many rounds of training the model has had, over how many records, and how many of
        these were selected and applied.

    Raises
    ------
    ValueError
        If a number is too small, or a name unknown.

    Examples
    --------
    >>> model = KAN(inputs=2, addends=5, inner_points=4, outer_points=6)
    >>> model.parameters
    70
    """

    def __init__(
        self,
        inputs: int,
        addends: int,
        inner_points: int,
        outer_points: int,
        targets: int = 1,
        *,
        convention: Convention = "mean",
        inner_step: float | None = None,
        outer_step: float | None = None,
        dtype: str = "float32",
        seed: int = 0,
    ) -> None:
        smallest = {"inputs": 1, "addends": 1, "targets": 1, "inner_points": 2, "outer_points": 2}
        given = {
            "inputs": inputs,
            "addends": addends,
            "targets": targets,
            "inner_points": inner_points,
            "outer_points": outer_points,
        }
        for name, least in smallest.items():
            check_integer(name, given[name], least, 2**31)
        check_choice("convention", convention, get_args(Convention))
        check_choice("dtype", dtype, _DTYPES)
        for name, step in (("inner_step", inner_step), ("outer_step", outer_step)):
            if step is not None:
                check_number(name, step, "[0, inf)", 0, np.inf)
        check_integer("seed", seed)
        self.inputs, self.addends, self.targets = inputs, addends, targets
        self.inner_points, self.outer_points = inner_points, outer_points
        self.convention: Convention = convention
        is_mean = convention == "mean"
        self.inner_step = (
            inner_step if inner_step is not None else 1.0 if is_mean else addends / inputs
        )
        self.outer_step = outer_step if outer_step is not None else 1.0 if is_mean else 1 / addends
        self.dtype, self.seed = dtype, seed
        self.functions: Functions | None = None
        self.frozen = False
        self.epochs = self.records = self.updates = 0

    def __repr__(self) -> str:
        return (
            f"KAN(inputs={self.inputs}, addends={self.addends}, "
            f"inner_points={self.inner_points}, outer_points={self.outer_points}, "
            f"targets={self.targets}, convention={self.convention!r}, dtype={self.dtype!r})"
        )

    @property
    def parameters(self) -> int:
        """The number of knot values."""
        inner = self.inputs * self.inner_points
        return self.addends * (inner + self.outer_points * self.targets)

    def initialize(self, x: ArrayLike, y: ArrayLike) -> None:
        """Take domains and units from data, and draw the initial functions.

        A trainer does this with its first records. Domains get a margin of 1 %, inner functions
        random values, outer functions straight lines.

        Parameters
        ----------
        x : array, shape [records, inputs]
            Inputs, finite.
        y : array, shape [records, targets] or [records]
            Targets, finite.

        Raises
        ------
        ValueError
            If a shape does not fit, there is no record, or a value is NaN or infinite.
        """
        x, y = self.checked_records(x, y)
        if not len(x):
            raise ValueError("`x` must hold at least one record")
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError("`x` and `y` must be finite to initialize the model")
        real = np.dtype(self.dtype).type
        inner_scale, outer_scale = layer_scales(self.convention, self.inputs, self.addends)
        random = np.random.default_rng(self.seed)
        shape = (self.inputs, self.inner_points, self.addends)
        # small beside the targets, so that outer functions move first
        inner = random.uniform(-0.75, 0.75, shape) / (inner_scale * self.inputs)
        input_low, input_high = _with_margin(x.min(axis=0), x.max(axis=0))
        positions = grid_positions(np, x[:_CHUNK], input_low, input_high, self.inner_points)
        sums = kan_step.inner_sums(positions, inner.astype(self.dtype)) * real(inner_scale)
        sum_low, sum_high = _with_margin(sums.min(axis=0), sums.max(axis=0))
        grid = np.linspace(0, 1, self.outer_points)[:, None]
        lines = sum_low + (sum_high - sum_low) * grid  # [outer points, addends]
        lines = (lines - lines.mean(axis=0)) / (outer_scale * self.addends)
        spread = y.std(axis=0, dtype=np.float64)  # whose squares may leave float32
        self.functions = self._owned(
            Functions(
                inner=inner,
                outer=np.broadcast_to(lines, (self.targets, *lines.shape)),
                input_low=input_low,
                input_high=input_high,
                sum_low=sum_low,
                sum_high=sum_high,
                shift=y.mean(axis=0, dtype=np.float64),
                scale=np.where(spread > 0, spread, 1),
            )
        )

    def predict(self, x: Any) -> Any:
        """Predict the targets of records.

        Parameters
        ----------
        x : array, shape [records, inputs]
            Inputs: a NumPy array, a torch tensor or a JAX array. Outside of its domain a function
            keeps its end value.

        Returns
        -------
        array, shape [records, targets]
            In the library and on the device of `x`, of the model's dtype; NaN for a record with a
            NaN.

        Raises
        ------
        ValueError
            If the shape does not fit, or the model has not seen any data.
        """
        library = library_of_arguments({"x": x})
        if library == "numpy":
            x = self._numbers("x", x)
        elif not any(kind in str(x.dtype) for kind in ("float", "int", "bool")):
            raise TypeError(f"`x` must hold real numbers, got {x.dtype}")
        self._check_width("x", x, self.inputs)
        functions = self.functions_in(library, None if library == "numpy" else device_of(x))
        xp = namespace(library)
        x = xp.astype(x, functions.inner.dtype)
        if library != "numpy":
            return predict(functions, x, self.convention)
        predictions = np.empty((len(x), self.targets), self.dtype)
        for first in range(0, len(x), _CHUNK):  # of a size that stays in the cache
            part = slice(first, first + _CHUNK)
            predictions[part] = predict(functions, x[part], self.convention)
        return predictions

    def functions_in(self, library: str, device: Any = None) -> Functions:
        """Give the model's numbers as arrays of a library, to call `predict` within other code.

        Parameters
        ----------
        library : {"numpy", "torch", "jax"}
            The array library.
        device
            As the library names it; by default its own choice.

        Returns
        -------
        Functions
            A copy, except in NumPy, where the arrays are the model's and read-only.

        Raises
        ------
        ValueError
            If the model has not seen any data.
        """
        if self.functions is None:
            raise ValueError("the model has no domains yet: train it or call `initialize`")
        if library == "numpy":
            return self.functions
        xp = namespace(library)  # type: ignore[arg-type]
        arrays = (xp.asarray(array.copy(), device=device) for array in self.functions)
        return Functions(*arrays)

    def freeze(self) -> None:
        """Keep all domains from now on; training moves values within them alone."""
        self.frozen = True

    def resample(self, inner_points: int | None = None, outer_points: int | None = None) -> None:
        """Change the number of points of the functions; None leaves it.

        With ``k (points - 1) + 1`` new points for a whole k the functions stay what they are.

        Raises
        ------
        ValueError
            If a number is less than 2, or the model has not seen any data.
        """
        functions = self.functions_in("numpy")
        inner_points = inner_points or self.inner_points
        outer_points = outer_points or self.outer_points
        for name, points in (("inner_points", inner_points), ("outer_points", outer_points)):
            check_integer(name, points, 2, 2**31)
        self.functions = self._owned(
            functions._replace(
                inner=_resampled(functions.inner, inner_points),
                outer=_resampled(functions.outer, outer_points),
            )
        )
        self.inner_points, self.outer_points = inner_points, outer_points

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to an ``.npz`` file without pickle; docs/kan-model-format.md reads it."""
        storage.write_model(path, vars(self), self.functions)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KAN:
        """Read a model that `save` wrote; it predicts and trains on as the saved one.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is damaged or holds something else.
        """
        settings, functions = storage.read_model(path)
        try:
            return cls.restored(settings, functions)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no valid model: {error}") from error

    def to_json(self) -> str:
        """Write the model as JSON text, with the names of the ``.npz`` file and nested lists."""
        return storage.to_json(vars(self), self.functions)

    @classmethod
    def from_json(cls, text: str) -> KAN:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError
            If it is no JSON or holds something else.
        """
        return cls.restored(*storage.from_json(text))

    @classmethod
    def restored(cls, settings: dict[str, Any], functions: Functions | None) -> KAN:
        """Build a model from the parts that `tritonsnap.kan.storage` reads."""
        state = {name: settings.pop(name) for name in ("frozen", "epochs", "records", "updates")}
        model = cls(**settings)
        vars(model).update(state)
        if functions is not None:
            model.functions = model._owned(functions)
        return model

    def checked_records(self, x: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """Bring records to the shapes [records, inputs] and [records, targets] and the dtype.

        Raises
        ------
        ValueError
            If a shape does not fit.
        TypeError
            If they hold no real numbers.
        """
        x, y = self._numbers("x", x), self._numbers("y", y)
        if y.ndim == 1:
            y = y[:, None]
        self._check_width("x", x, self.inputs)
        self._check_width("y", y, self.targets)
        if len(x) != len(y):
            raise ValueError(f"`x` and `y` must hold equally many records, got {len(x)}, {len(y)}")
        return x, y

    def _numbers(self, name: str, values: ArrayLike) -> NDArray[Any]:
        """Bring values to the dtype; what is too large for it is infinite, and counted as such."""
        try:
            array = np.asarray(values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"`{name}` must be an array, got {type(values).__name__}") from error
        if array.dtype.kind not in "biuf":
            raise TypeError(f"`{name}` must hold real numbers, got dtype {array.dtype}")
        with np.errstate(over="ignore"):
            return array.astype(self.dtype, copy=False)

    def _check_width(self, name: str, array: Any, width: int) -> None:
        if array.ndim != 2 or array.shape[1] != width:
            raise ValueError(
                f"`{name}` must have the shape [records, {width}], got {list(array.shape)}"
            )

    def _owned(self, functions: Functions) -> Functions:
        return read_only(Functions(*(np.array(array, self.dtype) for array in functions)))


def read_only(functions: Functions) -> Functions:
    """Make the arrays of functions refuse to be written."""
    for array in functions:
        array.flags.writeable = False
    return functions


def _with_margin(low: NDArray[Any], high: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Widen domains at both ends; one that is a single point becomes an interval around it."""
    span = high - low
    margin = _MARGIN * np.where(span > 0, span, np.maximum(np.abs(low), 1))
    return low - margin, high + margin


def _resampled(values: NDArray[Any], points: int) -> NDArray[Any]:
    """Evaluate functions [..., knots, addends] at `points` uniform points of their domains."""
    knots = values.shape[1]
    position = np.linspace(0, knots - 1, points)
    knot = np.minimum(position.astype(int), knots - 2)
    offset = (position - knot)[:, None]
    resampled: NDArray[Any] = (1 - offset) * values[:, knot] + offset * values[:, knot + 1]
    return resampled
