"""Sizes as Triton passes small ones: 32 bits wide, which products of sizes must not overflow."""

from typing import Any

import pytest
from test_compiled_kernels import definitions_of, is_bounded
from triton.compiler import ASTSource

from tritonsnap.ops.kernel import Kernel, declared_kernels
from tritonsnap.tuning import TARGETS

KERNELS = tuple({kernel.function: kernel for kernel in declared_kernels()}.values())
HARMLESS = {
    "csr_count": 1,  # blocks of a chunk, less than entries
    "group_product": 1,  # rows of the gains, of which a tile compares numbers
    "kan_gram": 3,  # rows of a square matrix in memory, and knots of one addend
    "kan_inner_change": 2,  # knots of one addend, and a tile's place among them
    "kan_inner_sums": 1,  # knots of one addend
}
"""How many products of 32 bits a kernel may have: those that no matrix in memory overflows."""


def ttir_of(kernel: Kernel) -> str:
    """Triton's code for sizes of 32 bits, before it knows a target."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    names = kernel.function.arg_names
    dtype = kernel.dtypes[-1]
    config = kernel.default(kernel.small[0], dtype, kernel.precisions[0], TARGETS[1])
    types = {
        name: f"*{kernel.pointer_dtype(name, dtype)}" if kind.startswith("*") else "i32"
        for name, kind in kernel.signature.items()
    }
    constants = kernel.constexprs(config, kernel.precisions[0], hip=False)
    source = ASTSource(
        kernel.function,
        {name: types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
    )
    target = GPUTarget("cuda", 90, 32)
    backend: Any = make_backend(target)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({"num_warps": 4, "enable_fp_fusion": True})
    codegen = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, codegen, backend.get_module_map(), context)
    return str(backend.make_ttir(module, {}, options, 90))


def narrow_products(ttir: str) -> list[str]:
    """Products of 32 bits of factors that no constant bounds."""
    definitions = definitions_of(ttir)
    return [
        line
        for name, line in definitions.items()
        if line.startswith(("arith.muli ", "arith.shli "))
        and "i32" in line.split(" : ")[1]
        and not is_bounded(name, definitions)
    ]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.function.__name__)
def test_no_product_of_sizes_is_narrow(kernel: Kernel) -> None:
    found = narrow_products(ttir_of(kernel))
    assert len(found) == HARMLESS.get(kernel.function.__name__, 0), found


def test_the_check_finds_a_narrow_product() -> None:
    line = "    %size = arith.muli %units, %width : TYPE loc(#loc1)"
    assert narrow_products(line.replace("TYPE", "i32"))
    assert not narrow_products(line.replace("TYPE", "i64"))
