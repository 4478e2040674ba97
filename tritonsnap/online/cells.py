"""The cells that come with the library."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_choice, check_number, check_share
from tritonsnap.online.cell import Arrays, Cell
from tritonsnap.online.linear_map import LinearMap


@dataclass(frozen=True)
class RNN(Cell):
    """The tanh network ``h' = tanh(x W + h U + b)``.

    Parameters: ``input`` [inputs, hidden], ``recurrent`` [hidden, hidden], ``bias`` [hidden];
    sparse weights as [nnz].
    """

    targets: ClassVar = ("preactivation",)

    def make_maps(self) -> list[LinearMap]:
        """The maps from input, state and one."""
        target = self.targets[0]
        return [
            self.weight("input", "input", target),
            self.weight("recurrent", "hidden", target),
            self.bias("bias", target),
        ]

    def activate(self, xp: Any, a: Arrays, state: Arrays) -> Arrays:
        """Tanh of the preactivation."""
        return {"hidden": xp.tanh(a["preactivation"])}

    def partials(
        self, xp: Any, a: Arrays, state: Arrays, new: Arrays
    ) -> tuple[dict[str, Arrays], dict[tuple[str, str], Any]]:
        """1 - h'^2, and nothing direct."""
        return {"preactivation": {"hidden": 1 - new["hidden"] ** 2}}, {}


@dataclass(frozen=True)
class LeakyRNN(Cell):
    """The firing-rate network ``h' = (1 - leak) h + leak * tanh(x W + h U + b)``.

    The Euler step of ``tau dh/dt = -h + tanh(x W + h U + b)`` with ``leak = dt / tau``.

    Parameters: ``input`` [inputs, hidden], ``recurrent`` [hidden, hidden], ``bias`` [hidden], and
    with a learned leak ``log_time_constant`` [hidden]; sparse weights as [nnz].

    Parameters
    ----------
    leak
        The leak of every unit, in (0, 1]; 1 is the `RNN`.
    learn_leak
        Learn a time constant tau for each unit, in steps: its leak is ``1 - exp(-1 / tau)``, the
        exact solution over a step in which the drive is constant, and `leak` (below 1) is where
        it begins.

    References
    ----------
    Dayan and Abbott, "Theoretical Neuroscience", MIT Press 2001, equation 7.11.
    """

    leak: float = 0.1
    learn_leak: bool = False

    @property
    def targets(self) -> tuple[str, ...]:  # type: ignore[override]
        """The preactivation, and the logarithm of the time constant where it is learned."""
        return ("drive", "log_time_constant") if self.learn_leak else ("drive",)

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        check_number("leak", self.leak, "(0, 1)" if self.learn_leak else "(0, 1]", 0, 1)

    def make_maps(self) -> list[LinearMap]:
        """The maps from input, state and one."""
        maps = [
            self.weight("input", "input", "drive"),
            self.weight("recurrent", "hidden", "drive"),
            self.bias("bias", "drive"),
        ]
        if self.learn_leak:
            maps.append(self.bias("log_time_constant", "log_time_constant"))
        return maps

    def draw(self, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """As `Cell.draw`, and the time constants that give `leak`."""
        params = super().draw(generator)
        if self.learn_leak:
            time_constant = -1 / np.log1p(-self.leak)
            params["log_time_constant"] = np.full(self.hidden, np.log(time_constant))
        return params

    def activate(self, xp: Any, a: Arrays, state: Arrays) -> Arrays:
        """A step of each unit towards its drive."""
        leak = self._leak(xp, a)
        return {"hidden": (1 - leak) * state["hidden"] + leak * xp.tanh(a["drive"])}

    def partials(
        self, xp: Any, a: Arrays, state: Arrays, new: Arrays
    ) -> tuple[dict[str, Arrays], dict[tuple[str, str], Any]]:
        """The leak times 1 - tanh^2, and one minus the leak as the direct path."""
        leak, rate = self._leak(xp, a), xp.tanh(a["drive"])
        gains = {"drive": {"hidden": leak * (1 - rate**2)}}
        if self.learn_leak:
            inverse = xp.exp(-a["log_time_constant"])
            slope = -inverse * xp.exp(-inverse)
            gains["log_time_constant"] = {"hidden": (rate - state["hidden"]) * slope}
        return gains, {("hidden", "hidden"): xp.zeros_like(rate) + (1 - leak)}

    def _leak(self, xp: Any, a: Arrays) -> Any:
        return -xp.expm1(-xp.exp(-a["log_time_constant"])) if self.learn_leak else self.leak


@dataclass(frozen=True)
class GRU(Cell):
    """The gated recurrent unit.

    ``r = sigmoid(x W_r + h U_r + b_r)``, ``z = sigmoid(x W_z + h U_z + b_z)``,
    ``n = tanh(x W_n + b_n + r * (h U_n + c_n))``, ``h' = (1 - z) n + z h``.

    With the reset gate after the matrix product, as in cuDNN and `torch.nn.GRU`, every parameter
    acts on one unit only, so the immediate Jacobian has one entry per column. In the original
    order, ``reset="before"``, ``n = tanh(x W_n + b_n + (r * h) U_n)``: a parameter of a reset gate
    acts on all units that read the gated one, and even SnAp-1 keeps its influence on all of them.
    With dense weights that is as large as RTRL's; it is for sparse weights and comparisons.

    Parameters: ``input_G`` [inputs, hidden], ``recurrent_G`` [hidden, hidden], ``bias_G`` [hidden]
    for G = reset, update, candidate, and, unless the reset gate comes before, ``bias_recurrent``
    [hidden] (the c_n above); sparse weights as [nnz].

    Parameters
    ----------
    reset
        Whether the reset gate acts ``"after"`` the matrix product or ``"before"`` it.

    References
    ----------
    Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", EMNLP 2014.
    """

    reset: str = field(default="after", kw_only=True)

    targets: ClassVar[tuple[str, ...]] = ("reset", "update", "candidate", "recurrent")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make the cell; where the reset gate comes before the product, one of another form."""
        if cls is GRU and kwargs.get("reset") == "before":
            from tritonsnap.online.unfactored.reset_before import ResetBeforeGRU

            return cast(Self, object.__new__(ResetBeforeGRU))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_choice("reset", self.reset, ("after", "before"))
        super().__post_init__()

    def make_maps(self) -> list[LinearMap]:
        """Three maps for each gate; the candidate's recurrent part is a target of its own."""
        maps = []
        for gate in ("reset", "update", "candidate"):
            target = "recurrent" if gate == "candidate" else gate
            of_input = self.weight(f"input_{gate}", "input", gate)
            of_state = self.weight(f"recurrent_{gate}", "hidden", target)
            bias = self.bias(f"bias_{gate}", gate)
            # the maps of one target stand next to each other
            maps += (
                [of_input, bias, of_state] if gate == "candidate" else [of_input, of_state, bias]
            )
        return [*maps, self.bias("bias_recurrent", "recurrent")]

    def activate(self, xp: Any, a: Arrays, state: Arrays) -> Arrays:
        """The gates and the new state."""
        _, update, candidate = self._gates(xp, a)
        return {"hidden": (1 - update) * candidate + update * state["hidden"]}

    def partials(
        self, xp: Any, a: Arrays, state: Arrays, new: Arrays
    ) -> tuple[dict[str, Arrays], dict[tuple[str, str], Any]]:
        """Derivatives through each gate, and the update gate as the direct path."""
        reset, update, candidate = self._gates(xp, a)
        through = (1 - update) * (1 - candidate**2)
        gains = {
            "reset": through * a["recurrent"] * reset * (1 - reset),
            "update": (state["hidden"] - candidate) * update * (1 - update),
            "candidate": through,
            "recurrent": through * reset,
        }
        return {target: {"hidden": gain} for target, gain in gains.items()}, {
            ("hidden", "hidden"): update
        }

    def _gates(self, xp: Any, a: Arrays) -> tuple[Any, Any, Any]:
        reset, update = sigmoid(xp, a["reset"]), sigmoid(xp, a["update"])
        return reset, update, xp.tanh(a["candidate"] + reset * a["recurrent"])


@dataclass(frozen=True)
class LSTM(Cell):
    """Long short-term memory with a forget gate.

    ``i, f, o = sigmoid(x W_G + h U_G + b_G)`` for G = input, forget, output,
    ``g = tanh(x W_c + h U_c + b_c)``, ``c' = f c + i g``, ``h' = o tanh(c')``.

    As in cuDNN and `torch.nn.LSTM`. The state is [hidden | cell]: ``state[..., :hidden]`` is what
    other layers usually read.

    Parameters: ``input_G`` [inputs, hidden], ``recurrent_G`` [hidden, hidden], ``bias_G`` [hidden]
    for G = input, forget, candidate, output; sparse weights as [nnz]. ``bias_forget`` begins at
    one, the other biases at zero (Jozefowicz et al., ICML 2015).

    References
    ----------
    Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997.
    Gers et al., "Learning to Forget: Continual Prediction with LSTM", Neural Computation 12(10),
    2000.
    """

    parts: ClassVar = ("hidden", "cell")
    targets: ClassVar = ("input", "forget", "candidate", "output")

    def make_maps(self) -> list[LinearMap]:
        """Three maps for each gate."""
        return [
            linear
            for gate in self.targets
            for linear in (
                self.weight(f"input_{gate}", "input", gate),
                self.weight(f"recurrent_{gate}", "hidden", gate),
                self.bias(f"bias_{gate}", gate),
            )
        ]

    def draw(self, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """As `Cell.draw`, with forget gates that begin open."""
        return {**super().draw(generator), "bias_forget": np.ones(self.hidden)}

    def activate(self, xp: Any, a: Arrays, state: Arrays) -> Arrays:
        """The gates, the memory cell and what is read of it."""
        enter, keep, candidate, read = self._gates(xp, a)
        cell = keep * state["cell"] + enter * candidate
        return {"hidden": read * xp.tanh(cell), "cell": cell}

    def partials(
        self, xp: Any, a: Arrays, state: Arrays, new: Arrays
    ) -> tuple[dict[str, Arrays], dict[tuple[str, str], Any]]:
        """Derivatives of the memory cell, which reach the hidden state through the output gate."""
        enter, keep, candidate, read = self._gates(xp, a)
        squashed = xp.tanh(new["cell"])
        through = read * (1 - squashed**2)
        of_cell = {
            "input": candidate * enter * (1 - enter),
            "forget": state["cell"] * keep * (1 - keep),
            "candidate": enter * (1 - candidate**2),
        }
        gains = {
            gate: {"hidden": through * value, "cell": value} for gate, value in of_cell.items()
        }
        gains["output"] = {"hidden": squashed * read * (1 - read)}
        return gains, {("hidden", "cell"): through * keep, ("cell", "cell"): keep}

    def _gates(self, xp: Any, a: Arrays) -> tuple[Any, Any, Any, Any]:
        enter, keep, read = (sigmoid(xp, a[gate]) for gate in ("input", "forget", "output"))
        return enter, keep, xp.tanh(a["candidate"]), read


@dataclass(frozen=True)
class LRU(Cell):
    """The linear recurrent unit: complex, diagonal, without a recurrent matrix.

    ``s' = lambda s + gamma (x B)`` with ``lambda = exp(-exp(log_nu) + i exp(log_theta))``,
    ``gamma = exp(log_gamma)`` and complex B and s. No unit reads another, so SnAp-1 is exact.

    The state is [real | imaginary], and everything computed with it real: gradients are those of
    real parameters, ``Re(delta^T J)``, without the conjugate by which JAX's and torch's complex
    gradients differ. The output ``Re(s C) + x D`` of the paper is a readout of that state.

    Parameters: ``input_real`` and ``input_imaginary`` [inputs, hidden] (sparse as [nnz]),
    ``log_nu``, ``log_theta`` and ``log_gamma`` [hidden].

    Parameters
    ----------
    min_radius, max_radius
        Between which magnitudes lambda is drawn, uniformly on the ring:
        ``0 <= min_radius < max_radius <= 1``.
    max_phase
        Phases are drawn uniformly from (0, max_phase]; positive.

    References
    ----------
    Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", ICML 2023,
    section 3 and appendix A.
    """

    min_radius: float = 0.0
    max_radius: float = 1.0
    max_phase: float = 2 * math.pi

    parts: ClassVar = ("real", "imaginary")
    targets: ClassVar = ("log_nu", "log_theta", "log_gamma", "drive_real", "drive_imaginary")

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        if self.density != 1:
            raise ValueError(
                f"`density` must be 1, got {self.density!r}: an LRU has no recurrent weights "
                "(`input_density` is that of its input weights)"
            )
        check_share("max_radius", self.max_radius)
        check_number("min_radius", self.min_radius, "[0, max_radius)", 0, self.max_radius)
        check_number("max_phase", self.max_phase, "(0, inf)", 0, math.inf)

    def make_maps(self) -> list[LinearMap]:
        """Three numbers for each unit, and the two parts of the input weights."""
        return [
            *(self.bias(name, name) for name in self.targets[:3]),
            self.weight("input_real", "input", "drive_real"),
            self.weight("input_imaginary", "input", "drive_imaginary"),
        ]

    def draw(self, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Eigenvalues on a ring, the normalisation that belongs to them, and B of variance 1."""
        params = super().draw(generator)
        for name in ("input_real", "input_imaginary"):
            params[name] = params[name] / np.sqrt(2)
        inner, outer = self.min_radius**2, self.max_radius**2
        squared = inner + (outer - inner) * generator.uniform(1e-6, 1 - 1e-6, self.hidden)
        phase = self.max_phase * (1 - generator.random(self.hidden))
        params["log_nu"] = np.log(-0.5 * np.log(squared))
        params["log_theta"] = np.log(phase)
        params["log_gamma"] = 0.5 * np.log1p(-squared)
        return params

    def activate(self, xp: Any, a: Arrays, state: Arrays) -> Arrays:
        """The turned and shrunk state, and the scaled drive."""
        (real, imaginary), gamma = self._turned(xp, a, state), xp.exp(a["log_gamma"])
        return {
            "real": real + gamma * a["drive_real"],
            "imaginary": imaginary + gamma * a["drive_imaginary"],
        }

    def partials(
        self, xp: Any, a: Arrays, state: Arrays, new: Arrays
    ) -> tuple[dict[str, Arrays], dict[tuple[str, str], Any]]:
        """Derivatives of a complex product, as real numbers."""
        (real, imaginary), gamma = self._turned(xp, a, state), xp.exp(a["log_gamma"])
        nu, theta = xp.exp(a["log_nu"]), xp.exp(a["log_theta"])
        gains = {
            "log_nu": {"real": -nu * real, "imaginary": -nu * imaginary},
            "log_theta": {"real": -theta * imaginary, "imaginary": theta * real},
            "log_gamma": {
                "real": gamma * a["drive_real"],
                "imaginary": gamma * a["drive_imaginary"],
            },
            "drive_real": {"real": gamma},
            "drive_imaginary": {"imaginary": gamma},
        }
        cosine, sine = self._eigenvalue(xp, a)
        return gains, {
            ("real", "real"): cosine,
            ("real", "imaginary"): -sine,
            ("imaginary", "real"): sine,
            ("imaginary", "imaginary"): cosine,
        }

    def _eigenvalue(self, xp: Any, a: Arrays) -> tuple[Any, Any]:
        radius, phase = xp.exp(-xp.exp(a["log_nu"])), xp.exp(a["log_theta"])
        return radius * xp.cos(phase), radius * xp.sin(phase)

    def _turned(self, xp: Any, a: Arrays, state: Arrays) -> tuple[Any, Any]:
        cosine, sine = self._eigenvalue(xp, a)
        real, imaginary = state["real"], state["imaginary"]
        return cosine * real - sine * imaginary, sine * real + cosine * imaginary


def sigmoid(xp: Any, a: Any) -> Any:
    """The logistic function, without overflow."""
    return 0.5 * (xp.tanh(0.5 * a) + 1)
