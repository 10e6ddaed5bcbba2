"""What proposes: the three verbs every drafter has, and the drafter that is a second language model."""

from dataclasses import dataclass
from typing import Protocol

import torch

from lessonlib.decode.warp import probabilities
from lessonlib.kernels.copies import to_device
from lessonlib.kernels.draw import draw
from lessonlib.pair.short_head import short_headed
from lessonlib.pair.step import context_length, step_of


@dataclass
class Sampling:
    """How tokens are chosen: temperature 0 is greedy; top_k and top_p cut target and draft alike; generator is the source of chance."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    generator: torch.Generator | None = None

    @property
    def greedy(self):
        """Whether every choice is the argmax."""
        return self.temperature == 0

    @property
    def cuts(self):
        """What shapes the distributions: (temperature, top_k, top_p)."""
        return self.temperature, self.top_k, self.top_p

    def probabilities(self, logits):
        """The distribution to sample from at these logits [..., V]."""
        return probabilities(logits, *self.cuts)

    def uniforms(self, n, device):
        """n fresh numbers in [0, 1), float64, on `device`."""
        return to_device(torch.rand(n, generator=self.generator, dtype=torch.float64,
                                    device=self.generator.device if self.generator is not None else device), device)


@dataclass
class Block:
    """A proposal: tokens [M]; probs, the exact distributions that they were drawn from, or None where they were chosen without chance.

    parents: None where each token follows the one before it, and probs are then [M, V]. Or a tuple that says of each token which row it stands on,
    0 for the text's last token and i + 1 for proposal i, parents first; probs are then [M + 1, V], of each row the distribution that the
    tokens on it were drawn from, one after another and without replacement. No two tokens on one row are alike.
    """

    tokens: torch.Tensor
    probs: torch.Tensor | None = None
    parents: tuple | None = None


class Drafter(Protocol):
    """Anything that proposes tokens for the target to verify. It is told what was written and never asked to be right.

    One that cannot read texts of any length has an attribute `longest`: the most tokens, proposals included. One that never guesses
    more than so many tokens ahead has `ahead`. One that goes by the target's hidden states has `taps`, the layers behind which it wants them, counted from
    1 and rising; it is then handed `features` [n, taps * width] as well.
    """

    def reset(self, prompt_ids, sampling):
        """Start a new text: prompt_ids is a list of token ids; sampling says how proposals are to be drawn. features: of all its tokens but the last."""

    def propose(self, K):
        """Propose up to K >= 1 tokens to follow the text so far, or a tree no deeper than K, as a Block."""

    def observe(self, tokens):
        """Learn which tokens (list of ids) the round added to the text: the kept proposals and the target's own token. features: of as many
        tokens, from the one that was the text's last to the last kept proposal."""


class ModelDrafter:
    """Proposes with a second causal LM that shares the target's tokenizer: its own cache, its own argmax or samples.

    vocabulary: ids that may be proposed, all unless given; its output layer is then read for those alone.
    """

    def __init__(self, model, vocabulary=None):
        model, self.head = (model, None) if vocabulary is None else short_headed(model, vocabulary)
        self.step, self.longest = step_of(model), context_length(model)

    def reset(self, prompt_ids, sampling):
        """Start a new text."""
        self.step.reset()
        self.text, self.sampling = list(prompt_ids), sampling
        self.step.read(self.text[:-1])

    @torch.inference_mode()
    def propose(self, K):
        """Draw K tokens one after another. What the cache lacks of the text is read first: after a fully kept block that is its last
        proposal and the bonus token, so the cache is complete by construction."""
        unread = to_device(torch.tensor(self.text[self.step.length:]), self.step.device)
        uniforms = None if self.sampling.greedy else self.sampling.uniforms(K, self.step.device)
        tokens, probs = [], []
        for i in range(K):
            logits = self.step.run(unread, last=1)[0]
            if self.sampling.greedy:
                unread = logits.argmax()[None]
            else:
                probs.append(self.sampling.probabilities(logits))
                unread = draw(probs[-1], uniforms[i])[None]
            unread = unread if self.head is None else self.head.tokens(unread)
            tokens.append(unread)
        probs = torch.stack(probs) if probs else None
        return Block(torch.cat(tokens), probs if probs is None or self.head is None else self.head.odds(probs))

    def observe(self, tokens):
        """Take back the proposals that were not kept, and remember what was written."""
        # all of a round's tokens but the last are proposals, which the cache has already read; what it read past them was not kept
        self.step.rollback(len(self.text) + len(tokens) - 1)
        self.text += tokens
