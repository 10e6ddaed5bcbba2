"""The speed-up formula: the course's own figures, the three readings of acceptance, and what is refused."""

import math
import random

import numpy as np
import pytest

from lessonlib.errors import LessonError
from lessonlib.measure.speedup import best_k, break_even_alpha, round_cost, speedup, speedup_by_position, tokens_per_round
from lessonlib.measure.speedup import tokens_per_round_by_position


@pytest.mark.parametrize("c, alpha, K, expected", [(.3, .7, 2, 1.37), (.3, .8, 3, 1.55)])
def test_the_courses_figures(c, alpha, K, expected):
    assert speedup(alpha, K, c) == pytest.approx(expected, abs=.005)
    assert best_k(alpha, c) == K


@pytest.mark.parametrize("alpha, expected", [(.7, 1.75), (.8, 2.1)])
def test_the_courses_figures_for_a_draft_of_half_the_cost(alpha, expected):
    assert speedup(alpha, best_k(alpha, .15), .15) == pytest.approx(expected, abs=.02)


def test_three_readings_of_acceptance():
    # alpha = .8, K = 4: of four proposed tokens .8 + .64 + .512 + .4096 are kept
    kept = sum(.8**i for i in range(1, 5))
    assert kept / 4 == pytest.approx(.5904)
    assert tokens_per_round(.8, 4) == pytest.approx(3.3616) == pytest.approx(kept + 1)
    tested = sum(.8**i for i in range(4))
    assert kept / tested == pytest.approx(.8)


def test_tokens_a_round_are_those_of_the_rule():
    rng = random.Random(0)
    for alpha, K in ((.3, 1), (.8, 4), (.95, 8)):
        total = 0
        for _ in range(40_000):
            kept = next((i for i in range(K) if rng.random() >= alpha), K)
            total += kept + 1
        assert tokens_per_round(alpha, K) == pytest.approx(total / 40_000, rel=.02)
        assert tokens_per_round(alpha, K) == pytest.approx((1 - alpha**(K + 1)) / (1 - alpha))


def test_the_ends():
    assert tokens_per_round(0, 5) == 1 and tokens_per_round(1, 5) == 6 and tokens_per_round(.5, 0) == 1
    assert speedup(1, 4, 0) == 5 and speedup(.9, 0, .3) == 1 and speedup(0, 2, .25, 2.0) == .4
    assert speedup(.9, 0, .3, {}) == 1  # plain decoding needs no v
    assert round_cost(3, .2, 1.5) == pytest.approx(2.1)


def test_v_may_be_a_number_a_mapping_or_a_function():
    v = {1: 1.1, 2: 1.2, 3: 1.6, 4: 1.9}
    for K in v:
        plain = tokens_per_round(.7, K) / (K * .2 + v[K])
        assert speedup(.7, K, .2, v[K]) == speedup(.7, K, .2, v) == speedup(.7, K, .2, v.get) == pytest.approx(plain)
    with pytest.raises(LessonError, match=r"not measured at K = 5 \(only at 1, 2, 3, 4\)"):
        speedup(.7, 5, .2, v)


def test_by_position_agrees_where_every_position_is_alike_and_is_sharper_where_not():
    assert tokens_per_round_by_position([.8] * 4) == pytest.approx(3.3616)
    assert speedup_by_position([.8] * 4, .3) == pytest.approx(speedup(.8, 4, .3))
    assert tokens_per_round_by_position([]) == 1 and speedup_by_position([], .3) == 1
    assert tokens_per_round_by_position([.9, .5, .2]) == pytest.approx(1 + .9 + .45 + .09)
    assert speedup_by_position([.9, .5], .1, {2: 1.4}) == pytest.approx((1 + .9 + .45) / 1.6)


@pytest.mark.parametrize("alpha, c, v", [(.7, .3, 1.0), (.8, .05, 1.0), (.2, .3, 1.0), (.99, .01, 1.0), (.6, .2, lambda K: 1 + .2 * K)])
def test_best_k_is_the_best_of_all(alpha, c, v):
    found = best_k(alpha, c, v)
    assert speedup(alpha, found, c, v) == max(speedup(alpha, K, c, v) for K in range(33))
    assert best_k(alpha, c, v, max_k=1) in (0, 1)


def test_best_k_where_nothing_pays_and_among_what_was_measured():
    assert best_k(.1, .5) == 0 and best_k(0, 0) == 0
    assert best_k(.9, .1, {2: 1.0, 4: 3.0, 8: 1.1}) == 8
    assert best_k(.5, .5, {3: 4.0}) == 0
    assert best_k(.9, {2: .1, 4: .01}) == 4 == best_k(.9, {2: .1, 4: .01, 8: .01}, {2: 1.0, 4: 1.1})


@pytest.mark.parametrize("v", [1.0, 1.3, {K: 1 + .1 * K for K in range(9)}, lambda K: 1.05])
@pytest.mark.parametrize("c", [.02, .15, .3])
@pytest.mark.parametrize("K", [1, 2, 4, 8])
def test_break_even_is_the_inverse_of_speedup(K, c, v):
    alpha = break_even_alpha(K, c, v)
    assert 0 < alpha < 1 and speedup(alpha, K, c, v) == pytest.approx(1, abs=1e-11)


def test_break_even_at_the_ends():
    assert break_even_alpha(1, .3) == pytest.approx(.3, abs=1e-12)  # 1 + alpha = 1 + c
    assert break_even_alpha(2, .6, 2.0) == math.inf
    assert break_even_alpha(2, .5, 2.0) == pytest.approx(1)
    assert break_even_alpha(3, 0.0) == 0 and break_even_alpha(3, .1, .5) == 0


@pytest.mark.parametrize("wrong", [
    lambda: speedup(-.1, 2, .3), lambda: speedup(1.1, 2, .3), lambda: speedup(math.nan, 2, .3), lambda: speedup(.7, -1, .3),
    lambda: speedup(.7, 1.5, .3), lambda: speedup(.7, 2.0, .3), lambda: speedup(.7, True, .3), lambda: speedup(.7, math.nan, .3), lambda: speedup(.7, math.inf, .3),
    lambda: speedup(.7, 2, -.1), lambda: speedup(.7, 2, math.nan), lambda: speedup(.7, 2, math.inf), lambda: speedup(.7, 2, .3, 0.0),
    lambda: speedup(.7, 2, .3, -1.0), lambda: speedup(.7, 2, .3, math.nan), lambda: speedup(.7, 2, .3, lambda K: math.inf),
    lambda: break_even_alpha(0, .3), lambda: break_even_alpha(-1, .3), lambda: best_k(2, .3), lambda: tokens_per_round_by_position([.5, 1.2]),
    lambda: speedup_by_position([.5], -1)])
def test_values_outside_their_range_are_refused_in_a_sentence(wrong):
    with pytest.raises(LessonError) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_a_whole_k_of_another_type_does():
    assert speedup(.7, np.int64(2), .3, {2: 1.1}) == speedup(.7, 2, .3, {2: 1.1})


def test_c_and_v_may_differ_from_one_k_to_another():
    c, v = {1: 0.4, 4: 0.1}, {1: 1.0, 4: 1.5}
    assert speedup(0.5, 4, c, v) == speedup(0.5, 4, 0.1, 1.5) and speedup(0.5, 0, c, v) == 1
    assert best_k(0.9, c, v) == 4
    with pytest.raises(LessonError, match="c was not measured at K = 2"):
        speedup(0.5, 2, c, 1.0)
