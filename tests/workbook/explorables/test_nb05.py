"""The two pictures of notebook 05 show what their arrays hold, at every place of their sliders."""

import numpy as np
import pytest

from lessonlib.workbook.explorables.nb05 import HowSure, WhereLost, interval_width

RNG = np.random.default_rng(5)
COUNTS = RNG.integers(20, 60, 100)
LEVEL = RNG.uniform(0.2, 0.7, 100)  # what the positions of an answer share
ENTROPY, OVERLAP = np.array([0.0, 0.5, 1.0, 3.0]), np.array([1.0, 0.8, 0.5, 0.1])


def test_the_width_is_that_of_the_bootstrap_and_shrinks_with_the_root_of_the_answers():
    wide, narrow = (interval_width(LEVEL * COUNTS, COUNTS, n, np.random.default_rng(0)) for n in (25, 100))
    assert narrow == pytest.approx(2 * 1.96 * LEVEL.std() / 10, rel=0.1)
    assert wide / narrow == pytest.approx(2, rel=0.15)


def test_each_choice_marks_its_own_widths_and_says_how_much_too_narrow_the_other_is():
    picture = HowSure(LEVEL * COUNTS, COUNTS, spread=0.3)
    assert picture.sizes == [8, 16, 32, 64, 100]
    for place, n in enumerate(picture.sizes):
        picture.controls["answers"].value = str(n)
        wide, narrow = picture.by_answer[place], picture.by_position[place]
        assert [mark.get_xydata().tolist() for mark in picture.marks] == [[[n, wide]], [[n, narrow]]]
        assert f"{wide:.3f} wide" in picture.sentence.value and f"{wide / narrow:.1f} times too narrow" in picture.sentence.value


def test_positions_that_vary_more_than_their_answers_tell_are_not_called_too_narrow():
    picture = HowSure(LEVEL * COUNTS, COUNTS, spread=3.0)
    assert picture.by_answer[0] < picture.by_position[0] and "too narrow" not in picture.sentence.value


@pytest.mark.parametrize("threshold, positions, lost, above, below", [
    (0.0, 1.0, 1.0, "0.60", "-"), (0.5, 0.75, 1.0, "0.47", "1.00"), (1.0, 0.5, 0.875, "0.30", "0.90"), (6.0, 0.0, 0.0, "-", "0.60")])
def test_the_shares_at_a_threshold_are_those_of_the_positions_above_it(threshold, positions, lost, above, below):
    picture = WhereLost(ENTROPY, OVERLAP)
    assert picture.above(threshold) == pytest.approx((positions, lost))
    picture.controls["threshold"].value = threshold
    assert list(picture.rule.get_xdata()) == [threshold] * 2
    assert f"alpha is {above} there and {below} at the other" in picture.sentence.value


def test_both_pictures_draw_at_the_ends_of_their_sliders():
    assert HowSure(LEVEL * COUNTS, COUNTS, 0.3).try_the_ends() is None
    assert WhereLost(ENTROPY, OVERLAP).try_the_ends() is None
