"""How well heads on a target guess, without decoding: for each distance ahead, on text that the target wrote."""

from dataclasses import dataclass
from functools import partial

import torch

from lessonlib.distil.heads import look_ahead
from lessonlib.errors import LessonError
from lessonlib.kernels.rows import by_rows
from lessonlib.labels.scorer import batches
from lessonlib.measure.estimate import Estimate, ratio_estimate
from lessonlib.pair.hidden import padded_responses
from lessonlib.pair.llama import check_target
from lessonlib.pair.step import check_fits

CHUNK = 512  # rows of both logits held at once


@dataclass(frozen=True)
class Ahead:
    """What is guessed at one distance, where the text so far is the target's: alpha, the overlap of the two odds at T = 1; top1, how often the favourite is
    the target's own; both with intervals over texts. shares: how often the guess of each rank is the token that the text has there.
    """

    alpha: Estimate
    top1: Estimate
    shares: tuple


@torch.inference_mode()
def look_ahead_measured(heads, target, sequences, passes=4, ranks=10, batch_tokens=4096, vocabulary=None):
    """A list of Ahead: of MedusaHeads one for each head, of an EagleHead one for each of `passes` tokens that it drafts one after another.

    sequences: (prompt_ids, resp_ids) that the target wrote; greedy answers for the shares by which a greedy tree is chosen. vocabulary: ids that may be
    guessed (int64 [n]), all unless given. Of what an EAGLE head drafts, the n-th guess stands on its own states, as in decoding, and on the text's tokens.
    Raises LessonError for sequences without prompt or response, too long, or all too short, and for a target whose arithmetic lessonlib does not have.
    """
    if not sequences or any(not prompt or not resp for prompt, resp in sequences):
        raise LessonError("what heads guess is measured on sequences with at least one prompt token and one response token each; leave the others out.")
    for prompt, resp in sequences:
        check_fits(target, [*prompt, *resp], 0)
    check_target(target)
    column, texts = None, []
    for batch in batches(sorted(sequences, key=lambda pair: len(pair[0]) + len(pair[1])), batch_tokens):
        ids, positions = padded_responses(batch, target.device)
        tokens = torch.tensor([token for _, resp in batch for token in resp], device=target.device)
        text = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor([len(resp) for _, resp in batch])) + len(texts)
        texts += batch
        hidden, ahead = look_ahead(heads, target, ids, positions, passes)
        column = column or [[] for _ in ahead]
        for found, (states, rows) in zip(column, ahead):
            for part in torch.arange(len(rows), device=ids.device).split(CHUNK):
                compared = by_rows(partial(_compare, ranks=ranks, vocabulary=vocabulary), target.lm_head(hidden[rows[part]]),
                                   target.lm_head(states[part].to(hidden.dtype)), tokens[rows[part]])
                found.append((text[rows[part].cpu()], *(each.cpu() for each in compared)))
    if any(sum(len(part[0]) for part in found) == 0 for found in column):
        raise LessonError(f"none of these answers goes on for the {len(column)} tokens that are guessed ahead; take longer answers, or fewer guesses.")
    return [_summed(found, len(texts), ranks) for found in column]


def _compare(p_logits, q_logits, tokens, ranks, vocabulary):
    """(overlap, same favourite, rank of the token among the first `ranks` guesses, or `ranks`) of each row."""
    if vocabulary is not None:
        q_logits = torch.full_like(q_logits, -torch.inf).index_copy(-1, vocabulary, q_logits[:, vocabulary])
    p, q = p_logits.float().softmax(-1), q_logits.float().softmax(-1)
    best = q_logits.topk(min(ranks, q_logits.shape[-1]))
    hit = (best.indices == tokens[:, None]) & (best.values > -torch.inf)  # what may not be guessed is no guess
    return torch.minimum(p, q).sum(-1), p_logits.argmax(-1) == q_logits.argmax(-1), torch.where(hit.any(-1), hit.int().argmax(-1), ranks)


def _summed(found, texts, ranks):
    text, overlap, same, rank = (torch.cat(each) for each in zip(*found))
    count = torch.zeros(texts).index_add(0, text, torch.ones(len(text)))
    live = count > 0
    sums = [torch.zeros(texts).index_add(0, text, each.float())[live].double().numpy() for each in (overlap, same)]
    return Ahead(*(ratio_estimate(each, count[live].double().numpy()) for each in sums), tuple((rank.bincount(minlength=ranks)[:ranks] / len(rank)).tolist()))
