"""The two pictures of notebook 01 show what the formula and the mixture give, at every end of every slider."""

import numpy as np
import pytest

from lessonlib.measure.speedup import best_k, speedup
from lessonlib.workbook.explorables.nb01 import CEILING, MOST, Distil, SpeedOverAlpha

WORDS, P, Q = ["A", "B", "C"], [0.5, 0.3, 0.2], [0.1, 0.6, 0.3]


def heights(picture, name):
    return [bar.get_height() for bar, _, _ in picture.groups[name]]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_bars_mix_in_a_straight_line(share):
    picture = Distil(WORDS, P, Q)
    picture.controls["distil"].value = share
    mixed = (1 - share) * np.array(Q) + share * np.array(P)
    assert np.allclose(heights(picture, "draft"), mixed) and np.allclose(heights(picture, "target"), P)
    assert np.allclose(heights(picture, "both"), np.minimum(P, mixed))
    assert f"alpha is {0.6 + 0.4 * share:.2f}" in picture.sentence.value


def test_the_curve_the_point_and_the_best_k_are_the_formulas():
    picture = Distil(WORDS, P, Q)
    picture.controls["K"].value, picture.controls["c"].value = 4, 0.1
    assert np.allclose(picture.curve.get_ydata(), [speedup(0.6, K, 0.1) for K in range(MOST + 1)])
    assert np.allclose([line.get_xydata()[0] for line in (picture.here, picture.best)],
                       [[K, speedup(0.6, K, 0.1)] for K in (4, best_k(0.6, 0.1))])
    picture.reset()
    assert picture.values() == {"distil": 0.0, "K": 3, "c": 0.3}


def test_labels_that_stand_still_are_not_painted_again():
    picture = Distil(WORDS, P, Q)
    for share in (0.5, 1.0):
        picture.controls["distil"].value = share
    labels = {name: {text for _, text, _ in group} for name, group in picture.groups.items()}
    assert labels["draft"] <= picture.moving and not labels["target"] & picture.moving


def test_a_draft_that_never_pays_is_said_to():
    picture = SpeedOverAlpha()
    picture.controls["alpha"].value = 0.0
    assert "no draft at all is best" in picture.sentence.value


def test_the_best_curve_lies_on_or_above_the_chosen_one_and_inside_the_frame():
    picture = SpeedOverAlpha()
    for K in (1, MOST):
        for c in (0.1, 0.6):
            picture.controls["K"].value, picture.controls["c"].value = K, c
            best, chosen = picture.best.get_ydata(), picture.chosen.get_ydata()
            assert (best >= chosen).all() and best.min() >= 1 and best.max() <= CEILING
            assert np.allclose(chosen, [speedup(alpha, K, c) for alpha in picture.grid])
    picture.controls["alpha"].value = 1.0
    assert "one more point" not in picture.sentence.value
