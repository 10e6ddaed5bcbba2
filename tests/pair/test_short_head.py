"""The short output layer is the whole one's rows, and its odds lie where the vocabulary has them."""

import pytest
import torch
from support import tiny

from lessonlib.pair.short_head import ShortHead, most_frequent


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_short_head_gives_the_whole_ones_logits_of_its_tokens(kind):
    target, ids = tiny(kind), [3, 7, 11, 60]
    whole, short, hidden = ShortHead(target), ShortHead(target, ids), torch.randn(2, 3, target.config.hidden_size)
    torch.testing.assert_close(short.logits(hidden), target.lm_head(hidden)[..., ids])
    torch.testing.assert_close(whole.logits(hidden), target.lm_head(hidden))
    probs = short.logits(hidden).softmax(-1)
    odds = short.odds(probs)
    assert odds.shape == (2, 3, 61) and torch.equal(odds[..., ids], probs) and odds.sum(-1).allclose(torch.ones(2, 3))
    assert short.tokens(torch.tensor([2, 0])).tolist() == [11, 3] and whole.tokens(torch.tensor([2])).tolist() == [2] and whole.odds(probs) is probs


def test_the_most_frequent_tokens_are_those_of_the_answers():
    sequences = [([9, 9, 9, 9], [1, 2, 2, 5]), ([9], [2, 1, 7])]
    assert most_frequent(sequences, 2).tolist() == [1, 2] and most_frequent(sequences, 99).tolist() == [1, 2, 5, 7]
