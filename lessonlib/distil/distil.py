"""Distilling a draft from a label store: its batches, its forward and backward, and the shared training loop around them."""

from dataclasses import asdict, dataclass
from functools import cache, lru_cache

import torch

from lessonlib.distil.losses import Labels, Objective
from lessonlib.distil.train import fit
from lessonlib.errors import LessonError
from lessonlib.kernels.compiled import compiled_layers
from lessonlib.kernels.linear_loss import linear_loss, why_not_linear
from lessonlib.kernels.packed import Packing, packed_responses, why_padded
from lessonlib.pair.hidden import body_and_head, logits_of, padded_responses
from lessonlib.pair.tokenizer_check import model_fingerprint

CHUNK = 1024  # rows of logits held at once


@dataclass(frozen=True)
class Batch:
    """A micro-batch: ids [B, S] padded on the right, or packed [1, N]; positions [R] of its flattened hidden states that predict the R labels."""

    ids: torch.Tensor
    positions: torch.Tensor
    labels: Labels
    packing: Packing | None = None

    @property
    def rows(self):
        """How many labels: the response tokens, no prompt and no padding among them."""
        return len(self.positions)


def store_batch(store, indices, objective, device, pack=False, multiple=1):
    """The Batch of the store's sequences `indices`, with the target's odds if the objective needs them; packed, or padded as `padded_responses` does."""
    sequences = [store.sequence(i) for i in indices]
    ids, positions, *packing = packed_responses(sequences, device) if pack else padded_responses(sequences, device, multiple)
    T = 1.0 if objective.renormalise else objective.T  # without the tail no normaliser is needed, so none is asked for
    odds = [torch.cat(part) for part in zip(*(store.kl_inputs(i, T) for i in indices))] if objective.needs_odds else []
    labels = Labels(torch.tensor([token for _, resp in sequences for token in resp]), *odds)
    return Batch(ids, positions, labels.to(device), *packing)


def backward(draft, batch, scale, objective, dtype=torch.float32):
    """Forward and backward of one micro-batch, its summed loss times `scale`; returns the unscaled sum.

    The head and the loss run a chunk of rows at a time, so that never more than a chunk of logits is held; their gradient meets the
    body's in the hidden states. dtype: what matrix products run in.
    """
    device = batch.ids.device
    with torch.autocast(device.type, dtype=dtype, enabled=dtype.itemsize < 4):
        body, head = body_and_head(draft)
        hidden = body(batch.ids, batch.packing).flatten(0, 1)[batch.positions]
    total, gradient = head_and_loss(head, hidden.detach(), batch.labels, scale, objective, dtype)
    if hidden.requires_grad:
        hidden.backward(gradient)
    return total


def head_and_loss(head, hidden, labels, scale, objective, dtype):
    """(summed loss, scale times its gradient in hidden [R, D]), by the quickest way that this head, objective and device allow."""
    way = by_autograd if why_not_linear(head) or objective.why_not_in_place(hidden.device) else _in_place
    return way(head, hidden, labels, scale, objective, dtype)


def by_autograd(head, hidden, labels, scale, objective, dtype):
    """(summed loss, scale times its gradient in hidden [R, D]); what trains in the head gets its own. It defines `_in_place`."""
    leaf, total = hidden.requires_grad_(True), torch.zeros((), device=hidden.device)
    with torch.autocast(hidden.device.type, dtype=dtype, enabled=dtype.itemsize < 4):
        for start in range(0, len(leaf), CHUNK):
            rows = slice(start, start + CHUNK)
            loss = objective(logits_of(head, leaf[rows]), labels.rows(rows)).sum()
            (loss * scale).backward()
            total += loss.detach()
    return total, leaf.grad


def _in_place(head, hidden, labels, scale, objective, dtype):
    """The same, with the gradient written over the logits and no graph."""
    gradient = hidden.to(dtype)
    total = linear_loss(gradient, head.weight, objective.in_place(labels, head.out_features, scale))
    return total, gradient.to(hidden.dtype)


def train_draft(draft, store, recipe, objective=None, checkpoint=None, on_step=None, dtype=None, label=None, show=True):
    """Train `draft` on a label store (t5, t6): cross-entropy on the target's text, or a divergence from its odds; returns the losses.

    store: LabelStore; recipe: Recipe; objective: Objective, its name, or None for "kl"; the rest as in `fit`. Sequences are drawn in an
    order that the seed and the step alone decide, each once an epoch. dtype: what matrix products run in, that of the draft's frozen
    weights unless given; what trains is fp32 in any case.
    """
    objective = objective if isinstance(objective, Objective) else Objective(objective or "kl")
    device = next(draft.parameters()).device
    dtype = dtype or next((p.dtype for p in draft.parameters() if not p.requires_grad), torch.float32)
    micro_batches = batches_of(store, recipe, objective, device, pack=not why_padded(draft, dtype))
    with compiled_layers(draft):
        return fit(draft, micro_batches, lambda model, batch, scale: backward(model, batch, scale, objective, dtype), recipe, checkpoint,
                   [asdict(objective), store.manifest["answers"], store.k, store.rows, model_fingerprint(draft)],
                   on_step, label or f"training ({objective.name})", show)


def batches_of(store, recipe, objective, device, pack=False, alike=1, multiple=1):
    """A function from a step to its micro-batches, in an order that the seed and the step alone decide, each sequence once an epoch.

    alike: of how many batches drawn together the sequences are sorted by length before they are shared out, so that padding is small; the batches
    then come in any order. multiple: as in `padded_responses`. Raises LessonError for a store smaller than a batch.
    """
    if len(store) < recipe.batch_size:
        raise LessonError(f"the store holds {len(store)} sequences, fewer than one batch of {recipe.batch_size}; take a smaller batch or more answers.")
    size, per_epoch = recipe.micro_batch or recipe.batch_size, len(store) // recipe.batch_size

    @cache
    def length(i):
        return sum(map(len, store.sequence(i)))

    @lru_cache(maxsize=2)
    def order_of(epoch):
        generator = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch)
        order = torch.randperm(len(store), generator=generator).tolist()[:per_epoch * recipe.batch_size]
        if alike > 1:
            window = alike * recipe.batch_size
            order = [i for start in range(0, len(order), window) for i in sorted(order[start:start + window], key=length)]
            places = torch.randperm(per_epoch, generator=generator).tolist()
            order = [i for place in places for i in order[place * recipe.batch_size:(place + 1) * recipe.batch_size]]
        return order

    def micro_batches(step):
        epoch, place = divmod(step, per_epoch)
        chosen = sorted(order_of(epoch)[place * recipe.batch_size:(place + 1) * recipe.batch_size], key=length)  # neighbours of like length need little padding
        return [store_batch(store, chosen[start:start + size], objective, device, pack, multiple) for start in range(0, len(chosen), size)]

    return micro_batches
