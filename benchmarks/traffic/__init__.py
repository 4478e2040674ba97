"""Memory-traffic model: what kernels load and store, counted in Triton's interpreter.

``python -m benchmarks traffic`` prints it for each kernel of `benchmarks.traffic.kernels`. No GPU
is needed: the addresses that a kernel touches do not depend on the device.

What is counted (`recorder`), for each argument, reads and writes apart:

- *useful bytes*: the distinct elements that a program touches, without padding;
- *requested bytes*: the lanes whose mask is true, times the size of an element;
- *request sectors*: the 32-byte sectors of each warp request, the traffic between registers and
  L1. How a tile is split into warp requests is modelled in `layout`;
- *sectors*: the distinct sectors that a program touches, the traffic between L1 and L2 if L1 keeps
  everything as long as the program runs.

A request or program that touches only part of a sector moves all of it, hence the ratios: the
sector efficiency is useful bytes over bytes of distinct sectors, coalescing is requested bytes
over bytes of request sectors. Reuse in L2 between programs is not modelled.
"""
