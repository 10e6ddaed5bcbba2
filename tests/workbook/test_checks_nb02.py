"""Notebook 02's checks: usual slips, written the way readers write them, get the diagnosis that belongs to them."""

import pytest
import torch
import torch.nn.functional as F

from lessonlib.workbook.checks.nb02 import ex_2_1, ex_2_2, ex_2_3


def in_a_loop(draft_logits, target_probs):
    total = 0.0
    for z, p in zip(draft_logits, target_probs):
        log_q = z - torch.logsumexp(z, -1)
        total -= sum(p[x] * log_q[x] for x in range(len(p)))
    return total / len(draft_logits)


def by_autograd(draft_logits, target_probs):
    leaf = draft_logits.clone().requires_grad_()
    F.cross_entropy(leaf[None], target_probs[None]).backward()
    return leaf.grad


def by_kl_div(target_logits, draft_logits, T):
    log_p, log_q = F.log_softmax(target_logits / T, -1), F.log_softmax(draft_logits / T, -1)
    return F.kl_div(log_q, log_p, reduction="sum", log_target=True) * T * T


@pytest.mark.parametrize("exercise, answer", [
    (ex_2_1, in_a_loop), (ex_2_1, lambda z, p: F.cross_entropy(z, p)), (ex_2_2, by_autograd), (ex_2_3, by_kl_div),
    (ex_2_1, lambda z, p: F.cross_entropy(z.float(), p.float())),
    (ex_2_2, lambda z, p: z.float().softmax(-1) - p.float()),
    (ex_2_3, lambda z, y, T: by_kl_div(z.float(), y.float(), T)),
])
def test_other_right_answers_pass(exercise, answer):
    assert exercise.judge(answer).state == "right", exercise.judge(answer).text


@pytest.mark.parametrize("exercise, answer, mistake", [
    (ex_2_1, lambda z, p: F.cross_entropy(z, p.argmax(-1)), "hard label"),
    (ex_2_1, lambda z, p: F.cross_entropy(z, p, reduction="sum"), "summed over rows"),
    (ex_2_1, lambda z, p: -(p * F.log_softmax(z, dim=0)).sum() / len(z), "softmax over the wrong axis"),
    (ex_2_1, lambda z, p: F.kl_div(F.log_softmax(z, -1), p, reduction="batchmean"), "KL for cross-entropy"),
    (ex_2_2, lambda z, p: p - torch.exp(z) / torch.exp(z).sum(), "p - q"),
    (ex_2_2, lambda z, p: z.softmax(-1) - F.one_hot(p.argmax(), len(p)), "hard label"),
    (ex_2_2, lambda z, p: torch.linalg.norm(z.softmax(-1) - p), "its length"),
    (ex_2_3, lambda z, y, T: by_kl_div(z, y, T) / T**2, "T squared missing"),
    (ex_2_3, lambda z, y, T: by_kl_div(y, z, T), "KL swapped"),
    (ex_2_3, lambda z, y, T: F.kl_div(F.log_softmax(y / T, -1), F.softmax(z / T, -1), reduction="batchmean") * T**2, "divided by V"),
    (ex_2_3, lambda z, y, T: T**2 * F.cross_entropy(y / T, (z / T).softmax(-1)), "cross-entropy for KL"),
    (ex_2_3, lambda z, y, T: T**2 * by_kl_div(z / T, y, 1.0), "temperature on the target only"),
])
def test_the_same_slip_written_another_way_is_recognised(exercise, answer, mistake):
    assert exercise.judge(answer).mistake == mistake, exercise.judge(answer).text


@pytest.mark.parametrize("exercise, answer", [
    (ex_2_1, lambda z, p: F.cross_entropy(z, p).item()),
    (ex_2_1, lambda z, p: F.cross_entropy(z, p).detach()),
    (ex_2_3, lambda z, y, T: by_kl_div(z, y, T).item()),
    (ex_2_3, torch.no_grad()(by_kl_div)),
])
def test_a_loss_that_autograd_cannot_use_is_refused_with_the_reason(exercise, answer):
    verdict = exercise.judge(answer)
    assert verdict.state == "wrong" and "hand back the tensor itself" in verdict.text, verdict.text


def test_the_causes_of_a_raising_answer_are_left_to_its_error():
    said = " ".join(ex_2_2.judge(lambda z, p: z.softmax(1) - p).text.split())
    assert "it stopped with IndexError" in said
