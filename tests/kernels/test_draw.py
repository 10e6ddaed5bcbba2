"""Drawing by inverse CDF: the right shares, and never an event of weight 0."""

import math

import pytest
import torch

from lessonlib.kernels.draw import draw

LAST = math.nextafter(1.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weights, first, last", [
    ([0, 0, .3, 0, .7, 0, 0], 2, 4), ([1, 0, 0], 0, 0), ([0, 0, 1], 2, 2), ([.1] * 10, 0, 9), ([0, 1e-30, 1e-30, 0], 1, 2),
    ([0, 3e7, .1, 0], 1, 2)])
def test_an_event_of_weight_0_is_never_drawn_even_at_the_ends(weights, first, last, dtype):
    weights = torch.tensor(weights, dtype=dtype)
    assert draw(weights, torch.tensor(0.0, dtype=torch.float64)) == first
    assert draw(weights, torch.tensor(LAST, dtype=torch.float64)) == last
    assert draw(weights, torch.tensor(LAST, dtype=torch.float32)) == last  # which rounds it to 1
    drawn = draw(weights.expand(10_000, -1), torch.rand(10_000, dtype=torch.float64))
    assert (weights[drawn] > 0).all()


def test_shares_are_the_weights():
    weights = torch.tensor([.5, 0, .3, .2]) * 7
    uniforms = (torch.arange(100_000, dtype=torch.float64) + .5) / 100_000
    counts = draw(weights.expand(100_000, -1), uniforms).bincount(minlength=4)
    assert (counts - torch.tensor([50_000, 0, 30_000, 20_000])).abs().max() <= 1


def test_small_probabilities_of_a_large_vocabulary_are_not_lost():
    # beside a sum of 1, fp32 cannot add 5e-8: everything after the first token would have share 0
    weights = torch.full((1, 151_936), 5e-8)
    weights[0, 0] = 1.0
    uniforms = .99 + .01 * torch.arange(100, dtype=torch.float64) / 100
    drawn = draw(weights.expand(100, -1), uniforms)
    assert (drawn > 0).sum() == (uniforms > 1 / (1 + 151_935 * 5e-8)).sum() > 70
    assert drawn.max() > 100_000


def test_each_row_has_its_own_weights_and_number():
    weights = torch.eye(6).view(2, 3, 6)
    assert torch.equal(draw(weights, torch.rand(2, 3)), torch.arange(6).view(2, 3))
