"""Notebook 00: the chance that a guess is kept, and the greedy keep rule."""

import torch

from lessonlib.decode.rule import accept_greedy, keep_probability
from lessonlib.workbook.checks.common import PAIRS, odds, tensor
from lessonlib.workbook.exercise import Exercise, Mistake, Property


def p_keep(target_probs, draft_probs):
    """The probability that a token drawn from the draft is kept: target_probs and draft_probs [V], returns one number."""
    return keep_probability(target_probs, draft_probs)


def _pair_of_odds(rng):
    V = int(rng.integers(2, 7))
    return odds(rng, V), odds(rng, V)


def _upside_down(p, q):
    ratio = torch.where(p > 0, q / p, torch.inf)
    return (q * ratio.clamp_max(1)).sum()


def _is_one_minus_tv(fn, rng):
    return all(
        abs(float(fn(p, q)) - (1 - 0.5 * float((p - q).abs().sum()))) < 1e-6
        for p, q in ((odds(rng, 50), odds(rng, 50)) for _ in range(5))
    )


ex_0_1 = Exercise(
    "0.1",
    p_keep,
    returns="one number: the probability that the guess is kept",
    look="'How a guess is kept' above: x comes up with probability q(x), and is kept with probability min(1, p(x)/q(x)).",
    edges=[
        *PAIRS,
        ("a token the draft never says", (tensor(0.5, 0.25, 0.25), tensor(0.5, 0.5, 0))),
    ],
    draw=_pair_of_odds,
    mistakes=[
        Mistake(
            "ratio upside down",
            _upside_down,
            "the ratio is upside down: q(x)/p(x) where the rule has p(x)/q(x), the target over the draft",
        ),
        Mistake(
            "max for min",
            lambda p, q: torch.maximum(p, q).sum(),
            "max where the overlap needs min: what both models give, not either",
        ),
        Mistake(
            "product",
            lambda p, q: (p * q).sum(),
            "p(x) q(x) is the chance that two separate draws agree; the rule draws once, from the draft, then tosses a coin",
        ),
        Mistake(
            "not summed", lambda p, q: torch.minimum(p, q), "the overlap token by token is right: it still has to be summed"
        ),
        Mistake("mean for sum", lambda p, q: torch.minimum(p, q).mean(), "a mean over the vocabulary where a sum belongs"),
        Mistake(
            "distance for overlap",
            lambda p, q: (p - q).abs().sum() / 2,
            "this is the distance TV between the two: the overlap is 1 - TV",
        ),
        Mistake(
            "half forgotten", lambda p, q: 1 - (p - q).abs().sum(), "TV is half the sum of |p - q|: the half is missing"
        ),
        Mistake(
            "not weighted by q",
            lambda p, q: torch.where(q > 0, p / q, 1.0).clamp_max(1).mean(),
            "min(1, p/q) was averaged as if every token were proposed equally often; weigh it by q(x), the draft's odds",
        ),
        Mistake(
            "coin forgotten",
            lambda p, q: q[p >= q].sum(),
            "a token with p < q is not always lost: it is still kept with probability p/q",
        ),
    ],
    properties=[
        Property(
            "P(keep) = 1 - TV(p, q) on distributions over 50 tokens",
            _is_one_minus_tv,
            "something depends on the vocabulary's size",
        )
    ],
)


def kept_prefix(proposed, wanted):
    """(kept, added): how many of the K proposed tokens are kept, and which of its K + 1 wanted ones the target adds."""
    kept, added = accept_greedy(torch.tensor(wanted), torch.tensor(proposed, dtype=torch.long))
    return int(kept), int(added)


def _prefix_length(proposed, wanted):
    return next((i for i, (x, y) in enumerate(zip(proposed, wanted)) if x != y), len(proposed))


def _matches(proposed, wanted):
    return sum(x == y for x, y in zip(proposed, wanted))


def _proposal(rng):
    K = int(rng.integers(1, 6))
    wanted = [int(x) for x in rng.integers(10, 100, K + 1)]
    return [w if rng.random() < 0.7 else int(rng.integers(10, 100)) for w in wanted[:K]], wanted


def greedy(then):
    """A wrong answer that counts the kept prefix rightly: `then(kept, proposed, wanted)` gives the pair."""
    return lambda proposed, wanted: then(_prefix_length(proposed, wanted), proposed, wanted)


ex_0_2 = Exercise(
    "0.2",
    kept_prefix,
    returns="two whole numbers: how many guesses are kept, and the token the target adds",
    look="'One round by hand' above: walk along both lists until they first differ; the target's choice comes free.",
    edges=[
        ("the second guess is wrong", ([11, 22, 33], [11, 99, 33, 44])),
        ("every guess is right", ([11, 22, 33], [11, 22, 33, 44])),
        ("the first guess is wrong", ([11, 22], [99, 22, 33])),
        ("nothing was proposed", ([], [11])),
    ],
    draw=_proposal,
    mistakes=[
        Mistake(
            "counts past a rejection",
            lambda p, w: (_matches(p, w), w[_matches(p, w)]),
            "guesses after the first wrong one are counted: they continue a text that is thrown away",
        ),
        Mistake(
            "adds the draft's token",
            greedy(lambda n, p, w: (n, p[n] if n < len(p) else w[n])),
            "the token added is the one the draft proposed and the target refused; add what the target wanted there",
        ),
        Mistake(
            "no bonus token",
            greedy(lambda n, p, w: (n, w[n] if n < len(p) else None)),
            "when every guess is kept, the pass gave the target's next choice too: the bonus token, the last of `wanted`",
        ),
        Mistake(
            "off by one at full acceptance",
            greedy(lambda n, p, w: (n, w[min(n, len(p) - 1)])),
            "when every guess is kept, the token added is wanted[K], one further: there is one more choice than guesses",
        ),
        Mistake(
            "counts the added token",
            greedy(lambda n, p, w: (n + 1, w[n])),
            "the token that the target adds is counted as a kept guess: kept counts the draft's tokens only",
        ),
        Mistake(
            "one place late",
            greedy(lambda n, p, w: (n, w[min(n + 1, len(p))])),
            "the token added is one place too far on: the target's choice where the lists first differ is wanted[kept]",
        ),
        Mistake(
            "only the number",
            greedy(lambda n, p, w: n),
            "the number kept is there, the token that the target adds is missing",
        ),
        Mistake(
            "order swapped",
            greedy(lambda n, p, w: (w[n], n)),
            "the two results are swapped: first how many are kept, then the token",
        ),
    ],
)
