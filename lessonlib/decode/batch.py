"""Speculative decoding of several texts at once: one pass proposes and one verifies for all of them, and each keeps what is its own."""

from time import perf_counter

import torch
from torch.nn.functional import pad

from lessonlib.decode.decoder import Decoded, check_decoding, count, cut, end_ids
from lessonlib.decode.drafter import Sampling
from lessonlib.decode.rule import accept, accept_greedy
from lessonlib.errors import LessonError
from lessonlib.kernels.copies import to_device
from lessonlib.kernels.draw import draw
from lessonlib.pair.batch_step import BatchStep
from lessonlib.pair.step import context_length, synchronize
from lessonlib.pair.tokenizer_check import check_pair


@torch.inference_mode()
def decode_batch(target, draft, prompts, K=0, max_new_tokens=128, eos_token_ids=(), samplings=None):
    """Write on after each of `prompts` (lists of ids) as `Decoder.decode` would after it alone; returns a list of Decoded, one a prompt.

    draft: a causal LM, or None with K = 0. samplings: one Sampling a prompt, all greedy or none, each with a generator of its own; greedy unless given.
    A text that has ended leaves the batch. seconds of a Decoded: until its text had ended. Raises LessonError as `Decoder.decode` does, and for models
    that only transformers can run.
    """
    samplings = [Sampling() for _ in prompts] if samplings is None else samplings
    if len(samplings) != len(prompts) or len({sampling.greedy for sampling in samplings}) > 1:
        raise LessonError(f"{len(prompts)} prompts need as many samplings, all greedy or none of them, not {len(samplings)}; give one a prompt.")
    if hasattr(draft, "propose"):
        raise LessonError(f"several texts at once need a draft that is a model, not a {type(draft).__name__}; decode them one by one.")
    if draft is not None:
        check_pair(target, draft)
    eos = end_ids(eos_token_ids)
    longest = None if draft is None else context_length(draft)
    checked = [check_decoding(target, prompt, K, max_new_tokens, draft, longest, sampling) for prompt, sampling in zip(prompts, samplings)]
    texts, results = [prompt for prompt, *_ in checked], [Decoded(K) for _ in checked]
    if max_new_tokens == 0 or not texts:
        return results
    batch = _Batch(target, draft if K else None, texts, samplings, K)
    start = perf_counter()
    batch.read()
    synchronize(batch.target.device)
    prefill, rows = perf_counter() - start, list(range(len(texts)))
    going = [True] * len(texts)  # whether the text at a place of the batch is still being written
    while any(going):
        limits = [min(K, max_new_tokens - len(results[row].tokens) - 1) if goes else 0 for row, goes in zip(rows, going)]
        kept, written = batch.round(limits, going)
        for place, row in enumerate(rows):
            if not going[place]:
                continue
            result = results[row]
            emitted = cut(written[place], max_new_tokens - len(result.tokens), eos)
            count(result, limits[place], kept[place], len(emitted))
            result.tokens += emitted
            batch.texts[place] += emitted
            if len(result.tokens) == max_new_tokens or emitted[-1] in eos:
                result.prefill_seconds, result.seconds = prefill, perf_counter() - start - prefill
                going[place] = False
        # where steps are captured graphs, texts that have ended stay until they are half: another number of texts is another graph
        if sum(going) < len(rows) and (not batch.target.captures or 2 * sum(going) <= len(rows)):
            stay = [place for place, goes in enumerate(going) if goes]
            rows, going = [rows[place] for place in stay], [True] * len(stay)
            batch.keep(stay)
    return results


class _Batch:
    """The texts that are still being written, and what the two models have of them in their caches."""

    def __init__(self, target, draft, texts, samplings, K):
        self.target, self.draft = BatchStep(target, len(texts)), None if draft is None else BatchStep(draft, len(texts))
        self.texts, self.samplings, self.greedy, self.begun = texts, samplings, samplings[0].greedy, False
        self.K = K if self.target.captures else 0  # the fewest proposals of a round: another number is another graph

    def keep(self, places):
        self.texts, self.samplings = ([each[place] for place in places] for each in (self.texts, self.samplings))
        for step in filter(None, (self.target, self.draft)):
            step.keep(places)

    def read(self):
        """All prompts but their last tokens, padded on the right with what nobody will see."""
        width = max(len(text) - 1 for text in self.texts)
        if width:
            ids = torch.tensor([text[:-1] + [0] * (width - len(text) + 1) for text in self.texts])
            for step in filter(None, (self.target, self.draft)):
                step.run(to_device(ids, step.device), [0] * len(self.texts), last=1)

    def round(self, limits, going):
        """Propose and verify: (how many are kept, at most its limit, the tokens to be written), a list each, in the order of the texts; of those
        that are not going on, anything."""
        device, starts, K = self.target.device, [len(text) - 1 for text in self.texts], max(self.K, *limits)
        last = to_device(torch.tensor([text[-1:] for text in self.texts]), device)
        proposed, draft_probs = self._propose(limits, K) if K else (last[:, :0], None)
        logits, most = self.target.run(torch.cat([last, proposed.to(device)], 1), starts), to_device(torch.tensor(limits), device)
        if self.greedy:
            kept, token = accept_greedy(logits.argmax(-1), proposed.to(device), most)
        else:
            probs = torch.stack([sampling.probabilities(own) for sampling, own in zip(self.samplings, logits)])
            coins = self._uniforms([limit + goes for limit, goes in zip(limits, going)], K + 1, device)
            kept, token = accept(probs, draft_probs if draft_probs is None else draft_probs.to(device), proposed.to(device), coins, most)
        self.begun = True
        rows = torch.cat([kept[:, None], token[:, None], proposed.to(device)], 1).tolist()  # the round's only wait for the device
        return [kept for kept, *_ in rows], [tokens[:kept] + [token] for kept, token, *tokens in rows]

    def _propose(self, limits, K):
        """(tokens [B, K], the distributions they were drawn from [B, K, V] or None). A text lacks one token in the draft's cache, or two after a block
        that was wholly kept; all of them read two, which for the others writes once more what is there."""
        device, width = self.draft.device, 2 if self.begun else 1
        unread = to_device(torch.tensor([text[-width:] for text in self.texts]), device)
        starts = [len(text) - width for text in self.texts]
        uniforms = None if self.greedy else self._uniforms(limits, K, device)
        tokens, probs = [], []
        for i in range(K):
            logits = self.draft.run(unread, starts, last=1)[:, 0]
            starts = [start + unread.shape[1] for start in starts]
            if self.greedy:
                unread = logits.argmax(-1)[:, None]
            else:
                probs.append(torch.stack([sampling.probabilities(own) for sampling, own in zip(self.samplings, logits)]))
                unread = draw(probs[-1], uniforms[:, i])[:, None]
            tokens.append(unread)
        return torch.cat(tokens, 1), torch.stack(probs, 1) if probs else None

    def _uniforms(self, counts, width, device):
        """As many of each text's own chance as it would take alone, [B, width] with zeros, by which nothing is decided, behind them."""
        return torch.stack([pad(sampling.uniforms(n, device), (0, width - n)) for n, sampling in zip(counts, self.samplings)])
