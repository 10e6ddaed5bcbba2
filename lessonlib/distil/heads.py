"""Training what is bolted onto a frozen target: Medusa heads and EAGLE heads, on the target's own text and its stored odds."""

from dataclasses import asdict

import torch

from lessonlib.distil.distil import batches_of, head_and_loss
from lessonlib.distil.losses import Objective
from lessonlib.distil.train import fit
from lessonlib.pair.llama import read_texts
from lessonlib.pair.tokenizer_check import model_fingerprint

DISCOUNT = 0.8  # of the loss of each pass, or head, further ahead


def train_heads(heads, target, store, recipe, objective=None, passes=4, checkpoint=None, on_step=None, label="training heads", show=True):
    """Train MedusaHeads or an EagleHead for `target` on a LabelStore; returns the losses, the first head's or pass's and the others', discounted.

    The target reads each text once, without gradients, and its hidden states are what the heads learn from. Medusa heads learn the tokens of the text
    (`objective` "ce") or the odds further ahead; an EAGLE head the odds, in `passes` passes on its own states. The rest as in `train_draft`.
    """
    objective = objective if isinstance(objective, Objective) else Objective(objective or ("kl" if hasattr(heads, "taps") else "ce"))
    device = target.device
    states = (lambda heads, batch: eagle_states(heads, batch, passes)) if hasattr(heads, "taps") else medusa_states

    def backward(heads, batch, scale):
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        head, total, losses = target.lm_head, 0.0, []
        with torch.autocast(device.type, dtype=dtype, enabled=dtype.itemsize < 4):
            made = list(states(heads, (target, batch)))
        for number, (hidden, labels) in enumerate(made):
            weight = DISCOUNT**number
            found, gradient = head_and_loss(head, hidden.detach(), labels, scale * weight, objective, dtype)
            losses.append((hidden, gradient))
            total = total + weight * found
        torch.autograd.backward(*zip(*losses))
        return total

    return fit(heads, batches_of(store, recipe, objective, device), backward, recipe, checkpoint,
               [asdict(objective), store.manifest["answers"], store.k, store.rows, model_fingerprint(target), passes], on_step, label, show)


def medusa_states(heads, work):
    """For each head k: (its states [R', width], the labels of the tokens k further on), of the response tokens that have one so far ahead in their text."""
    target, batch = work
    with torch.no_grad():
        hidden = read_texts(target, batch.ids).flatten(0, 1)[batch.positions]
    here = batch.positions
    for k, head in enumerate(heads.heads, 1):
        # rows of one text stand behind one another: row j + k is k tokens on if its position is
        rows = torch.arange(len(here) - k, device=here.device)[here[k:] - here[:-k] == k] if len(here) > k else here[:0]
        yield head(hidden[rows]), batch.labels.rows(rows + k)


def eagle_states(heads, work, passes):
    """For each pass: (its states [R, width], the labels), of the response tokens. The pair that guesses token a stands at a - 2."""
    target, batch = work
    with torch.no_grad():
        tapped = dict.fromkeys(heads.taps)
        read_texts(target, batch.ids, tapped=tapped)
        features = torch.cat([*tapped.values()], -1)
    length = batch.ids.shape[1]
    text, place = batch.positions // length, batch.positions % length  # the row that predicts token a is a - 1
    rows = (place > 0).nonzero()[:, 0]  # a prompt of one token has no pair yet
    labels, at = batch.labels.rows(rows), (text * (length - 1) + place - 1)[rows]
    for states in heads.unrolled(batch.ids, features.to(heads.join.weight.dtype), passes):
        yield states.flatten(0, 1)[at], labels
