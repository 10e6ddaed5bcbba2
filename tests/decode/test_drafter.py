"""The drafter that is a model: whatever was kept of its last block, the next is what it would propose without a cache."""

import pytest
import torch

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import ModelDrafter, Sampling
from lessonlib.decode.warp import probabilities


def greedy(tiny, model, text, K):
    return tiny.greedy_without_cache(model, [text], K)[0][0]


@pytest.mark.parametrize("K", [1, 3, 5])
def test_after_any_number_of_kept_tokens_the_cache_is_complete_and_holds_no_more(tiny, K):
    model, generator = tiny.llama(), torch.Generator().manual_seed(K)
    drafter, text = ModelDrafter(model), [3, 1, 4]
    drafter.reset(text, Sampling())
    for kept in [K, 0, *range(K + 1), K, K, 0, 0, *torch.randint(K + 1, (4,), generator=generator).tolist()]:
        block = drafter.propose(K)
        assert block.probs is None and block.tokens.tolist() == greedy(tiny, model, text, K)
        assert drafter.step.length == len(text) + K - 1
        written = block.tokens[:kept].tolist() + [torch.randint(64, (), generator=generator).item()]
        drafter.observe(written)
        text = text + written
        # all but the last token; after a wholly kept block the last proposal is still to be read too
        assert drafter.step.length == len(text) - (2 if kept == K else 1)


@pytest.mark.parametrize("settings", [(1.0, None, None), (0.7, 10, 0.9)])
def test_sampled_proposals_come_with_the_very_distribution_they_were_drawn_from(tiny, settings):
    model, generator = tiny.llama(scale=2.0), torch.Generator().manual_seed(0)
    drafter, text, K = ModelDrafter(model), [3, 1, 4], 4
    drafter.reset(text, Sampling(*settings, generator))
    chances = []
    for kept in (4, 0, 2, 4, 4, 1, 3) * 6:
        block = drafter.propose(K)
        tokens = block.tokens.tolist()
        logits = tiny.logits_without_cache(model, [text + tokens])[0, len(text) - 1:-1]
        torch.testing.assert_close(block.probs, probabilities(logits, *settings), rtol=0, atol=1e-4)
        chances += block.probs.gather(1, block.tokens[:, None])[:, 0].tolist()
        drafter.observe(tokens[:kept] + [7])
        text = (text + tokens[:kept] + [7])
        if len(text) > 100:
            text = text[:5]
            drafter.reset(text, Sampling(*settings, generator))
    assert min(chances) > 0 and 0.02 < sum(chances) / len(chances) < 0.9


def test_a_generator_makes_proposals_repeatable_and_they_vary_without_the_same_seed(tiny):
    drafter, blocks = ModelDrafter(tiny.llama(scale=2.0)), []
    for seed in (0, 0, 1):
        drafter.reset([5], Sampling(1.0, generator=torch.Generator().manual_seed(seed)))
        blocks.append(drafter.propose(8).tokens.tolist())
    assert blocks[0] == blocks[1] != blocks[2]


def test_a_new_text_forgets_the_old_one(tiny):
    model = tiny.llama()
    drafter = ModelDrafter(model)
    for text in ([1, 2, 3], [9], [1, 2, 3, 4, 5, 6, 7]):
        drafter.reset(text, Sampling())
        assert drafter.propose(3).tokens.tolist() == greedy(tiny, model, text, 3)
        drafter.observe([1])
    prompt = [8, 8]
    drafter.reset(prompt, Sampling())
    drafter.propose(2)
    drafter.observe([5])
    assert prompt == [8, 8]


@torch.inference_mode()
def test_with_some_of_the_vocabulary_it_proposes_what_the_model_would_of_those(tiny):
    target, draft, some = tiny.llama(layers=3), tiny.llama(layers=2, seed=5), list(range(0, 64, 2))
    decoder, prompt = Decoder(target), [3, 1, 4, 1, 5]
    drafter = ModelDrafter(draft, some)
    drafter.reset(prompt, Sampling())
    expected = list(prompt)
    for _ in range(3):
        logits = draft(torch.tensor([expected])).logits[0, -1]
        expected.append(max(some, key=lambda token: logits[token]))
    assert drafter.propose(3).tokens.tolist() == expected[5:]
    assert decoder.decode(prompt, 3, 20, ModelDrafter(draft, some)).tokens == decoder.decode(prompt, 0, 20).tokens
    drafter.reset(prompt, Sampling(1.0, generator=torch.Generator().manual_seed(0)))
    block = drafter.propose(2)
    assert block.probs.shape == (2, 64) and block.probs[:, 1::2].abs().sum() == 0 and all(token % 2 == 0 for token in block.tokens.tolist())
    torch.testing.assert_close(block.probs[0, some], draft(torch.tensor([prompt])).logits[0, -1, some].softmax(-1))
    assert draft.lm_head.weight.shape[0] == 64
