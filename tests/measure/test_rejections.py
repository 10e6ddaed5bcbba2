"""The record of a decoding's rounds: it is the decoding itself, and its bets are both models' odds at the places it names."""

import pytest
import torch
from support import naive_logits, sequences, tiny

from lessonlib.decode.decoder import Decoder, spec_greedy
from lessonlib.errors import LessonError
from lessonlib.measure.rejections import record_rounds

TARGET = tiny(seed=1, sharp=4.0)
DRAFTS = {"another": tiny(seed=2, sharp=4.0), "a near one": tiny(seed=1, sharp=3.0), "the target itself": TARGET}
PROMPTS = [prompt for prompt, _ in sequences(6, seed=3)]


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("K", [1, 3])
def test_the_rounds_are_the_decoding_and_nothing_else(draft, K):
    for prompt in PROMPTS:
        decoded, rounds = record_rounds(TARGET, draft, prompt, K, 20)
        assert decoded.tokens == spec_greedy(TARGET, draft, prompt, K, 20).tokens
        assert len(rounds) == decoded.rounds
        text = list(prompt)
        for found in rounds:
            assert found.text == text and len(found.proposed) == K
            assert found.written == (found.proposed[:found.kept] + found.written[found.kept:])[:len(found.written)]
            assert found.before == text + found.written[:-1] and found.wanted == found.written[-1]
            text += found.written
        assert text == prompt + decoded.tokens
        assert sum(found.rejected for found in rounds) == sum(decoded.tested) - sum(decoded.accepted)


def test_a_rejection_names_what_the_draft_proposed_and_what_the_target_wanted():
    refused = 0
    for prompt in PROMPTS:
        for found in record_rounds(TARGET, DRAFTS["another"], prompt, 3, 20)[1]:
            if found.rejected:
                refused += 1
                assert naive_logits(TARGET, found.before, [0])[0].argmax() == found.wanted != found.refused
                assert naive_logits(DRAFTS["another"], found.before, [0])[0].argmax() == found.refused
            else:
                assert found.refused is None
    assert refused > 50


def test_the_bets_are_each_models_odds_at_the_last_token_written():
    draft = DRAFTS["another"]
    for found in record_rounds(TARGET, draft, PROMPTS[0], 3, 20, bets=7)[1]:
        for model, bets in ((TARGET, found.target_bets), (draft, found.draft_bets)):
            odds, tokens = naive_logits(model, found.before, [0])[0].softmax(-1).topk(7)
            assert [token for token, _ in bets] == tokens.tolist()
            assert torch.allclose(torch.tensor([p for _, p in bets]), odds, atol=1e-5)


def test_what_the_end_cuts_off_is_no_rejection():
    plain = Decoder(TARGET).decode(PROMPTS[0], 0, 8).tokens
    end = plain.index(plain[4])  # the first place where this token ends the text
    decoded, rounds = record_rounds(TARGET, TARGET, PROMPTS[0], 3, 20, eos_token_ids=(plain[4],))
    assert decoded.tokens == plain[:end + 1]
    assert not any(found.rejected for found in rounds) and rounds[-1].wanted == plain[4]
    for length in range(1, 9):
        decoded, rounds = record_rounds(TARGET, DRAFTS["another"], PROMPTS[1], 3, length)
        assert sum(found.rejected for found in rounds) == sum(decoded.tested) - sum(decoded.accepted)


def test_a_record_needs_rounds_with_proposals():
    with pytest.raises(LessonError, match="K = 0"):
        record_rounds(TARGET, TARGET, PROMPTS[0], 0, 5)
