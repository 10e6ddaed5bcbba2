"""Notebook 01: the distance between two lists of odds, the tokens a round writes, and whether one more guess pays."""

from itertools import product

import torch

from lessonlib.measure import speedup as formulas
from lessonlib.workbook.checks.common import PAIRS, P, Q, odds, rows_of_odds, speed, tensor, written
from lessonlib.workbook.exercise import Exercise, Mistake, Property


def total_variation(target_probs, draft_probs):
    """Half the summed absolute difference of the odds [..., V]; returns [...], 0 for equal rows, 1 for rows that share nothing."""
    return (target_probs - draft_probs).abs().sum(-1) / 2


def _is_the_widest_event(fn, rng):
    """Whether TV is the most that p and q differ on any set of tokens, every set of five tried."""
    p, q = odds(rng, 5), odds(rng, 5)
    sets = [tensor(*members) for members in product((0.0, 1.0), repeat=5)]
    return abs(float(fn(p, q)) - max(float(((p - q) * members).sum()) for members in sets)) < 1e-6


ex_1_1 = Exercise(
    "1.1",
    total_variation,
    returns="one number for each row of odds",
    look="'One minus a distance' above: take |p(x) - q(x)| for every token, sum over the vocabulary, halve.",
    edges=[
        *PAIRS,
        ("two places at once", (torch.stack([P, Q]), torch.stack([Q, Q]))),
    ],
    draw=rows_of_odds,
    mistakes=[
        Mistake(
            "half missing",
            lambda p, q: (p - q).abs().sum(-1),
            "each misplaced bit of probability counts twice, once where it is missing and once where it is: halve the sum",
        ),
        Mistake(
            "overlap for distance",
            lambda p, q: torch.minimum(p, q).sum(-1),
            "this is the overlap, alpha; the distance is what is left of 1",
        ),
        Mistake(
            "no absolute value",
            lambda p, q: (p - q).sum(-1) / 2,
            "p - q sums to 0, since both sum to 1: take the absolute value of each difference first",
        ),
        Mistake(
            "summed over everything",
            lambda p, q: (p - q).abs().sum() / 2,
            "several places were added up into one number: sum over the last dimension only",
        ),
        Mistake(
            "wrong axis",
            lambda p, q: (p - q).abs().sum(0) / 2,
            "the sum runs over the places, not over the vocabulary, which is the last dimension",
        ),
        Mistake(
            "squares",
            lambda p, q: ((p - q) ** 2).sum(-1) / 2,
            "the differences are squared; TV takes their absolute values",
        ),
        Mistake(
            "Euclid's distance",
            lambda p, q: ((p - q) ** 2).sum(-1).sqrt(),
            "this is the straight-line distance, the root of summed squares; TV sums absolute values",
        ),
        Mistake(
            "largest difference",
            lambda p, q: (p - q).abs().max(-1).values,
            "this is the largest difference at one token; TV adds up all tokens",
        ),
        Mistake(
            "mean for sum",
            lambda p, q: (p - q).abs().mean(-1),
            "a mean over the vocabulary shrinks as the vocabulary grows; sum and halve",
        ),
        Mistake(
            "either for both",
            lambda p, q: torch.maximum(p, q).sum(-1),
            "max(p, q) sums to 1 + TV, what either model bets: take away 1",
        ),
    ],
    properties=[
        Property(
            "TV is the most by which p and q differ on any set of tokens, all 32 sets of five tried",
            _is_the_widest_event,
            "something depends on more than the two lists",
        )
    ],
)


def tokens_per_round(alpha, K):
    """Mean tokens a round of K guesses writes, the target's own one included, if each tested guess is kept with chance alpha."""
    return formulas.tokens_per_round(alpha, K)


def _chance_and_length(rng):
    return round(float(rng.uniform(0.05, 0.95)), 2), int(rng.integers(1, 9))


def _rises_to_k_plus_one(fn, rng):
    settings = [(float(alpha), int(K)) for alpha, K in zip(rng.random(20), rng.integers(1, 9, 20))]
    return all(1 <= fn(alpha, K) < fn((1 + alpha) / 2, K) <= K + 1 for alpha, K in settings)


ex_1_2 = Exercise(
    "1.2",
    tokens_per_round,
    returns="one number",
    look="'What a round writes' above: one token surely, a second with chance alpha, a third with alpha squared, ...",
    edges=[
        ("two guesses", (0.5, 2)),
        ("plain decoding", (0.7, 0)),
        ("nothing is ever kept", (0.0, 3)),
        ("everything is always kept", (1.0, 3)),
    ],
    draw=_chance_and_length,
    mistakes=[
        Mistake(
            "the target's token not counted",
            lambda alpha, K: written(alpha, K) - 1,
            "these are the kept guesses; every round also writes one token of the target's own",
        ),
        Mistake(
            "one power short",
            lambda alpha, K: written(alpha, K - 1) if K else 0.0,
            "the last power is alpha^K, the chance that all K are kept and a further token follows: one term is missing",
        ),
        Mistake(
            "one power too many",
            lambda alpha, K: written(alpha, K + 1),
            "K guesses and one token of the target's: K + 1 tokens at most, here is one more",
        ),
        Mistake(
            "every guess counted as tested",
            lambda alpha, K: 1 + K * alpha,
            "K alpha counts guesses that stand behind a refusal; guess i is kept only if all i are, chance alpha^i",
        ),
        Mistake(
            "all or nothing",
            lambda alpha, K: 1 + K * alpha**K,
            "a round that keeps only some of its guesses still writes those",
        ),
        Mistake(
            "endless round",
            lambda alpha, K: 1 / (1 - alpha),
            "this is a round that goes on until a refusal; it ends after K guesses",
        ),
        Mistake(
            "alpha = 1 divides by 0",
            lambda alpha, K: (1 - alpha ** (K + 1)) / (1 - alpha),
            "the closed form is 0/0 at alpha = 1, where a round writes K + 1 tokens: sum the powers, or treat 1 apart",
        ),
    ],
    properties=[
        Property("it grows with alpha, from 1 to K + 1", _rises_to_k_plus_one, "a better draft must never write less")
    ],
)


def one_more_pays(alpha, K, c):
    """Whether K + 1 guesses a round are faster than K, at acceptance alpha and draft cost c, with verifying at v = 1."""
    return formulas.speedup(alpha, K + 1, c) > formulas.speedup(alpha, K, c)


def _clear_case(rng):
    """A setting in which the two speeds are not nearly equal, so that rounding decides nothing."""
    while True:
        alpha, K, c = round(float(rng.uniform(0.2, 0.95)), 2), int(rng.integers(0, 7)), round(float(rng.uniform(0.05, 0.5)), 2)
        if abs(speed(alpha, K + 1, c) - speed(alpha, K, c)) > 1e-6:
            return alpha, K, c


def _never_pays_again(fn, rng):
    """Whether, once a guess does not pay, no later one does."""
    settings = zip(rng.uniform(0.1, 0.95, 20), rng.uniform(0.05, 0.6, 20))
    answers = [[bool(fn(float(alpha), K, float(c))) for K in range(12)] for alpha, c in settings]
    return all(row == sorted(row, reverse=True) for row in answers)


ex_1_3 = Exercise(
    "1.3",
    one_more_pays,
    returns="True or False",
    look="'How many guesses pay?' above: K + 1 guesses pay where tokens over time is higher for K + 1 than for K.",
    edges=[
        ("is a first guess worth it?", (0.7, 0, 0.3)),
        ("the starting line's best K is 2", (0.7, 2, 0.3)),
        ("a poor draft", (0.2, 0, 0.3)),
        ("exactly as fast: no gain", (0.5, 0, 0.5)),
        ("everything is always kept", (1.0, 10, 0.2)),
    ],
    draw=_clear_case,
    trials=80,
    mistakes=[
        Mistake(
            "alpha against c",
            lambda alpha, K, c: alpha > c,
            "the next guess is not kept with chance alpha: all before it must be kept too, so it adds alpha^(K+1) tokens",
        ),
        Mistake(
            "against plain decoding",
            lambda alpha, K, c: speed(alpha, K + 1, c) > 1,
            "K + 1 guesses are compared with no draft at all; compare them with K guesses",
        ),
        Mistake(
            "tokens against cost",
            lambda alpha, K, c: alpha ** (K + 1) > c,
            "a gain of alpha^(K+1) tokens for c steps must beat the tokens a step that K guesses already earn, not 1 a step",
        ),
        Mistake(
            "exponent one short",
            lambda alpha, K, c: alpha**K > c * speed(alpha, K, c),
            "alpha^K is what guess K adds; the one asked about is guess K + 1",
        ),
        Mistake(
            "one guess on",
            lambda alpha, K, c: speed(alpha, K + 2, c) > speed(alpha, K + 1, c),
            "off by one: this compares K + 2 guesses with K + 1",
        ),
        Mistake(
            "more tokens",
            lambda alpha, K, c: written(alpha, K + 1) > written(alpha, K),
            "a longer round nearly always writes more tokens, and takes longer: compare tokens over time",
        ),
        Mistake(
            "a tie counts",
            lambda alpha, K, c: speed(alpha, K + 1, c) >= speed(alpha, K, c),
            "where both are equally fast one more guess gains nothing: the comparison must be strict",
        ),
        Mistake(
            "upside down",
            lambda alpha, K, c: not speed(alpha, K + 1, c) > speed(alpha, K, c),
            "the comparison is the wrong way round",
        ),
        Mistake(
            "verifying is free",
            lambda alpha, K, c: written(alpha, K + 1) / ((K + 1) * c) > (written(alpha, K) / (K * c) if K else 1.0),
            "the verifying pass, 1, is missing from the time of a round, K c + 1",
        ),
        Mistake(
            "the gain itself",
            lambda alpha, K, c: speed(alpha, K + 1, c) - speed(alpha, K, c),
            "this is by how much it pays; asked is whether: compare it with 0",
        ),
    ],
    properties=[
        Property(
            "once a guess does not pay, no later one does",
            _never_pays_again,
            "what one more guess adds, alpha^(K+1), never grows with K",
        )
    ],
)
