"""The drafter of an EAGLE head: it goes on from the target's own features, as a chain, as a tree of fixed shape, or as one that grows where it is sure."""

from functools import partial

import torch

from lessonlib.decode.drafter import Block
from lessonlib.decode.sparse_tree import deepest, levels_of, up_to
from lessonlib.decode.warp import is_whole
from lessonlib.drafts.eagle import project_or_same
from lessonlib.errors import LessonError
from lessonlib.kernels.capture import Replayed
from lessonlib.kernels.copies import to_device
from lessonlib.kernels.draw import draw
from lessonlib.pair.llama import attend_to_cache, normed, rotary_table, run_layer
from lessonlib.pair.short_head import ShortHead
from lessonlib.pair.step import context_length

ROOM = 512  # pairs the cache has room for at first; it doubles when they are used up
ROWS = 16  # pairs of the text that a captured graph reads before it drafts; the rest, if ever more are new, are read before


class EagleDrafter:
    """Proposes with an EagleHead: a chain of K tokens; or, where `budget` is given, the likeliest `budget` tokens of a tree K deep; or the part of `tree`
    that is no deeper than K.

    width: of a growing tree, how many tokens of each depth are gone on from, and how many are tried on each. tree: a (parents, ranks) pair as `sparse_tree`
    makes: proposal i is the token of rank ranks[i] after what it stands on. vocabulary: ids that may be proposed, all unless given. A tree's tokens are
    chosen without chance, so it stays exact where the target samples. On a GPU a round of drafting is one CUDA graph.
    Source: Li et al. 2024 (EAGLE; EAGLE-2 for the growing tree).
    """

    def __init__(self, head, budget=None, width=4, vocabulary=None, tree=None):
        if budget is not None and not all(is_whole(n) and n >= 1 for n in (budget, width)):
            raise LessonError(f"a tree of {budget} tokens, {width} wide, is none; give whole numbers of 1 or more.")
        if budget is not None and tree is not None:
            raise LessonError("a tree either grows to a budget or has a fixed shape; give budget or tree, not both.")
        self.module, self.head, self.budget, self.width, self.tree = head, ShortHead(head.target, vocabulary), budget, width, tree
        self.taps, self.longest, self.device = head.taps, context_length(head.target), head.target.device
        self.heads, self.size = head.target.config.num_key_value_heads, head.layer.self_attn.head_dim
        self.groups, self.cache, self.levels = head.target.config.num_attention_heads // self.heads, None, {}
        self.replayed = Replayed()
        self.rows = ROWS if self.device.type == "cuda" else None
        if tree is not None:
            self.ahead = deepest(tree, len(self.head.weight))

    def reset(self, prompt_ids, sampling, features):
        """Start a new text: the pairs of all its tokens but the last with those that follow them."""
        self.sampling, self.pairs, self.fresh = sampling, 0, (list(prompt_ids[1:]), features)
        if self.cache is not None:
            self.cache.zero_()  # places that are not seen weigh 0, and 0 times the NaN of a text before would be NaN
        self.replayed.forget_unless([*self.module.parameters(), self.module.target.model.embed_tokens.weight])
        self._read_all_but(1)

    def observe(self, tokens, features):
        """Put the target's own features in the place of what was drafted."""
        ids, before = self.fresh
        if self.drafted:  # which has read them
            self.pairs, ids, before = self.pairs + len(ids), [], before[:0]
        self.fresh, self.drafted = (ids + list(tokens), torch.cat([before, features])), False

    @torch.inference_mode()
    def propose(self, K):
        """K tokens, or a tree no deeper; nothing after a prompt of one token, of which there is no pair yet."""
        if not self.fresh[0]:
            return Block(torch.empty(0, dtype=torch.long))
        if self.rows:
            self._read_all_but(self.rows)
        (ids, features), self.drafted = self.fresh, True
        n = len(ids)
        rows, later = self.rows or n, K if self.budget is None and self.tree is None else K * self.width + len(self.tree[0] if self.tree else ())
        self._reserve(self.pairs + max(rows, n + later))
        if n < rows:
            features = torch.cat([features, features.new_zeros(rows - n, features.shape[1])])
        numbers = to_device(torch.tensor([self.pairs, n, *ids, *[0] * (rows - n)]), self.device)
        drawn = self.budget is None and self.tree is None and not self.sampling.greedy
        if drawn:
            tokens, probs = self.replayed((K, self.sampling.cuts), partial(self._draft, K), numbers, features, self.sampling.uniforms(K, self.device))
            return Block(tokens, self.head.odds(probs))
        tokens, *parents = self.replayed(K, partial(self._draft, K), numbers, features)
        return Block(tokens, None, tuple(parents[0].tolist()) if parents else None if self.tree is None else self._levels_to(K)[0])

    def _read_all_but(self, count):
        """Read the text's new pairs but the last `count`."""
        ids, features = self.fresh
        first, self.drafted = max(0, len(ids) - count), False
        if first:
            self._reserve(self.pairs + first)
            numbers = to_device(torch.tensor([self.pairs, first, *ids[:first]]), self.device)
            with torch.inference_mode():
                self._read(numbers, features[:first])
        self.pairs, self.fresh = self.pairs + first, (ids[first:], features[first:])

    def _reserve(self, length):
        room = 0 if self.cache is None else self.cache.shape[1]
        if length <= room:
            return
        room = max(ROOM, room)
        while room < length:
            room *= 2
        self.replayed.made.clear()  # their cache is another
        cache = self.module.join.weight.new_zeros(2, room, self.heads, self.size)
        if self.cache is not None:
            cache[:, :self.cache.shape[1]] = self.cache
        self.cos, self.sin = rotary_table(self.module.target, torch.arange(room, device=self.device))
        self.cache, self.places = cache, torch.arange(room, device=self.device)

    def _draft(self, K, numbers, features, uniforms=None):
        """Read the new pairs and draft behind them; all of it tensors, so that it can be captured. numbers: int64 [2 + rows]: how many pairs were read
        before, how many rows are new, and their ids.
        """
        out, count = self._read(numbers, features), numbers[1:2]
        draft = self._grown if self.budget is not None else self._fixed if self.tree is not None else self._chain
        return draft(K, numbers[:1] + count, out[count - 1], uniforms)

    def _read(self, numbers, features):
        """The layer over pairs of the text, each of which sees those before it; what stands in rows beyond their number is overwritten before it is seen."""
        feature = project_or_same(self.module.fuse, features.to(self.module.join.weight.dtype))
        place = self.places[:len(features)]
        return self._run(numbers[:1], feature, numbers[2:], place, place)

    def _run(self, start, feature, ids, slots, depths, sees=None):
        """The layer over n pairs [n] cached at start + slots, at the positions start + depths. Each sees all pairs before `start` (int64 [1]), and of those
        from there on what `sees` [n, later] says, or those up to its own where it is None.
        """
        positions, room = start + depths, len(self.places)
        if sees is None:
            mask = self.places <= (start + slots)[:, None]
        else:
            mask = (self.places < start).repeat(len(ids), 1).index_copy(1, start + self.places[:sees.shape[1]], sees)
        mask, cos, sin = mask.repeat(self.groups, 1), self.cos[positions], self.sin[positions]

        def attend(attention, q, k, v):
            return attend_to_cache(self.cache, start + slots, room, q, k, v, cos, sin, mask, attention.scaling)

        return run_layer(self.module.layer, self.module.joined(feature, ids), attend)

    def _logits(self, out):
        return self.head.logits(normed(self.module.norm, out))

    def _chain(self, K, start, out, uniforms):
        """(K tokens,), or (K tokens, their distributions) where they are drawn."""
        tokens, probs = [], []
        for i in range(K):
            if i:
                place = self.places[i - 1:i]
                out = self._run(start, out, tokens[-1], place, place)
            logits = self._logits(out)
            if uniforms is None:
                chosen = logits.argmax(-1)
            else:
                probs.append(self.sampling.probabilities(logits))
                chosen = draw(probs[-1], uniforms[i:i + 1])
            tokens.append(self.head.tokens(chosen))
        return (torch.cat(tokens), torch.cat(probs)) if probs else (torch.cat(tokens),)

    def _levels_to(self, K):
        """(the parents of the part of `tree` no deeper than K, what each depth of it needs, in tensors); made once."""
        if K not in self.levels:
            self.levels[K] = levels_of(*up_to(self.tree, K), self.device)
        return self.levels[K]

    def _fixed(self, K, start, out, _):
        """(the tokens of the part of `tree` no deeper than K,)."""
        parents, levels = self._levels_to(K)
        found = torch.zeros(len(parents), dtype=torch.long, device=self.device)
        for number, level in enumerate(levels):
            if number:
                out = self._run(start, out[level.run_parents], found[level.run], level.slots, torch.full_like(level.slots, number - 1), level.sees)
            best = self._logits(out).topk(level.widest).indices
            found = found.index_copy(0, level.proposals, self.head.tokens(best[level.parents, level.ranks]))
        return (found,)

    def _grown(self, K, start, out, _):
        """(tokens, parents): grow depth by depth from the `width` likeliest of each, then keep the `budget` likeliest of all that were tried."""
        logits, sure = self._logits(out), out.new_zeros(1)  # sure: the log of a way's odds by the draft's own account
        rows = self.places[:1] * 0  # of those gone on from: their rows, 0 for the text's last token
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
            out = self._run(start, out[parent], tokens[chosen], self.places[before:before + n], torch.full_like(chosen, depth), sees)
            logits = self._logits(out)
        ways, tokens, parents = (torch.cat(column) for column in zip(*tried))
        # a way is never surer than its beginning, and of equals the earlier is taken, so no token is kept without what it stands on
        kept = ways.sort(descending=True, stable=True).indices[:self.budget].sort().values
        row = torch.zeros(len(ways) + 1, dtype=torch.long, device=self.device).index_copy(0, 1 + kept, torch.arange(1, len(kept) + 1, device=self.device))
        return tokens[kept], row[parents[kept]]
