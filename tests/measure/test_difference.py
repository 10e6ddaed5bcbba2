"""Where greedy texts part, and how near the target was to a tie there."""

import pytest
from support import naive_logits, tiny

from lessonlib.measure.difference import Difference, first_difference


def test_the_first_difference_has_the_targets_own_gap():
    target, prompt, text = tiny(), [1, 2, 3], [4, 5, 6, 7]
    other = [4, 5, 9, 7]
    found = first_difference(target, prompt, text, other)
    logits = naive_logits(target, prompt, text)[2]
    assert isinstance(found, Difference) and found.place == 2 and found.tokens == (6, 9)
    assert 0 < found.rounding < 1e-4
    assert found.gap == pytest.approx((logits[6] - logits[9]).item(), abs=1e-4)


def test_equal_texts_do_not_part():
    target = tiny()
    assert first_difference(target, [1], [2, 3], [2, 3]) is None
    assert first_difference(target, [1], [2, 3], [2]) is None
    assert first_difference(target, [1], [], []) is None
