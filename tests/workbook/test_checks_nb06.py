"""Notebook 06's checks: slips as readers write them, each known by its name, and right answers written another way."""

import pytest
import torch
import torch.nn.functional as F

import lessonlib
from lessonlib.workbook import checks


def seeds_own(student_logits, t_ids, t_logits, t_lse, T=1.0, axis=-1, power=2, mean=True, tail=True, swap=False, label_entropy=True, least=1e-12):
    """The loss as readers complete it; each option but the defaults is a slip."""
    logq = F.log_softmax(student_logits / T, dim=axis)
    logq_k = logq.gather(-1, t_ids)
    p_k = torch.exp(t_logits / T - t_lse[:, None])
    p_tail, q_tail = 1 - p_k.sum(-1), 1 - logq_k.exp().sum(-1)
    if least:
        p_tail, q_tail = p_tail.clamp(min=least), q_tail.clamp(min=least)
    p = torch.cat([p_k, p_tail[:, None]], -1) if tail else p_k
    log_q = torch.cat([logq_k, q_tail.log()[:, None]], -1) if tail else logq_k
    log_p = p.log()
    if swap:
        p, log_p, log_q = log_q.exp(), log_q, log_p
    terms = p * (log_p - log_q) if label_entropy else -p * log_q
    rows = terms.sum(-1)
    return (rows.mean() if mean else rows.sum()) * T**power


def with_slip(**options):
    return lambda student_logits, t_ids, t_logits, t_lse, T=1.0: seeds_own(student_logits, t_ids, t_logits, t_lse, T, **options)


def scaled_to_one(student_logits, t_ids, t_logits, t_lse, T=1.0):
    log_p = F.log_softmax(t_logits / T, -1)
    log_q = F.log_softmax(student_logits / T, -1).gather(-1, t_ids)
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True) * T**2


def step(draft, optimizer, micro_batches, losses_of, weigh="tokens", zero=True, often=False, padding=False, clip=1.0):
    """A step as readers write it: zero, loop, clip, step."""
    tokens = sum(counted.sum() for _, counted in micro_batches)
    seen = 0.0
    if zero:
        optimizer.zero_grad(set_to_none=True)
    for inputs, counted in micro_batches:
        losses = losses_of(draft, inputs)
        kept = losses.flatten() if padding else torch.masked_select(losses, counted)
        loss = {"tokens": kept.sum() / tokens, "means": kept.mean() / len(micro_batches), "sum": kept.sum(), "bare": kept.mean()}[weigh]
        loss.backward()
        seen += float(loss.detach())
        if often:
            norm = torch.nn.utils.clip_grad_norm_(draft.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    if not often:
        norm = torch.nn.utils.clip_grad_norm_(draft.parameters(), clip)
        optimizer.step()
    return seen, float(norm)


def with_step(**options):
    return lambda draft, optimizer, micro_batches, losses_of: step(draft, optimizer, micro_batches, losses_of, **options)


def held(trained, frozen, frozen_bytes=4, moments=2, thawed=False, masters=True, with_frozen=True):
    learning = trained + frozen * thawed
    weights = (4 if masters else frozen_bytes) * trained + frozen_bytes * frozen * with_frozen
    return weights, 4 * learning, 4 * moments * learning, weights + 4 * (1 + moments) * learning


def with_held(**options):
    return lambda trained, frozen, frozen_bytes=4: held(trained, frozen, frozen_bytes, **options)


@pytest.mark.parametrize("name, answer, mistake", [
    ("ex_6_1", with_slip(tail=False), "no tail"),
    ("ex_6_1", with_slip(swap=True), "KL swapped"),
    ("ex_6_1", with_slip(label_entropy=False), "CE for KL"),
    ("ex_6_1", with_slip(power=0), "T squared missing"),
    ("ex_6_1", with_slip(power=1), "times T"),
    ("ex_6_1", with_slip(axis=0), "softmax over the wrong axis"),
    ("ex_6_1", with_slip(mean=False), "summed over rows"),
    ("ex_6_1", scaled_to_one, "renormalised"),
    ("ex_6_2", with_step(weigh="means"), "mean of means"),
    ("ex_6_2", with_step(weigh="bare"), "not divided by the pieces"),
    ("ex_6_2", with_step(weigh="sum"), "summed"),
    ("ex_6_2", with_step(padding=True), "padding counted"),
    ("ex_6_2", with_step(zero=False), "old gradient kept"),
    ("ex_6_2", with_step(often=True), "a step at every piece"),
    ("ex_6_3", with_held(moments=1), "one moment only"),
    ("ex_6_3", with_held(with_frozen=False), "frozen forgotten"),
    ("ex_6_3", with_held(masters=False), "trained in frozen's format"),
])
def test_a_slip_in_the_readers_own_words_is_recognised(name, answer, mistake):
    verdict = getattr(checks, name).judge(answer)
    assert verdict.state == "wrong" and verdict.mistake == mistake, verdict.text


def by_the_module(draft, optimizer, micro_batches, losses_of):
    draft.train()
    draft.zero_grad()
    assert next(draft.parameters()).requires_grad
    return step(draft, optimizer, micro_batches, losses_of, zero=False)


@pytest.mark.parametrize("name, answer", [
    ("ex_6_1", seeds_own),
    ("ex_6_1", lessonlib.kl_loss),
    ("ex_6_2", step),
    ("ex_6_2", by_the_module),
    ("ex_6_3", held),
    ("ex_6_3", lambda *args: torch.tensor(held(*args))),
])
def test_a_right_answer_written_another_way_is_right(name, answer):
    verdict = getattr(checks, name).judge(answer)
    assert verdict.state == "right", verdict.text


@pytest.mark.parametrize("answer", [lambda *args: seeds_own(*args).item(), torch.no_grad()(seeds_own)], ids=["item", "no_grad"])
def test_a_loss_that_autograd_cannot_use_is_refused_with_the_reason(answer):
    assert "hand back the tensor itself" in checks.ex_6_1.judge(answer).text


def test_what_the_value_does_not_show_the_property_does():
    assert "not right yet (property)" in checks.ex_6_2.judge(with_step(clip=1e9)).text
    assert "not right yet (property)" in checks.ex_6_1.judge(with_slip(least=None)).text
