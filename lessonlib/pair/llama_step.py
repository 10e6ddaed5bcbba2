"""A decoding step of a Llama- or Qwen-style model with nothing in it but its arithmetic: the same weights, a quarter of the Python.

The cache is a block of memory that rolling back only counts.
"""

import torch

from lessonlib.errors import LessonError
from lessonlib.kernels.copies import to_device
from lessonlib.pair.llama import attend_to_cache, project, rotary_table, run_layers

ROOM = 256  # tokens the cache has room for at first; it doubles when they are used up


class LlamaStep:
    """A Llama-, Qwen2- or Qwen3-style causal LM that reads a text piece by piece, one text at a time, and can take back its last tokens.

    The weights are the model's own, read where they lie. Same interface and same logits (to rounding) as `CachedModel`, and two things more: several
    proposals that share their beginnings can be read in one pass, as a Tree; and `features` [n, taps * width] holds the hidden states of the n tokens
    of the last pass behind the layers that `tap` has named.
    """

    name = "lean PyTorch"
    room = ROOM

    def __init__(self, model, why=None):
        self.why = why
        config = model.config
        self.model, self.device = model, model.lm_head.weight.device
        self.heads, self.groups = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads
        self.width = model.model.layers[0].self_attn.head_dim
        self.cache, self.length, self.before = None, 0, 0  # before: the length before the last pass
        self.taps, self.features = (), None

    def tap(self, layers):
        """Leave the hidden states behind these layers (counted from 1, in rising order) in `features` after each pass."""
        count = self.model.config.num_hidden_layers
        if list(layers) != sorted({*layers}) or not all(1 <= layer <= count for layer in layers):
            raise LessonError(f"hidden states behind the layers {list(layers)} cannot be had; name layers from 1 to {count}, each once, in rising order.")
        self.taps, self.features = tuple(layers), None

    def reset(self):
        """Forget the text."""
        self.length = 0

    def rollback(self, length):
        """Keep the first `length` tokens of the text."""
        self.length = min(self.length, max(length, 0))

    @torch.inference_mode()
    def keep(self, rows):
        """Of the last pass keep the tokens at these rows (list of ints, in the order of the text), each of which has seen those before it and no others."""
        count = len(rows)
        if list(rows) != list(range(count)):
            # rotated at their depth, they only move up
            places = self.before + to_device(torch.tensor(rows), self.device)
            self.cache[:, :, self.before:self.before + count] = self.cache[:, :, places]
        self.length = self.before + count

    def read(self, tokens):
        """Read tokens (a list, which may be empty) into the cache only."""
        if tokens:
            self.run(tokens, last=1)

    def _reserve(self, length):
        """Room in the cache, and a rotary table, for `length` tokens."""
        room = 0 if self.cache is None else self.cache.shape[2]
        if length <= room:
            return
        room = max(self.room, room)
        while room < length:
            room *= 2
        weight = self.model.lm_head.weight
        cache = weight.new_empty(len(self.model.model.layers), 2, room, self.heads, self.width)
        if self.cache is not None:
            cache[:, :, :self.length] = self.cache[:, :, :self.length]
        self.cos, self.sin = rotary_table(self.model, torch.arange(room, device=self.device))
        self.cache = cache

    @torch.inference_mode()
    def run(self, tokens, last=None, tree=None):
        """Read more tokens (a list or a 1-D tensor); returns logits [n, V], one row a token, or [last, V] of the last ones only.

        tree: the Tree whose rows they are, a chain unless given; `keep` then says which of them are the text.
        """
        ids = torch.as_tensor(tokens, dtype=torch.long, device=self.device)
        start, n = self.length, len(ids)
        end = start + n
        self._reserve(end)
        self.before, tapped = start, dict.fromkeys(self.taps)
        cos, sin = (self.cos[start:end], self.sin[start:end]) if tree is None else (each[start + tree.on(self.device).depths] for each in (self.cos, self.sin))
        # a mask only where a token must not see another one of the same pass; the query heads of a group share their keys as more rows
        mask = torch.ones(n, end, dtype=torch.bool, device=self.device).tril(start) if n > 1 else None
        if tree is not None:
            mask[:, start:] = tree.on(self.device).sees
        mask = mask if mask is None else mask.repeat(self.groups, 1)

        def attend(place, attention, q, k, v):
            return attend_to_cache(self.cache[place], slice(start, end), end, q, k, v, cos, sin, mask, attention.scaling)

        hidden = run_layers(self.model, self.model.model.embed_tokens(ids), attend, tapped)
        self.length = end
        if tapped:
            self.features = torch.cat([*tapped.values()], -1)
        return project(self.model.lm_head, hidden if last is None else hidden[-last:])
