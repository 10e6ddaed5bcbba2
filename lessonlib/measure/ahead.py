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
WAYS = 512  # of favourites, the most frequent, that are remembered


@dataclass(frozen=True)
class Ahead:
    """What is guessed at one distance, where the text so far is the target's: alpha, the overlap of the two odds at T = 1; top1, how often the favourite is
    the target's own; both with intervals over texts. shares: how often the guess of each rank is the token that the text has there.
    """

    alpha: Estimate
    top1: Estimate
    shares: tuple


@dataclass(frozen=True)
class LookedAhead:
    """`guesses`, an Ahead for each distance; and `ways`, (share, ranks) pairs, the most frequent first: at how many of the places that have so many tokens
    after them the next ones were the favourites of just these ranks, one after another (`sparse_tree` makes trees of them).
    """

    guesses: list
    ways: list


@torch.inference_mode()
def look_ahead_measured(heads, target, sequences, passes=4, ranks=10, batch_tokens=4096, vocabulary=None):
    """A LookedAhead: of MedusaHeads with one distance for each head, of an EagleHead with one for each of `passes` tokens that it drafts one after another.

    sequences: (prompt_ids, resp_ids) that the target wrote; greedy answers for the ways by which a greedy tree is chosen. vocabulary: ids that may be
    guessed (int64 [n]), all unless given. Of what an EAGLE head drafts, the n-th guess stands on its own states, as in decoding, and on the text's tokens.
    Raises LessonError for sequences without prompt or response, too long, or all too short, and for a target whose arithmetic lessonlib does not have.
    """
    if not sequences or any(not prompt or not resp for prompt, resp in sequences):
        raise LessonError("what heads guess is measured on sequences with at least one prompt token and one response token each; leave the others out.")
    for prompt, resp in sequences:
        check_fits(target, [*prompt, *resp], 0)
    check_target(target)
    column, texts, read = None, [], 0
    for batch in batches(sorted(sequences, key=lambda pair: len(pair[0]) + len(pair[1])), batch_tokens):
        ids, positions = padded_responses(batch, target.device)
        tokens = torch.tensor([token for _, resp in batch for token in resp], device=target.device)
        text = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor([len(resp) for _, resp in batch])) + len(texts)
        texts += batch
        hidden, ahead = look_ahead(heads, target, ids, positions, passes)
        column = column or [[] for _ in ahead]
        for found, (states, rows, starts) in zip(column, ahead):
            for part in (starts >= 0).nonzero()[:, 0].split(CHUNK):
                compared = by_rows(partial(_compare, ranks=ranks, vocabulary=vocabulary), target.lm_head(hidden[rows[part]]),
                                   target.lm_head(states[part].to(hidden.dtype)), tokens[rows[part]])
                found.append((text[rows[part].cpu()], *(each.cpu() for each in compared), starts[part].cpu() + read))
        read += len(tokens)
    if any(sum(len(part[0]) for part in found) == 0 for found in column):
        raise LessonError(f"none of these answers goes on for the {len(column)} tokens that are guessed ahead; take longer answers, or fewer guesses.")
    return LookedAhead([_summed(found, len(texts), ranks) for found in column], _ways(column, read, ranks))


def _compare(p_logits, q_logits, tokens, ranks, vocabulary):
    """(overlap, same favourite, rank of the token among the first `ranks` guesses, or `ranks`) of each row."""
    if vocabulary is not None:
        q_logits = torch.full_like(q_logits, -torch.inf).index_copy(-1, vocabulary, q_logits[:, vocabulary])
    p, q = p_logits.float().softmax(-1), q_logits.float().softmax(-1)
    best = q_logits.topk(min(ranks, q_logits.shape[-1]))
    hit = (best.indices == tokens[:, None]) & (best.values > -torch.inf)  # what may not be guessed is no guess
    return torch.minimum(p, q).sum(-1), p_logits.argmax(-1) == q_logits.argmax(-1), torch.where(hit.any(-1), hit.int().argmax(-1), ranks)


def _summed(found, texts, ranks):
    text, overlap, same, rank, _ = (torch.cat(each) for each in zip(*found))
    count = torch.zeros(texts).index_add(0, text, torch.ones(len(text)))
    live = count > 0
    sums = [torch.zeros(texts).index_add(0, text, each.float())[live].double().numpy() for each in (overlap, same)]
    return Ahead(*(ratio_estimate(each, count[live].double().numpy()) for each in sums), tuple((rank.bincount(minlength=ranks)[:ranks] / len(rank)).tolist()))


def _ways(column, rows, ranks):
    """The most frequent ways, over the places from which every distance was guessed."""
    table = torch.full((rows, len(column)), -1)  # of each place the rank of the right token at each distance
    for distance, found in enumerate(column):
        *_, rank, start = (torch.cat(each) for each in zip(*found))
        table[start, distance] = rank
    table, counted = table[(table >= 0).all(1)], []
    for depth in range(1, len(column) + 1):
        right = table[(table[:, :depth] < ranks).all(1), :depth]
        ways, times = right.unique(dim=0, return_counts=True)
        counted += zip(times.tolist(), map(tuple, ways.tolist()))
    counted.sort(key=lambda each: (-each[0], len(each[1]), each[1]))
    return [(times / len(table), way) for times, way in counted[:WAYS]]
