"""The few-rows kernel, against plain products in float64: every mixture of norm, biases, gate and residual, outputs and inputs shared out or not."""

import pytest
import torch

from lessonlib.kernels import few_rows_triton
from lessonlib.kernels.few_rows_triton import ROWS, NormedRows, Scratch, few_rows, few_rows_defined, look_up

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning:triton")


def check(device, width, sizes, n, dtype=torch.float32, close=2e-6, times=1, normed=False, leaves=False, eps=1e-5, room=ROWS, **options):
    generator = torch.Generator().manual_seed(width + sum(sizes) + n)
    new = lambda *shape, spread=1.0: (torch.randn(*shape, generator=generator) * spread).to(device, dtype)  # noqa: E731
    x, weights = new(room, width), [new(size, width, spread=width ** -.5) for size in sizes]
    outputs = sizes[0] if options.get("gated") else sum(sizes)
    names = {"biases": lambda: [new(size) for size in sizes], "residual": lambda: new(room, outputs)}
    options = {name: names[name]() if name in names and value else value for name, value in options.items()}
    norm, after = new(width), new(outputs)
    exact = few_rows_defined(x.double(), [weight.double() for weight in weights], n, norm.double() if normed else None, eps, **{
        name: [each.double() for each in value] if isinstance(value, list) else value.double() if isinstance(value, torch.Tensor) else value
        for name, value in options.items()})
    scratch, count = Scratch(torch.device(device)), torch.tensor([n], dtype=torch.int32, device=device)
    rows = x
    if normed:  # as `look_up` leaves them
        rows = NormedRows(room, width, dtype, torch.device(device))
        look_up(torch.arange(room, device=device), x, rows, count, norm)
    out = NormedRows(room, outputs, dtype, torch.device(device)) if leaves else new(room, outputs)
    made = out.rows if leaves else out
    untouched = made[n:].clone()
    for _ in range(times):
        few_rows(rows, weights, out, count, scratch, eps=eps, norm=after if leaves else None, **options)
    assert (made[:n].double() - exact).norm() <= close * exact.norm() + 1e-30
    assert torch.equal(made[n:], untouched) and not scratch.arrived.any()
    if leaves:
        torch.testing.assert_close(out.scaled[:n], made[:n] * after, rtol=1e-2 if dtype.itemsize == 2 else 1e-6, atol=1e-6)
        torch.testing.assert_close(out.squares.sum(0)[:n], made[:n].float().square().sum(-1), rtol=1e-5, atol=1e-5)
    return made[:n].clone()


@pytest.mark.parametrize("options", [{}, {"normed": True}, {"biases": True}, {"residual": True, "leaves": True}, {"gated": True}, {"leaves": True},
                                     {"normed": True, "eps": 1e-2, "biases": True, "gated": True}, {"biases": True, "residual": True}])
@pytest.mark.parametrize("n", [0, 1, 5, ROWS])
def test_equals_the_products(options, n, device):
    sizes = [70, 70] if options.get("gated") else [118] if options.get("leaves") else [70, 24, 24]
    check(device, 96, sizes, n, **options)


@pytest.mark.parametrize("options", [{"normed": True, "biases": True}, {"residual": True, "leaves": True}, {"normed": True, "gated": True}])
@pytest.mark.parametrize("n", [1, 37, 64])
def test_so_it_does_with_room_for_more_rows(options, n, device):
    check(device, 96, [70, 70] if options.get("gated") else [118], n, room=64, **options)


@pytest.mark.parametrize("options", [{"normed": True}, {"residual": True, "leaves": True}, {"normed": True, "gated": True, "biases": True}])
def test_so_it_does_where_programs_share_the_inputs(options, device, monkeypatch):
    few_rows_triton._planned.cache_clear()
    monkeypatch.setattr(few_rows_triton, "processors", lambda device: 16)
    sizes = [140, 140] if options.get("gated") else [140]
    for width in (1024, 1000):
        twice = check(device, width, sizes, 3, times=2, **options)
        assert torch.equal(twice, check(device, width, sizes, 3, **options))  # the same digits every time
    few_rows_triton._planned.cache_clear()


def test_in_half_precision_it_strays_no_further_than_rounding(device):
    for dtype, close in ((torch.float16, 1e-3), *([(torch.bfloat16, 6e-3)] if device == "cuda" else [])):  # the interpreter multiplies bf16's bits
        check(device, 256, [64, 32], 5, dtype, close, normed=True)
        check(device, 256, [64], 5, dtype, close, residual=True, leaves=True)
