"""The adaptive K, against the formula it goes by, and in a decoder whose drafts are good, bad, or first the one and then the other."""

import random

import pytest
import torch
from support import tiny

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import ModelDrafter
from lessonlib.errors import LessonError
from lessonlib.lesson import Lesson
from lessonlib.measure.adaptive import LONGEST_REST, REST, AdaptiveK
from lessonlib.measure.speedup import best_k
from lessonlib.pair.layers_draft import layers_draft
from lessonlib.pair.presets import preset

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


class Fixed:
    """A policy that is none."""

    def __init__(self, K):
        self.K = K

    def choose(self):
        return self.K

    def learn(self, tested, kept):
        pass


def mean_speed(policy, alpha, rounds, seeds=24):
    """Tokens a target step, the mean over seeds; policy() makes a fresh one."""
    return sum(tokens / time for time, tokens in (play(policy(), lambda number: alpha, rounds, seed) for seed in range(seeds))) / seeds


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0])
def test_it_is_about_as_fast_as_the_best_fixed_k(alpha):
    best = best_k(alpha, COSTS["c"], COSTS["v"])
    for rounds, share in ((300, 0.97), (1000, 0.98)):
        assert mean_speed(lambda: AdaptiveK(**COSTS), alpha, rounds) > share * mean_speed(lambda: Fixed(best), alpha, rounds), rounds


@pytest.fixture(scope="module")
def agreements():
    """For each draft of the course, on 64 greedy answers of the target, whether its favourite is the written token."""
    lesson, found = Lesson(preset("tiny")), {}
    for name in ("distilled", None):
        draft = lesson.load(name)
        found[name] = []
        for prompt, answer in lesson.answers("heldout-greedy").sequences()[:64]:
            with torch.inference_mode():
                favourites = draft(torch.tensor([prompt + answer], device=draft.device), logits_to_keep=len(answer) + 1).logits[0, :-1].argmax(-1)
            found[name].append([favourite == token for favourite, token in zip(favourites.tolist(), answer)])
    return found


def replayed(policy, rows, c, v):
    """Tokens a target step when rounds run over rows of yes and no."""
    time = 0.0
    for row in rows:
        place = 0
        while place < len(row):
            K = policy.choose()
            guesses = row[place:place + K]
            kept = guesses.index(False) if False in guesses else len(guesses)
            policy.learn(min(len(guesses), kept + 1), kept)
            time += K * c + v[K]
            place += kept + 1
    return sum(map(len, rows)) / time


@pytest.mark.parametrize("draft", ["distilled", None])
@pytest.mark.parametrize("c, v", [(0.265, {0: 1, 1: 1.27, 2: 1.27, 3: 1.28, 4: 1.34}), (0.252, {0: 1, 1: 1.03, 2: 1.01, 3: 1.04, 4: 1.07}),
                                  (0.22, {0: 1, 1: 1.0, 2: 1.01, 3: 1.02, 4: 1.03})], ids=["two cores, fp32", "two cores, bf16", "a GPU's 8B with a 1B"])
def test_so_it_is_on_the_real_pairs_answers(agreements, draft, c, v):
    shares = []
    for seed in range(6):
        rows = list(agreements[draft])
        random.Random(seed).shuffle(rows)
        fixed = max(replayed(Fixed(K), rows[:20], c, v) for K in (0, 1, 2, 3, 4))
        shares.append(replayed(AdaptiveK(c, v, (1, 2, 3, 4)), rows[:20], c, v) / fixed)
    assert sum(shares) / len(shares) > 0.97 and min(shares) > 0.95, shares


def test_a_draft_that_is_never_right_costs_next_to_nothing_from_the_first_text():
    for c in (0.1, 0.25, 0.6):
        time, tokens = play(AdaptiveK(**COSTS | {"c": c}), lambda number: 0.0, 300)
        assert tokens / time > 0.97


def test_one_that_pays_is_tried_whatever_it_costs():
    policy = AdaptiveK(c=0.6, v={1: 1.0}, Ks=(1,))  # pays from an acceptance of .6 on, more than the first opinion
    play(policy, lambda number: 0.95, 40)
    assert policy.choose() == 1


def test_it_notices_when_a_text_becomes_easy_and_when_it_becomes_hard():
    for seed in range(10):
        policy = AdaptiveK(**COSTS)
        play(policy, lambda number: 0.9, 400, seed)
        assert policy.choose() >= 3
        play(policy, lambda number: 0.05, 100, seed)
        assert policy.choose() == 0
        play(policy, lambda number: 0.9, 2 * REST, seed)
        assert policy.alpha > 0.7 and policy.choose() >= 3
        play(policy, lambda number: 0.0, 20_000, seed)
        play(policy, lambda number: 0.9, LONGEST_REST + 100, seed)  # after the longest rest at the latest
        assert policy.choose() >= 3


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
