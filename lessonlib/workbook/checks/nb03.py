"""Notebook 03: both Kullback-Leibler divergences, Jensen and Shannon's, and the best bump under forward KL."""

import math

import torch

from lessonlib.workbook.checks.common import odds, rows_of_odds, tensor
from lessonlib.workbook.exercise import Exercise, Mistake, Property


def kl(a, b):
    """KL(a || b) over the last dimension, in nats: 0 log 0 is 0, and it is infinite where b has no odds and a has."""
    return (torch.xlogy(a, a) - torch.xlogy(a, b)).sum(-1)


def both_kls(target_probs, draft_probs):
    """(forward KL, reverse KL) of odds [..., V], in nats, each [...]: KL(p || q) and KL(q || p), p the target, q the draft."""
    return kl(target_probs, draft_probs), kl(draft_probs, target_probs)


def both(divergence):
    """A wrong answer that uses the same wrong formula both ways."""
    return lambda p, q: (divergence(p, q), divergence(q, p))


def _rows(rng):
    return rows_of_odds(rng, sharpness=1.2)


P, Q = tensor(0.5, 0.3, 0.2), tensor(0.6, 0.35, 0.05)
PAIRS = [
    ("the worked example", (P, Q)),
    ("two equal models", (P, P)),
    ("a token the draft never says", (tensor(0.5, 0.25, 0.25), tensor(0.5, 0.5, 0))),
]
ROWS = ("two rows at once", (torch.stack([P, tensor(0.1, 0.1, 0.8)]), torch.stack([Q, tensor(0.2, 0.2, 0.6)])))

ex_3_1 = Exercise(
    "3.1",
    both_kls,
    returns="two values for each row: forward KL, weighted by the target, then reverse KL, weighted by the draft",
    look="'Two ways to be wrong' above: KL(p || q) is the sum of p(x) log(p(x)/q(x)), p the target; the other one swaps them.",
    edges=[
        *PAIRS,
        ("a token the target never says", (tensor(0.5, 0.5, 0), tensor(0.5, 0.25, 0.25))),
        ("a token neither says", (tensor(0.5, 0.5, 0), tensor(0.75, 0.25, 0))),
        ROWS,
    ],
    draw=_rows,
    mistakes=[
        Mistake(
            "KL swapped",
            lambda p, q: both_kls(q, p),
            "the two are swapped: forward KL is weighted by the target's odds, reverse KL by the draft's",
        ),
        Mistake(
            "0 log 0 is nan",
            both(lambda a, b: (a * (a / b).log()).sum(-1)),
            "a token with no odds gives 0 times log 0, which the computer calls nan; it has to count 0 (torch.xlogy does that)",
        ),
        Mistake(
            "entropy missing",
            both(lambda a, b: -torch.xlogy(a, b).sum(-1)),
            "this is the cross-entropy: KL is that minus the first model's entropy, and is 0 for two equal models",
        ),
        Mistake(
            "sign",
            both(lambda a, b: -kl(a, b)),
            "the fraction in the logarithm is upside down, so every value is negative; KL never is",
        ),
        Mistake(
            "bits",
            both(lambda a, b: kl(a, b) / math.log(2)),
            "the logarithm has base 2, which gives bits; the course counts in nats, with the natural logarithm",
        ),
        Mistake(
            "mean for sum",
            both(lambda a, b: (torch.xlogy(a, a) - torch.xlogy(a, b)).mean(-1)),
            "a mean over the vocabulary where a sum belongs: the odds in front are the weights already",
        ),
        Mistake(
            "not weighted",
            both(lambda a, b: (a / b).log().sum(-1)),
            "the logarithms are added up without their weight: each needs the odds of its token in front",
        ),
        Mistake(
            "absolute values",
            both(lambda a, b: (torch.xlogy(a, a) - torch.xlogy(a, b)).abs().sum(-1)),
            "the absolute value of each token was summed: single tokens may count below 0, only the sum may not",
        ),
        Mistake(
            "one way twice",
            lambda p, q: (kl(p, q), kl(p, q)),
            "both results are the forward one: in the reverse one the draft stands before the bars",
        ),
        Mistake(
            "summed over everything",
            both(lambda a, b: (torch.xlogy(a, a) - torch.xlogy(a, b)).sum()),
            "the rows were added together: sum over the last dimension only, .sum(-1), so that each row keeps its value",
        ),
        Mistake(
            "wrong dimension",
            both(lambda a, b: (torch.xlogy(a, a) - torch.xlogy(a, b)).sum(0)),
            "the sum runs down the rows: the vocabulary is the last dimension, .sum(-1)",
        ),
        Mistake(
            "only one",
            lambda p, q: kl(p, q),
            "only the forward one is there: give back two values, forward and reverse",
        ),
    ],
    properties=[
        Property(
            "neither is ever negative, on odds over 50 tokens",
            lambda fn, rng: all(min(map(float, fn(odds(rng, 50), odds(rng, 50)))) >= 0 for _ in range(20)),
            "something depends on the vocabulary's size",
        )
    ],
)


def jensen_shannon(target_probs, draft_probs):
    """The Jensen-Shannon divergence of odds [..., V], in nats, [...]: half of KL(p || m) and half of KL(q || m), m midway."""
    m = (target_probs + draft_probs) / 2
    return (kl(target_probs, m) + kl(draft_probs, m)) / 2


def _geometric(p, q):
    m = (p * q).sqrt()
    m = m / m.sum(-1, keepdim=True)
    return (kl(p, m) + kl(q, m)) / 2


def _is_symmetric_and_bounded(fn, rng):
    pairs = [(odds(rng, 50, sharpness=3), odds(rng, 50, sharpness=3)) for _ in range(20)]
    return all(abs(float(fn(p, q)) - float(fn(q, p))) < 1e-9 and 0 <= float(fn(p, q)) <= math.log(2) for p, q in pairs)


ex_3_2 = Exercise(
    "3.2",
    jensen_shannon,
    returns="one value for each row",
    look="'Two compromises' above: m is the mean of both odds; take half of KL(p || m) and half of KL(q || m).",
    edges=[*PAIRS, ("nothing in common: log 2", (tensor(1, 0), tensor(0, 1))), ROWS],
    draw=_rows,
    mistakes=[
        Mistake(
            "mean of the two KLs",
            lambda p, q: (kl(p, q) + kl(q, p)) / 2,
            "this is the mean of the two KLs between the models; each has to be compared with m, the odds midway",
        ),
        Mistake(
            "half forgotten",
            lambda p, q: 2 * jensen_shannon(p, q),
            "twice too much: each of the two KLs counts half",
        ),
        Mistake(
            "m first",
            lambda p, q: (kl((p + q) / 2, p) + kl((p + q) / 2, q)) / 2,
            "m stands before the bars: it has to be KL(p || m) and KL(q || m), each weighted by its own model",
        ),
        Mistake(
            "one side only",
            lambda p, q: kl(p, (p + q) / 2),
            "only the target is compared with m: the draft's half is missing",
        ),
        Mistake(
            "m is the sum",
            lambda p, q: (kl(p, p + q) + kl(q, p + q)) / 2,
            "m sums to 2: halve it, so that it is odds as well",
        ),
        Mistake(
            "logarithms averaged",
            _geometric,
            "m was made by averaging logarithms: it is the mean of the odds themselves, (p + q) / 2",
        ),
        Mistake(
            "square root",
            lambda p, q: jensen_shannon(p, q).clamp_min(0).sqrt(),
            "this is the square root, the Jensen-Shannon distance; the divergence goes without it",
        ),
        Mistake(
            "bits",
            lambda p, q: jensen_shannon(p, q) / math.log(2),
            "the logarithm has base 2, which gives bits and at most 1; in nats the most is log 2 = 0.693",
        ),
        Mistake(
            "0 log 0 is nan",
            lambda p, q: ((p * (2 * p / (p + q)).log()).sum(-1) + (q * (2 * q / (p + q)).log()).sum(-1)) / 2,
            "a token with no odds gives 0 times log 0, which the computer calls nan; your `both_kls` knows how to count it as 0",
        ),
    ],
    properties=[
        Property(
            "swapping the models changes nothing, and it lies between 0 and log 2",
            _is_symmetric_and_bounded,
            "the two models are not treated alike",
        )
    ],
)


def mean_and_spread(points, probs):
    """(mean, standard deviation) of a token's place if tokens at `points` [V] come up with odds `probs` [V]."""
    mean = (probs * points).sum()
    return mean, (probs * (points - mean) ** 2).sum().sqrt()


def _places(rng):
    V = int(rng.integers(3, 7))
    return torch.arange(V, dtype=torch.float64) + int(rng.integers(-4, 3)), odds(rng, V, sharpness=1.0)


ex_3_3 = Exercise(
    "3.3",
    mean_and_spread,
    returns="two numbers: the mean place and the standard deviation around it",
    look="'Forward KL without a search' above: the mean is the sum of p(x) x, the spread the root of the sum of p(x) (x - mean)^2.",
    edges=[
        ("two places, equally likely", (tensor(-1, 3), tensor(0.5, 0.5))),
        ("unequal odds", (tensor(0, 1, 2), tensor(0.7, 0.2, 0.1))),
        ("all odds on one place", (tensor(-1, 0, 2), tensor(0, 0, 1))),
    ],
    draw=_places,
    mistakes=[
        Mistake(
            "variance for spread",
            lambda x, p: ((p * x).sum(), mean_and_spread(x, p)[1] ** 2),
            "the second number is the variance: take its square root",
        ),
        Mistake(
            "places not weighted",
            lambda x, p: (x.mean(), x.std(correction=0)),
            "every place counts the same here: weigh it by its odds",
        ),
        Mistake(
            "spread around 0",
            lambda x, p: ((p * x).sum(), (p * x**2).sum().sqrt()),
            "the spread is measured from 0; measure it from the mean",
        ),
        Mistake(
            "spread not weighted",
            lambda x, p: ((p * x).sum(), ((x - (p * x).sum()) ** 2).mean().sqrt()),
            "the mean is right; in the spread every place counts the same: weigh the squares by the odds too",
        ),
        Mistake(
            "mean distance",
            lambda x, p: ((p * x).sum(), (p * (x - (p * x).sum()).abs()).sum()),
            "this is the mean distance from the mean: square the distances, sum with the odds, then take the root",
        ),
        Mistake(
            "likeliest place",
            lambda x, p: (x[p.argmax()], (p * (x - x[p.argmax()]) ** 2).sum().sqrt()),
            "the first number is the likeliest place, not the mean",
        ),
        Mistake(
            "divided by the count",
            lambda x, p: ((p * x).mean(), (p * (x - (p * x).mean()) ** 2).mean().sqrt()),
            "the odds sum to 1 already: a sum belongs where you took a mean",
        ),
    ],
)
