"""What an online learner takes on 1 to 1024 devices: a simulated account, nothing is measured.

``python -m benchmarks devices`` spreads the influence of some networks over H200s as `Sharded` does
(`tritonsnap.plan.Partition`, with the plan's own cost model) and adds up for one step:

- **influence**: the longest predicted time of a device's groups, times its rows of the batch;
- **replicated**: what every device does for its rows: forward pass, partial derivatives and D, at
  the device's roofline, and one launch;
- **communication**: an all-reduce of the gradient, ring-wise over NVLink within a node of eight
  devices, else at the bandwidth between nodes; nothing else is ever communicated.

Gradients are taken after every step, or summed over `STEPS` steps and communicated once. Two ways
to use N devices: columns only, and the best mesh of columns and rows of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.report import (
    Parser,
    Row,
    format_table,
    new_figure,
    results_path,
    save_figure,
    write_report,
)
from benchmarks.roofline import H200
from tritonsnap import GRU, RNN, RTRL, SnAp
from tritonsnap.console import run_command
from tritonsnap.plan import Packing, Partition

DEVICE = "simulated H200"
DEVICES = tuple(2**n for n in range(11))
BATCH = 32
STEPS = 32
FLOAT = 4
NODE = 8
NVLINK = 450e9
"""Bytes per second and direction between the devices of a node: the vendor's peak."""
NETWORK = 50e9
"""The same between nodes: 400 Gbit/s a device."""
LATENCY = 5e-6
"""Seconds of one exchange, however small."""
NETWORKS = {
    "RTRL, GRU, 512 units, dense": lambda: RTRL(GRU(64, 512)),
    "SnAp-3, RNN, 1024 units, 1 %": lambda: SnAp(RNN(64, 1024, density=0.01), 3),
    "SnAp-2, GRU, 1024 units, 1 %": lambda: SnAp(GRU(64, 1024, density=0.01), 2),
    "SnAp-1, GRU, 1024 units, dense": lambda: SnAp(GRU(64, 1024), 1),
}


@dataclass(frozen=True)
class Account:
    """One step of one device of a mesh, the one that takes longest.

    Attributes
    ----------
    data, partition
        The mesh: parts of the batch, and the columns.
    influence, replicated, communication
        Seconds.
    memory, operations, traffic
        Bytes of the influence, floating-point operations on it, bytes sent for a gradient.
    """

    data: int
    partition: Partition
    influence: float
    replicated: float
    communication: float
    memory: float
    operations: float
    traffic: float

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return self.data * self.partition.num_devices

    def seconds(self, steps: int) -> float:
        """A step where gradients are communicated once in so many steps."""
        return self.influence + self.replicated + self.communication / steps


class Network:
    """A learner whose steps are accounted for."""

    def __init__(self, learner: SnAp) -> None:
        self.learner = learner
        self._partitions: dict[int, Partition] = {}

    @cached_property
    def packing(self) -> Packing:
        """Its plan on a GPU."""
        return self.learner.plan.packing("triton")

    def partition(self, devices: int) -> Partition:
        """Its columns over so many devices."""
        if devices not in self._partitions:
            self._partitions[devices] = Partition.build(self.packing, devices)
        return self._partitions[devices]

    def account(self, columns: int, data: int = 1) -> Account:
        """A step on a mesh of `columns` times `data` devices."""
        partition, rows = self.partition(columns), BATCH // data
        traffic, communication = all_reduce(self.learner.cell.num_parameters * FLOAT, columns, data)
        return Account(
            data=data,
            partition=partition,
            influence=float(partition.seconds.max()) * rows,
            replicated=self._replicated(rows),
            communication=communication,
            memory=float(partition.values.max()) * rows * FLOAT,
            operations=float(partition.flops.max()) * rows,
            traffic=traffic,
        )

    def best(self, devices: int) -> Account:
        """The fastest mesh of so many devices."""
        parts = [data for data in DEVICES if data <= min(devices, BATCH)]
        accounts = [self.account(devices // data, data) for data in parts]
        return min(accounts, key=lambda account: account.seconds(STEPS))

    def _replicated(self, rows: int) -> float:
        cell = self.learner.cell
        weights = sum(linear.shape[0] * linear.shape[1] for linear in cell.maps)
        values = self.packing.dynamics.nnz + len(cell.targets) * cell.rows + cell.num_sources
        num_bytes = FLOAT * (weights + 2 * rows * values)
        launch = self.packing.target.block * 1e-9
        return H200.seconds(num_bytes, 2 * rows * weights + 2 * rows * values) + launch


def all_reduce(num_bytes: int, columns: int, data: int) -> tuple[float, float]:
    """Bytes that each device sends to sum an array over a mesh, and the seconds it takes.

    A device's own columns over the parts of the batch, then all columns over the columns' devices:
    each a ring, in two rounds (Patarasuk and Yuan, 2009), with the latency of a tree.
    """
    rings = [(data, num_bytes / columns), (columns, float(num_bytes))]
    traffic = [2 * (size - 1) / size * amount for size, amount in rings]
    bandwidth = NVLINK if columns * data <= NODE else NETWORK
    steps = sum(2 * math.ceil(math.log2(size)) for size, _ in rings)
    return sum(traffic), sum(traffic) / bandwidth + steps * LATENCY


def rows_of(name: str, network: Network, devices: Sequence[int]) -> Iterator[Row]:
    """The account of a network as rows of a report."""
    alone = network.account(1)

    def faster(account: Account, steps: int) -> float:
        return alone.seconds(steps) / account.seconds(steps)

    for number in devices:
        account, best = network.account(number), network.best(number)
        for variant, what, unit, value in (
            ("columns only", "influence", "s", account.influence),
            ("columns only", "replicated", "s", account.replicated),
            ("columns only", "communication", "s", account.communication),
            ("columns only", "influence per device", "B", account.memory),
            ("columns only", "operations per device", "FLOP", account.operations),
            ("columns only", "sent per gradient and device", "B", account.traffic),
            ("columns only", "balance", "1", account.partition.balance),
            *(
                ("columns only", f"speed-up, a gradient every {k} steps", "1", faster(account, k))
                for k in (1, STEPS)
            ),
            ("best mesh", f"speed-up, a gradient every {STEPS} steps", "1", faster(best, STEPS)),
        ):
            columns = (best if variant == "best mesh" else account).partition.num_devices
            parameters = {"devices": number, "columns": columns}
            yield Row(f"{name}: {what}", variant, unit, parameters, value=value)


def table_of(network: Network, devices: Sequence[int]) -> str:
    """The account of a network as a markdown table."""
    alone = network.account(1)
    lines = []
    for number in devices:
        one, best = network.account(number), network.best(number)
        lines.append(
            [
                str(number),
                f"{one.memory / 1e6:,.3g}" if one.memory < 1e9 else f"{one.memory / 1e6:,.0f}",
                f"{one.operations / 1e9:.3g}",
                f"{one.partition.balance:.3f}",
                *(f"{t * 1e6:,.3g}" for t in (one.influence, one.replicated, one.communication)),
                f"{one.traffic / 1e6:.3g}",
                f"{alone.seconds(1) / one.seconds(1):.3g}",
                f"{alone.seconds(STEPS) / one.seconds(STEPS):.3g}",
                f"{alone.seconds(STEPS) / best.seconds(STEPS):.3g} "
                f"({best.data} x {best.partition.num_devices})",
            ]
        )
    header = [
        "devices",
        "influence, MB",
        "GFLOP",
        "balance",
        "influence, us",
        "replicated, us",
        "all-reduce, us",
        "sent, MB",
        "speed-up",
        f"once in {STEPS} steps",
        "best mesh (data x columns)",
    ]
    return format_table(header, lines)


def plot(networks: dict[str, Network], devices: Sequence[int], results: Path) -> None:
    """Speed-up and memory over the number of devices."""
    figure, (speed, memory) = new_figure(columns=2)
    for name, network in networks.items():
        alone = network.account(1)
        lines = {
            "-": [alone.seconds(STEPS) / network.best(n).seconds(STEPS) for n in devices],
            "--": [alone.seconds(1) / network.account(n).seconds(1) for n in devices],
        }
        (line,) = speed.plot(devices, lines["-"], label=name)
        speed.plot(devices, lines["--"], "--", color=line.get_color())
        memory.plot(devices, [network.account(n).memory / 1e9 for n in devices])
    speed.plot(devices, devices, ":", color="gray")
    for axis, label in (
        (speed, f"speed-up: gradients every {STEPS} steps, dashed every one"),
        (memory, "influence per device, GB"),
    ):
        axis.set(xscale="log", yscale="log", xlabel="devices (simulated H200)")
        axis.set_ylabel(label, fontsize="small")
    speed.legend(fontsize="x-small", frameon=False)
    save_figure(figure, results_path("devices", DEVICE, ".png", results))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulation, print its tables and write report and plot."""
    options = Parser("devices", __doc__).parse_args(arguments)
    networks = {name: Network(make()) for name, make in NETWORKS.items()}
    rows = []
    for name, network in networks.items():
        print(f"\n{name}, batch {BATCH}\n\n{table_of(network, DEVICES)}")
        rows += list(rows_of(name, network, DEVICES))
    plot(networks, DEVICES, options.results)
    path = write_report("devices", rows, device=DEVICE, results=options.results)
    print(f"\nresults are in {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(main))
