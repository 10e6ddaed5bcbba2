"""Greedy speculative decoding writes what the target alone writes: 200 prompts, K = 0..8, drafts from perfect to useless."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, Qwen2Config
from transformers import Qwen2ForCausalLM

from lessonlib.decode.decoder import Decoded, Decoder
from lessonlib.decode.drafter import ModelDrafter

N, SHALLOW = 64, 150  # new tokens; how many of the 200 prompts the target of one layer gets, the rest have one of two


@pytest.fixture(scope="module")
def pairs(tiny):
    """(decoder, [(quality, drafter)], prompts, texts) twice; prompts of one to eight ids, texts from full forward passes."""
    generator, found = torch.Generator().manual_seed(0), []
    one, two = tiny.llama(layers=1, seed=0), tiny.llama(layers=2, seed=1)
    good, poor, unrelated = tiny.disturbed(one, 0.05), tiny.disturbed(one, 0.2), tiny.llama(layers=1, seed=5)
    for target, drafts, n in (
            (one, [("itself", one), ("good", good), ("poor", poor), ("itself", one), ("good", good),
                   ("unrelated", unrelated)], SHALLOW),
            (two, [("cut", tiny.cut(two)), ("itself", two), ("cut", tiny.cut(two)), ("good", tiny.disturbed(two, 0.05))],
             200 - SHALLOW)):
        prompts = [torch.randint(64, (1 + i % 8,), generator=generator).tolist() for i in range(n)]
        texts = [None] * n
        for length in range(1, 9):
            some = [i for i in range(n) if len(prompts[i]) == length]
            written, gap = tiny.greedy_without_cache(target, [prompts[i] for i in some], N)
            assert gap > 1e-5  # transformers' own forward pass has parts in fp32, which must not matter
            for i, text in zip(some, written):
                texts[i] = text
        found.append((Decoder(target), [(quality, ModelDrafter(draft)) for quality, draft in drafts], prompts, texts))
    return found


def test_the_texts_are_worth_decoding(pairs):
    assert sum(len(prompts) for _, _, prompts, _ in pairs) == 200
    for _, _, prompts, texts in pairs:
        assert len({tuple(text) for text in texts}) > 0.9 * len(texts)
        assert sum(len(set(text)) for text in texts) / len(texts) > 15


def test_plain_decoding_is_the_loop_without_a_cache(pairs):
    for decoder, _, prompts, texts in pairs:
        assert [decoder.decode(prompt, 0, N).tokens for prompt in prompts] == texts


@pytest.mark.parametrize("K", range(1, 9))
def test_every_text_is_the_targets_own(pairs, K):
    """Each prompt meets each K; which draft, goes round: each K meets each draft on a dozen prompts or more."""
    totals, wrong = {}, []
    for decoder, drafts, prompts, texts in pairs:
        for i, (prompt, text) in enumerate(zip(prompts, texts)):
            quality, drafter = drafts[(i + K) % len(drafts)]
            result = decoder.decode(prompt, K, N, drafter)
            if result.tokens != text:
                wrong.append((quality, prompt))
            assert result.proposed == [result.rounds] * K
            total, count = totals.get(quality, (Decoded(K), 0))
            totals[quality] = total.add(result), count + 1
    assert wrong == []
    assert all(count >= 12 for _, count in totals.values())
    alpha = {quality: total.per_tested for quality, (total, _) in totals.items()}
    assert alpha["itself"] == 1 and 0.5 < alpha["good"] < 0.9, alpha
    assert 0.1 < alpha["poor"] < 0.5 and 0.1 < alpha["cut"] < 0.6 and alpha["unrelated"] < 0.1, alpha


SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128)
FAMILIES = {"llama": None,
            "mistral, a window of 7": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=7)),
            "qwen2, a window of 7 in one layer": lambda: Qwen2ForCausalLM(
                Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=1)),
            "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=128))}


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_own_models_too(tiny, family):
    torch.manual_seed(0)
    make = FAMILIES[family]
    target = tiny.randomised(make().double().eval().requires_grad_(False)) if make else tiny.llama()
    prompts = [[1], [2, 3, 4], list(range(20))]
    texts = []
    for prompt in prompts:
        written, gap = tiny.greedy_without_cache(target, [prompt], 40)
        assert gap > 1e-5
        texts += written
    assert min(len(set(text)) for text in texts) > 5
    decoder = Decoder(target)
    for draft in (target, tiny.disturbed(target, 0.05), tiny.disturbed(target, 0.3)):
        drafter = ModelDrafter(draft)
        for K in (1, 3, 6):
            assert [decoder.decode(prompt, K, 40, drafter).tokens for prompt in prompts] == texts
