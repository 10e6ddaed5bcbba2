"""The look-up: it proposes what followed last time, and the text is the target's own."""

import pytest

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import Sampling
from lessonlib.decode.ngram import NgramDrafter
from lessonlib.errors import LessonError


def proposals(text, K=4, **lengths):
    drafter = NgramDrafter(**lengths)
    drafter.reset(text[:2], Sampling())
    drafter.observe(text[2:])
    return drafter.propose(K).tokens.tolist()


def test_it_proposes_what_followed_the_last_occurrence():
    assert proposals([1, 2, 3, 4, 5, 1, 2]) == [3, 4, 5, 1]
    assert proposals([1, 2, 3, 7, 1, 2, 4, 8, 9, 1, 2]) == [4, 8, 9, 1]  # the last, not the first
    assert proposals([9, 1, 2, 3, 8, 1, 2, 4, 6, 9, 1, 2]) == [3, 8, 1, 2]  # the longer match before the later one
    assert proposals([1, 2, 3, 4, 5]) == [] and proposals([1, 2, 3, 4, 1]) == []
    assert proposals([1, 2, 3, 4, 1], shortest_match=1) == [2, 3, 4, 1]


def test_a_text_that_repeats_itself_is_gone_on_with():
    assert proposals([1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    assert proposals([7, 7, 7], 3) == [7, 7, 7]


def test_the_text_is_the_targets_and_repeats_are_free(tiny):
    target = tiny.llama(positions=600)
    decoder, rounds = Decoder(target), []
    for prompt in ([1, 2, 3], [5], [4, 5, 4, 5, 4]):
        plain = decoder.decode(prompt, 0, 120).tokens
        found = decoder.decode(prompt, 4, 120, NgramDrafter())
        assert found.tokens == plain
        rounds.append(found.rounds)
    again = decoder.decode([1, 2, 3, *decoder.decode([1, 2, 3], 0, 60).tokens, 1, 2, 3], 4, 40, NgramDrafter())
    assert again.tokens == decoder.decode([1, 2, 3, *decoder.decode([1, 2, 3], 0, 60).tokens, 1, 2, 3], 0, 40).tokens


@pytest.mark.parametrize("lengths", [(0, 1), (2, 3), (1.5, 1), (True, 1), (3, 0)])
def test_lengths_that_mean_nothing_are_refused(lengths):
    with pytest.raises(LessonError, match="cannot be looked up"):
        NgramDrafter(*lengths)
