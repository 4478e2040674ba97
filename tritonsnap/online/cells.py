"""The cells that come with the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

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
            self.weight("input", "input", target, self.input_density, self.inputs, 0),
            self.weight("recurrent", "hidden", target, self.density, self.hidden, 1),
            LinearMap("bias", "one", target, (1, self.hidden)),
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
class GRU(Cell):
    """The gated recurrent unit with the reset gate after the matrix product.

    ``r = sigmoid(x W_r + h U_r + b_r)``, ``z = sigmoid(x W_z + h U_z + b_z)``,
    ``n = tanh(x W_n + b_n + r * (h U_n + c_n))``, ``h' = (1 - z) n + z h``.

    As in cuDNN and `torch.nn.GRU`; unlike in the original order, every parameter acts on one unit
    only, so the immediate Jacobian has one entry per column.

    Parameters: ``input_G`` [inputs, hidden], ``recurrent_G`` [hidden, hidden], ``bias_G`` [hidden]
    for G = reset, update, candidate, and ``bias_recurrent`` [hidden] (the c_n above); sparse
    weights as [nnz].

    References
    ----------
    Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", EMNLP 2014.
    """

    targets: ClassVar = ("reset", "update", "candidate", "recurrent")

    def make_maps(self) -> list[LinearMap]:
        """Three maps for each gate; the candidate's recurrent part is a target of its own."""
        maps = []
        for number, gate in enumerate(("reset", "update", "candidate")):
            target = "recurrent" if gate == "candidate" else gate
            of_input = self.weight(
                f"input_{gate}", "input", gate, self.input_density, self.inputs, 2 * number
            )
            of_state = self.weight(
                f"recurrent_{gate}", "hidden", target, self.density, self.hidden, 2 * number + 1
            )
            bias = LinearMap(f"bias_{gate}", "one", gate, (1, self.hidden))
            # the maps of one target stand next to each other
            maps += (
                [of_input, bias, of_state] if gate == "candidate" else [of_input, of_state, bias]
            )
        return [*maps, LinearMap("bias_recurrent", "one", "recurrent", (1, self.hidden))]

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


def sigmoid(xp: Any, a: Any) -> Any:
    """The logistic function, without overflow."""
    return 0.5 * (xp.tanh(0.5 * a) + 1)
