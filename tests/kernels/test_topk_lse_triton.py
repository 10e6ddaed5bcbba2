"""The two kernels, against the PyTorch function that defines them."""

import pytest
import torch

from lessonlib.kernels import topk_lse as module
from lessonlib.kernels.topk_lse import top_and_rest_defined, topk_lse
from lessonlib.kernels.topk_lse_triton import top_and_rest

# the interpreter computes with numpy, which warns of log(0), and of how Triton itself uses it
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning:triton")


def logits(vocabulary, dtype, device, rows=3, spread=4.0):
    generator = torch.Generator().manual_seed(vocabulary)
    return (torch.randn(rows, vocabulary, generator=generator) * spread).to(device, dtype)


def check(given, k, T=1.0):
    """The kernels' (ids, values) are the k largest in falling order, and their sums the defined ones."""
    ids, values, top, rest = top_and_rest(given, k, T)
    _, wanted, wanted_top, wanted_rest = top_and_rest_defined(given, k, T)
    assert torch.equal(values, wanted) and torch.equal(given.float().gather(-1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())
    torch.testing.assert_close(top, wanted_top, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(rest, wanted_rest, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("vocabulary, k", [(50, 50), (63, 1), (64, 64), (300, 2), (999, 64), (700, 128), (2500, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_its_definition(vocabulary, k, dtype, device):
    check(logits(vocabulary, dtype, device), k)


@pytest.mark.parametrize("T", [.5, 4.0])
def test_sums_at_a_temperature(T, device):
    check(logits(300, torch.bfloat16, device), 8, T)


@pytest.mark.parametrize("shape", ["equal", "rising", "few values", "top ones side by side", "zeros of both signs"])
def test_rows_of_every_shape(shape, device):
    row = {"equal": torch.full((500,), -2.5), "rising": torch.arange(500) / 10, "few values": torch.arange(500) % 3 - 1.0,
           "top ones side by side": torch.cat([torch.zeros(200), torch.arange(64) + 5.0, torch.zeros(236)]),
           "zeros of both signs": torch.tensor([-0.0, 0.0] * 250)}[shape]
    for dtype in (torch.float32, torch.bfloat16):
        check(row[None].to(device, dtype), 64)


def test_masked_tokens_are_kept_only_where_nothing_else_is_left(device):
    given = torch.full((2, 130), -torch.inf, device=device)
    given[0, [3, 128]] = torch.tensor([1.0, 2.0], device=device)
    ids, values, top, rest = top_and_rest(given, 3)
    assert ids[0, :2].tolist() == [128, 3] and values[0].tolist() == [2.0, 1.0, -torch.inf]
    assert len(set(ids[1].tolist())) == 3 and (ids < 130).all()
    assert rest.tolist() == [-torch.inf] * 2 and top[1] == -torch.inf
    torch.testing.assert_close(top[0], torch.tensor([1.0, 2.0], device=device).logsumexp(0))


@pytest.mark.parametrize("place", [0, 64, 299])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_row_with_nan_says_so_and_no_other(place, sign, device):
    given = logits(300, torch.bfloat16, device)
    given[1, place] = sign * torch.nan
    _, _, top, rest = top_and_rest(given, 8)
    assert torch.isnan(torch.logaddexp(top, rest)).tolist() == [False, True, False]


def test_a_small_tail_keeps_its_digits(device):
    given = torch.full((1, 200), -torch.inf, device=device)
    given[0, :4] = torch.tensor([30.0, 29.0, -70.0, -75.0])
    rest = top_and_rest(given, 2)[3]
    torch.testing.assert_close(rest, torch.tensor([-70.0, -75.0], device=device).logsumexp(0)[None])


def test_rows_that_are_not_side_by_side_and_no_rows(device):
    wide = logits(600, torch.float32, device)
    check(wide[:, :333], 8)
    check(wide[:, ::2], 8)
    assert [len(part) for part in top_and_rest(wide[:0], 8)] == [0] * 4


@pytest.mark.parametrize("k", [8, 200])
def test_topk_lse_runs_them_where_they_can_run_and_are_made_for_it(k, device, monkeypatch):
    given, calls = logits(2500, torch.bfloat16, device), []
    defined = topk_lse(given.cpu(), k)
    monkeypatch.setattr(module, "why_torch", lambda device: None)
    monkeypatch.setattr("lessonlib.kernels.topk_lse_triton.top_and_rest", lambda *args: calls.append(1) or top_and_rest(*args))
    found = topk_lse(given, k)
    assert len(calls) == (k <= module.MOST_K)
    for a, b in zip(found[1:], defined[1:]):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-6, atol=1e-5)


def test_a_tail_below_a_flat_row_of_low_logits(device):
    """Groups that are all taken leave an empty rest aside, which must not be raised to a power of its own."""
    given = torch.full((1, 300), -torch.inf, device=device)
    given[0, [0, 1, 2]] = torch.tensor([-200.0, -201.0, -290.0], device=device)
    check(given, 2)
