"""The product of a few rows: oneDNN's is F.linear's to rounding, and whichever is chosen is chosen by the clock."""

import pytest
import torch
import torch.nn.functional as F

from lessonlib.kernels import few_rows


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_onednn_gives_the_same_product(rows, bias):
    x, weight, add = torch.randn(rows, 96), torch.randn(130, 96), torch.randn(130) if bias else None
    exact = F.linear(x.double(), weight.double(), None if add is None else add.double())
    assert (few_rows.onednn(x, weight, add) - exact).abs().max() < 1e-4
    assert (few_rows.linear(x, weight, add) - exact).abs().max() < 1e-4


@pytest.mark.parametrize("quicker", [True, False])
@torch.inference_mode()
def test_the_quicker_library_is_taken_for_fp32_alone(monkeypatch, quicker):
    taken = []
    monkeypatch.setattr(few_rows, "onednn_is_quicker", lambda: quicker)
    monkeypatch.setattr(few_rows, "onednn", lambda *arguments: taken.append(arguments[0].dtype) or F.linear(*arguments))
    weight = torch.randn(8, 6)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        few_rows.linear(torch.randn(2, 6, dtype=dtype), weight.to(dtype))
    few_rows.linear(torch.randn(2, 6), torch.randn(6, 8).T)  # a weight that lies otherwise
    assert taken == ([torch.float32] if quicker else [])


def test_the_choice_goes_by_the_clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(few_rows, "PROBE", (8, 4))
    monkeypatch.setattr(few_rows, "perf_counter", lambda: now[0])
    monkeypatch.setattr(few_rows.F, "linear", lambda *_: now.__setitem__(0, now[0] + 2))
    for cost, quicker in ((1, True), (3, False)):
        monkeypatch.setattr(few_rows, "onednn", lambda *_, cost=cost: now.__setitem__(0, now[0] + cost))
        assert few_rows.onednn_is_quicker.__wrapped__() is quicker
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert few_rows.onednn_is_quicker.__wrapped__() is False
