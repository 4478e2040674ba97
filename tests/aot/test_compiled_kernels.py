"""What the compiled code of every declared kernel looks like, without a GPU."""

import re
from collections.abc import Callable

import pytest

from tritonsnap.autotune.check import Build, compile_all, default_builds
from tritonsnap.autotune.compile import Report, faults_of
from tritonsnap.ops.kernel import declared_kernels

BUILDS = [build for kernel in declared_kernels() for build in default_builds(kernel)]


@pytest.fixture(scope="session")
def report_of(request: pytest.FixtureRequest) -> Callable[[int], Report]:
    """What compiling gave, of all builds that these tests want."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    wanted = sorted({call.params["number"] for call in calls if "number" in call.params})
    results = compile_all([BUILDS[number] for number in wanted])
    known: dict[int, Report | Exception] = {}

    def find(number: int) -> Report:
        while number not in known:
            known[wanted[len(known)]] = next(results)
        report = known[number]
        if isinstance(report, Exception):
            raise report
        return report

    return find


@pytest.fixture(params=range(len(BUILDS)), ids=lambda number: str(BUILDS[number]), scope="module")
def number(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def build(number: int) -> Build:
    return BUILDS[number]


@pytest.fixture
def report(number: int, report_of: Callable[[int], Report]) -> Report:
    return report_of(number)


def test_neither_spills_nor_needs_more_than_the_device_has(build: Build, report: Report) -> None:
    assert not faults_of(report, build.device)
    assert report.registers <= build.kernel.max_registers


def test_moves_16_bytes_a_thread_where_declared(build: Build, report: Report) -> None:
    kernel = build.kernel
    if build.dtype in (kernel.wide_dtypes or kernel.dtypes):
        assert report.wide_loads or not kernel.wide_loads
        # AMD's matrix cores leave a thread four consecutive values of a product, or one in float64
        is_narrow = kernel.dots and build.device.is_hip and build.dtype != "fp32"
        assert report.wide_stores or not kernel.wide_stores or is_narrow


def test_multiplies_on_tensor_cores_where_the_precision_allows(
    build: Build, report: Report
) -> None:
    if build.kernel.dots and (build.dtype != "fp32" or build.precision != "ieee"):
        assert report.tensor_cores


def test_offsets_cannot_overflow(report: Report) -> None:
    assert not narrow_offsets(report.ttir)


def narrow_offsets(ttir: str) -> list[str]:
    """Pointer offsets that are computed in 32 bits from what has no small bound.

    A 32-bit offset may be made of constants and ranges, which the block sizes bound, and of the
    smaller of a constant and anything, or be a value just as it was loaded.
    """
    definitions = definitions_of(ttir)
    wrong = []
    for line in definitions.values():
        if found := re.match(r"tt\.addptr %\w+, (%\w+) : .*[, x]i32>? loc", line):
            offset = definitions.get(found[1], "")
            if not offset.startswith("tt.load") and not is_bounded(found[1], definitions):
                wrong.append(line)
    return wrong


def definitions_of(ttir: str) -> dict[str, str]:
    """What each value of a kernel's code is, by its name."""
    definitions = {}
    for line in ttir.splitlines():
        if found := re.match(r"\s*(%\w+)(?::\d+)? = (.*)", line):
            definitions[found[1]] = found[2]
        if found := re.search(r"scf\.for (%\w+) = %\w+ to (%\w+) step", line):
            definitions[found[1]] = f"arith.minsi {found[2]}"  # it stays below its bound
    return definitions


def is_bounded(name: str, definitions: dict[str, str]) -> bool:
    """Whether constants bound a value."""
    definition = definitions.get(name, "")
    if re.match(r"arith\.constant|tt\.make_range", definition):
        return True
    known = r"arith\.(addi|subi|muli|remsi|divsi|shli|minsi|trunci|select)"
    if not re.match(known + r"|tt\.(splat|expand_dims|broadcast|trans)\b", definition):
        return False
    operands = re.findall(r"%\w+", definition.split(" : ")[0])
    operands = operands[1:] if definition.startswith("arith.select") else operands
    bounded = [is_bounded(operand, definitions) for operand in operands]
    return any(bounded) if definition.startswith("arith.minsi") else all(bounded)


NARROW = """
    %i = tt.get_program_id x : i32 loc(#loc6)
    %block = arith.constant 1024 : i32 loc(#loc4)
    %first = arith.muli %i, %block : i32 loc(#loc4)
    %range = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32> loc(#loc49)
    %splat = tt.splat %first : i32 -> tensor<8xi32> loc(#loc49)
    %offset = arith.addi %splat, %range : tensor<8xi32> loc(#loc49)
    %p = tt.addptr %rows, OFFSET : tensor<8x!tt.ptr<i32>>, tensor<8xi32> loc(#loc56)
"""


def test_the_check_of_offsets_finds_a_narrow_one() -> None:
    assert narrow_offsets(NARROW.replace("OFFSET", "%offset"))
    assert not narrow_offsets(NARROW.replace("OFFSET", "%range"))
