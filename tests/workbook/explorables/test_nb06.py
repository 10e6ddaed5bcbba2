"""The picture of notebook 06: the recorded trainings, each with its own curve, intervals and losses."""

import pytest

from lessonlib.workbook.explorables.nb06 import RecordedTrainings


def run(alphas, losses, every):
    return {"alpha_by_step": {str(step): {"value": a, "low": a - 0.01, "high": a + 0.01} for step, a in alphas.items()},
            "losses": losses, "losses_every": every}


def picture():
    return RecordedTrainings({"ce": run({0: 0.4, 100: 0.45, 25: 0.42}, [4.0, 3.0, 2.0], 10), "kl": run({0: 0.4, 25: 0.44, 100: 0.5}, [1.0, 0.5], 50)})


def test_it_shows_the_second_run_first_and_then_the_chosen_one_in_the_order_of_the_steps():
    shown = picture()
    assert list(shown.line.get_ydata()) == [0.4, 0.44, 0.5] and "Trained by kl" in shown.sentence.value
    shown.controls["objective"].value = "ce"
    assert list(shown.line.get_xdata()) == [0, 25, 100] and list(shown.line.get_ydata()) == [0.4, 0.42, 0.45]
    assert [list(bar.get_ydata()) for bar in shown.bars] == [pytest.approx([a - 0.01, a + 0.01]) for a in (0.4, 0.42, 0.45)]


@pytest.mark.parametrize("step, alpha, loss", [("0", 0.4, 4.0), ("25", 0.42, 2.0), ("100", 0.45, 2.0)])
def test_a_step_marks_its_alpha_and_the_loss_recorded_around_it(step, alpha, loss):
    shown = picture()
    shown.controls["objective"].value, shown.controls["step"].value = "ce", step
    assert [mark.get_xydata().tolist() for mark in shown.marks] == [[[int(step), alpha]], [[int(step), loss / 4.0]]]
    assert f"alpha is {alpha:.3f} [{alpha - 0.01:.3f}, {alpha + 0.01:.3f}] after {step} steps" in shown.sentence.value
    assert f"loss is {loss:.3f}, from 4.000 in the first 10 steps" in shown.sentence.value


@pytest.mark.parametrize("step, loss", [(0, 4.0), (1, 4.0), (10, 4.0), (11, 3.0), (30, 2.0), (31, 2.0)])
def test_a_step_belongs_to_the_mean_that_was_taken_over_it(step, loss):
    assert picture().loss_at("ce", step) == loss


def test_losses_are_drawn_over_their_first_in_the_middle_of_their_own_steps():
    shown = picture()
    shown.controls["objective"].value = "ce"
    assert list(shown.losses.get_ydata()) == [1, 0.75, 0.5] and list(shown.losses.get_xdata()) == [5, 15, 25]


def test_it_draws_at_both_ends_and_every_interval_lies_inside_its_axes():
    shown = picture()
    assert shown.try_the_ends() is None
    low, high = shown.left.get_ylim()
    assert low < 0.39 and high > 0.51
