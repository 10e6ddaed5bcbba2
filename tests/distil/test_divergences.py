"""The divergences on distributions: values, signs, bounds, and the gradients that their docstrings derive."""

import math

import numpy as np
import pytest
import torch
from definitions import DEFINITIONS, buckets, softmax

from lessonlib.distil.divergences import FLOOR, forward_kl, jsd, lk, reverse_kl, student_buckets, teacher_buckets, total_variation
from lessonlib.distil.losses import DIVERGENCES


def logs(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def random_pairs(rows=200, vocabulary=12, seed=0):
    """Log-probabilities (p, q) from nearly equal to far apart, flat to peaky."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 8
    p = torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * spread
    near = torch.rand(rows, 1, generator=generator, dtype=torch.float64)
    q = near * p + (1 - near) * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * spread
    return p.log_softmax(-1), q.log_softmax(-1)


def merged(log_p, ids):
    """Log-probabilities of `ids` and of all the rest together."""
    return torch.from_numpy(buckets(log_p.exp().numpy(), ids.numpy())).log()


P, Q = logs([.5, .3, .1, .06, .04]), logs([.2] * 5)
VALUES = {"kl": (.3739, .3601), "reverse_kl": (.4370, .3948), "jsd": (.0957, .0906), "tv": (.4000, .4000)}


@pytest.mark.parametrize("name", VALUES)
def test_worked_values_full_and_bucketed(name):
    full, bucketed = VALUES[name]
    top = torch.tensor([[0, 1]])
    assert DIVERGENCES[name](P, Q).item() == pytest.approx(full, abs=5e-5)
    assert DIVERGENCES[name](merged(P, top), merged(Q, top)).item() == pytest.approx(bucketed, abs=5e-5)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_equals_its_definition(name):
    log_p, log_q = random_pairs()
    expected = [DEFINITIONS[name](p, q) for p, q in zip(log_p.exp().numpy(), log_q.exp().numpy())]
    np.testing.assert_allclose(DIVERGENCES[name](log_p, log_q).numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("beta", [.01, .3, .5, .9])
def test_jsd_equals_its_definition_at_every_beta(beta):
    log_p, log_q = random_pairs()
    expected = [DEFINITIONS["jsd"](p, q, beta) for p, q in zip(log_p.exp().numpy(), log_q.exp().numpy())]
    np.testing.assert_allclose(jsd(log_p, log_q, beta).numpy(), expected, rtol=1e-9, atol=1e-12)
    assert jsd(log_p, log_q).max() <= math.log(2)
    torch.testing.assert_close(jsd(log_p, log_q, beta), jsd(log_q, log_p, 1 - beta))


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_at_equality_and_never_negative(name, dtype):
    log_p, log_q = (log.to(dtype) for log in random_pairs())
    tiny = 1e-6 if dtype == torch.float32 else 1e-14
    assert DIVERGENCES[name](log_p, log_p).abs().max() <= tiny
    assert (DIVERGENCES[name](log_p, log_q) >= -tiny).all()
    assert (DIVERGENCES[name](log_p, log_q) > tiny).float().mean() > 0.9


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("k", [1, 2, 5, 11, 12])
def test_merging_events_never_adds(name, k):
    log_p, log_q = random_pairs(1000)
    ids = log_p.topk(k).indices
    full, bucketed = DIVERGENCES[name](log_p, log_q), DIVERGENCES[name](merged(log_p, ids), merged(log_q, ids))
    assert (bucketed <= full + 1e-12).all() and (bucketed >= -1e-14).all()
    if k >= 11:  # a bucket of one event or of none merges nothing
        torch.testing.assert_close(bucketed, full)


def gradient(divergence, log_p, logits):
    logits = logits.clone().requires_grad_(True)
    divergence(log_p, logits.log_softmax(-1)).sum().backward()
    return logits.grad


def test_gradients_in_the_drafts_logits_are_those_of_the_docstrings():
    log_p, logits = random_pairs()
    p, q, log_q = log_p.exp(), logits.exp(), logits  # log-probabilities are logits too
    torch.testing.assert_close(gradient(forward_kl, log_p, logits), q - p)
    torch.testing.assert_close(gradient(reverse_kl, log_p, logits),
                               q * (log_q - log_p - reverse_kl(log_p, log_q)[:, None]))
    sign = (q - p).sign()
    torch.testing.assert_close(gradient(total_variation, log_p, logits), q * (sign - (q * sign).sum(-1, keepdim=True)) / 2)
    w = torch.exp(-3 * torch.minimum(p, q).sum(-1, keepdim=True))
    torch.testing.assert_close(gradient(lk, log_p, logits),
                               w * gradient(forward_kl, log_p, logits) + (1 - w) * gradient(total_variation, log_p, logits))


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("p, q", [
    ([1., 0, 0], [.5, .5, 0]), ([.5, .5, 0], [1., 0, 0]), ([0., 0, 1], [0., 1, 0]), ([.6, .4, 0], [.6, .4, 0]), ([0., 1], [0., 1])])
def test_events_of_probability_0_give_finite_values_and_gradients(name, p, q):
    for dtype in (torch.float32, torch.float64):
        logits = torch.tensor(q, dtype=dtype).log().requires_grad_(True)
        value = DIVERGENCES[name](torch.tensor(p, dtype=dtype).log(), logits.log_softmax(-1))
        value.backward()
        assert torch.isfinite(value) and value >= -1e-7 and torch.isfinite(logits.grad).all()
        impossible = any(a > 0 and b == 0 for a, b in zip(*((p, q) if name != "reverse_kl" else (q, p))))
        if not impossible:
            assert value.item() == pytest.approx(DEFINITIONS[name](p, q), abs=1e-6)
        elif name in ("kl", "reverse_kl"):
            assert value > 1000  # infinite in truth: large, and finite


def test_the_students_buckets_are_its_probabilities():
    logits = torch.randn(40, 30, dtype=torch.float64) * 6
    ids = torch.stack([torch.randperm(30)[:5] for _ in range(40)])
    for T in (.5, 1.0, 3.0):
        expected = buckets(softmax(logits.numpy(), T), ids.numpy())
        np.testing.assert_allclose(student_buckets(logits, ids, T).exp().numpy(), expected, rtol=1e-10)


def test_a_tiny_tail_of_the_student_keeps_its_digits_in_fp32():
    log_q = student_buckets(torch.tensor([[20.0, 19.0, -20.0, -21.0]]), torch.tensor([[0, 1]]))
    assert log_q[0, 2].item() == pytest.approx(-40 + math.log(1 + math.exp(-1)) - math.log(1 + math.exp(-1)), abs=1e-5)


@pytest.mark.parametrize("T", [.5, 1.0, 3.0])
def test_the_teachers_buckets_are_its_probabilities(T):
    logits = torch.randn(40, 30, dtype=torch.float64) * 6
    values, ids = logits.topk(5)
    expected = buckets(softmax(logits.numpy(), T), ids.numpy())
    found = teacher_buckets(values, (logits / T).logsumexp(-1), T)
    np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-6, atol=1e-14)
    np.testing.assert_allclose(found.exp().sum(-1), 1, rtol=1e-12)
    alone = teacher_buckets(values, None, T)
    np.testing.assert_allclose(alone.exp().numpy()[:, :5], expected[:, :5] / expected[:, :5].sum(-1, keepdims=True), rtol=1e-10)
    assert (alone[:, 5] == FLOOR).all()


def test_stored_probabilities_past_1_are_put_right():
    values = torch.tensor([[2.0, 1.0, 0.0]])
    found = teacher_buckets(values, values.logsumexp(-1) - 1e-3)  # the three sum to 1.001
    torch.testing.assert_close(found[:, :3], values.double().log_softmax(-1))
    assert found[0, 3] == FLOOR
    many = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * 3
    assert (teacher_buckets(many, many.logsumexp(-1))[:, 3] == FLOOR).all()  # a tail of fp32 rounding is none
    told = teacher_buckets(values, values.double().logsumexp(-1) + 1e-10)  # but float64 can tell 1e-10
    assert told[0, 3].exp().item() == pytest.approx(1e-10, rel=1e-4)
    assert teacher_buckets(values, values.logsumexp(-1) + .1, tail_exists=False)[0, 3] == FLOOR
