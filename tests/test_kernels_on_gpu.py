"""Every declared kernel compiled and run on the GPU at hand, against its reference."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")
HAS_GPU = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="no CUDA or ROCm device"),
]


def kernel_cases() -> list[object]:
    from tritonsnap.ops.kernel import declared_kernels

    return [
        pytest.param(kernel, dtype, precision, id=f"{kernel.name}-{dtype}-{precision}")
        for kernel in declared_kernels()
        for dtype in kernel.dtypes
        for precision in kernel.precisions
    ]


# without a GPU triton stays unimported, so that tests of the interpreter can run
CASES = kernel_cases() if HAS_GPU else [pytest.param(None, "", "", id="every-kernel")]


@pytest.mark.parametrize(("kernel", "dtype", "precision"), CASES)
def test_kernel_equals_its_reference(kernel, dtype: str, precision: str) -> None:
    from tritonsnap.autotune.runner import TorchRunner, verify

    runner = TorchRunner("cuda")
    for sizes in kernel.small:
        problem = kernel.problem(**sizes)
        config = kernel.default(sizes, dtype, precision, runner.device)
        expected = runner.expected(kernel, problem, dtype)
        verify(runner, kernel, problem, config, dtype, precision, expected)
        first = runner.run(kernel, problem, config, dtype, precision)
        again = runner.run(kernel, problem, config, dtype, precision)
        for name, output in first.items():
            assert output.tobytes() == again[name].tobytes()


@pytest.mark.parametrize("is_sorted", [False, True])
def test_coo_to_csr(is_sorted: bool) -> None:
    import tritonsnap.ops.coo_to_csr as op

    rows = torch.randint(0, 3000, (100_000,), generator=torch.Generator().manual_seed(0))
    rows = rows.sort().values if is_sorted else rows
    found = op.coo_to_csr(rows.cuda(), 3000, indices_are_sorted=is_sorted)
    assert found.cpu().tolist() == op.coo_to_csr(rows, 3000).tolist()


class Step:
    """A step of a network's influence on the GPU: flat values, factors, and a gradient."""

    def __init__(
        self, order: int, hidden: int = 64, batch: int = 4, dtype: torch.dtype = torch.float32
    ) -> None:
        from tritonsnap import RNN, Factors, SnAp

        structure = SnAp(RNN(inputs=8, hidden=hidden, density=0.2), order).structure
        self.plan = plan = structure.plan
        generator = torch.Generator("cuda").manual_seed(order or 0)

        def random(*shape: int):
            return torch.randn(*shape, device="cuda", generator=generator).to(dtype)

        self.random = random
        self.d, self.j = random(batch, plan.dynamics.nnz), random(batch, plan.mask.nnz)
        gains = random(batch, structure.num_targets, plan.mask.shape[0])
        self.factors = Factors(gains, random(batch, structure.num_sources), structure)
        self.delta = random(batch, plan.mask.shape[0])

    def __call__(self):
        from tritonsnap import influence_step

        return influence_step(self.d, self.j, self.factors, self.delta, self.plan)


@pytest.mark.parametrize("order", [1, 2])
def test_a_fused_step_is_the_two_ops(order: int) -> None:
    from tritonsnap import influence_gradient, influence_update

    step = Step(order)
    influence, gradient = step()
    expected = influence_update(step.d, step.j, step.factors, step.plan)
    torch.testing.assert_close(influence, expected)
    torch.testing.assert_close(
        gradient, influence_gradient(step.delta, expected, step.plan, sum_batch=True)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", [1, 2, None])
def test_half_precision_rounds_what_is_stored_and_sums_in_float32(
    order: int | None, dtype: torch.dtype
) -> None:
    from tritonsnap import Factors

    step = Step(order, dtype=dtype)
    influence, gradient = step()
    assert influence.dtype == gradient.dtype == dtype
    values = [step.d, step.j, step.delta, *step.factors[:2]]
    step.d, step.j, step.delta, gains, sources = (one.double().cpu() for one in values)
    step.factors = Factors(gains, sources, step.factors.structure)
    expected, expected_gradient = step()
    half_unit = torch.finfo(dtype).eps  # of the largest value: rounding J', then the gradient
    for found, right in ((influence, expected), (gradient, expected_gradient)):
        error = (found.double().cpu() - right).abs().max() / right.abs().max()
        assert error <= 2 * half_unit


@pytest.mark.parametrize("order", [1, 2])
def test_cuda_graph(order: int) -> None:
    step = Step(order)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compile, and move the plan to the device
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    step.j.copy_(step.random(*step.j.shape))
    graph.replay()
    for one, other in zip(captured, step(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("order", [1, 2])
def test_several_streams(order: int) -> None:
    steps = [Step(order) for _ in range(3)]
    for number, step in enumerate(steps):
        step.j += number
    expected = [step() for step in steps]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in steps]
    for _ in range(5):
        found = []
        for step, stream in zip(steps, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(step())
        torch.cuda.synchronize()
        for ours, theirs in zip(found, expected, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("order", [1, 2])
def test_a_step_allocates_its_result_and_little_else(order: int) -> None:
    step = Step(order, hidden=512, batch=8)
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = step()
    torch.cuda.synchronize()
    influence = step.j.numel() * step.j.element_size()
    gradient = influence // len(step.j)
    small = step.d.numel() * step.d.element_size() + (1 << 20)
    # the influence with its padding; values in canonical order are not packed into a copy
    assert torch.cuda.max_memory_allocated() - before <= 2.01 * influence + gradient + small
    assert len(result) == 2


def test_a_sequence_on_the_gpu_equals_the_cpu() -> None:
    from tritonsnap import RNN, Readout, SnAp

    cell = RNN(inputs=5, hidden=24, density=0.3)
    learner, loss = SnAp(cell, order=1), Readout(3, loss="mse")
    params = cell.init(0, like="torch")
    readout = loss.init(24, 0, like="torch")
    xs, ys = torch.randn(6, 4, 5), torch.randn(6, 4, 3)
    found = []
    for device in ("cpu", "cuda"):
        move = lambda tree, device=device: {k: v.to(device) for k, v in tree.items()}  # noqa: E731
        with torch.device(device):
            carry = learner.init(batch=4, like="torch")
        run = learner.sequence(
            move(params), carry, xs.to(device), ys.to(device), loss, readout=move(readout)
        )
        found.append((run[0].cpu(), {name: value.cpu() for name, value in run[1][0].items()}))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("order", "hidden"), [(1, 512), (None, 64), (None, 200)])
def test_a_sequence_keeps_one_influence_with_the_same_bits(
    order: int | None, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritonsnap import RNN, SnAp
    from tritonsnap.online import snap

    learner = SnAp(RNN(inputs=8, hidden=hidden), order=order)
    batch = 32 if order else 2
    with torch.device("cuda"):
        params = {name: w.cuda() for name, w in learner.cell.init(0, like="torch").items()}
        carry = learner.init(batch, like="torch")
        xs, ys = torch.randn(5, batch, 8), torch.randn(5, batch, hidden)
    assert learner.plan.packing_for(xs).in_place
    (old,) = carry.influence
    old.normal_()
    old[:, learner.plan.mask.nnz :] = 0
    before = old.clone()
    arguments = params, carry, xs, ys, lambda state, y: ((state - y) ** 2).sum(-1)
    _, gradients, end = learner.sequence(*arguments)  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    allocated = torch.cuda.memory_allocated()
    learner.sequence(*arguments)
    torch.cuda.synchronize()
    size = old.numel() * old.element_size()
    room = 10 * size // batch if order else size // 2
    assert torch.cuda.max_memory_allocated() - allocated <= size + room + (1 << 20)
    assert torch.equal(old, before)
    monkeypatch.setattr(snap, "memory_of_steps", lambda *_: lambda influence: None)
    _, expected, new = learner.sequence(*arguments)
    assert torch.equal(end.influence[0], new.influence[0])
    assert all(torch.equal(gradients[name], one) for name, one in expected.items())


@pytest.mark.parametrize("order", [1, 2])
def test_a_compiled_step_equals_an_eager_one(order: int) -> None:
    step = Step(order)
    expected = step()
    for one, other in zip(torch.compile(step, fullgraph=True)(), expected, strict=True):
        torch.testing.assert_close(one, other)
