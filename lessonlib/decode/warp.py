"""From logits to the distribution that is sampled from: temperature, then top-k, then top-p, alike for target and draft."""

from numbers import Integral

import torch

from lessonlib.errors import LessonError
from lessonlib.kernels.draw import COLDEST


def is_whole(value):
    """Whether value is a whole number by type (numpy's too): not 2.0, not True."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_sampling(temperature, top_k=None, top_p=None):
    """Refuse sampling settings that mean nothing, in one sentence (LessonError)."""
    if not (temperature == 0 or COLDEST <= temperature < float("inf")):
        raise LessonError(f"temperature cannot be {temperature}; give 0 for greedy decoding or a number from {COLDEST:g} up.")
    if top_k is not None and (not is_whole(top_k) or top_k < 1):
        raise LessonError(f"top_k cannot be {top_k}; give a whole number of tokens to keep, 1 or more, or None for all.")
    if top_p is not None and not 0 < top_p <= 1:
        raise LessonError(f"top_p cannot be {top_p}; give the probability mass to keep, above 0 and up to 1, or None for all.")


def probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """The distribution softmax(logits / temperature) cut to its top_k tokens, then to the smallest set holding top_p of the rest.

    logits: [..., V]; returns the same shape in fp32 (float64 stays float64). Ties at the k-th place are all kept. temperature > 0.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    probs = logits.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        # a token stays while the mass before it is short of top_p, so the first always stays
        cut = ordered.cumsum(-1) - ordered >= top_p
        cut[..., 0] = False  # also where fp32 takes top_p for 0
        ordered = ordered.masked_fill(cut, 0.0)
        probs = torch.zeros_like(probs).scatter(-1, order, ordered)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs
