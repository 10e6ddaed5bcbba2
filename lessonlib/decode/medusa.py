"""The drafter of Medusa heads: every proposal of a round from one hidden state that the target has left behind."""

import heapq

import torch

from lessonlib.decode.drafter import Block
from lessonlib.errors import LessonError
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
        self.parents, self.ranks = tree or (None, None)
        if tree:
            shape = tree_of(tuple(self.parents))
            self.depths = shape.depths[1:]
            if shape.deepest > len(heads):
                raise LessonError(f"a tree {shape.deepest} deep needs as many Medusa heads, and there are {len(heads)}; take a flatter tree.")

    def reset(self, prompt_ids, sampling, features):
        """Start a new text."""
        self.sampling, self.state = sampling, features[-1:]

    def propose(self, K):
        """Up to K tokens, no more than there are heads, or the part of the tree that is no deeper; nothing after a prompt of one token."""
        K = min(K, len(self.heads)) if len(self.state) else 0
        if not K:
            return Block(torch.empty(0, dtype=torch.long))
        logits = self.head.logits(self.heads(normed(self.target.model.norm, self.state).to(self.heads.heads[0].w.weight.dtype), K)[0])
        if self.parents is None and self.sampling.greedy:
            return Block(self.head.tokens(logits.argmax(-1)))
        if self.parents is None:
            probs = self.sampling.probabilities(logits)
            return Block(self.head.tokens(draw(probs, self.sampling.uniforms(K, logits.device))), self.head.odds(probs))
        chosen = [i for i, depth in enumerate(self.depths) if depth <= K]
        row = {0: 0} | {i + 1: place + 1 for place, i in enumerate(chosen)}
        best = logits.topk(1 + max(self.ranks[i] for i in chosen)).indices
        depths, ranks = ([each[i] for i in chosen] for each in (self.depths, self.ranks))
        return Block(self.head.tokens(best[[depth - 1 for depth in depths], ranks]), None, tuple(row[self.parents[i]] for i in chosen))

    def observe(self, tokens, features):
        """Go on from the last kept token's state."""
        self.state = features[-1:]


def sparse_tree(shares, budget):
    """The (parents, ranks) of the tree of `budget` proposals that keeps most, parents first.

    shares[d][r]: how often the token of rank r, counted from 0, at depth d + 1 is right where all before it are. A way down counts by the product of
    its shares, and the likeliest ways are taken, as Medusa's sparse trees are (Cai et al. 2024, appendix).
    """
    heap = [(-shares[0][rank], (rank,)) for rank in range(len(shares[0]))]
    heapq.heapify(heap)
    rows, parents, ranks = {(): 0}, [], []
    while heap and len(parents) < budget:
        share, way = heapq.heappop(heap)
        parents.append(rows[way[:-1]])
        ranks.append(way[-1])
        rows[way] = len(parents)
        if len(way) < len(shares):
            for rank, more in enumerate(shares[len(way)]):
                heapq.heappush(heap, (share * more, (*way, rank)))
    return tuple(parents), tuple(ranks)
