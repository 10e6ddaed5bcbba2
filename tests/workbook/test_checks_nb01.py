"""Notebook 01's checks: slips as readers write them, in numpy, in loops and in closed form, each known by its name."""

import numpy as np
import pytest
import torch

from lessonlib.workbook import checks
from lessonlib.workbook.exercise import STAGES


def loop_without_half(target_probs, draft_probs):
    if target_probs.ndim == 1:
        return sum(abs(float(p) - float(q)) for p, q in zip(target_probs, draft_probs))
    return torch.stack([torch.linalg.vector_norm(p - q, ord=1) for p, q in zip(target_probs, draft_probs)])


def numpy_over_everything(target_probs, draft_probs):
    return np.abs(target_probs.numpy() - draft_probs.numpy()).sum() / 2


def overlap_by_loop(target_probs, draft_probs):
    return torch.where(target_probs < draft_probs, target_probs, draft_probs).sum(dim=-1)


def closed_form(alpha, K):
    return (1 - alpha ** (K + 1)) / (1 - alpha)


def closed_form_one_short(alpha, K):
    return K if alpha == 1 else (1 - alpha**K) / (1 - alpha)


def kept_by_loop(alpha, K):
    kept, reached = 0.0, 1.0
    for _ in range(K):
        reached *= alpha
        kept += reached
    return kept


def speed(alpha, K, c):
    return (kept_by_loop(alpha, K) + 1) / (1 + c * K)


@pytest.mark.parametrize(
    "name, answer, mistake",
    [
        ("ex_1_1", loop_without_half, "half missing"),
        ("ex_1_1", numpy_over_everything, "summed over everything"),
        ("ex_1_1", overlap_by_loop, "overlap for distance"),
        ("ex_1_1", lambda p, q: (q - p).abs().amax(-1), "largest difference"),
        ("ex_1_2", closed_form, "alpha = 1 divides by 0"),
        ("ex_1_2", closed_form_one_short, "one power short"),
        ("ex_1_2", kept_by_loop, "the target's token not counted"),
        ("ex_1_2", lambda alpha, K: alpha * K + 1, "every guess counted as tested"),
        ("ex_1_3", lambda alpha, K, c: c < alpha, "alpha against c"),
        ("ex_1_3", lambda alpha, K, c: 1 < speed(alpha, K + 1, c), "against plain decoding"),
        ("ex_1_3", lambda alpha, K, c: alpha ** (K + 1) / c > 1, "tokens against cost"),
        ("ex_1_3", lambda alpha, K, c: alpha**K / c > speed(alpha, K, c), "exponent one short"),
        ("ex_1_3", lambda alpha, K, c: speed(alpha, K, c) <= speed(alpha, K + 1, c), "a tie counts"),
        ("ex_1_3", lambda alpha, K, c: speed(alpha, K + 1, c) - speed(alpha, K, c), "the gain itself"),
    ],
)
def test_a_slip_in_the_readers_own_words_is_recognised(name, answer, mistake):
    assert getattr(checks, name).judge(answer).mistake == mistake


@pytest.mark.parametrize(
    "name, answer",
    [
        ("ex_1_1", lambda p, q: 1 - torch.minimum(p, q).sum(-1)),
        ("ex_1_1", lambda p, q: (p - q).clamp_min(0).sum(-1)),
        ("ex_1_2", lambda alpha, K: K + 1 if alpha == 1 else closed_form(alpha, K)),
        ("ex_1_3", lambda alpha, K, c: alpha ** (K + 1) > c * speed(alpha, K, c)),
        ("ex_1_3", lambda alpha, K, c: np.float64(speed(alpha, K + 1, c)) > speed(alpha, K, c)),
    ],
)
def test_a_right_answer_written_another_way_is_right(name, answer):
    assert getattr(checks, name).judge(answer).state == "right"


@pytest.mark.parametrize(
    "name, answer, stage",
    [
        ("ex_1_1", numpy_over_everything, "shape"),
        ("ex_1_1", lambda p, q: ((p - q).abs().sum(-1) / 2).tolist(), "type"),
        ("ex_1_1", lambda p, q: (p - q).abs().sum(-1), "edge case"),
        ("ex_1_2", lambda alpha, K: str(K), "type"),
        ("ex_1_2", closed_form, "edge case"),
        ("ex_1_3", lambda alpha, K, c: 1, "type"),
        ("ex_1_3", lambda alpha, K, c: c < alpha, "edge case"),
    ],
)
def test_the_first_stage_that_fails_is_named(name, answer, stage):
    assert stage in STAGES and f"not right yet ({stage})" in getattr(checks, name).judge(answer).text
