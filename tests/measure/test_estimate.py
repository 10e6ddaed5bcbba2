"""A mean with its interval: the right mean, and an interval that holds the truth about as often as it says."""

import numpy as np
import pytest

from lessonlib.measure.estimate import Estimate, ratio_estimate


def test_it_is_a_number_that_knows_its_interval():
    value = Estimate(.5, .4, .6)
    assert value == .5 and value + 1 == 1.5 and f"{value:.2f}" == "0.50" and (value.low, value.high) == (.4, .6)
    assert str(value) == "0.5000 [0.4000, 0.6000]" and value.interval(".1f") == "[0.4, 0.6]"


def test_the_mean_weighs_groups_by_their_size():
    found = ratio_estimate([3, 0, 10], [4, 1, 15])
    assert found == pytest.approx(13 / 20) and found.low <= found <= found.high
    assert ratio_estimate([3, 0, 10], [4, 1, 15]).low == found.low  # the resampling is seeded
    kept, sizes = groups(np.random.default_rng(1), 60)
    assert ratio_estimate(kept, sizes, seed=1).low != ratio_estimate(kept, sizes, seed=2).low


def test_one_group_has_no_interval_and_equal_groups_a_narrow_one():
    one = ratio_estimate([3], [4])
    assert one == .75 and np.isnan(one.low) and np.isnan(one.high)
    assert str(one) == "0.7500 [-, -]" and one.signed() == "+0.7500 [-, -]"
    same = ratio_estimate([2, 4, 6], [4, 8, 12])
    assert same.low == same.high == same == .5


def groups(rng, count):
    """Groups of 1 to 40 positions that resemble each other within a group; the truth is .6 of all positions."""
    sizes = rng.integers(1, 41, count)
    shares = rng.beta(3, 2, count)
    return rng.binomial(sizes, shares), sizes


def test_about_95_of_100_intervals_hold_the_truth():
    rng = np.random.default_rng(0)
    held = width = narrow = 0
    for _ in range(300):
        kept, sizes = groups(rng, 60)
        found = ratio_estimate(kept, sizes)
        held += found.low <= .6 <= found.high
        width += found.high - found.low
        # resampling positions as if they were independent: too narrow, as the docstring says
        narrow += 2 * 1.96 * (found * (1 - found) / sizes.sum()) ** .5
    assert 270 <= held <= 295
    assert narrow < .6 * width


def test_groups_without_any_position_do_no_harm():
    found = ratio_estimate([0, 0, 3], [0, 0, 4])
    assert found == .75 and found.low == found.high == .75
