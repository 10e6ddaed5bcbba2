"""The speed-up formula of speculative decoding, and what follows from it."""

import math
from collections.abc import Mapping

from lessonlib.decode.warp import is_whole
from lessonlib.errors import LessonError


def tokens_per_round(alpha, K):
    """Mean tokens a round writes, bonus token included: (1 - alpha^(K+1)) / (1 - alpha).

    alpha: probability that a tested proposal is kept (`per_tested`), 0 to 1; K: tokens proposed a round.
    Source: Leviathan et al. 2023, equation 1.
    """
    _check(alpha, K)
    return float(sum(alpha**i for i in range(K + 1)))


def tokens_per_round_by_position(conditional):
    """Mean tokens a round writes, bonus included, when position i is kept with probability conditional[i] once it is reached."""
    total, reached = 1.0, 1.0
    for probability in conditional:
        _check(probability, 0)
        reached *= probability
        total += reached
    return total


def speedup(alpha, K, c, v=1.0):
    """Time of plain decoding over time of speculative decoding: (1 - alpha^(K+1)) / ((1 - alpha)(K c + v(K))).

    alpha: `per_tested` acceptance, 0 to 1; K: tokens proposed a round, 0 is plain decoding; c: time of one draft step over time of
    one target step, a number or a mapping from K; v: time of one verifying pass over K+1 tokens over time of one target step: a number, a mapping from K, or a
    function of K. Raises LessonError for values outside their range. Source: Leviathan et al. 2023, theorem 3.8, with v added.
    """
    return tokens_per_round(alpha, K) / round_cost(K, c, v)


def speedup_by_position(conditional, c, v=1.0):
    """The speed-up predicted from acceptance measured position by position: sharper where alpha is not the same at each.

    conditional: K probabilities, kept at position i given that it was tested; c and v as in `speedup`.
    """
    return tokens_per_round_by_position(conditional) / round_cost(len(conditional), c, v)


def best_k(alpha, c, v=1.0, max_k=32):
    """The K from 0 to max_k (or, where c or v is a mapping, among its keys) with the highest speed-up; 0, plain decoding, where nothing pays."""
    measured = [{*each} for each in (c, v) if isinstance(each, Mapping)]
    choices = sorted({0} | set.intersection(*measured)) if measured else range(max_k + 1)
    return max(choices, key=lambda K: (speedup(alpha, K, c, v), -K))


def break_even_alpha(K, c, v=1.0):
    """The alpha at which K proposals a round are exactly as fast as plain decoding; infinity where even alpha = 1 would lose.

    Found by bisection, since the tokens a round grow with alpha; accurate to 1e-12. K must be at least 1.
    """
    _check(0.0, K)
    if K < 1:
        raise LessonError("break_even_alpha needs K >= 1: with K = 0 nothing is proposed, so no alpha matters.")
    cost = round_cost(K, c, v)
    if cost > K + 1:
        return math.inf
    low, high = 0.0, 1.0
    while high - low > 1e-13:
        middle = (low + high) / 2
        if tokens_per_round(middle, K) < cost:
            low = middle
        else:
            high = middle
    return high if low > 0.0 else 0.0


def round_cost(K, c, v=1.0):
    """The time of one round in plain target steps: K c + v(K), with v(0) = 1 by definition. c: a number, or a mapping from K."""
    _check(0.0, K)
    if isinstance(c, Mapping):
        if K and K not in c:
            raise LessonError(f"c was not measured at K = {K} (only at {', '.join(map(str, sorted(c)))}); measure it there.")
        c = c[K] if K else 0.0
    if not c >= 0 or math.isinf(c):
        raise LessonError(f"c is the draft step's time over the target step's and cannot be {c}; it must be 0 or more.")
    if K == 0:
        return 1.0
    if isinstance(v, Mapping):
        if K not in v:
            raise LessonError(f"v(K) was not measured at K = {K} (only at {', '.join(map(str, sorted(v)))}); measure it there.")
        value = v[K]
    else:
        value = v(K) if callable(v) else v
    if not value > 0 or math.isinf(value):
        raise LessonError(f"v({K}) is a ratio of times and cannot be {value}; it must be positive.")
    return float(K * c + value)


def _check(alpha, K):
    if not 0 <= alpha <= 1:
        raise LessonError(f"an acceptance is a probability and cannot be {alpha}; give a number from 0 to 1.")
    if not is_whole(K) or K < 0:
        raise LessonError(f"K is the number of tokens proposed a round and cannot be {K}; give 0, 1, 2, ...")
