"""Notebook 08: one exact round of keep or resample, the speed-up formula, and the best K."""

import numpy as np
import torch

from lessonlib.decode.rule import accept
from lessonlib.measure import speedup as formulas
from lessonlib.workbook.checks.common import odds, speed, tensor, written
from lessonlib.workbook.exercise import Exercise, Mistake, Property


def accept_round(target_probs, draft_probs, draft_tokens, uniforms):
    """(kept, next_token) of one exact round: target_probs [K+1, V], draft_probs [K, V], draft_tokens [K], uniforms [K+1]."""
    kept, token = accept(target_probs, draft_probs, draft_tokens, uniforms)
    return int(kept), int(token)


def pick(weights, u):
    """The token that the uniform number u draws, in proportion to the weights."""
    return int(torch.searchsorted(weights.cumsum(0), u * weights.sum(), right=True).clamp_max(len(weights) - 1))


def _ratio_rule(p, q, u):
    return u * q < p


def round_with(
    keep=_ratio_rule,
    residual=lambda p, q: (p - q).clamp_min(0),
    resample=pick,
    bonus=lambda p, tokens, u: pick(p[-1], u),
    last=lambda uniforms, kept: uniforms[-1],
    count=lambda kept, K: kept,
):
    """A round with one part exchanged: how the named wrong answers are made."""

    def answer(p, q, tokens, uniforms):
        K = len(tokens)
        kept = 0
        while kept < K and keep(p[kept, tokens[kept]], q[kept, tokens[kept]], uniforms[kept]):
            kept += 1
        if kept == K:
            return count(kept, K), bonus(p, tokens, uniforms[-1])
        return count(kept, K), resample(residual(p[kept], q[kept]), last(uniforms, kept))

    return answer


def _counts_all(p, q, tokens, uniforms):
    kept = sum(bool(_ratio_rule(p[i, x], q[i, x], uniforms[i])) for i, x in enumerate(tokens))
    return kept, pick((p[kept] - q[kept]).clamp_min(0), uniforms[-1]) if kept < len(tokens) else pick(p[-1], uniforms[-1])


def _a_round(rng):
    K, V = int(rng.integers(1, 4)), int(rng.integers(3, 6))
    target_probs, draft_probs = odds(rng, K + 1, V, sharpness=1.2), odds(rng, K, V, sharpness=1.2)
    tokens = torch.tensor([pick(row, u) for row, u in zip(draft_probs, rng.random(K))])
    return target_probs, draft_probs, tokens, torch.from_numpy(rng.random(K + 1))


def follows_the_target(fn, rng):
    """Whether the first tokens of 3,000 rounds have the target's frequencies, within 4.5 standard deviations."""
    target_probs, draft_probs, n = tensor([0.5, 0.3, 0.2], [1, 0, 0]), tensor([0.1, 0.6, 0.3]), 3000
    counts = np.zeros(3)
    for guess, coins in zip(rng.choice(3, n, p=[0.1, 0.6, 0.3]), rng.random((n, 2))):
        kept, token = fn(target_probs, draft_probs, torch.tensor([guess]), torch.from_numpy(coins))
        counts[guess if kept else token] += 1
    p = target_probs[0].numpy()
    return bool((np.abs(counts / n - p) < 4.5 * np.sqrt(p * (1 - p) / n)).all())


P, Q = tensor([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]), tensor([0.1, 0.6, 0.3])  # one guess: [K + 1, V] and [K, V]
ex_8_1 = Exercise(
    "8.1",
    accept_round,
    returns="two whole numbers: how many guesses are kept, and the token written after them",
    look="'Keep or resample' above: keep x where u < p(x)/q(x); at the first rejection draw from max(p - q, 0), "
    "renormalised; when all are kept, draw the bonus token from the last row of p.",
    edges=[
        ("the guess is kept, then the bonus token", (P, Q, torch.tensor([1]), tensor(0.3, 0.9))),
        ("the guess is rejected", (P, Q, torch.tensor([1]), tensor(0.8, 0.9))),
        ("p is above q: always kept", (P, Q, torch.tensor([0]), tensor(0.99, 0.1))),
        (
            "a token the target never writes, and a coin of exactly 0",
            (tensor([0, 0.6, 0.4], [1, 0, 0]), tensor([0.5, 0.3, 0.2]), torch.tensor([0]), tensor(0, 0.8)),
        ),
        (
            "nothing was proposed",
            (tensor([0.2, 0.5, 0.3]), torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.long), tensor(0.5)),
        ),
    ],
    draw=_a_round,
    trials=60,
    mistakes=[
        Mistake(
            "ratio upside down",
            round_with(keep=lambda p, q, u: u * p < q),
            "the ratio is upside down: keep where u < p(x)/q(x), the target over the draft",
        ),
        Mistake(
            "coin against p alone",
            round_with(keep=lambda p, q, u: u < p),
            "the coin is compared with p(x); compare it with p(x)/q(x)",
        ),
        Mistake(
            "no coin",
            round_with(keep=lambda p, q, u: p >= q),
            "a guess with p(x) < q(x) is always refused here; it must still be kept with probability p(x)/q(x)",
        ),
        Mistake(
            "zero coin keeps",
            round_with(keep=lambda p, q, u: u * q <= p),
            "u can be exactly 0: with <= a token of target probability 0 is kept; the comparison must be strict",
        ),
        Mistake(
            "resampled from p",
            round_with(residual=lambda p, q: p),
            "after a rejection the token is drawn from p; draw from what the draft proposes too rarely, max(p - q, 0)",
        ),
        Mistake(
            "residual not renormalised",
            round_with(resample=lambda r, u: int((r.cumsum(0) <= u).sum().clamp_max(len(r) - 1))),
            "the residual max(p - q, 0) does not sum to 1: divide by its sum before drawing from it",
        ),
        Mistake(
            "residual upside down",
            round_with(residual=lambda p, q: (q - p).clamp_min(0)),
            "the residual is upside down: max(p - q, 0) is what the draft proposes too rarely",
        ),
        Mistake(
            "residual not clamped",
            round_with(residual=lambda p, q: (p - q).abs()),
            "|p - q| gives weight to tokens the draft already proposes too often: clamp p - q at 0 instead",
        ),
        Mistake(
            "coin used twice",
            round_with(last=lambda uniforms, kept: uniforms[kept]),
            "the coin that rejected the guess also draws the new token; that one has its own number, the last of uniforms",
        ),
        Mistake(
            "goes on after a rejection",
            _counts_all,
            "guesses after the first rejected one are counted: they continue a text that is thrown away",
        ),
        Mistake(
            "bonus token missing",
            round_with(bonus=lambda p, tokens, u: None),
            "when every guess is kept the round still writes one more token, drawn from the last row of target_probs",
        ),
        Mistake(
            "bonus from the wrong row",
            round_with(bonus=lambda p, tokens, u: pick(p[len(tokens) - 1], u)),
            "off by one at full acceptance: the bonus token comes from row K of target_probs, the one after the last guess",
        ),
        Mistake(
            "last guess given back",
            round_with(bonus=lambda p, tokens, u: int(tokens[-1]), count=lambda n, K: min(n, K - 1)),
            "off by one at full acceptance: all K are kept, and the bonus token comes after the last guess, not for it",
        ),
        Mistake(
            "written for kept",
            round_with(count=lambda n, K: n + 1),
            "the token that the target adds is counted as a kept guess: kept counts the draft's tokens only",
        ),
    ],
    properties=[
        Property(
            "3,000 rounds write tokens with the target's own frequencies",
            follows_the_target,
            "the rule is right on each input tried and still not exact: something outside the arguments is used",
        )
    ],
)


def speedup(alpha, K, c, v=1.0):
    """Plain decoding's time over speculative decoding's: acceptance alpha, K guesses a round, costs c and v."""
    return formulas.speedup(alpha, K, c, v)


def _setting(rng):
    return (
        round(float(rng.uniform(0.05, 0.95)), 2),
        int(rng.integers(1, 9)),
        round(float(rng.uniform(0.05, 0.5)), 2),
        round(float(rng.uniform(1, 1.6)), 2),
    )


ex_8_2 = Exercise(
    "8.2",
    speedup,
    returns="one number",
    look="'The speed-up formula' above: tokens a round, (1 - alpha^(K+1)) / (1 - alpha), over the round's time, K c + v.",
    edges=[
        ("the course's figure: about 1.37", (0.7, 2, 0.3)),
        ("the course's figure: about 1.55", (0.8, 3, 0.3)),
        ("plain decoding", (0.7, 0, 0.3)),
        ("nothing is ever kept", (0.0, 2, 0.25)),
        ("everything is always kept", (1.0, 3, 0.25)),
        ("verifying costs more than one step", (0.7, 2, 0.3, 1.4)),
    ],
    draw=_setting,
    mistakes=[
        Mistake(
            "bonus token not counted",
            lambda alpha, K, c, v=1.0: sum(alpha**i for i in range(1, K + 1)) / (K * c + v),
            "the bonus token is not counted: a round writes the kept guesses and one token more",
        ),
        Mistake(
            "exponent one short",
            lambda alpha, K, c, v=1.0: (written(alpha, K - 1) if K else 0.0) / (K * c + v),
            "the exponent is K where K + 1 belongs: K guesses and the target's own token are K + 1 chances",
        ),
        Mistake(
            "v missing",
            lambda alpha, K, c, v=1.0: written(alpha, K) / (K * c + 1),
            "v is not used: verifying K + 1 tokens costs v plain steps, not always 1",
        ),
        Mistake(
            "verifying is free",
            lambda alpha, K, c, v=1.0: written(alpha, K) / (K * c),
            "a round costs K draft steps and one verifying pass: the pass, v, is missing",
        ),
        Mistake(
            "one draft step",
            lambda alpha, K, c, v=1.0: written(alpha, K) / (c + v),
            "the draft runs K times a round, once for each guess: K c, not c",
        ),
        Mistake(
            "K v",
            lambda alpha, K, c, v=1.0: written(alpha, K) / (K * (c + v)),
            "v is counted K times: one verifying pass looks at all the guesses at once",
        ),
        Mistake(
            "tokens a round only",
            lambda alpha, K, c, v=1.0: written(alpha, K),
            "these are the tokens a round: divide by the time it takes",
        ),
        Mistake(
            "upside down",
            lambda alpha, K, c, v=1.0: (K * c + v) / written(alpha, K),
            "the fraction is upside down: tokens over time",
        ),
        Mistake(
            "alpha = 1 divides by 0",
            lambda alpha, K, c, v=1.0: (1 - alpha ** (K + 1)) / ((1 - alpha) * (K * c + v)),
            "at alpha = 1 the formula is 0/0: there every guess is kept and a round writes K + 1 tokens",
        ),
    ],
)


def best_k(alpha, c):
    """The number of guesses a round, 0 to 32, with the highest speed-up at acceptance alpha and draft cost c (v = 1)."""
    return formulas.best_k(alpha, c)


def best_by(score, choices=range(33)):
    """A wrong answer that takes the K with the highest score."""
    return lambda alpha, c: max(choices, key=lambda K: score(alpha, K, c))


def _prices(rng):
    return round(float(rng.uniform(0.05, 0.9)), 2), round(float(rng.uniform(0.03, 0.5)), 2)


ex_8_3 = Exercise(
    "8.3",
    best_k,
    returns="one whole number, from 0 to 32",
    look="'How many guesses' above: compute speedup(alpha, K, c) for K = 0, 1, 2, ... 32 and take the K of the largest.",
    edges=[
        ("the course's setting", (0.8, 0.3)),
        ("a draft too slow to pay", (0.3, 0.5)),
        ("nothing is ever kept", (0.0, 0.2)),
        ("a draft that costs next to nothing", (0.9, 0.01)),
    ],
    draw=_prices,
    mistakes=[
        Mistake(
            "never plain decoding",
            best_by(speed, range(1, 33)),
            "K = 0 is left out: where the draft is too slow, plain decoding is best",
        ),
        Mistake(
            "off by one",
            lambda alpha, c: best_by(speed)(alpha, c) + 1,
            "off by one: K = 0 is the first of the list, so the place is K itself",
        ),
        Mistake(
            "place in a list from 1",
            lambda alpha, c: best_by(speed, range(1, 33))(alpha, c) - 1,
            "this is the place in a list that starts with K = 1, and places count from 0: add 1 (and try K = 0 as well)",
        ),
        Mistake(
            "most tokens",
            best_by(lambda alpha, K, c: K),
            "the largest K writes most tokens a round; the best K is the fastest per second",
        ),
        Mistake(
            "bonus token not counted",
            best_by(lambda alpha, K, c: (written(alpha, K) - 1) / (K * c + 1)),
            "the bonus token is not counted in the tokens a round, which makes long rounds look better than they are",
        ),
        Mistake(
            "the speed-up itself",
            lambda alpha, c: max(speed(alpha, K, c) for K in range(33)),
            "this is the best speed-up; asked is the K that gives it",
        ),
        Mistake(
            "verifying is free",
            best_by(lambda alpha, K, c: written(alpha, K) / (K * c) if K else 0.0),
            "the verifying pass is left out of the round's time, so one guess always looks best",
        ),
    ],
)
