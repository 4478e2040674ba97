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


# Bandwidth as measured by a copy (the data sheet says 4.8 TB/s), fp32 from NVIDIA's H200 data
# sheet, tf32 as large matrix products reach it (the data sheet says 494 TFLOP/s without sparsity).
H200 = Device("H200", bandwidth=4.3e12, ieee=67e12, tf32=400e12)
# NVIDIA A100 data sheet, 80 GB SXM.
A100 = Device("A100", bandwidth=2.039e12, ieee=19.5e12, tf32=156e12)
# AMD Instinct MI300X data sheet.
MI300X = Device("MI300X", bandwidth=5.3e12, ieee=163.4e12, tf32=653.7e12)

DEVICES = (H200, A100, MI300X)
