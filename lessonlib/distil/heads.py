"""Training what is bolted onto a frozen target: Medusa heads and EAGLE heads, on the target's own text and its stored odds."""

from copy import deepcopy
from dataclasses import asdict

import torch

from lessonlib.distil.distil import batches_of, head_and_loss
from lessonlib.distil.losses import Objective
from lessonlib.distil.train import fit
from lessonlib.errors import LessonError
from lessonlib.pair.llama import check_target, read_texts
from lessonlib.pair.tokenizer_check import model_fingerprint

DISCOUNT = 0.8  # of the loss of each pass, or head, further ahead
MULTIPLE = 64  # of which a batch's length on a GPU is 1 more: libraries there prepare some kernels anew for each length that they meet
ALIKE = 16  # batches whose texts are sorted by length together: every pass, and the target's, works on the padding too


def train_heads(heads, target, store, recipe, objective=None, passes=4, checkpoint=None, on_step=None, label="training heads", show=True):
    """Train MedusaHeads or an EagleHead for `target` on a LabelStore; returns the losses, the first head's or pass's and the others', discounted.

    The target reads each text once, without gradients, and its hidden states are what the heads learn from. Medusa heads learn the tokens of the text
    (`objective` "ce") or the odds further ahead; an EAGLE head the odds, in `passes` passes on its own states. The rest as in `train_draft`; LessonError
    besides for a target whose arithmetic lessonlib does not have, for labels of another target, and for no passes.
    """
    check_target(target)
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise LessonError(f"a head cannot practise in {passes} passes; give a whole number, 1 or more.")
    fingerprint = model_fingerprint(target)
    if store.manifest["target"] != fingerprint:
        raise LessonError("these labels were made by another target than the one the heads are for; score this target's own answers.")
    objective = objective if isinstance(objective, Objective) else Objective(objective or ("kl" if hasattr(heads, "taps") else "ce"))
    device = target.device
    dtype = torch.bfloat16 if device.type == "cuda" else target.dtype
    reader = reader_of(target, dtype)

    def backward(heads, batch, scale):
        head, total, losses = target.lm_head, torch.zeros((), device=device), []
        with torch.autocast(device.type, dtype=dtype, enabled=dtype.itemsize < 4):
            _, ahead = look_ahead(heads, reader, batch.ids, batch.positions, passes)
        for number, (hidden, rows, _) in enumerate(ahead):
            if not len(rows):  # no text of this batch goes on so far
                continue
            weight = DISCOUNT**number
            found, gradient = head_and_loss(head, hidden.detach(), batch.labels.rows(rows), scale * weight, objective, dtype)
            losses.append((hidden, gradient))
            total = total + weight * found
        if losses:
            torch.autograd.backward(*zip(*losses))
        return total

    return fit(heads, batches_of(store, recipe, objective, device, alike=ALIKE, multiple=MULTIPLE if device.type == "cuda" else 1), backward, recipe, checkpoint,
               [asdict(objective), store.manifest["answers"], store.k, store.rows, fingerprint, passes, list(getattr(heads, "taps", ()))], on_step, label, show)


def reader_of(target, dtype):
    """`target`, with its products' weights in `dtype` already where that is lower, so that autocast does not convert them all in every step."""
    if target.dtype.itemsize <= dtype.itemsize:
        return target
    reader = deepcopy(target)
    for module in reader.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(dtype)
    return reader


def look_ahead(heads, target, ids, positions, passes):
    """What the target and its heads have in mind of texts ids [B, S], padded on the right: (states [R, width] of the target, [(states [R', width], rows, starts)]).

    positions: the R rows of the flattened texts that predict a response token. The target reads once, without gradients. Then, for each Medusa head, or
    for each of `passes` passes of an EagleHead: the states from which its output layer guesses, with gradients; which of the R tokens they guess; and where,
    among the R, the round began whose guess it is (-1 where that would be before the text, from where no drafter starts).
    Medusa head k guesses the token k further on than its state, where its text has one; an EAGLE head's pair for token a ends with the token a - 1.
    """
    taps, length = getattr(heads, "taps", ()), ids.shape[1]
    text, place = positions // length, positions % length
    # which rows, before the long reading: a GPU is asked for their number
    rows = (place > 0).nonzero()[:, 0]  # the row that predicts token a is a - 1, its pair stands at a - 2; a prompt of one token has no pair yet
    # rows of one text stand behind one another: row j + k is k tokens on if its position is
    later = [(positions[k:] - positions[:-k] == k).nonzero()[:, 0] for k in range(1, 1 + (0 if taps else len(heads)))]
    with torch.no_grad():
        tapped = dict.fromkeys(taps)
        hidden = read_texts(target, ids, tapped=tapped).flatten(0, 1)[positions]
    if not taps:
        return hidden, [(head(hidden[at].to(head.w.weight.dtype)), at + k, at) for k, (head, at) in enumerate(zip(heads.heads, later), 1)]
    features, pairs, ahead = torch.cat([*tapped.values()], -1), (text * (length - 1) + place - 1)[rows], []
    for number, states in enumerate(heads.unrolled(ids, features.to(heads.join.weight.dtype), passes)):
        starts = rows - number
        first = starts.clamp_min(0)
        within = (starts >= 0) & (positions[rows] - positions[first] == number) & (place[first] > 0)
        ahead.append((states.flatten(0, 1)[pairs], rows, torch.where(within, starts, -1)))
    return hidden, ahead
