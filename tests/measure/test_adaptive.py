"""The adaptive K, against the formula it goes by, and in a decoder whose drafts are good, bad, or first the one and then the other."""

import pytest
import torch
from support import tiny

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import ModelDrafter
from lessonlib.errors import LessonError
from lessonlib.measure.adaptive import LONGEST_REST, REST, AdaptiveK
from lessonlib.measure.speedup import best_k, speedup
from lessonlib.pair.layers_draft import layers_draft

COSTS = dict(c=0.25, v={1: 1.2, 2: 1.25, 3: 1.3, 4: 1.4}, Ks=(1, 2, 3, 4))


def play(policy, keeps, rounds, seed=0):
    """(time in target steps, tokens written) of rounds whose proposals are kept with probability keeps(round)."""
    chance, time, tokens = torch.Generator().manual_seed(seed), 0.0, 0
    for number in range(rounds):
        K = policy.choose()
        coins = torch.rand(K, generator=chance) < keeps(number)
        kept = int(coins.long().cumprod(0).sum()) if K else 0
        policy.learn(min(K, kept + 1), kept)
        time += K * COSTS["c"] + (COSTS["v"][K] if K else 1)
        tokens += kept + 1
    return time, tokens


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_it_is_about_as_fast_as_the_best_fixed_k(alpha):
    time, tokens = play(AdaptiveK(**COSTS), lambda number: alpha, 4000)
    K = best_k(alpha, COSTS["c"], COSTS["v"])
    assert tokens / time > 0.97 * speedup(alpha, K, COSTS["c"], COSTS["v"])


def test_a_draft_that_is_never_right_costs_next_to_nothing_from_the_first_text():
    for rounds in (128, 256, 1024):
        time, tokens = play(AdaptiveK(**COSTS), lambda number: 0.0, rounds)
        assert tokens / time > 0.97


def test_it_notices_when_a_text_becomes_easy_and_when_it_becomes_hard():
    policy = AdaptiveK(**COSTS)
    play(policy, lambda number: 0.9, 400)
    assert policy.choose() == best_k(0.9, COSTS["c"], COSTS["v"])
    play(policy, lambda number: 0.05, 60)
    assert policy.choose() == 0
    play(policy, lambda number: 0.9, 2 * REST)
    assert policy.alpha > 0.7 and policy.choose() >= 3


def test_the_rests_grow_and_end():
    policy, tries = AdaptiveK(**COSTS), []
    for number in range(40_000):
        K = policy.choose()
        policy.learn(min(K, 1), 0)
        if K:
            tries.append(number)
    gaps = [b - a for a, b in zip(tries, tries[1:]) if b - a > 1]
    assert gaps[0] >= REST and gaps == sorted(gaps) and max(gaps) <= LONGEST_REST + 1 and gaps[-1] > LONGEST_REST / 2


@pytest.mark.parametrize("settings", [dict(c=0.2, Ks=()), dict(c=0.2, Ks=(0, 1)), dict(c=-1.0), dict(c=0.2, v={1: 1.0}), dict(c=0.2, v=0.0)])
def test_what_means_nothing_is_refused(settings):
    with pytest.raises(LessonError):
        AdaptiveK(**settings)


@pytest.mark.parametrize("draft", ["itself", "poor"])
def test_the_text_is_the_targets_own_whatever_it_chooses(draft):
    target = tiny(layers=3, sharp=3.0)
    draft = target if draft == "itself" else layers_draft(target, (0, 2))
    plain, policy, proposed = Decoder(target).decode([1, 2, 3], 0, 60), AdaptiveK(0.1, Ks=(1, 2, 5)), 0
    for _ in range(3):  # what it has learnt goes from text to text
        found = Decoder(target).decode([1, 2, 3], policy, 60, ModelDrafter(draft))
        assert found.tokens == plain.tokens and len(found.proposed) == 5
        proposed += sum(found.proposed)
    assert proposed > 0 and (draft is not target or found.tokens_per_round > 4)
    found = Decoder(target).decode([1, 2, 3], AdaptiveK(5.0, Ks=(1,)), 20, ModelDrafter(draft))
    assert found.tokens == plain.tokens[:20] and sum(found.proposed) == 0 and found.rounds == 20
