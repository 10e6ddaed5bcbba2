"""Every exercise's check: the solution passes, the stub is excused, and each named wrong answer gets its own diagnosis."""

import numpy as np
import pytest
import torch

from lessonlib.workbook import checks, rules
from lessonlib.workbook.exercise import STAGES, Exercise, Mistake, NotRight, Property, brief

EXERCISES = {name: getattr(checks, name) for name in checks.__all__}
SLIPS = [(name, mistake) for name, exercise in EXERCISES.items() for mistake in exercise.mistakes]
LABELS = ("tried", "got", "wanted", "likely cause", "where to look")


def flat(text):
    """The text on one line, as it was before it was wrapped."""
    return " ".join(text.split())


def test_the_registry_is_whole():
    assert [name for name in vars(checks) if name.startswith("ex_")] == checks.__all__
    for name, exercise in EXERCISES.items():
        assert isinstance(exercise, Exercise) and name == "ex_" + exercise.number.replace(".", "_")


@pytest.mark.parametrize("name", EXERCISES)
def test_the_right_function_passes_and_is_handed_back(name, capsys):
    library = EXERCISES[name].library

    def mine(*args, **named):
        return library(*args, **named)

    assert EXERCISES[name](mine) is mine
    assert capsys.readouterr().out.startswith("✓") and mine is not library


@pytest.mark.parametrize("stub", [lambda *args: None, lambda *args: ...], ids=["nothing", "dots"])
@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_is_excused_and_the_library_takes_its_place(name, stub, capsys):
    assert EXERCISES[name](stub) is EXERCISES[name].library
    said = capsys.readouterr().out
    assert "not written yet" in said and said.count("\n") == 1


@pytest.mark.parametrize("name, mistake", SLIPS, ids=[f"{name}: {mistake.name}" for name, mistake in SLIPS])
def test_a_named_wrong_answer_gets_its_own_diagnosis(name, mistake, capsys):
    exercise = EXERCISES[name]
    assert exercise(mistake.answer) is exercise.library
    said = capsys.readouterr().out
    assert exercise.judge(mistake.answer).mistake == mistake.name
    assert [label for label in LABELS if f"\n  {label:<15}" in said] == list(LABELS)
    assert flat(mistake.cause) in flat(said) and flat(exercise.look) in flat(said)
    assert [other.name for other in exercise.mistakes if other is not mistake and flat(other.cause) in flat(said)] == []


@pytest.mark.parametrize("name", EXERCISES)
def test_each_check_knows_at_least_three_slips_and_says_each_in_its_own_words(name):
    slips = EXERCISES[name].mistakes
    assert len(slips) >= 3
    assert len({slip.cause for slip in slips}) == len({slip.name for slip in slips}) == len(slips)


@pytest.mark.parametrize("name", EXERCISES)
def test_an_answer_that_is_merely_wrong_gets_no_false_diagnosis(name):
    verdict = EXERCISES[name].judge(lambda *args: 0.123456)
    assert verdict.state == "wrong" and verdict.mistake is None


@pytest.mark.parametrize("name", EXERCISES)
def test_a_check_says_the_same_every_time(name):
    answer = EXERCISES[name].mistakes[0].answer
    assert EXERCISES[name].judge(answer) == EXERCISES[name].judge(answer)
    assert not rules.ADDRESS.search(flat(EXERCISES[name].judge(answer).text))


@pytest.mark.parametrize("value", [{}, 1j, np.array([None, "a"])], ids=["mapping", "complex", "objects"])
@pytest.mark.parametrize("name", EXERCISES)
def test_whatever_is_handed_back_is_judged(name, value):
    verdict = EXERCISES[name].judge(lambda *args: value)
    assert verdict.state == "wrong" and verdict.mistake is None


def test_the_property_of_0_1_tries_several_pairs():
    seen = set()

    def mine(p, q):
        seen.add((p, q) if len(p) == 50 else None)
        return checks.ex_0_1.library(p, q)

    assert checks.ex_0_1.judge(mine).state == "right"
    assert len({tuple(p.tolist()) for p, _ in filter(None, seen)}) == 5


def numpy_ratio_upside_down(target_probs, draft_probs):
    p, q = np.asarray(target_probs), np.asarray(draft_probs)
    return sum(q[x] * min(1.0, q[x] / p[x] if p[x] else np.inf) for x in range(len(p)))


def loop_resampling_from_p(target_probs, draft_probs, draft_tokens, uniforms):
    for i, x in enumerate(draft_tokens.tolist()):
        if uniforms[i] >= target_probs[i][x] / draft_probs[i][x]:
            return i, int((target_probs[i].cumsum(0) <= uniforms[-1]).sum())
    return len(draft_tokens), int((target_probs[-1].cumsum(0) <= uniforms[-1]).sum())


def loop_residual_not_renormalised(target_probs, draft_probs, draft_tokens, uniforms):
    for i, x in enumerate(draft_tokens.tolist()):
        if uniforms[i] >= target_probs[i][x] / draft_probs[i][x]:
            left = torch.clamp(target_probs[i] - draft_probs[i], min=0)
            return i, min(int(torch.searchsorted(torch.cumsum(left, 0), uniforms[-1], right=True)), len(left) - 1)
    return len(draft_tokens), int((target_probs[-1].cumsum(0) <= uniforms[-1]).sum())


def formula_without_v(alpha, K, c, v=1.0):
    return K + 1 if alpha == 1 else (1 - alpha ** (K + 1)) / (1 - alpha) / (1 + K * c)


def formula_to_the_k(alpha, K, c, v=1.0):
    return (K if alpha == 1 else (1 - alpha**K) / (1 - alpha)) / (v + K * c)


@pytest.mark.parametrize(
    "name, answer, mistake",
    [
        ("ex_0_1", numpy_ratio_upside_down, "ratio upside down"),
        ("ex_0_2", lambda p, w: (np.equal(p, w[:-1]).sum(), w[np.equal(p, w[:-1]).sum()]), "counts past a rejection"),
        ("ex_8_1", loop_resampling_from_p, "resampled from p"),
        ("ex_8_1", loop_residual_not_renormalised, "residual not renormalised"),
        ("ex_8_2", formula_to_the_k, "exponent one short"),
    ],
)
def test_the_same_slip_written_another_way_is_recognised(name, answer, mistake):
    assert EXERCISES[name].judge(answer).mistake == mistake


def test_a_slip_on_top_of_another_is_not_called_by_the_name_of_one():
    verdict = EXERCISES["ex_8_2"].judge(formula_without_v)  # v is missing, and so is the round's time where alpha is 1
    assert verdict.state == "wrong" and verdict.mistake is None


def double(x):
    """Twice each number."""
    return 2 * x


def doubling(**changes):
    """A small exercise to show what a check says."""
    values = {
        "library": double,
        "returns": "an array like x",
        "look": "above",
        "draw": lambda rng: (torch.from_numpy(rng.random(3)),),
        "edges": [("zero", (torch.zeros(2, dtype=torch.float64),))],
        "mistakes": [Mistake("squared", lambda x: x**2, "x was squared")],
        **changes,
    }
    return Exercise("7.1", **values)


@pytest.mark.parametrize(
    "answer, stage, said",
    [
        (lambda x: (2 * x).sum(), "shape", "got 0 (one value)"),
        (lambda x: (2 * x, x), "shape", "wanted [0, 0] (an array of shape [2]): an array like x"),
        (lambda x: (2 * x).tolist(), "type", "got [0, 0] (float, float)"),
        (lambda x: "twice", "type", "got 'twice' (str)"),
        (lambda x: 2 * x + (x == 0), "edge case", "this special case needs a thought of its own"),
        (lambda x: 2.1 * x, "value", "not one of the usual slips"),
        (lambda x: x**2, "value", "x was squared"),
        (lambda x: x.mul_(2), "value", "changes its input in place"),
    ],
    ids=["one for many", "two for one", "list", "text", "edge", "value", "slip", "in place"],
)
def test_the_stage_and_the_cause_are_named(answer, stage, said):
    text = doubling().judge(answer).text
    assert f"not right yet ({stage})" in text and said in flat(text)
    assert stage in STAGES


def test_a_function_that_raises_shows_its_error_and_its_line():
    def double(x):
        return 2 * x[17]

    said = flat(doubling().judge(double).text)
    assert "got it stopped with IndexError: index 17 is out of bounds" in said and "in the line: return 2 * x[17]" in said


def test_under_a_decorator_the_line_is_still_the_readers():
    @torch.inference_mode()
    def double(x):
        return 2 * x[17]

    said = flat(doubling().judge(double).text)
    assert "in the line: return 2 * x[17]" in said and "kwargs" not in said


def test_what_a_wrong_function_printed_is_shown_and_what_a_right_one_printed_is_not(capsys):
    def chatty(x):
        print("x is", x)
        return 2 * x

    assert doubling()(chatty) is chatty
    assert capsys.readouterr().out.count("\n") == 1
    assert "it printed x is tensor([" in flat(doubling().judge(lambda x: print("x is", x) or x).text)


def test_a_value_in_place_of_a_function_is_explained():
    assert "hand over the function itself, double, without calling it" in doubling().judge(3.0).text


@pytest.mark.parametrize("answer", [lambda x: None, lambda x: x, 3.0], ids=["stub", "wrong", "no function"])
def test_strict_raises_what_it_would_have_said(answer, monkeypatch):
    monkeypatch.setenv("STRICT", "1")
    with pytest.raises(NotRight) as error:
        doubling()(answer)
    assert str(error.value) == doubling().judge(answer).text
    assert doubling()(double) is double


def test_a_property_is_checked_last_and_said_in_words():
    calls = []

    def forgetful(x):
        calls.append(1)
        return 2 * x if len(calls) < 32 else x

    holds = Property("f(x) = x + x", lambda fn, rng: bool((fn(torch.ones(1)) == 2).all()), "it remembers earlier calls")
    said = flat(doubling(properties=[holds]).judge(forgetful).text)
    assert "(property)" in said and "wanted f(x) = x + x" in said and "it remembers earlier calls" in said


def test_an_error_in_a_property_is_told_and_not_raised():
    def particular(x):
        assert len(x) < 4, "so long?"
        return 2 * x

    long = Property("f(x) = x + x", lambda fn, rng: bool((fn(torch.ones(9)) == 2).all()), "it remembers earlier calls")
    said = flat(doubling(properties=[long]).judge(particular).text)
    assert "(property)" in said and "got it stopped with AssertionError: so long?" in said and "wanted f(x) = x + x" in said
    assert 'in the line: assert len(x) < 4, "so long?"' in said and "remembers" not in said
    curious = Property("f(x) knows its home", lambda fn, rng: fn(torch.ones(1)).home, "it is homeless")
    said = flat(doubling(properties=[curious]).judge(double).text)
    assert "AttributeError" in said and "in the line" not in said and "the check could not go on" in said


def ends(x):
    """The first and the last number of x, and a word for which is larger."""
    return x[0], x[-1], "first" if x[0] > x[-1] else "last"


def pair(x):
    """The first and the last number of x."""
    return x[0], x[-1]


@pytest.mark.parametrize(
    "answer, said",
    [
        (ends, None),
        (lambda x: (*pair(x), "last"), "not right yet (value)"),
        (lambda x: (*pair(x), x[0] > x[-1]), "not right yet (type)"),
        (lambda x: (*pair(x), None), "not right yet (type)"),
    ],
    ids=["right", "other word", "no word", "nothing"],
)
def test_words_are_compared_as_values(answer, said):
    verdict = doubling(library=ends, edges=[]).judge(answer)
    assert said in verdict.text if said else verdict.state == "right", verdict.text


@pytest.mark.parametrize(
    "answer, state, said",
    [
        (lambda x: torch.stack(pair(x)), "right", "✓"),
        (lambda x: np.array([x[0], x[-1]]), "right", "✓"),
        (lambda x: torch.stack([*pair(x), x[0]]), "wrong", "(an array of shape [3]) wanted"),
        (lambda x: torch.stack(pair(x)) + 1, "wrong", "not right yet (edge case)"),
        (lambda x: x.sum(), "wrong", "(one value) wanted"),
    ],
    ids=["tensor", "array", "three", "value", "one"],
)
def test_an_array_does_for_a_tuple(answer, state, said):
    verdict = doubling(library=pair).judge(answer)
    assert verdict.state == state and said in flat(verdict.text), verdict.text


def test_a_difference_behind_three_digits_is_shown():
    third = torch.tensor([1 / 3], dtype=torch.float64)
    text = flat(doubling(edges=[("a third", (third,))]).judge(lambda x: 2 * x + 1e-5).text)
    assert "got [0.66667667] wanted [0.66666667]" in text


def test_an_error_in_the_library_is_the_authors_and_not_the_readers():
    def double(x):
        raise KeyError("library")

    with pytest.raises(KeyError):
        doubling(library=double).judge(lambda x: x)


@pytest.mark.parametrize(
    "value, said",
    [
        (torch.tensor([0.5, 1 / 3]), "[0.5, 0.333]"),
        ((2, 7), "(2, 7)"),
        (np.float64(1e-5), "1e-05"),
        (list(range(10)), "[0, 1, 2, 3, 4, 5, 6, 7, ...]"),
        (None, "None"),
        (torch.tensor(3), "3"),
        (flat, "<function flat>"),
    ],
)
def test_values_are_said_briefly(value, said):
    assert brief(value) == said
