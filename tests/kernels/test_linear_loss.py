"""A head and its loss in chunks, against autograd through both in float64."""

import pytest
import torch

from lessonlib.kernels.linear_loss import linear_loss, why_not_linear


def parts(dtype=torch.float32, rows=23, width=8, vocabulary=31):
    generator = torch.Generator().manual_seed(0)
    hidden, weight, target = (torch.randn(shape, generator=generator) for shape in ((rows, width), (vocabulary, width), (rows, vocabulary)))
    return hidden.to(dtype), torch.nn.Parameter(weight), target


def squares(target):
    """loss_and_gradient of half the squared distance to `target`, whose gradient is the distance."""
    def loss_and_gradient(logits, rows):
        logits -= target[rows].to(logits.dtype)
        return logits.float().square().sum(-1) / 2
    return loss_and_gradient


def exact(hidden, weight, target):
    hidden, weight = hidden.double().requires_grad_(True), weight.detach().double().requires_grad_(True)
    loss = (hidden @ weight.T - target.double()).square().sum() / 2
    loss.backward()
    return loss.item(), hidden.grad, weight.grad


@pytest.mark.parametrize("chunk", [1, 7, 23, 100])
def test_equals_autograd_through_the_whole(chunk):
    hidden, weight, target = parts()
    loss, hidden_grad, weight_grad = exact(hidden, weight, target)
    found = linear_loss(hidden, weight, squares(target), chunk)
    assert found.item() == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(hidden.double(), hidden_grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(weight.grad.double(), weight_grad, rtol=1e-5, atol=1e-4)


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, target = parts()
    expected = exact(hidden, weight, target)[1]
    linear_loss(hidden, weight.requires_grad_(False), squares(target))
    assert weight.grad is None
    torch.testing.assert_close(hidden.double(), expected, rtol=1e-5, atol=1e-4)


def test_a_tied_head_adds_to_the_gradient_that_its_embedding_has():
    hidden, weight, target = parts()
    weight_grad = exact(hidden, weight, target)[2]
    weight.grad = torch.full_like(weight, 2.0)
    linear_loss(hidden, weight, squares(target), 5)
    torch.testing.assert_close(weight.grad.double(), weight_grad + 2, rtol=1e-5, atol=1e-4)


def test_low_precision_products_sum_into_an_fp32_gradient():
    hidden, weight, target = parts(torch.bfloat16)
    weight_grad = exact(hidden, weight, target)[2]
    linear_loss(hidden, weight, squares(target), 5)
    assert hidden.dtype == torch.bfloat16 and weight.grad.dtype == torch.float32
    assert (weight.grad - weight_grad).norm() < .02 * weight_grad.norm()


def test_never_more_than_a_chunk_of_logits():
    hidden, weight, target = parts()
    seen = []
    linear_loss(hidden, weight, lambda logits, rows: (seen.append((len(logits), logits.data_ptr())), logits.sum(-1))[1], 10)
    assert [count for count, _ in seen] == [10, 10, 3] and len({place for _, place in seen}) == 1


def test_a_head_with_more_than_weights_is_left_to_autograd():
    assert why_not_linear(torch.nn.Linear(3, 4, bias=False)) is None
    assert "Linear with more" in why_not_linear(torch.nn.Linear(3, 4))
    assert "Sequential" in why_not_linear(torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False)))
