"""Sizes as Triton passes small ones: 32 bits wide, which products of sizes must not overflow."""

import re

import pytest
from triton.compiler import ASTSource

from tritonsnap.ops.influence_gradient.kernels import COLUMN_GRADIENT
from tritonsnap.ops.influence_update.kernels import SNAP1_STEP
from tritonsnap.ops.kernel import Kernel
from tritonsnap.ops.masked_dsmm.kernels import GROUP_PRODUCT, WALK_PRODUCT
from tritonsnap.ops.masked_outer.kernels import OUTER_WALK
from tritonsnap.tuning import TARGETS

KERNELS = [COLUMN_GRADIENT[1, True], SNAP1_STEP, GROUP_PRODUCT[16, 1], WALK_PRODUCT, OUTER_WALK]


def ttir_of(kernel: Kernel) -> str:
    """Triton's code for sizes of 32 bits, before any target."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    names = kernel.function.arg_names
    config = kernel.default(kernel.small[0], "fp32", "ieee", TARGETS[1])
    types = {
        name: kind.replace("T", "fp32") if kind.startswith("*") else "i32"
        for name, kind in kernel.signature.items()
    }
    constants = kernel.constexprs(config, "ieee", hip=False)
    source = ASTSource(
        kernel.function,
        {name: types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
    )
    backend = make_backend(GPUTarget("cuda", 90, 32))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({"num_warps": 4})
    codegen = backend.get_codegen_implementation(options)
    target = GPUTarget("cuda", 90, 32)
    return str(source.make_ir(target, options, codegen, backend.get_module_map(), context))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_no_product_of_sizes_is_narrow(kernel: Kernel) -> None:
    ttir = ttir_of(kernel)
    units = re.findall(r"(%\w*units\w*): i32", ttir)
    assert units
    narrow = [
        line
        for line in ttir.splitlines()
        if re.search(r"arith\.muli .* : i32", line) and any(f"{name}," in line for name in units)
    ]
    assert not narrow, narrow
