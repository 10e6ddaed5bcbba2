"""Sampled texts have exactly the target's distribution: 5,000 decodings in six settings, against every possible text."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lessonlib.decode import decoder as decoder_module
from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import ModelDrafter, Sampling
from lessonlib.kernels.draw import draw

V, N, PROMPT, EOS, DECODINGS = 6, 3, [2], 4, 5_000
FEWER = 2_000  # enough to catch what is wrong
SETTINGS = {  # temperature, top_k, top_p, K
    "T = 1": (1.0, None, None, 2),
    "T = 0.7, blocks longer than the text": (0.7, None, None, 4),
    "top_k = 3": (1.0, 3, None, 1),
    "top_p = 0.8": (1.0, None, 0.8, 2),
    "T = 1.4, top_k = 4, top_p = 0.9": (1.4, 4, 0.9, 2),
    "argmax proposals at T = 1": (1.0, None, None, 2)}


@pytest.fixture(scope="module")
def pair(tiny):
    """A target whose odds are neither flat nor certain, and a draft that often disagrees."""
    target = tiny.llama(vocabulary=V, layers=1, seed=2, positions=16, scale=1.2)
    return target, tiny.disturbed(target, 0.5)


def every_text(tiny, target, temperature, top_k, top_p):
    """{text: probability}, by transformers' forward pass and processors; a text ends at EOS or after N tokens."""
    processors = [TemperatureLogitsWarper(temperature)]
    processors += [] if top_k is None else [TopKLogitsWarper(top_k)]
    processors += [] if top_p is None else [TopPLogitsWarper(top_p)]
    texts = {(): 1.0}
    for length in range(N):
        open_texts = [text for text in texts if len(text) == length and EOS not in text]
        logits = tiny.logits_without_cache(target, [PROMPT + list(text) for text in open_texts])[:, -1]
        for processor in processors:
            logits = processor(None, logits)
        for text, probs in zip(open_texts, logits.softmax(-1).tolist()):
            weight = texts.pop(text)
            texts.update({text + (token,): weight * p for token, p in enumerate(probs) if p > 0})
    assert sum(texts.values()) == pytest.approx(1, abs=1e-9)
    return texts


def decode_many(pair, temperature, top_k, top_p, K, drafter=ModelDrafter, n=DECODINGS):
    decoder, drafter = Decoder(pair[0]), drafter(pair[1])
    sampling = Sampling(temperature, top_k, top_p, torch.Generator().manual_seed(0))
    return [decoder.decode(PROMPT, K, N, drafter, EOS, sampling) for _ in range(n)]


def chi_square_p(results, texts):
    """p-value of the decoded texts; texts expected fewer than five times share one cell. A text that cannot be gives 0."""
    counts = dict.fromkeys(texts, 0)
    for result in results:
        if tuple(result.tokens) not in counts:
            return 0.0
        counts[tuple(result.tokens)] += 1
    often = [text for text, p in texts.items() if p * len(results) >= 5]
    cells = [(counts[text], texts[text] * len(results)) for text in often]
    seen, expected = (len(results) - sum(column) for column in zip(*cells))
    if expected > 1:
        cells.append((seen, expected))
    seen, expected = torch.tensor(cells, dtype=torch.float64).T
    statistic = ((seen - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2, dtype=torch.float64), statistic / 2).item()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_texts_have_the_targets_distribution(tiny, pair, name):
    *settings, K = SETTINGS[name]
    texts = every_text(tiny, pair[0], *settings)
    results = decode_many(pair, *settings, K, tiny.Argmax if "argmax" in name else ModelDrafter)
    assert chi_square_p(results, texts) > 1e-4
    tested = sum(sum(result.tested) for result in results)
    assert 0.2 < sum(sum(result.accepted) for result in results) / tested < 0.9  # both branches of the rule did their part
    assert len(texts) > 8


def test_a_draft_with_some_of_the_vocabulary_leaves_the_targets_distribution(tiny, pair):
    some = [0, 2, 3, 5]
    assert chi_square_p(decode_many(pair, 1.0, None, None, 2, lambda draft: ModelDrafter(draft, some)), every_text(tiny, pair[0], 1.0, None, None)) > 1e-4


def resample_from_the_target(target_probs, draft_probs, draft_tokens, uniforms):
    kept, following = right(target_probs, draft_probs, draft_tokens, uniforms)
    return kept, draw(target_probs[kept], uniforms[-1])


def bonus_from_the_row_before(target_probs, draft_probs, draft_tokens, uniforms):
    return right(torch.cat([target_probs[:-1], target_probs[-2:-1]]), draft_probs, draft_tokens, uniforms)


def keep_everything(target_probs, draft_probs, draft_tokens, uniforms):
    return right(target_probs, draft_probs, draft_tokens, torch.cat([0 * uniforms[:-1], uniforms[-1:]]))


right = decoder_module.accept


@pytest.mark.parametrize("rule", [resample_from_the_target, bonus_from_the_row_before, keep_everything])
def test_a_rule_that_is_slightly_wrong_is_caught(tiny, pair, rule, monkeypatch):
    monkeypatch.setattr(decoder_module, "accept", rule)
    *settings, K = SETTINGS["T = 1"]
    assert chi_square_p(decode_many(pair, *settings, K, n=FEWER), every_text(tiny, pair[0], *settings)) < 1e-8


def test_other_settings_than_those_asked_for_are_caught(tiny, pair):
    results = decode_many(pair, 1.0, None, None, 2, n=FEWER)
    for settings in ((1.0, 3, None), (1.0, None, 0.8), (0.7, None, None)):
        assert chi_square_p(results, every_text(tiny, pair[0], *settings)) < 1e-8
