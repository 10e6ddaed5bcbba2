"""Notebook 03's checks: slips written as a reader would write them get the diagnosis of their name."""

import numpy as np
import pytest
import torch

from lessonlib.workbook.checks.nb03 import ex_3_1, ex_3_2, ex_3_3


def draft_first(target_probs, draft_probs):
    kl = lambda a, b: torch.nn.functional.kl_div(b.clamp_min(1e-300).log(), a, reduction="none").sum(-1)
    forward, reverse = kl(draft_probs, target_probs), kl(target_probs, draft_probs)
    infinite = lambda a, b, value: torch.where(((a > 0) & (b == 0)).any(-1), torch.inf, value)
    return infinite(draft_probs, target_probs, forward), infinite(target_probs, draft_probs, reverse)


def naive(target_probs, draft_probs):
    ratio = torch.log(target_probs) - torch.log(draft_probs)
    return torch.sum(target_probs * ratio, -1), torch.sum(draft_probs * -ratio, -1)


def cross_entropies(target_probs, draft_probs):
    cross = lambda a, b: -torch.where(a > 0, a * b.log(), 0.0).sum(-1)
    return cross(target_probs, draft_probs), cross(draft_probs, target_probs)


def flattened(target_probs, draft_probs):
    kl = lambda a, b: torch.where(a > 0, a * (a.log() - b.log()), 0.0).sum()
    return kl(target_probs, draft_probs), kl(draft_probs, target_probs)


def jeffreys(target_probs, draft_probs):
    return sum(torch.special.entr(a).neg().sum(-1) - torch.xlogy(a, b).sum(-1)
               for a, b in ((target_probs, draft_probs), (draft_probs, target_probs))) / 2


def entropies_unhalved(target_probs, draft_probs):
    entropy = lambda odds: torch.special.entr(odds).sum(-1)
    return 2 * entropy((target_probs + draft_probs) / 2) - entropy(target_probs) - entropy(draft_probs)


def in_bits(target_probs, draft_probs):
    entropy = lambda odds: torch.special.entr(odds).sum(-1) / np.log(2)
    return entropy((target_probs + draft_probs) / 2) - (entropy(target_probs) + entropy(draft_probs)) / 2


def variance(points, probs):
    mean = torch.dot(points, probs)
    return mean, torch.dot(points**2, probs) - mean**2


def torch_std(points, probs):
    return points.mean(), (points - points.mean()).square().mean().sqrt()


def from_zero(points, probs):
    return torch.dot(points, probs), torch.dot(points * points, probs).sqrt()


@pytest.mark.parametrize(
    "exercise, answer, mistake",
    [
        (ex_3_1, draft_first, "KL swapped"),
        (ex_3_1, naive, "0 log 0 is nan"),
        (ex_3_1, cross_entropies, "entropy missing"),
        (ex_3_1, flattened, "summed over everything"),
        (ex_3_2, jeffreys, "mean of the two KLs"),
        (ex_3_2, entropies_unhalved, "half forgotten"),
        (ex_3_2, in_bits, "bits"),
        (ex_3_3, variance, "variance for spread"),
        (ex_3_3, torch_std, "places not weighted"),
        (ex_3_3, from_zero, "spread around 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", None),
)
def test_a_slip_in_a_readers_own_words_gets_its_diagnosis(exercise, answer, mistake):
    verdict = exercise.judge(answer)
    assert (verdict.state, verdict.mistake) == ("wrong", mistake), verdict.text


def entropy_form(target_probs, draft_probs):
    entropy = lambda odds: torch.special.entr(odds).sum(-1)
    return entropy((target_probs + draft_probs) / 2) - (entropy(target_probs) + entropy(draft_probs)) / 2


def numpy_moments(points, probs):
    mean = np.average(points, weights=probs)
    return mean, np.sqrt(np.average((points - mean) ** 2, weights=probs))


def stacked(target_probs, draft_probs):
    return torch.stack(ex_3_1.library(target_probs, draft_probs))


@pytest.mark.parametrize("exercise, answer", [(ex_3_1, stacked), (ex_3_2, entropy_form), (ex_3_3, numpy_moments)], ids=["3.1", "3.2", "3.3"])
def test_another_right_way_passes(exercise, answer):
    assert exercise.judge(answer).state == "right"
