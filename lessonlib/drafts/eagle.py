"""Draft shape D: one layer of the target's shape that reads what the target was thinking, and then goes on with what it thinks itself."""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn

from lessonlib.errors import LessonError
from lessonlib.pair.llama import check_target, normed, project, rotary_table, rotated, run_layer


class EagleHead(nn.Module):
    """From the target's features of a token and the token that follows it, the state from which the target's output layer guesses the one after.

    taps: the layers, counted from 1, behind which the features [..., taps * width] are taken: the last one alone, or some more, which are fused to one
    width. A position is a pair: the feature of token t and the embedding of token t + 1, joined to one width (at first added), through a layer that begins as
    the target's last, which sees all pairs before it. What comes out takes the feature's place when it drafts further. Embedding and output
    layer are the target's own, frozen; the rest are fp32 weights that train. Raises LessonError for a target whose arithmetic lessonlib does not have.
    Source: Li et al. 2024 (EAGLE), and 2025 (EAGLE-3) for several layers' features. Built in notebook 12.
    """

    def __init__(self, target, taps=None):
        super().__init__()
        check_target(target)
        width, layers = target.config.hidden_size, target.config.num_hidden_layers
        self.taps = tuple(taps or (layers,))
        if list(self.taps) != sorted({*self.taps}) or not 1 <= self.taps[0] <= self.taps[-1] <= layers:
            raise LessonError(f"features cannot be taken behind the layers {list(self.taps)}; name layers from 1 to {layers}, each once, in rising order.")
        self.fuse = nn.Linear(len(self.taps) * width, width, bias=False) if len(self.taps) > 1 else nn.Identity()
        self.join = nn.Linear(2 * width, width, bias=False)
        self.layer = deepcopy(target.model.layers[layers - 1]).float().requires_grad_(True)
        self.of_feature, self.of_token, self.norm = (deepcopy(target.model.norm).float().requires_grad_(True) for _ in range(3))
        for norm in (self.of_feature, self.of_token):
            nn.init.ones_(norm.weight)
        with torch.no_grad():  # it begins by handing on the sum of both, which is what a layer's input is like, and learns faster than from noise alone
            self.join.weight.mul_(0.1).add_(torch.eye(width).repeat(1, 2))
        self.to(target.device)
        self.__dict__["target"] = target  # not a part of it: neither trained nor saved with it

    def joined(self, feature, ids):
        """The layer's input [..., width] of features of one width and the ids [...] that follow them."""
        token = self.target.model.embed_tokens(ids).to(self.join.weight.dtype)
        both = torch.cat([normed(self.of_token, token), normed(self.of_feature, feature.to(token.dtype))], -1)
        return project(self.join, both).to(token.dtype)  # what runs through the layer stays fp32 where products do not

    def unrolled(self, ids, features, passes):
        """A list of `passes` states [B, S - 1, width] for the output layer, of texts ids [B, S] with the target's features [B, S, taps * width].

        In the first pass every pair holds the target's own feature; in pass n its last n - 1 features are what the passes before have made of them,
        as in drafting n tokens, so that it learns from its own slips. Row t guesses token t + 2. With gradients.
        Source: Li et al. 2025 (EAGLE-3, training-time test).
        """
        feature, following = project_or_same(self.fuse, features[:, :-1]), ids[:, 1:]
        n = following.shape[1]
        cos, sin = rotary_table(self.target, torch.arange(n, device=ids.device))
        cached, states = [], []

        def attend(attention, q, k, v):
            q, k, groups = rotated(q, cos, sin), rotated(k, cos, sin), q.shape[2] // k.shape[2]
            q, k, v = (each.transpose(1, 2) for each in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)))
            cached.append((k, v))
            keys, values = (torch.cat(each, 2) for each in zip(*cached))
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen_in_pass(len(cached), n, q.device), scale=attention.scaling).transpose(1, 2)

        for number in range(passes):
            if number:
                feature = F.pad(out[:, :-1], (0, 0, 1, 0))  # a pair's own feature is what the pair before it has come to
            out = run_layer(self.layer, self.joined(feature, following), attend)
            states.append(normed(self.norm, out))
        return states


def project_or_same(module, x):
    """A Linear's product, or x itself where there is nothing to fuse."""
    return x if isinstance(module, nn.Identity) else project(module, x)


def seen_in_pass(s, n, device):
    """bool [n, s * n]: which pairs of the passes 1 to s, n of each, a pair of pass s sees.

    Pair t sees of the first pass the pairs up to t - (s - 1), which its chain has not replaced, and of each later pass j the one of its own chain, t - (s - j).
    """
    back = torch.arange(n, device=device)[:, None] - torch.arange(n, device=device)
    return torch.cat([back >= s - 1, *(back == s - j for j in range(2, s + 1))], 1)
