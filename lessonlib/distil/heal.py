"""Healing: a few of the target's layers become a writer in their own right, on generic text, with the live target's odds.

This is how the course's off-the-shelf draft was made: it stands for the small model that one downloads, a decent writer whose habits
were never compared with the target's on the target's own text.
"""

import math
from dataclasses import dataclass

import torch

from lessonlib.distil.train import fit
from lessonlib.errors import LessonError
from lessonlib.pair.hidden import body_and_head, logits_of
from lessonlib.pair.tokenizer_check import model_fingerprint

CHUNK = 4096  # rows of logits held at once: 0.8 GB in fp32 at a vocabulary of 49,152


@dataclass(frozen=True)
class TextBatch:
    """Rows of running text [B, S]; every position but the last predicts its next token."""

    ids: torch.Tensor

    @property
    def rows(self):
        """How many next tokens are predicted."""
        return self.ids.shape[0] * (self.ids.shape[1] - 1)


def text_rows(tokenizer, documents, length, separator):
    """Documents (an iterable of str) as one stream of ids with `separator` after each, cut into rows: int32 [N, length], the rest dropped.

    Raises LessonError for a length below 2 and for text that does not fill one row.
    """
    if length < 2:
        raise LessonError(f"a row of {length} tokens leaves none to predict from the one before; give rows of 2 or more.")
    stream = []
    for ids in _encoded(tokenizer, documents):
        stream += ids + [separator]
    count = len(stream) // length
    if count == 0:
        raise LessonError(f"the text has only {len(stream):,} tokens, fewer than one row of {length}; give more text.")
    return torch.tensor(stream[: count * length], dtype=torch.int32).view(count, length)


def _encoded(tokenizer, documents, batch=2000):
    """Token ids of each document; encoded in batches, which the tokenizer spreads over the cores."""
    documents = list(documents)
    for start in range(0, len(documents), batch):
        yield from tokenizer(documents[start:start + batch], add_special_tokens=False)["input_ids"]


def heal(draft, target, rows, recipe, checkpoint=None, dtype=torch.float32, label="healing"):
    """Train `draft` towards the target's whole distribution at every position of `rows` (int32 [N, S]); returns the losses.

    Forward KL on the full vocabulary, the target run live: a small target costs little beside the draft's own step.
    dtype: what the matrix products run in (bf16 on a GPU); the weights that train are fp32 throughout. Recipe as in `fit`.
    """
    device = next(draft.parameters()).device
    body, head = body_and_head(draft)
    target_body, target_head = body_and_head(target)
    size = recipe.micro_batch or recipe.batch_size

    def micro_batches(step):
        epoch, place = divmod(step * recipe.batch_size, len(rows) - len(rows) % recipe.batch_size or len(rows))
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(recipe.seed * 1000 + epoch))
        chosen = order[place:place + recipe.batch_size]
        return [TextBatch(rows[part].long().to(device, non_blocking=True)) for part in chosen.split(size)]

    def backward(draft, batch, scale):
        with torch.autocast(device.type, dtype=dtype, enabled=dtype.itemsize < 4):
            with torch.no_grad():
                teacher = target_body(batch.ids)[:, :-1].flatten(0, 1)
            hidden = body(batch.ids)[:, :-1].flatten(0, 1)
            leaf = hidden.detach().requires_grad_(True)
            total = torch.zeros((), device=device)
            for h, t in zip(leaf.split(CHUNK), teacher.split(CHUNK)):
                with torch.no_grad():
                    log_p = logits_of(target_head, t).float().log_softmax(-1)
                log_q = logits_of(head, h).float().log_softmax(-1)
                # `forward_kl` without its floors: a log_softmax needs none, and over the whole vocabulary they take half as long again
                loss = (log_p.exp() * (log_p - log_q)).sum()
                (loss * scale).backward()
                total += loss.detach()
        hidden.backward(leaf.grad)
        return total

    return fit(draft, micro_batches, backward, recipe, checkpoint,
               [*rows.shape, int(rows.sum(dtype=torch.long)), model_fingerprint(draft), model_fingerprint(target)], label=label)


@torch.inference_mode()
def perplexity(model, rows, batch=8):
    """exp of the mean next-token cross-entropy over rows of text (int [N, S]), in fp32; lower is a better writer of that text."""
    body, head = body_and_head(model)
    device = head.weight.device
    total, count = 0.0, 0
    for part in rows.split(batch):
        ids = part.long().to(device)
        hidden = body(ids)[:, :-1].flatten(0, 1)
        for h, wanted in zip(hidden.split(CHUNK), ids[:, 1:].flatten().split(CHUNK)):
            total += torch.nn.functional.cross_entropy(logits_of(head, h).float(), wanted, reduction="sum").item()
            count += len(wanted)
    return math.exp(total / count)
