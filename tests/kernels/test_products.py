"""Products by oneDNN are F.linear's to rounding, gradients too, and whichever library is chosen is chosen by the clock."""

import pytest
import torch
import torch.nn.functional as F

from lessonlib.kernels import products


@pytest.mark.parametrize("rows", [(1,), (3,), (9,), (2, 40)])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_onednn_gives_the_same_product(rows, bias):
    x, weight, add = torch.randn(*rows, 96), torch.randn(130, 96), torch.randn(130) if bias else None
    exact = F.linear(x.double(), weight.double(), None if add is None else add.double())
    for found in (products.onednn(x, weight, add), products.onednn(x, weight.T.contiguous().T, add), products.linear(x, weight, add)):
        assert found.shape == exact.shape and (found - exact).abs().max() < 1e-4


@pytest.mark.parametrize("rows", [(1,), (3,), (2, 40)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("trains", ["xwb", "w", "x", "b"])
def test_onednn_gives_the_same_gradients(monkeypatch, rows, bias, trains):
    monkeypatch.setattr(products, "onednn_is_quicker", lambda rows: True)
    inputs = [torch.randn(*rows, 96), torch.randn(130, 96), *([torch.randn(130)] if bias else [])]
    pull = torch.randn(*rows, 130)
    if trains == "b" and not bias:
        trains = "x"
    gradients = []
    for product, dtype in ((products.linear, torch.float32), (F.linear, torch.float64)):
        leaves = [each.to(dtype).requires_grad_(name in trains) for each, name in zip(inputs, "xwb")]
        (product(*leaves) * pull).sum().backward()
        product(*leaves).sum().backward()  # its gradient is one number, expanded
        gradients.append([leaf.grad for leaf in leaves])
        for each in inputs:
            each.requires_grad_(False)
    for found, exact in zip(*gradients):
        assert (found is None) == (exact is None)
        assert found is None or (found - exact).abs().max() < 2e-4


def test_what_onednn_cannot_do_is_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_quicker", lambda rows: True)
    weight, bias = torch.randn(5, 6, requires_grad=True), torch.randn(10)[::2]
    for x in (torch.randn(0, 6), torch.randn(2, 0, 6), torch.randn(6)):
        found = products.linear(x, weight, bias)
        torch.testing.assert_close(found, F.linear(x, weight, bias))
        found.sum().backward()
    for other in (bias, torch.full((1,), .5).expand(5)):  # biases that do not lie in one piece
        torch.testing.assert_close(products.linear(torch.ones(3, 6), weight, other), F.linear(torch.ones(3, 6), weight, other))


def test_the_choice_draws_no_random_number():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    products.onednn_is_quicker.__wrapped__("many")
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("quicker", [True, False])
@torch.inference_mode()
def test_the_quicker_library_is_taken_for_fp32_alone(monkeypatch, quicker):
    taken, asked = [], []
    monkeypatch.setattr(products, "onednn_is_quicker", lambda rows: asked.append(rows) or quicker)
    monkeypatch.setattr(products, "onednn", lambda *arguments: taken.append(arguments[0].dtype) or F.linear(*arguments))
    weight = torch.randn(8, 6)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        products.linear(torch.randn(2, 6, dtype=dtype), weight.to(dtype))
    products.linear(torch.randn(8, 5, 6), weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.linear(torch.randn(2, 6), weight).dtype == torch.bfloat16
    assert taken == [torch.float32] * 2 * quicker and asked == ["few", "many"]


def test_the_choice_goes_by_the_clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(products, "PROBES", {"few": ((1, 3), (8, 4)), "many": ((5,), (8, 4))})
    monkeypatch.setattr(products, "perf_counter", lambda: now[0])
    monkeypatch.setattr(products.F, "linear", lambda *_: now.__setitem__(0, now[0] + 2))
    for cost, quicker in ((1, True), (3, False)):
        monkeypatch.setattr(products, "onednn", lambda *_, cost=cost: now.__setitem__(0, now[0] + cost))
        for rows in ("few", "many"):
            assert products.onednn_is_quicker.__wrapped__(rows) is quicker
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert products.onednn_is_quicker.__wrapped__("few") is False
