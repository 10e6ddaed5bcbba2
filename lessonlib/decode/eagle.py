"""The drafter of an EAGLE head: it goes on from the target's own features, as a chain or as a tree that grows where it is sure of itself."""

import torch

from lessonlib.decode.drafter import Block
from lessonlib.errors import LessonError
from lessonlib.drafts.eagle import project_or_same
from lessonlib.kernels.copies import to_device
from lessonlib.kernels.draw import draw
from lessonlib.pair.llama import attend_to_cache, normed, rotary_table, run_layer
from lessonlib.pair.short_head import ShortHead
from lessonlib.pair.step import context_length

ROOM = 256  # pairs the cache has room for at first; it doubles when they are used up


class EagleDrafter:
    """Proposes with an EagleHead: a chain of K tokens, or, where `budget` is given, the likeliest `budget` tokens of a tree K deep.

    width: how many tokens of each depth are gone on from, and how many are tried on each. vocabulary: ids that may be proposed, all unless given. A
    tree's tokens are chosen without chance, so it stays exact where the target samples. Source: Li et al. 2024 (EAGLE; EAGLE-2 for the growing tree).
    """

    def __init__(self, head, budget=None, width=4, vocabulary=None):
        if budget is not None and (budget < 1 or width < 1):
            raise LessonError(f"a tree of {budget} tokens, {width} wide, is none; give whole numbers of 1 or more.")
        self.module, self.head, self.budget, self.width = head, ShortHead(head.target, vocabulary), budget, width
        self.taps, self.longest, self.device = head.taps, context_length(head.target), head.target.device
        attention = head.layer.self_attn
        self.heads, self.size = head.target.config.num_key_value_heads, attention.head_dim
        self.groups, self.cache = head.target.config.num_attention_heads // self.heads, None

    def reset(self, prompt_ids, sampling, features):
        """Start a new text: the pairs of all its tokens but the last with those that follow them."""
        self.sampling, self.pairs, self.state = sampling, 0, None
        self._extend(features, prompt_ids[1:])

    def observe(self, tokens, features):
        """Put the target's own features in the place of what was drafted."""
        self._extend(features, tokens)

    def propose(self, K):
        """K tokens, or a tree no deeper; nothing after a prompt of one token, of which there is no pair yet."""
        if self.state is None:
            return Block(torch.empty(0, dtype=torch.long))
        return self._chain(K) if self.budget is None else self._tree(K)

    @torch.inference_mode()
    def _extend(self, features, tokens):
        if not tokens:
            return
        ids = to_device(torch.tensor(tokens), self.device)
        feature = project_or_same(self.module.fuse, features.to(self.module.join.weight.dtype))
        places = torch.arange(self.pairs, self.pairs + len(tokens), device=self.device)
        out = self._run(feature, ids, self.pairs, places, torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=self.device).tril())
        self.pairs += len(tokens)
        self.state = out[-1:]
        self.logits = self._logits(self.state)

    def _logits(self, out):
        return self.head.logits(normed(self.module.norm, out))

    @torch.inference_mode()
    def _run(self, feature, ids, slot, places, sees):
        """The layer over n pairs at `places` [n], cached from `slot` on; each sees the text's pairs and of those behind them what `sees` [n, later] says."""
        n = len(ids)
        self._reserve(slot + n)
        cos, sin = self.cos[places], self.sin[places]
        start = slot + n - sees.shape[1]
        mask = torch.cat([sees.new_ones(n, start), sees], 1).repeat(self.groups, 1)

        def attend(attention, q, k, v):
            return attend_to_cache(self.cache, slot, q, k, v, cos, sin, mask, attention.scaling)

        return run_layer(self.module.layer, self.module.joined(feature, ids), attend)

    def _reserve(self, length):
        room = 0 if self.cache is None else self.cache.shape[1]
        if length <= room:
            return
        room = max(ROOM, room)
        while room < length:
            room *= 2
        cache = self.module.join.weight.new_zeros(2, room, self.heads, self.size)
        if self.cache is not None:
            cache[:, :self.cache.shape[1]] = self.cache
        self.cos, self.sin = rotary_table(self.module.target, torch.arange(room, device=self.device))
        self.cache = cache

    @torch.inference_mode()
    def _chain(self, K):
        out, logits, tokens, probs = self.state, self.logits, [], []
        uniforms = None if self.sampling.greedy else self.sampling.uniforms(K, self.device)
        for i in range(K):
            if i:
                place = torch.tensor([self.pairs + i - 1], device=self.device)
                out = self._run(out, tokens[-1], self.pairs + i - 1, place, torch.ones(1, i, dtype=torch.bool, device=self.device))
                logits = self._logits(out)
            if self.sampling.greedy:
                chosen = logits.argmax(-1)
            else:
                probs.append(self.sampling.probabilities(logits))
                chosen = draw(probs[-1], uniforms[i:i + 1])
            tokens.append(self.head.tokens(chosen))
        return Block(torch.cat(tokens), self.head.odds(torch.cat(probs)) if probs else None)

    @torch.inference_mode()
    def _tree(self, K):
        """Grow depth by depth from the `width` likeliest of each, then keep the `budget` likeliest of all that were tried."""
        out, logits = self.state, self.logits
        sure = torch.zeros(1, device=self.device)  # the log of a way's odds by the draft's own account
        rows = torch.zeros(1, dtype=torch.long, device=self.device)  # of those gone on from: their rows, 0 for the text's last token
        sees, tried = torch.zeros(1, 0, dtype=torch.bool, device=self.device), []
        for depth in range(K):
            best = logits.float().log_softmax(-1).topk(min(self.width, logits.shape[-1]))
            ways, tokens, parents = (sure[:, None] + best.values).flatten(), self.head.tokens(best.indices).flatten(), rows.repeat_interleave(best.indices.shape[1])
            first = 1 + sum(len(each[0]) for each in tried)
            tried.append((ways, tokens, parents))
            if depth == K - 1:
                break
            sure, chosen = ways.topk(min(self.width, len(ways)))
            rows, parent = first + chosen, chosen // best.indices.shape[1]
            n, before = len(chosen), sees.shape[1]
            sees = torch.cat([sees[parent], torch.eye(n, dtype=torch.bool, device=self.device)], 1)
            places = torch.full((n,), self.pairs + depth, device=self.device)
            out = self._run(out[parent], tokens[chosen], self.pairs + before, places, sees)
            logits = self._logits(out)
        ways, tokens, parents = (torch.cat(column) for column in zip(*tried))
        # a way is never surer than its beginning, and of equals the earlier is taken, so no token is kept without what it stands on
        kept = ways.sort(descending=True, stable=True).indices[:self.budget].sort().values
        row = torch.zeros(len(ways) + 1, dtype=torch.long, device=self.device)
        row[1 + kept] = torch.arange(1, len(kept) + 1, device=self.device)
        return Block(tokens[kept], None, tuple(row[parents[kept]].tolist()))
