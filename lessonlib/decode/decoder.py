"""Speculative decoding: a drafter proposes K tokens, the target verifies them in one pass, a rule keeps what the target would have written."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from operator import index
from time import perf_counter

import torch

from lessonlib.decode.drafter import ModelDrafter, Sampling
from lessonlib.decode.rule import accept, accept_greedy
from lessonlib.decode.tree import accept_tree, accept_tree_greedy
from lessonlib.decode.warp import check_sampling, is_whole
from lessonlib.errors import LessonError
from lessonlib.kernels.copies import to_device
from lessonlib.pair.step import check_fits, check_length, context_length, step_of, synchronize
from lessonlib.pair.tokenizer_check import check_pair
from lessonlib.pair.tree import tree_of


@dataclass
class Decoded:
    """What one decoding wrote and how its rounds went.

    tokens: the new ids, end of turn included. rounds: verifying passes. proposed, tested, accepted: counts for each position 1..K of a
    block (index 0 is position 1); tested means reached with every earlier proposal kept, and inside the text that was written.
    prefill_seconds: reading the prompt, by the target and the draft; seconds: all the rounds.
    """

    K: int
    tokens: list = field(default_factory=list)
    rounds: int = 0
    proposed: list = field(default_factory=list)
    tested: list = field(default_factory=list)
    accepted: list = field(default_factory=list)
    prefill_seconds: float = 0.0
    seconds: float = 0.0

    def __post_init__(self):
        for counts in (self.proposed, self.tested, self.accepted):
            counts.extend([0] * (self.K - len(counts)))

    @property
    def per_proposed(self):
        """Kept tokens over proposed tokens; NaN where nothing was proposed."""
        return _ratio(sum(self.accepted), sum(self.proposed))

    @property
    def per_tested(self):
        """Kept tokens over tested ones (up to and including the first rejection): the alpha of the speed-up formula."""
        return _ratio(sum(self.accepted), sum(self.tested))

    @property
    def conditional(self):
        """For each position, the share kept among the times it was tested."""
        return [_ratio(a, t) for a, t in zip(self.accepted, self.tested)]

    @property
    def tokens_per_round(self):
        """New tokens a round, bonus token included."""
        return _ratio(len(self.tokens), self.rounds)

    def add(self, other):
        """Add another decoding's counts to these (its tokens follow these); both must have the same K."""
        if other.K != self.K:
            raise LessonError(f"counts for K = {self.K} and K = {other.K} cannot be added; decode both with one K.")
        self.tokens = self.tokens + other.tokens
        self.rounds += other.rounds
        self.prefill_seconds += other.prefill_seconds
        self.seconds += other.seconds
        for mine, theirs in ((self.proposed, other.proposed), (self.tested, other.tested), (self.accepted, other.accepted)):
            mine[:] = [a + b for a, b in zip(mine, theirs)]
        return self


def _ratio(part, whole):
    return part / whole if whole else float("nan")


def end_ids(eos_token_ids):
    """The set of ids that end a text, from one id, several, or None; LessonError for what is no id."""
    try:
        return {index(token) for token in ([eos_token_ids] if is_whole(eos_token_ids) else () if eos_token_ids is None else eos_token_ids)}
    except TypeError:
        raise LessonError(f"the ids that end a text cannot be {eos_token_ids!r}; give one whole number or a list of them.") from None


def check_numbers(logits, draft_probs=None):
    """Whether a round's numbers are none (bool [], on the device): a NaN among the target's logits or the draft's odds would be written as some token."""
    broken = logits.amax(-1).isnan().any()
    return broken if draft_probs is None else broken | draft_probs.to(logits.device).amax(-1).isnan().any()


BROKEN = "the target's logits, or the draft's odds, are not numbers (NaN) at some token; load the models again, or take a wider number format."


def cut(written, room, eos):
    """The part of a round's tokens that belongs to the text: no more than `room`, nothing after an end of turn."""
    for i, token in enumerate(written[:room]):
        if token in eos:
            return written[: i + 1]
    return written[:room]


def count(result, proposed, kept, emitted):
    """Add a round to a Decoded: how many tokens were proposed, kept, and written to the text."""
    result.rounds += 1
    for i in range(proposed):
        result.proposed[i] += 1
        if i < emitted:  # never more than kept + 1
            result.tested[i] += 1
            result.accepted[i] += i < kept


def check_decoding(model, prompt_ids, K, max_new_tokens, drafter, longest, sampling):
    """The prompt as a list, K and max_new_tokens as ints, and how long a text the models can read; LessonError where these cannot work.

    longest: the most tokens that the drafter can read, or None.
    """
    if not is_whole(K) or K < 0:
        raise LessonError(f"K is the number of tokens proposed a round and cannot be {K}; give a whole number, 0 (plain decoding) or more.")
    if K > 0 and drafter is None:
        raise LessonError(f"K = {K} needs a draft to propose with; give one, or K = 0 for plain decoding.")
    if not is_whole(max_new_tokens) or max_new_tokens < 0:
        raise LessonError(f"max_new_tokens cannot be {max_new_tokens}; give a whole number, 0 or more.")
    check_sampling(sampling.temperature, sampling.top_k, sampling.top_p)
    try:
        if isinstance(prompt_ids, (Set, Mapping)):  # which have no order
            raise TypeError
        prompt = [index(token) for token in prompt_ids]
    except (TypeError, ValueError) as error:
        raise LessonError("the prompt is not a flat list of token ids; encode one text with the model's own tokenizer.") from error
    check_fits(model, prompt, max_new_tokens)
    longest = longest if K else None
    check_length(len(prompt), max_new_tokens, longest, "draft")
    return prompt, int(K), int(max_new_tokens), min((n for n in (context_length(model), longest) if n is not None), default=math.inf)


class Decoder:
    """A target with its cache, ready to decode one text after another, with or without a drafter."""

    def __init__(self, target):
        self.step = step_of(target)

    @torch.inference_mode()
    def decode(self, prompt_ids, K=0, max_new_tokens=128, drafter=None, eos_token_ids=(), sampling=None, on_round=None):
        """Write up to max_new_tokens tokens after prompt_ids (list of ids), stopping after any of eos_token_ids; returns Decoded.

        K: tokens proposed in every round, 0 for plain decoding (drafter may then be None); or a policy such as AdaptiveK: its choose() gives the next
        round's, at most its `most`, and learn(tested, kept) is told what became of them. sampling: a Sampling, greedy by default.
        on_round(text, block, kept, written, logits), if given, is told of each round. Raises LessonError for settings that cannot work.
        """
        sampling = sampling or Sampling()
        eos = end_ids(eos_token_ids)
        policy, K = (K, K.most) if hasattr(K, "most") else (None, K)
        prompt, K, max_new_tokens, longest = check_decoding(self.step.model, prompt_ids, K, max_new_tokens, drafter, getattr(drafter, "longest", None), sampling)
        drafter = drafter if K else None
        result = Decoded(K)
        if max_new_tokens == 0:
            return result
        start = perf_counter()
        taps = getattr(drafter, "taps", ())
        self.step.tap(taps)
        self.step.reset()
        self.step.read(prompt[:-1])  # the last prompt token is read with the first block, as every later block starts
        if drafter is not None:
            drafter.reset(prompt, sampling, *([self._features(len(prompt) - 1)] if taps else []))
        synchronize(self.step.device)
        result.prefill_seconds = perf_counter() - start
        text, last = list(prompt), to_device(torch.tensor(prompt[-1:]), self.step.device)
        while True:
            # K in every round; only more than could ever be kept, or than the models have positions for, are not proposed
            room = min(K if policy is None else policy.choose(), max_new_tokens, longest - len(text))
            block, deepest = self._propose(drafter, room) if room else (None, 0)
            written, rows, last, logits = self._round(last, block, sampling)
            kept = len(rows) - 1
            emitted = cut(written, max_new_tokens - len(result.tokens), eos)
            count(result, deepest, kept, len(emitted))
            if policy is not None:
                policy.learn(min(deepest, len(emitted)), min(kept, len(emitted)))
            if on_round is not None:
                on_round(list(text), block, kept, list(emitted), logits)
            result.tokens += emitted
            text += emitted
            if len(result.tokens) == max_new_tokens or emitted[-1] in eos:
                result.seconds = perf_counter() - start - result.prefill_seconds
                return result
            features = self.step.features[to_device(torch.tensor(rows), self.step.device)] if taps else None
            self.step.keep(rows)
            if drafter is not None:
                drafter.observe(emitted, *([features] if taps else []))

    def _features(self, count):
        """A copy of the hidden states [count, taps * width] of the prompt's tokens; of none, for a prompt of one, nothing was read."""
        head, width = self.step.model.lm_head.weight, len(self.step.taps) * self.step.model.config.hidden_size
        return self.step.features[-count:].clone() if count else head.new_empty(0, width)

    @staticmethod
    def _propose(drafter, K):
        """(the drafter's Block, None where it is empty; how many of its tokens can be kept at most)."""
        block = drafter.propose(K)
        count, rows = len(block.tokens), len(block.tokens) + (block.parents is not None)
        if block.tokens.ndim != 1 or (block.parents is not None and len(block.parents) != count) or (block.probs is not None and len(block.probs) != rows):
            raise LessonError(f"the drafter's {count} tokens and the odds or parents beside them are not as many; make its propose(K) return a whole Block.")
        deepest = count if block.parents is None else tree_of(tuple(block.parents)).deepest
        if deepest > K:
            raise LessonError(f"the drafter proposed {deepest} tokens, one after another, where {K} were asked for; make its propose(K) return no more than K.")
        return (block, deepest) if deepest else (None, 0)

    def _round(self, last, block, sampling):
        """One verifying pass over the last token [1] and the block: (tokens written, the pass's rows that they follow, the new last token [1], logits [M+1, V])."""
        proposed = last[:0] if block is None else block.tokens.to(self.step.device)
        tree = None if block is None or block.parents is None else tree_of(tuple(block.parents))
        logits = self.step.run(torch.cat([last, proposed]), tree=tree)
        row, last = self._accept(logits, block, proposed, sampling) if tree is None else self._accept_tree(logits, block, proposed, tree.on(logits.device), sampling)
        # the round's only wait for the device
        broken, row, token, *tokens = torch.cat([check_numbers(logits, block and block.probs)[None], row[None], last, proposed]).tolist()
        if broken:
            raise LessonError(BROKEN)
        rows = list(range(row + 1)) if tree is None else list(tree.path[row])
        return [tokens[row - 1] for row in rows[1:]] + [token], rows, last, logits

    def _accept(self, logits, block, proposed, sampling):
        """How many proposals [K] are kept, and the token [1] that is written after them, both still on the device."""
        if sampling.greedy:
            kept, token = accept_greedy(logits.argmax(-1), proposed)
        else:
            draft_probs = None if block is None or block.probs is None else block.probs.to(logits.device)
            uniforms = sampling.uniforms(len(proposed) + 1, logits.device)
            kept, token = accept(sampling.probabilities(logits), draft_probs, proposed, uniforms)
        return kept, token[None]

    def _accept_tree(self, logits, block, proposed, shape, sampling):
        """The row of the deepest kept proposal [], and the token [1] that is written after it, both still on the device."""
        if sampling.greedy:
            row, token = accept_tree_greedy(logits.argmax(-1), proposed, shape)
        else:
            draft_probs = None if block.probs is None else block.probs.to(logits.device)
            row, token = accept_tree(sampling.probabilities(logits), draft_probs, proposed, shape, sampling.uniforms(len(proposed) + 1, logits.device))
        return row, token[None]


def as_drafter(draft, target):
    """A Drafter from a draft model (its vocabulary checked against the target's) or from something that already is one."""
    if draft is None or hasattr(draft, "propose"):
        return draft
    if not hasattr(draft, "config"):
        raise LessonError(f"{type(draft).__name__} is neither a draft model nor a drafter; heads propose through EagleDrafter(heads) or MedusaDrafter(heads, target).")
    check_pair(target, draft)
    return ModelDrafter(draft)


def spec_greedy(target, draft, prompt_ids, K, max_new_tokens, eos_token_ids=()):
    """Greedy speculative decoding: token for token what the target alone writes greedily (in exact arithmetic), in fewer target passes.

    target: a causal LM, or a Decoder that owns one; draft: a causal LM of the same vocabulary, a Drafter, or None with K = 0.
    prompt_ids: list of ids; K: proposals a round; eos_token_ids: ids that end the text, included in it. Returns Decoded.
    Raises LessonError for K < 0, an empty or too long prompt, vocabularies that differ. Built in notebook 08.
    """
    return spec_sample(target, draft, prompt_ids, K, max_new_tokens, eos_token_ids, temperature=0.0)


def spec_sample(target, draft, prompt_ids, K, max_new_tokens, eos_token_ids=(), temperature=1.0, top_k=None, top_p=None, generator=None):
    """Speculative sampling: tokens with exactly the target's distribution under temperature, top_k and top_p, whatever the draft.

    Arguments as `spec_greedy`; temperature 0 is greedy. generator: a torch.Generator for repeatable draws. Returns Decoded.
    Source: Leviathan et al. 2023; Chen et al. 2023. Built in notebook 08.
    """
    decoder = target if isinstance(target, Decoder) else Decoder(target)
    sampling = Sampling(temperature, top_k, top_p, generator)
    return decoder.decode(prompt_ids, K, max_new_tokens, as_drafter(draft, decoder.step.model), eos_token_ids, sampling)
