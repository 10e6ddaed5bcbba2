"""The course's own pair in fp32: six answers, K = 1, 2, 4, 8, three drafts, token for token what the target writes alone."""

import pytest
import torch

from lessonlib.decode.decoder import Decoded, Decoder
from lessonlib.decode.drafter import ModelDrafter
from lessonlib.drafts.truncated import truncated_draft
from lessonlib.pair.chat import chat_ids, end_of_turn_ids
from lessonlib.pair.draft_files import load_draft
from lessonlib.pair.load import load_target, load_tokenizer
from lessonlib.pair.presets import preset

PROMPTS = ("What color is the sky on a clear day?", "Who wrote Romeo and Juliet?", "Which planet is closest to the sun?",
           "Translate 'good morning' into French.", "Name three fruits.", "How do you spell the number 12?",
           "What is the capital of France?")
N, NEAR_TIE = 48, 1e-3


@pytest.fixture(scope="module")
def pair():
    chosen = preset("tiny")
    return load_tokenizer(chosen), load_target(chosen), chosen


@pytest.fixture(scope="module")
def answers(pair):
    """(ids of the prompt, the target's greedy answer, smallest gap between first and second logit) of each prompt."""
    tokenizer, target, _ = pair
    decoder, found = Decoder(target), []
    for text in PROMPTS:
        prompt, gaps = chat_ids(tokenizer, text), []
        result = decoder.decode(prompt, 0, N, eos_token_ids=end_of_turn_ids(tokenizer, target.generation_config),
                                on_round=lambda *seen: gaps.append(torch.sub(*seen[4][0].topk(2).values).item()))
        found.append((prompt, result.tokens, min(gaps)))
    return found


@pytest.fixture(scope="module")
def kept(answers):
    """Six answers without a near-tie."""
    return [(prompt, text) for prompt, text, gap in answers if gap > NEAR_TIE][:6]


def test_nearly_every_prompt_is_free_of_near_ties(answers, kept):
    assert sum(gap > NEAR_TIE for *_, gap in answers) >= 0.9 * len(answers) and len(kept) == 6
    assert sum(len(text) for _, text in kept) > 150 and len({len(text) for _, text in kept}) > 2


def test_plain_decoding_is_the_loop_without_a_cache(pair, kept):
    target = pair[1]
    for prompt, text in kept[3:]:
        with torch.inference_mode():
            logits = target(torch.tensor([prompt + text], device=target.device), use_cache=False).logits[0]
        assert logits[len(prompt) - 1:-1].argmax(-1).tolist() == text


@pytest.mark.parametrize("name, n, low, high", [
    ("off-the-shelf", N, 0.1, 0.6), ("first four layers", N, 0.0, 0.3), ("the target itself", N // 2, 1.0, 1.0)])
def test_every_draft_at_every_k_leaves_the_text_alone(pair, kept, name, n, low, high):
    tokenizer, target, chosen = pair
    draft = {"off-the-shelf": lambda: load_draft(chosen.draft, target),
             "first four layers": lambda: truncated_draft(target, 4),
             "the target itself": lambda: target}[name]()
    decoder, drafter, eos = Decoder(target), ModelDrafter(draft), end_of_turn_ids(tokenizer, target.generation_config)
    for K in (1, 2, 4, 8):
        total = Decoded(K)
        for prompt, text in kept:
            result = decoder.decode(prompt, K, n, drafter, eos)
            assert result.tokens == text[:n], (K, tokenizer.decode(prompt))
            total.add(result)
        assert low <= total.per_tested <= high
