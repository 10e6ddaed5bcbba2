"""Predict, run, explain, and the marks on numbers that differ between machines."""

import pytest

from lessonlib.workbook import explain, here, measured, predict


def test_predict_asks_and_takes_the_number(capsys):
    guess = predict("Of 10 guesses, how many are kept?", 5, unit="of 10")
    assert guess == 5 and guess.unit == "of 10"
    assert capsys.readouterr().out == (
        "Of 10 guesses, how many are kept?\nYour prediction: 5 of 10. "
        "(Another? Change the number above and run this cell again.)\n"
    )


@pytest.mark.parametrize("answer", ["half", None, True, [1]])
def test_predict_wants_a_number(answer):
    with pytest.raises(TypeError, match="must be a number such as 0.5"):
        predict("How many?", answer)


@pytest.mark.parametrize(
    "value, verdict",
    [(4.4, "inside the band"), (4.0, "inside the band"), (4.9, "inside the band"), (3.99, "not here"), (5.0, "not here")],
)
def test_explain_puts_all_four_side_by_side_with_a_verdict(capsys, value, verdict):
    guess = predict("How many?", 5, unit="of 10")
    capsys.readouterr()
    explain(guess, value, reference=4.4, band=(4.0, 4.9), form=".2f")
    assert capsys.readouterr().out == (
        f"you predicted 5 of 10 | measured ≈{value:.2f} of 10 | reference 4.40 of 10 | band 4.00 to 4.90 of 10: {verdict}\n"
    )


def test_a_band_may_be_a_distance_from_the_reference_and_an_exact_number_carries_no_mark(capsys):
    explain(None, 0.5574, reference=0.557, band=0.003, form=".3f", exact=True)
    assert capsys.readouterr().out == "measured 0.557 | reference 0.557 | band 0.554 to 0.560: inside the band\n"


def test_explain_without_a_reference_says_what_there_is(capsys):
    explain(0.5, 0.25)
    assert capsys.readouterr().out == "you predicted 0.5 | measured ≈0.250\n"


def test_where_a_band_must_hold_a_value_outside_is_an_error(capsys):
    explain(None, 1.0, band=(0.9, 1.1), must_hold=True)
    with pytest.raises(AssertionError, match="outside its band: .*2.00.*not here"):
        explain(None, 2.0, band=(0.9, 1.1), must_hold=True)
    assert "2.00" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "value, options, said",
    [
        (0.45312, {}, "≈0.453"),
        (1234.5, {}, "≈1,234"),
        (12.34, {}, "≈12.3"),
        (0.00123456, {}, "≈0.00123"),
        (0, {}, "≈0"),
        (-2.5, {}, "≈-2.50"),
        (0.4531, {"form": ".0%"}, "≈45%"),
        (37.04, {"form": ".1f", "unit": "ms"}, "≈37.0 ms"),
    ],
)
def test_measured_shows_three_digits_or_the_form_asked_for(value, options, said):
    assert measured(value, **options) == said


def test_here_marks_words_of_this_machine_and_closes_only_once():
    assert here("cpu, fp32") == "⟨cpu, fp32⟩" and here("a⟩b") == "⟨a)b⟩" and here(7) == "⟨7⟩"
