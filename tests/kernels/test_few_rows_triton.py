"""The few-rows kernel, against plain products in float64: every mixture of norm, biases, gate and residual, outputs and inputs shared out or not."""

import pytest
import torch

from lessonlib.kernels import few_rows_triton
from lessonlib.kernels.few_rows_triton import ROWS, Scratch, few_rows, few_rows_defined

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning:triton")


def check(device, width, sizes, n, dtype=torch.float32, close=2e-6, times=1, **options):
    generator = torch.Generator().manual_seed(width + sum(sizes) + n)
    new = lambda *shape, spread=1.0: (torch.randn(*shape, generator=generator) * spread).to(device, dtype)  # noqa: E731
    x, weights = new(ROWS, width), [new(size, width, spread=width ** -.5) for size in sizes]
    outputs = sizes[0] if options.get("gated") else sum(sizes)
    names = {"norm": lambda: new(width), "biases": lambda: [new(size) for size in sizes], "residual": lambda: new(ROWS, outputs)}
    options = {name: names[name]() if name in names and value else value for name, value in options.items()}
    exact = few_rows_defined(x.double(), [weight.double() for weight in weights], n, **{
        name: [each.double() for each in value] if isinstance(value, list) else value.double() if isinstance(value, torch.Tensor) else value
        for name, value in options.items()})
    scratch, out, count = Scratch(torch.device(device)), new(ROWS, outputs), torch.tensor([n], dtype=torch.int32, device=device)
    untouched = out[n:].clone()
    for _ in range(times):
        few_rows(x, weights, out, count, scratch, **options)
    assert (out[:n].double() - exact).norm() <= close * exact.norm() + 1e-30
    assert torch.equal(out[n:], untouched) and not scratch.arrived.any()
    return out[:n].clone()


@pytest.mark.parametrize("options", [{}, {"norm": True, "eps": 1e-5}, {"biases": True}, {"residual": True}, {"gated": True},
                                     {"norm": True, "eps": 1e-2, "biases": True, "gated": True}, {"biases": True, "residual": True}])
@pytest.mark.parametrize("n", [0, 1, 5, ROWS])
def test_equals_the_products(options, n, device):
    sizes = [70, 70] if options.get("gated") else [70, 24, 24]
    check(device, 96, sizes, n, **options)


@pytest.mark.parametrize("options", [{"norm": True, "eps": 1e-5}, {"residual": True}, {"norm": True, "gated": True, "biases": True}])
def test_so_it_does_where_programs_share_the_inputs(options, device, monkeypatch):
    few_rows_triton._planned.cache_clear()
    monkeypatch.setattr(few_rows_triton, "_device", lambda device: (8, 2**17))
    sizes = [40, 40] if options.get("gated") else [40]
    for width in (1024, 1000):
        twice = check(device, width, sizes, 3, times=2, **options)
        assert torch.equal(twice, check(device, width, sizes, 3, **options))  # the same digits every time
    few_rows_triton._planned.cache_clear()


def test_in_half_precision_it_strays_no_further_than_rounding(device):
    for dtype, close in ((torch.float16, 1e-3), *([(torch.bfloat16, 6e-3)] if device == "cuda" else [])):  # the interpreter multiplies bf16's bits
        check(device, 256, [64, 32], 5, dtype, close, norm=True, eps=1e-5)
        check(device, 256, [64], 5, dtype, close, residual=True)
