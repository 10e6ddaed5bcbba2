"""What is kept of a row of logits, against sums in float64."""

import math

import pytest
import torch

from lessonlib.kernels.topk_lse import NO_TAIL, topk_lse

SHAPES = {"random": (7, 50, 3.0), "flat": (7, 50, 0.0), "peaky": (7, 300, 12.0), "wide": (2, 151_936, 2.0)}


def logits(shape, dtype=torch.float32):
    rows, vocabulary, spread = SHAPES[shape]
    return (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(1)) * spread + 5).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("k", [1, 8, 50])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_sums_in_float64(shape, k, dtype):
    given = logits(shape, dtype)
    ids, values, lse, log_tail = topk_lse(given, k)
    assert lse.dtype == values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = given.double()
    ordered = exact.sort(-1, descending=True).values
    torch.testing.assert_close(values.double(), ordered[:, :k], rtol=0, atol=0)
    torch.testing.assert_close(exact.gather(-1, ids), ordered[:, :k], rtol=0, atol=0)
    assert all(len(set(row)) == k for row in ids.tolist())
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 2e-6}
    torch.testing.assert_close(lse.double(), exact.logsumexp(-1), **close)
    if k == given.shape[1]:
        assert (log_tail == NO_TAIL).all() and (log_tail.exp() == 0).all()
        return
    tail = ordered[:, k:].logsumexp(-1) - exact.logsumexp(-1)
    torch.testing.assert_close(log_tail.double(), tail, **close)
    # and the k's own mass, 1 - tail, to as many digits
    torch.testing.assert_close(-torch.expm1(log_tail.double()), (ordered[:, :k] - exact.logsumexp(-1)[:, None]).exp().sum(-1),
                               rtol=2e-5, atol=0)


def test_a_tail_of_1e_12_keeps_its_digits():
    row = torch.tensor([[30.0, 29.0, math.log(math.exp(30) * 1e-12), -10.0]])
    log_tail = topk_lse(row, 2)[3]
    torch.testing.assert_close(log_tail, torch.tensor([-12 * math.log(10) - math.log(1 + math.exp(-1))]), rtol=1e-5, atol=0)


def test_masked_tokens_count_for_nothing():
    row = torch.tensor([[2.0, -torch.inf, 1.0, -torch.inf]])
    ids, values, lse, log_tail = topk_lse(row, 2)
    assert ids.tolist() == [[0, 2]] and log_tail.item() == NO_TAIL
    assert topk_lse(row, 3)[1].tolist() == [[2.0, 1.0, -torch.inf]] and topk_lse(row, 3)[3].item() == NO_TAIL
    torch.testing.assert_close(lse, torch.tensor([math.log(math.exp(2) + math.exp(1))]))
