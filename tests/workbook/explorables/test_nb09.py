"""Notebook 09's picture: which words it holds side by side at each shift, and the numbers that it names."""

import pytest

from lessonlib.workbook.explorables.nb09 import FURTHEST, PLACES, ShiftedLabels, plain

WORDS = [f"word{i}" for i in range(FURTHEST + PLACES + FURTHEST)]
LOG_ODDS, SHARES = [-12.5, -13, -13.5, -3, -11, -12, -12.25], [0.01, 0.02, 0.0, 0.5, 0.03, 0.04, 0.05]


def picture(favourites=WORDS):
    return ShiftedLabels(WORDS, favourites, LOG_ODDS, SHARES)


@pytest.mark.parametrize("shift", range(-FURTHEST, FURTHEST + 1))
def test_row_j_stands_beside_token_j_plus_shift(shift):
    shown = picture()
    shown.controls["shift"].value = shift
    words = WORDS[FURTHEST + shift:FURTHEST + shift + PLACES]
    assert [word.get_text() for word in shown.words] == [f"{'=' if shift == 0 else ' '} {word}" for word in words]
    assert shown.dot.get_data() == ([shift], [LOG_ODDS[shift + FURTHEST]])
    said = shown.sentence.value
    assert f" {SHARES[shift + FURTHEST]:.0%} of all rows" in said and f" {LOG_ODDS[shift + FURTHEST]:.1f} nats" in said


def test_labels_one_row_late_agree_one_place_on():
    shown = picture(favourites=WORDS[1:] + WORDS[-1:])
    assert {word.get_text()[0] for word in shown.words} == {"="}  # it starts at +1
    shown.controls["shift"].value = 0
    assert "0 of 9 agree" in shown.left.get_title(loc="left")


def test_it_draws_at_both_ends_and_its_picture_moves():
    shown = picture()
    before = shown.picture.value
    shown.controls["shift"].value = -FURTHEST
    assert shown.picture.value != before
    assert shown.try_the_ends() is None


@pytest.mark.parametrize("word, drawn", [(" the", "·the"), ("\n", "\\n"), ("$5", r"\$5"), ("日本", "??"), ("a" * 20, "a" * 13 + "~")])
def test_a_word_is_drawn_without_mathematics_and_missing_letters(word, drawn):
    assert plain(word) == drawn
