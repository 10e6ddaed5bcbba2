"""The drafter of Medusa heads: every proposal of a round from one hidden state that the target has left behind."""

from functools import partial

import torch

from lessonlib.decode.drafter import Block
from lessonlib.decode.sparse_tree import deepest, up_to
from lessonlib.errors import LessonError
from lessonlib.kernels.capture import Replayed
from lessonlib.kernels.draw import draw
from lessonlib.pair.llama import normed
from lessonlib.pair.short_head import ShortHead
from lessonlib.pair.step import context_length
from lessonlib.pair.tree import tree_of


class MedusaDrafter:
    """Proposes with MedusaHeads of `target`: a chain of each head's favourite (or, sampled, of each head's own draw), or a tree of the heads' likeliest.

    tree: a (parents, ranks) pair as `sparse_tree` makes: proposal i is the token of rank ranks[i] of the head for its depth. vocabulary: ids that may be
    proposed, all unless given. A tree's tokens are chosen without chance, so it stays exact where the target samples.
    """

    def __init__(self, heads, target, tree=None, vocabulary=None):
        self.heads, self.target, self.head = heads, target, ShortHead(target, vocabulary)
        self.taps, self.longest = (target.config.num_hidden_layers,), context_length(target)
        self.tree, self.parts, self.replayed = tree, {}, Replayed()
        self.ahead = len(heads) if tree is None else deepest(tree, len(self.head.weight))
        if self.ahead > len(heads):
            raise LessonError(f"a tree {self.ahead} deep needs as many Medusa heads, and there are {len(heads)}; take a flatter tree.")

    def reset(self, prompt_ids, sampling, features):
        """Start a new text."""
        self.sampling, self.state = sampling, features[-1:]
        self.replayed.forget_unless([*self.heads.parameters(), self.target.model.norm.weight])

    @torch.inference_mode()
    def propose(self, K):
        """Up to K tokens, no more than there are heads, or the part of the tree that is no deeper; nothing after a prompt of one token."""
        K = min(K, len(self.heads)) if len(self.state) else 0
        if not K:
            return Block(torch.empty(0, dtype=torch.long))
        if self.tree is None and not self.sampling.greedy:
            tokens, probs = self.replayed((K, self.sampling.cuts), partial(self._drawn, K), self.state, self.sampling.uniforms(K, self.state.device))
            return Block(tokens, self.head.odds(probs))
        tokens, = self.replayed(K, partial(self._likeliest, K), self.state)
        return Block(tokens, None, None if self.tree is None else self._part(K)[0])

    def observe(self, tokens, features):
        """Go on from the last kept token's state."""
        self.state = features[-1:]

    def _logits(self, K, state):
        """The logits [K, n] of the first K heads."""
        return self.head.logits(self.heads(normed(self.target.model.norm, state).to(self.heads.heads[0].w.weight.dtype), K)[0])

    def _drawn(self, K, state, uniforms):
        probs = self.sampling.probabilities(self._logits(K, state))
        return self.head.tokens(draw(probs, uniforms)), probs

    def _likeliest(self, K, state):
        logits = self._logits(K, state)
        if self.tree is None:
            return (self.head.tokens(logits.argmax(-1)),)
        _, heads, ranks, widest = self._part(K)
        return (self.head.tokens(logits.topk(widest).indices[heads, ranks]),)

    def _part(self, K):
        """Of the part of the tree no deeper than K: its parents, each proposal's head and rank as tensors, and how many ranks are needed; made once."""
        if K not in self.parts:
            parents, ranks = up_to(self.tree, K)
            heads = torch.tensor(tree_of(parents).depths[1:], device=self.head.weight.device) - 1
            self.parts[K] = parents, heads, torch.tensor(ranks, device=self.head.weight.device), 1 + max(ranks)
        return self.parts[K]
