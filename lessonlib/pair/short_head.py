"""The output layer for some of the vocabulary alone: most of a small draft's bytes are there, and most of the vocabulary is hardly ever written."""

from copy import copy

import torch

from lessonlib.errors import LessonError
from lessonlib.kernels.products import linear


class ShortHead:
    """A target's output layer, whole or for the tokens `ids` (int64 [n], each once) only, whose rows are then copied to lie together.

    What it cannot name is never proposed; since the target verifies everything, no text changes. Raises LessonError for ids that the target does not have.
    """

    def __init__(self, target, ids=None):
        weight, self.size = target.lm_head.weight, len(target.lm_head.weight)
        self.ids = None if ids is None else torch.as_tensor(ids, dtype=torch.long, device=weight.device)
        if self.ids is not None and (self.ids.ndim != 1 or not len(self.ids) or len(self.ids.unique()) < len(self.ids) or self.ids.min() < 0 or self.ids.max() >= self.size):
            raise LessonError(f"a short output layer needs a flat list of token ids from 0 to {self.size - 1:,}, each once; count those of the target's answers.")
        self.weight, self.bias = (each if each is None or ids is None else each.detach()[self.ids].contiguous() for each in (weight, target.lm_head.bias))

    def logits(self, hidden):
        """The logits [..., n] for hidden states [..., width]."""
        return linear(hidden.to(self.weight.dtype), self.weight, self.bias)

    def tokens(self, places):
        """The token ids of places in the logits."""
        return places if self.ids is None else self.ids[places]

    def odds(self, probs):
        """Distributions [..., n] over the whole vocabulary [..., V]."""
        return probs if self.ids is None else probs.new_zeros(*probs.shape[:-1], self.size).index_copy(-1, self.ids, probs)


def short_headed(model, ids):
    """(`model` with an output layer for the tokens `ids` alone, that ShortHead): a causal LM in all else, which shares every other weight with it."""
    head = ShortHead(model, ids)
    short, linear = copy(model), torch.nn.Linear(model.config.hidden_size, len(head.ids), bias=head.bias is not None, device="meta")
    for name, weight in (("weight", head.weight), ("bias", head.bias)):
        if weight is not None:
            setattr(linear, name, torch.nn.Parameter(weight, requires_grad=False))
    short._modules = {**model._modules, "lm_head": linear.train(model.training)}
    return short, head


def most_frequent(sequences, count):
    """The `count` ids that occur most often in the responses of (prompt_ids, resp_ids) sequences, rising; fewer where fewer occur."""
    ids, times = torch.tensor([token for _, resp in sequences for token in resp], dtype=torch.long).unique(return_counts=True)
    return ids[times.argsort(descending=True, stable=True)[:count]].sort().values
