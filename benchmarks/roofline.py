"""The least time a GPU needs for so many bytes and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["ieee", "tf32"]


@dataclass(frozen=True)
class Device:
    """What a GPU can do at best.

    Parameters
    ----------
    name
        As in tables.
    bandwidth
        Bytes per second between memory and chip.
    ieee, tf32
        Operations per second in float32, without and with tensor cores at reduced precision.
    """

    name: str
    bandwidth: float
    ieee: float
    tf32: float

    def seconds(self, num_bytes: float, flops: float, precision: Precision = "ieee") -> float:
        """Time of work that overlaps transfers and arithmetic perfectly.

        The roofline of Williams, Waterman and Patterson (2009).
        """
        rate = self.ieee if precision == "ieee" else self.tf32
        return max(num_bytes / self.bandwidth, flops / rate)


# Working figures: bandwidth as measured, tf32 rounded down. The vendor's peaks are 4.8 TB/s and
# 494.7 TFLOP/s without sparsity, so this device is treated more strictly than the two below.
H200 = Device("H200", bandwidth=4.3e12, ieee=67e12, tf32=400e12)
# The vendor's peaks of the 80 GB SXM module.
A100 = Device("A100", bandwidth=2.039e12, ieee=19.5e12, tf32=156e12)
# The vendor's peaks: 304 compute units at 2.1 GHz, 256 (fp32) and 1024 (tf32) operations a clock.
MI300X = Device("MI300X", bandwidth=5.3e12, ieee=163.4e12, tf32=653.7e12)

DEVICES = (H200, A100, MI300X)
