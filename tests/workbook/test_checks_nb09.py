"""Notebook 09's checks: slips as readers write them, in loops and in numpy, each known by its name."""

import numpy as np
import pytest
import torch

from lessonlib.workbook import checks


def loop_shares(favourites, written, sign=1, wrap=False, over=None):
    """Exercise 9.1 in a loop over rows; the options are slips."""
    found, R = [], len(written)
    for shift in (-1, 0, 1):
        same = compared = 0
        for j in range(R):
            at = j + sign * shift
            if wrap or 0 <= at < R:
                same, compared = same + int(favourites[j] == written[at % R]), compared + 1
        found.append(same / (over(R) if over else compared))
    return tuple(found)


def with_shares(**options):
    return lambda favourites, written: loop_shares(favourites, written, **options)


def grams(ids, n):
    return list(zip(*(ids[start:] for start in range(n))))


def by_counting(answer, training, n=8, own=lambda runs: runs, length=lambda n: n):
    """Exercise 9.3 by counting; the options are slips."""
    n = length(n)
    mine = own(grams(answer, n))
    hits = [run for run in mine if any(run in grams(other, n) for other in training)]
    return len(hits) / len(mine) if mine else 0.0


def one_long_text(answer, training, n=8):
    text = [token for other in training for token in other]
    return by_counting(answer, [text], n)


def verbatim(answer, training, n=8):
    return 1.0 if any(other == answer for other in training) else 0.0


def bootstrap(leaked, fresh, leaked_chosen, fresh_chosen, ends=(2.5, 97.5), same=False, per_prompt=False, whole=False):
    """Exercise 9.2 in a loop over draws; the options are slips."""

    def share(pair, chosen):
        kept, tested = pair
        if per_prompt:
            return np.mean([kept[i] / tested[i] for i in chosen])
        return sum(kept[i] for i in chosen) / (sum(tested) if whole else sum(tested[i] for i in chosen))

    everyone = range(len(leaked[0])), range(len(fresh[0]))
    gap = share(leaked, everyone[0]) - share(fresh, everyone[1])
    gaps = [share(leaked, a) - share(fresh, a if same else b) for a, b in zip(leaked_chosen, fresh_chosen)]
    return gap, np.percentile(gaps, ends[0]), np.percentile(gaps, ends[1])


def with_bootstrap(**options):
    return lambda *arguments: bootstrap(*arguments, **options)


def two_intervals(leaked, fresh, leaked_chosen, fresh_chosen):
    ends = []
    for (kept, tested), chosen in ((leaked, leaked_chosen), (fresh, fresh_chosen)):
        draws = np.array([kept[row].sum() / tested[row].sum() for row in chosen])
        ends.append(np.percentile(draws, [2.5, 97.5]))
    gap = leaked[0].sum() / leaked[1].sum() - fresh[0].sum() / fresh[1].sum()
    return gap, ends[0][0] - ends[1][1], ends[0][1] - ends[1][0]


@pytest.mark.parametrize(
    "name, answer, mistake",
    [
        ("ex_9_1", with_shares(sign=-1), "the other way round"),
        ("ex_9_1", with_shares(wrap=True), "wrapped around"),
        ("ex_9_1", with_shares(over=lambda R: R), "divided by all rows"),
        ("ex_9_1", lambda favourites, written: max((-1, 0, 1), key=lambda s: loop_shares(favourites, written)[s + 1]), "best shift only"),
        ("ex_9_2", with_bootstrap(same=True), "one draw for both"),
        ("ex_9_2", with_bootstrap(per_prompt=True), "mean of the prompts' shares"),
        ("ex_9_2", with_bootstrap(whole=True), "counts not redrawn"),
        ("ex_9_2", with_bootstrap(ends=(5, 95)), "90 %"),
        ("ex_9_2", two_intervals, "ends of two intervals apart"),
        ("ex_9_3", lambda answer, training, n=8: by_counting(answer, training, n, own=lambda runs: list(set(runs))), "each run once"),
        ("ex_9_3", lambda answer, training, n=8: by_counting(answer, training, n, length=lambda n: 1), "single tokens"),
        ("ex_9_3", one_long_text, "joined training"),
        ("ex_9_3", verbatim, "whole answers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_slip_in_a_readers_own_words_gets_its_diagnosis(name, answer, mistake):
    verdict = getattr(checks, name).judge(answer)
    assert (verdict.state, verdict.mistake) == ("wrong", mistake), verdict.text


def numpy_shares(favourites, written):
    a, b = favourites.numpy(), written.numpy()
    return np.array([(a[1:] == b[:-1]).mean(), (a == b).mean(), (a[:-1] == b[1:]).mean()])


@pytest.mark.parametrize(
    "name, answer",
    [("ex_9_1", with_shares()), ("ex_9_1", numpy_shares), ("ex_9_2", with_bootstrap()), ("ex_9_3", by_counting)],
    ids=["9.1 loop", "9.1 numpy", "9.2 loop", "9.3 counting"],
)
def test_another_right_way_passes(name, answer):
    verdict = getattr(checks, name).judge(answer)
    assert verdict.state == "right", verdict.text


def test_counts_are_found_at_a_value_and_a_single_answer_at_the_shape():
    verdicts = [checks.ex_9_1.judge(lambda favourites, written: tuple(int((favourites == written).sum()) for _ in range(3))),
                checks.ex_9_2.judge(lambda *arguments: bootstrap(*arguments)[0])]
    assert [verdict.state for verdict in verdicts] == ["wrong", "wrong"]
    assert "three numbers" in verdicts[1].text and "(shape)" in verdicts[1].text and "(shape)" not in verdicts[0].text


def test_a_division_by_nothing_is_told_with_its_input():
    def careless(answer, training, n=8):
        runs = grams(answer, n)
        return sum(any(run in grams(other, n) for other in training) for run in runs) / len(runs)

    verdict = checks.ex_9_3.judge(careless)
    assert verdict.state == "wrong" and "ZeroDivisionError" in verdict.text and "shorter than a run" in verdict.text


def test_shares_of_a_store_one_row_late_stand_at_plus_one():
    text = torch.arange(10)
    assert checks.ex_9_1.library(torch.cat([text[1:], text[-1:]]), text) == (0.0, 0.1, 1.0)
