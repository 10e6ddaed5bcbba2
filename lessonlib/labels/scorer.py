"""The target re-reads its answers and keeps, at every response position, its k favourite tokens and what the rest is worth (t3)."""

from collections import deque
from dataclasses import dataclass

import torch

from lessonlib.errors import LessonError
from lessonlib.kernels.draw import COLDEST
from lessonlib.kernels.copies import to_cpu
from lessonlib.kernels.packed import flat_ids, packed_responses, pays, why_padded
from lessonlib.kernels.topk_lse import topk_lse
from lessonlib.pair.hidden import body_and_head, logits_of, response_hidden
from lessonlib.pair.step import check_fits, check_length, context_length

CHUNK = {"cpu": 512, "cuda": 2048}  # rows of logits held at once: 0.49 GiB of bf16 at a vocabulary of 128,256, enough for the matrix product's full rate
BATCH_TOKENS = {"cpu": 4096, "cuda": 8192}


@dataclass(frozen=True)
class Scored:
    """One sequence's labels: ids int64 [R, k], logits fp32 [R, k] in falling order, lse [R], log_tail [R] (natural logs, fp32).

    log_tails holds the log tail mass at each extra temperature that was asked for: {T: [R]}.
    """

    ids: torch.Tensor
    logits: torch.Tensor
    lse: torch.Tensor
    log_tail: torch.Tensor
    log_tails: dict


def score_one(target, prompt_ids, resp_ids, k=64):
    """The target's k largest logits and their normaliser at each response position, as the seed of the course defines them.

    Returns (topk_ids int32 [R, k], topk_logits fp16 [R, k], lse fp32 [R]) with R = len(resp_ids): row j is the target's distribution for
    response token j given everything before it. Built in notebook 04; `score` is the same for many sequences at once.
    """
    scored = next(score(target, [(prompt_ids, resp_ids)], k))
    return scored.ids.int(), scored.logits.half(), scored.lse


@torch.no_grad()  # not inference_mode: its tensors may not be saved for a backward pass, and what is scored here is trained on
def score(target, sequences, k=64, batch_tokens=None, extra_temperatures=()):
    """Yield a Scored for each (prompt_ids, resp_ids) of `sequences`, in order; never more than a chunk of logits is held.

    batch_tokens: tokens run through the target at once, padded ones included where it cannot run packed rows. extra_temperatures:
    temperatures other than 1 whose tail mass is wanted too (it cannot be worked out from the one at 1). Raises LessonError for a sequence without response, ids outside the
    vocabulary, k outside 1..V, a temperature of 0 or next to it, and logits that are NaN.
    """
    check_settings(target, k, extra_temperatures)
    body, head = body_and_head(target)
    device, packed = head.weight.device, not why_padded(target)
    waiting = deque()  # on a GPU one batch stays queued there while the one before is handed out
    for batch in batches(sequences, batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"]), packed):
        check_sequences(target, batch)
        hidden = _packed_hidden(body, batch, device) if packed and pays(batch) else response_hidden(body, batch, device)
        parts = [_keep(head, chunk, k, extra_temperatures) for chunk in hidden.split(CHUNK.get(device.type, CHUNK["cpu"]))]
        waiting.append((batch, *to_cpu([torch.cat(column) for column in zip(*parts)])))
        if len(waiting) > (device.type == "cuda"):
            yield from _hand_out(*waiting.popleft(), extra_temperatures)
    for one in waiting:
        yield from _hand_out(*one, extra_temperatures)


def _packed_hidden(body, sequences, device):
    ids, rows, packing = packed_responses(sequences, device)
    return body(ids, packing)[0, rows]


def _keep(head, hidden, k, temperatures):
    logits = logits_of(head, hidden)
    return *topk_lse(logits, k), *(topk_lse(logits, k, T)[3] for T in temperatures)


def _hand_out(batch, columns, arrived, temperatures):
    """The Scored of each sequence of a batch."""
    arrived()
    if not torch.isfinite(columns[2]).all():
        raise LessonError("the target's logits are not finite at some position; check the weights and the number format it runs in.")
    for ids, values, lse, log_tail, *extra in zip(*(column.split([len(resp) for _, resp in batch]) for column in columns)):
        yield Scored(ids, values, lse, log_tail, dict(zip(temperatures, extra)))


def check_settings(target, k, temperatures=()):
    """Refuse (LessonError) a k outside the target's vocabulary, and temperatures at which no tail can be worked out."""
    vocabulary = body_and_head(target)[1].weight.shape[0]
    if not 1 <= k <= vocabulary:
        raise LessonError(f"k cannot be {k}: give the number of favourite tokens to keep, 1 to {vocabulary:,}.")
    for T in temperatures:
        if not COLDEST <= T < float("inf"):
            raise LessonError(f"labels cannot be kept at temperature {T}; give numbers of at least {COLDEST}.")


def check_sequences(target, sequences):
    """Refuse (LessonError) a sequence that the target cannot have read: no prompt, no response, too long, ids it does not have."""
    longest = context_length(target)
    for prompt_ids, resp_ids in sequences:
        if len(resp_ids) == 0:
            raise LessonError("a sequence has no response tokens, so there is nothing to score; leave it out.")
        check_length(len(prompt_ids) + len(resp_ids), 0, longest, "model")
    if not (all(len(prompt_ids) for prompt_ids, _ in sequences) and _in_vocabulary(target, sequences)):
        for prompt_ids, resp_ids in sequences:  # which of them it is, and what is wrong with it
            check_fits(target, list(prompt_ids), 0)
            check_fits(target, [*prompt_ids, *resp_ids], 0)


def _in_vocabulary(target, sequences):
    """Whether all ids are the target's, all at once: asked sequence by sequence it would keep a GPU waiting."""
    try:
        low, high = torch.aminmax(flat_ids(sequences))
    except (TypeError, OverflowError):
        return False
    return low >= 0 and high < target.config.get_text_config().vocab_size


def batches(sequences, batch_tokens, packed=False):
    """Cut sequences, in order, into batches of at most batch_tokens tokens, padding counted unless packed (at least one sequence each)."""
    batch, longest, total = [], 0, 0
    for sequence in sequences:
        length = len(sequence[0]) + len(sequence[1])
        if batch and (total + length if packed else max(longest, length) * (len(batch) + 1)) > batch_tokens:
            yield batch
            batch, longest, total = [], 0, 0
        batch.append(sequence)
        longest, total = max(longest, length), total + length
    if batch:
        yield batch
