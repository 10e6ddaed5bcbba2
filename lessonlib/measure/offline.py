"""Acceptance without decoding (t4): both models read the same held-out text, and the overlap of their odds is counted."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from lessonlib.errors import LessonError
from lessonlib.kernels.draw import COLDEST
from lessonlib.kernels.rows import by_rows
from lessonlib.labels.scorer import batches
from lessonlib.measure.estimate import Estimate, ratio_estimate
from lessonlib.pair.hidden import body_and_head, logits_of, response_hidden
from lessonlib.pair.step import check_fits
from lessonlib.pair.tokenizer_check import check_pair

CHUNK = 512  # rows of both models' logits held at once


class _Measured(NamedTuple):
    alpha: Estimate
    top1: Estimate
    kl: Estimate
    per_position: np.ndarray


class OfflineAlpha(_Measured):
    """What teacher forcing measures: alpha = mean of sum min(p, q); top1 = share of positions with the same argmax; kl = mean KL(p || q) in
    nats; each an Estimate with its 95 % interval. per_position: the overlap at every response position, fp32 [total], sequence after sequence.
    Unpacks into these four; `lengths`, beside them, says how many positions each sequence has.
    """

    lengths: tuple = ()

    def by_position(self, longest=None):
        """alpha at each place in the answer: a list of Estimates, place 0 first, over the answers that are long enough."""
        rows = np.split(self.per_position, np.cumsum(self.lengths)[:-1])
        return [ratio_estimate(column, np.ones(len(column))) for column in
                ([row[place] for row in rows if len(row) > place] for place in range(min(longest or max(self.lengths), max(self.lengths))))]


def offline_alpha(draft, target, seqs, T=1.0, batch_tokens=4096):
    """Measure a draft on text that the target wrote, with the true prefix at every position; returns OfflineAlpha.

    seqs: list of (prompt_ids, resp_ids), best drawn at the T that is served; T: the temperature of both models' odds (top1 does not
    depend on it). Whole vocabulary, fp32. Exact for the first proposal of a round, an approximation for later ones. Raises
    LessonError for sequences without response, with ids outside the vocabulary or too long for a model, for T below COLDEST, and for
    models that do not share a vocabulary. Built in notebook 05.
    """
    return offline_alphas([draft], target, seqs, T, batch_tokens)[0]


@torch.inference_mode()
def offline_alphas(drafts, target, seqs, T=1.0, batch_tokens=4096):
    """`offline_alpha` of several drafts on the same text, the target, which costs the most, reading it once; returns a list."""
    if not COLDEST <= T < float("inf"):
        raise LessonError(f"offline alpha needs a temperature of {COLDEST:g} or more, not {T}; for greedy serving read top1 instead.")
    seqs = [(list(prompt), list(resp)) for prompt, resp in seqs]
    if not seqs or any(not prompt or not resp for prompt, resp in seqs):
        raise LessonError("offline alpha needs sequences with at least one prompt token and one response token each; leave the others out.")
    for draft in drafts:
        check_pair(target, draft)
    for model in (target, *drafts):
        for prompt, resp in seqs:
            check_fits(model, [*prompt, *resp], 0)
    columns = [[] for _ in drafts]
    order = sorted(range(len(seqs)), key=lambda i: sum(map(len, seqs[i])))  # neighbours of like length need little padding
    for batch in batches((seqs[i] for i in order), batch_tokens):
        target_head, target_hidden = _read(target, batch)
        read = [_read(draft, batch) for draft in drafts]
        for chunk, hidden in enumerate(target_hidden):
            p_logits = logits_of(target_head, hidden)
            for column, (head, draft_hidden) in zip(columns, read):
                column.append(by_rows(partial(_compare, T=T), p_logits, logits_of(head, draft_hidden[chunk]).to(p_logits.device)))
    return [_summed(column, order, [len(resp) for _, resp in seqs]) for column in columns]


def _read(model, batch):
    """(head, hidden states of the rows that predict response tokens, in chunks) of a model over a batch of (prompt, response) ids."""
    body, head = body_and_head(model)
    return head, response_hidden(body, batch, head.weight.device).split(CHUNK)


def _summed(columns, order, lengths):
    """OfflineAlpha from what was measured row after row, the sequences having been read in `order`."""
    ends = np.cumsum([lengths[i] for i in order])[:-1]
    as_read = [np.split(torch.cat(column).cpu().double().numpy(), ends) for column in zip(*columns)]
    overlap, top1, kl = (np.concatenate([parts[place] for place in np.argsort(order)]) for parts in as_read)
    sums = [np.add.reduceat(column, np.cumsum((0, *lengths[:-1]))) for column in (overlap, top1, kl)]
    result = OfflineAlpha(*(ratio_estimate(column, lengths) for column in sums), overlap.astype(np.float32))
    result.lengths = tuple(lengths)
    return result


def alpha_gain(after, before):
    """How much alpha two measurements (OfflineAlpha) of the same text differ, after - before, as an Estimate.

    Both drafts saw the same positions, so the difference is resampled, not each alpha: what makes a text hard is the same for both and
    drops out. Raises LessonError for measurements of different texts.
    """
    if after.lengths != before.lengths:
        raise LessonError("a gain in alpha compares two drafts on the same text; measure both on the same sequences.")
    difference = np.add.reduceat(after.per_position.astype(float) - before.per_position, np.cumsum((0, *after.lengths[:-1])))
    return ratio_estimate(difference, after.lengths)


def _compare(target_logits, draft_logits, T):
    """(overlap, same argmax, KL(p || q)) of each row of [R, V] logits."""
    target_logits, draft_logits = target_logits.float(), draft_logits.float()
    log_p, log_q = (target_logits / T).log_softmax(-1), (draft_logits / T).log_softmax(-1)
    p = log_p.exp()
    kl = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)
    return torch.minimum(p, log_q.exp()).sum(-1), (target_logits.argmax(-1) == draft_logits.argmax(-1)).float(), kl


class Bracket(NamedTuple):
    """alpha as far as a label store alone can tell: it lies between the two, each averaged over all positions."""

    low: float
    high: float


@torch.inference_mode()
def alpha_bracket(draft, store, batch_sequences=8):
    """Bracket a draft's alpha from stored labels, without the target: [S, S + min(p_tail, sum over the tail of min(p_k, q))]; returns Bracket.

    S is the overlap on the stored ids; outside them the target's probability is at most p_k, the smallest stored one, and p_tail in all.
    Raises LessonError for a draft with another vocabulary than the labels' target.
    """
    stored, own = store.manifest.get("vocabulary"), draft.config.get_text_config().vocab_size
    if stored not in (None, own):
        raise LessonError(f"these labels are of a target that scores {stored:,} tokens and the draft scores {own:,}; "
                          "take a draft with the target's vocabulary.")
    body, head = body_and_head(draft)
    low, high, count = 0.0, 0.0, 0
    for start in range(0, len(store), batch_sequences):
        indices = range(start, min(start + batch_sequences, len(store)))
        hidden = response_hidden(body, [store.sequence(i) for i in indices], head.weight.device)
        labels = [torch.cat(part).to(hidden.device) for part in zip(*(store.kl_inputs(i) for i in indices))]
        tails = torch.cat([store.log_tail(i) for i in indices]).exp().to(hidden.device)
        for h, t_ids, gaps, lse, p_tail in zip(*(part.split(CHUNK) for part in (hidden, *labels, tails))):
            inside, outside = by_rows(_bracketed, logits_of(head, h), t_ids, (gaps - lse[:, None]).exp().float())
            low += inside.sum().item()
            high += (inside + torch.minimum(p_tail, outside)).sum().item()
        count += len(hidden)
    return Bracket(low / count, high / count)


def _bracketed(draft_logits, t_ids, p):
    """For each row, the overlap on the stored ids, and the most that it can be on all others (where p is at most its smallest stored)."""
    q = draft_logits.float().softmax(-1)
    inside = torch.minimum(p, q.gather(-1, t_ids)).sum(-1)
    return inside, torch.minimum(q.scatter_(-1, t_ids, 0.0), p[:, -1:]).sum(-1)
