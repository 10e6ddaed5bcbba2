"""Speculative decoding of several texts at once: one pass proposes and one verifies for all of them, and each keeps what is its own."""

from time import perf_counter

import torch

from lessonlib.decode.decoder import BROKEN, Decoded, check_decoding, check_numbers, count, cut, end_ids
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
    Where one text nears the end of a model's positions, fewer than K tokens are proposed for all. seconds of a Decoded: until its text had ended, which for the last ones is until all had. The steps are simpler ones than a Decoder's, so a single
    text is slower here than there on a GPU. Raises LessonError as `Decoder.decode` does, and for models that only transformers can run.
    """
    samplings = [Sampling() for _ in prompts] if samplings is None else samplings
    if len(samplings) != len(prompts) or len({sampling.greedy for sampling in samplings}) > 1:
        raise LessonError(f"{len(prompts)} prompts need as many samplings, all greedy or none of them, not {len(samplings)}; give one a prompt.")
    shared = [sampling.generator for sampling in samplings if sampling.generator is not None]
    if len({*map(id, shared)}) < len(shared):
        raise LessonError("two texts cannot draw from one generator, or neither would be what it is alone; give each sampling one of its own.")
    if hasattr(K, "most"):
        raise LessonError("several texts at once take one K for all of them; give a number, or decode them one by one with a policy.")
    if hasattr(draft, "propose"):
        raise LessonError(f"several texts at once need a draft that is a model, not a {type(draft).__name__}; decode them one by one.")
    if draft is not None:
        check_pair(target, draft)
    eos = end_ids(eos_token_ids)
    longest = None if draft is None else context_length(draft)
    checked = [check_decoding(target, prompt, K, max_new_tokens, draft, longest, sampling) for prompt, sampling in zip(prompts, samplings)]
    K, longest = checked[0][1::2] if checked else (K, None)
    texts, results = [prompt for prompt, *_ in checked], [Decoded(K) for _ in checked]
    if max_new_tokens == 0 or not texts:
        return results
    batch = _Batch(target, draft if K else None, texts, samplings, min(K, max_new_tokens), max(map(len, texts)) + max_new_tokens)
    start = perf_counter()
    batch.read()
    synchronize(batch.target.device)
    prefill, rows = perf_counter() - start, list(range(len(texts)))
    going = [True] * len(texts)  # whether the text at a place of the batch is still being written
    while any(going):
        room = min(K, max_new_tokens, longest - max(len(text) for text, goes in zip(batch.texts, going) if goes))
        kept, written = batch.round(room, going)
        for place, row in enumerate(rows):
            if not going[place]:
                continue
            result = results[row]
            emitted = cut(written[place], max_new_tokens - len(result.tokens), eos)
            count(result, room, kept[place], len(emitted))
            result.tokens += emitted
            batch.texts[place] += emitted
            if len(result.tokens) == max_new_tokens or emitted[-1] in eos:
                result.prefill_seconds, result.seconds = prefill, perf_counter() - start - prefill
                going[place] = False
        if not all(going) and not batch.target.captures:  # where passes are captured graphs, texts that have ended stay: another number of them is another graph
            stay = [place for place, goes in enumerate(going) if goes]
            rows, going = [rows[place] for place in stay], [True] * len(stay)
            batch.keep(stay)
    return results


class _Batch:
    """The texts that are still being written, and what the two models have of them in their caches."""

    def __init__(self, target, draft, texts, samplings, K, room):
        # a pass may reach K tokens beyond the end of a text; nobody sees them
        self.target, self.draft = BatchStep(target, len(texts), room + K), None if draft is None else BatchStep(draft, len(texts), room + K)
        self.texts, self.samplings, self.greedy, self.begun = list(texts), samplings, samplings[0].greedy, False
        self.target.prepare(K + 1)
        if draft is not None:
            self.draft.prepare(1, last=1)
            self.draft.prepare(2, last=1)

    def keep(self, places):
        self.texts, self.samplings = ([each[place] for place in places] for each in (self.texts, self.samplings))
        for step in filter(None, (self.target, self.draft)):
            step.keep(places)

    def read(self):
        """All prompts but their last tokens, by both models."""
        for step in filter(None, (self.target, self.draft)):
            step.read(self.texts)

    def round(self, K, going):
        """Propose and verify: (how many are kept, the tokens to be written), a list each, in the order of the texts; of those that are not going on, anything."""
        device, starts = self.target.device, [len(text) - 1 for text in self.texts]
        last = to_device(torch.tensor([text[-1:] for text in self.texts]), device)
        proposed, draft_probs = self._propose(K, going) if K else (last[:, :0], None)
        logits = self.target.run(torch.cat([last, proposed.to(device)], 1), starts)
        if self.greedy:
            kept, token = accept_greedy(logits.argmax(-1), proposed.to(device))
        else:
            probs = torch.stack([sampling.probabilities(own) for sampling, own in zip(self.samplings, logits)])
            kept, token = accept(probs, draft_probs if draft_probs is None else draft_probs.to(device), proposed.to(device), self._uniforms(K + 1, going, device))
        self.begun = True
        broken = check_numbers(logits, draft_probs).expand(len(starts), 1)
        rows = torch.cat([broken, kept[:, None], token[:, None], proposed.to(device)], 1).tolist()  # the round's only wait for the device
        if rows[0][0]:
            raise LessonError(BROKEN)
        return [kept for _, kept, *_ in rows], [tokens[:kept] + [token] for _, kept, token, *tokens in rows]

    def _propose(self, K, going):
        """(tokens [B, K], the distributions they were drawn from [B, K, V] or None). A text lacks one token in the draft's cache, or two after a block
        that was wholly kept; all of them read two, which for the others writes once more what is there."""
        device, width = self.draft.device, 2 if self.begun else 1
        unread = to_device(torch.tensor([text[-width:] for text in self.texts]), device)
        starts = [len(text) - width for text in self.texts]
        uniforms = None if self.greedy else self._uniforms(K, going, device)
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

    def _uniforms(self, n, going, device):
        """n of each text's own chance [B, n]; a text that has ended takes none."""
        return torch.stack([sampling.uniforms(n, device) if goes else torch.zeros(n, dtype=torch.float64, device=device) for goes, sampling in zip(going, self.samplings)])
