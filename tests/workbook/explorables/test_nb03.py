"""Notebook 03's picture: its search finds what is known in closed form, at every end of its sliders."""

import pytest
import torch

from lessonlib.distil.divergences import total_variation
from lessonlib.workbook.explorables.nb03 import POINTS, TwoBumps, bump, fit, grid, share_of_best, two_bumps


@pytest.mark.parametrize("weight, reached", [(0.35, (0.557, 0.650, 0.650, 0.656)), (0.5, (0.558, 0.500, 0.558, 0.558))])
def test_it_meets_the_courses_numbers(weight, reached):
    students = fit(two_bumps(weight, 6.54, 1.0))
    assert [alpha for _, alpha, _ in students.values()] == pytest.approx(list(reached), abs=0.003)


@pytest.mark.parametrize("weight, distance, width", [(0.2, 4.0, 0.8), (0.5, 9.0, 1.5)])
def test_forward_kl_fits_the_mean_and_the_spread(weight, distance, width):
    log_p = two_bumps(weight, distance, width)
    odds, _, mean = fit(log_p)["forward KL"]
    p, q = log_p.exp(), odds.exp()
    moments = [((o * POINTS).sum(), (o * POINTS**2).sum()) for o in (p, q)]
    assert [float(m) for m in moments[1]] == pytest.approx([float(m) for m in moments[0]], abs=0.08)
    assert mean == pytest.approx(float(moments[0][0]), abs=0.02)


def test_no_student_has_more_alpha_than_tvs_and_one_bump_is_met_by_all():
    for weight in (0.1, 0.3, 0.45):
        alphas = {name: alpha for name, (_, alpha, _) in fit(two_bumps(weight, 5.0, 1.0)).items()}
        assert max(alphas.values()) <= alphas["TV"] + 0.001
    assert all(alpha > 0.98 for _, alpha, _ in fit(two_bumps(0.3, 0.54, 1.0)).values())


def test_of_two_bumps_nearly_as_good_the_better_one_is_found():
    """At 0.46 straddler and hider differ by 0.003 in alpha, and a first look at too few points takes the wrong one."""
    log_p = two_bumps(0.46, 6.54, 1.0)
    means, widths = grid(-2.8, 1.6, (0.3, 0.3), 15)
    most = 1 - float(total_variation(log_p, bump(means, widths)).min())
    _, alpha, mean = fit(log_p)["TV"]
    assert mean < -2 and alpha >= most - 0.0002


def test_a_peak_between_two_points_counts_as_the_best_odds():
    assert float(share_of_best([-3.27], 0.35, 6.54, 0.6)) == pytest.approx(1, abs=1e-6)
    assert float(share_of_best([0.0], 0.5, 6.54, 1.0)) == pytest.approx(0.0095, abs=0.0005)


def test_it_tells_what_it_shows_at_every_end():
    picture = TwoBumps()
    assert "alpha is 0.557 with forward KL, 0.650 with reverse KL" in picture.redraw()
    assert picture.try_the_ends() is None
    before = picture.picture.value
    picture.controls["weight"].value = 0.5
    assert "0.558 with forward KL, 0.501 with reverse KL" in picture.sentence.value and picture.picture.value != before
    assert torch.isfinite(two_bumps(0.05, 9.54, 0.6)).all()
