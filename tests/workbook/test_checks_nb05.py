"""Notebook 05's checks: slips as readers write them, in loops, in numpy and in one line, each known by its name."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lessonlib.workbook import checks
from lessonlib.workbook.checks.common import ToyModel
from lessonlib.workbook.exercise import STAGES


def read(model, prompt, resp, first=-1, last=-1):
    logits = model(input_ids=torch.tensor([prompt + resp])).logits
    return logits[0, len(prompt) + first : len(prompt) + len(resp) + last]


def loop(draft, target, seqs, T=1.0, at=read, fp32=True, mean_of_means=False, kl_of=None, q_T=None):
    """t4 in a loop over positions; the options are slips."""
    alphas, tops, kls, answers = [], [], [], []
    for prompt, resp in seqs:
        own = []
        for p_row, q_row in zip(at(target, prompt, resp), at(draft, prompt, resp)):
            p_row, q_row = (p_row.float(), q_row.float()) if fp32 else (p_row, q_row)
            p, q = F.softmax(p_row / T, -1), F.softmax(q_row / (q_T or T), -1)
            own.append(sum(min(float(x), float(y)) for x, y in zip(p, q)))
            tops.append(float(p.argmax() == q.argmax()))
            kls.append(float(kl_of(p, q) if kl_of else (p * (p / q).log()).sum()))
        alphas += own
        answers.append(np.mean(own))
    alpha = np.mean(answers) if mean_of_means else np.mean(alphas)
    return alpha, np.mean(tops), np.mean(kls), torch.tensor(alphas)


def with_options(**options):
    return lambda draft, target, seqs, T=1.0: loop(draft, target, seqs, T, **options)


def temperature_on_the_target_only(draft, target, seqs, T=1.0):
    return loop(draft, target, seqs, T, q_T=1.0)


def kl_by_torch_the_wrong_way_round(draft, target, seqs, T=1.0):
    return loop(draft, target, seqs, T, kl_of=lambda p, q: F.kl_div(p.log(), q, reduction="sum"))


def percentiles(totals, counts, chosen, ends=(2.5, 97.5)):
    means = [sum(totals[i] for i in row) / sum(counts[i] for i in row) for row in chosen]
    return np.percentile(means, ends[0]), np.percentile(means, ends[1])


def loop_bracket(p_top, q_top, q_rest, cap=True, tail=True):
    low = sum(min(float(p), float(q)) for p, q in zip(p_top, q_top))
    outside = sum(min(float(p_top[-1]), float(q)) if cap else float(q) for q in q_rest)
    return low, low + (min(max(0.0, 1 - float(p_top.sum())), outside) if tail else outside)


@pytest.mark.parametrize(
    "name, answer, mistake",
    [
        ("ex_5_1", lambda model, prompt, resp: read(model, prompt, resp, 0, 0), "one row late"),
        ("ex_5_1", lambda model, prompt, resp: read(model, prompt, resp, -1, 0), "last row too"),
        ("ex_5_1", lambda model, prompt, resp: model(torch.tensor([prompt + resp])).logits[0, :-1], "prompt counted"),
        ("ex_5_1", lambda model, prompt, resp: model(torch.tensor([resp])).logits[0], "answer without its prompt"),
        ("ex_5_1", lambda model, prompt, resp: read(model, prompt, resp)[None], "batch left over"),
        ("ex_5_1", lambda model, prompt, resp: F.softmax(read(model, prompt, resp), -1), "probabilities"),
        ("ex_5_2", with_options(at=lambda *args: read(*args, 0, 0)), "one row late"),
        ("ex_5_2", with_options(mean_of_means=True), None),  # of the three means only one is by answer: not the named slip
        ("ex_5_2", temperature_on_the_target_only, "temperature on one side"),
        ("ex_5_2", lambda draft, target, seqs, T=1.0: loop(draft, target, seqs), "temperature ignored"),
        ("ex_5_2", kl_by_torch_the_wrong_way_round, "KL swapped"),
        ("ex_5_2", lambda draft, target, seqs, T=1.0: loop(target, draft, seqs, T), "KL swapped"),
        ("ex_5_2", with_options(kl_of=lambda p, q: -(p * q.log()).sum()), "cross-entropy for KL"),
        ("ex_5_2", lambda draft, target, seqs, T=1.0: loop(draft, target, [seqs[-1]], T), "last answer only"),
        ("ex_5_3", lambda totals, counts, chosen: percentiles(totals, counts, chosen, (5, 95)), "90 %"),
        ("ex_5_3", lambda totals, counts, chosen: percentiles(totals, counts, chosen, (97.5, 2.5)), "high and low swapped"),
        ("ex_5_3", lambda totals, counts, chosen: percentiles(totals / counts, np.ones(len(counts)), chosen), "mean of the answers' means"),
        ("ex_5_4", lambda *args: loop_bracket(*args, cap=False), "smallest stored one not used"),
        ("ex_5_4", lambda *args: loop_bracket(*args, tail=False), "tail mass not used"),
        ("ex_5_4", lambda p_top, q_top, q_rest: (torch.minimum(p_top, q_top).sum(),) * 2, "only what is stored"),
        ("ex_5_4", lambda p_top, q_top, q_rest: loop_bracket(p_top / p_top.sum(), q_top, q_rest), "scaled to sum to 1"),
    ],
)
def test_a_slip_in_the_readers_own_words_is_recognised(name, answer, mistake):
    verdict = getattr(checks, name).judge(answer)
    assert verdict.state == "wrong" and verdict.mistake == mistake


@pytest.mark.parametrize(
    "name, answer",
    [
        ("ex_5_1", lambda model, prompt, resp: model(torch.tensor([prompt + resp]), logits_to_keep=len(resp) + 1).logits[0, :-1]),
        ("ex_5_1", lambda model, prompt, resp: torch.stack([model(torch.tensor([prompt + resp[:j]])).logits[0, -1] for j in range(len(resp))])),
        ("ex_5_2", loop),
        ("ex_5_2", with_options(kl_of=lambda p, q: F.kl_div(q.log(), p, reduction="sum"))),
        ("ex_5_2", lambda *args: (*loop(*args)[:3], loop(*args)[3].double())),
        ("ex_5_3", percentiles),
        ("ex_5_3", lambda totals, counts, chosen: np.quantile(totals[chosen].sum(1) / counts[chosen].sum(1), [0.025, 0.975])),
        ("ex_5_4", loop_bracket),
    ],
)
def test_a_right_answer_written_another_way_is_right(name, answer):
    assert getattr(checks, name).judge(answer).state == "right"


@pytest.mark.parametrize(
    "name, answer, stage",
    [
        ("ex_5_1", lambda model, prompt, resp: read(model, prompt, resp).flatten(), "shape"),
        ("ex_5_1", lambda model, prompt, resp: read(model, prompt, resp).numpy(), "type"),
        ("ex_5_2", lambda *args: loop(*args)[0], "shape"),
        ("ex_5_2", lambda *args: (*loop(*args)[:3], loop(*args)[3].tolist()), "type"),
        ("ex_5_2", with_options(mean_of_means=True), "edge case"),
        ("ex_5_2", with_options(fp32=False), "edge case"),
        ("ex_5_3", lambda totals, counts, chosen: percentiles(totals, counts, chosen)[0], "shape"),
        ("ex_5_4", lambda *args: loop_bracket(*args, cap=False), "edge case"),
    ],
)
def test_the_first_stage_that_fails_is_named(name, answer, stage):
    assert stage in STAGES and f"not right yet ({stage})" in getattr(checks, name).judge(answer).text


def test_the_toy_model_is_causal_and_knows_the_order_of_its_tokens():
    model = ToyModel(1)
    whole = model(torch.tensor([[1, 2, 3, 0]])).logits[0]
    for length in (1, 2, 3):
        assert torch.allclose(model(torch.tensor([[1, 2, 3, 0][:length]])).logits[0], whole[:length])
    assert not torch.allclose(model(torch.tensor([[2, 1]])).logits[0, -1], model(torch.tensor([[1, 2]])).logits[0, -1])


def test_the_library_function_is_the_fast_one_on_a_real_kind_of_model():
    from support import sequences, tiny

    from lessonlib.measure.offline import offline_alpha

    target, draft, seqs = tiny(seed=1), tiny(seed=2), sequences(4, seed=3)
    slow, fast = checks.ex_5_2.library(draft, target, seqs, 1.5), offline_alpha(draft, target, seqs, T=1.5)
    assert np.allclose(slow[:3], [float(value) for value in fast[:3]], atol=1e-5)
    assert np.allclose(slow[3], fast.per_position, atol=1e-5)
