"""A decoding step of a Llama- or Qwen-style model with nothing in it but its arithmetic: the same weights, a quarter of the Python.

The cache is a block of memory that rolling back only counts.
"""

import torch
import torch.nn.functional as F

from lessonlib.pair.llama import project, rotary_table, rotated, run_layers

ROOM = 256  # tokens the cache has room for at first; it doubles when they are used up


class LlamaStep:
    """A Llama-, Qwen2- or Qwen3-style causal LM that reads a text piece by piece, one text at a time, and can take back its last tokens.

    The weights are the model's own, read where they lie. Same interface and same logits (to rounding) as `CachedModel`.
    """

    name = "lean PyTorch"
    room = ROOM

    def __init__(self, model, why=None):
        self.why = why
        config = model.config
        self.model, self.device = model, model.lm_head.weight.device
        self.heads, self.groups = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads
        self.width = model.model.layers[0].self_attn.head_dim
        self.cache, self.length = None, 0

    def reset(self):
        """Forget the text."""
        self.length = 0

    def rollback(self, length):
        """Keep the first `length` tokens of the text."""
        self.length = min(self.length, max(length, 0))

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
    def run(self, tokens, last=None):
        """Read more tokens (a list or a 1-D tensor); returns logits [n, V], one row a token, or [last, V] of the last ones only."""
        ids = torch.as_tensor(tokens, dtype=torch.long, device=self.device)
        start, n = self.length, len(ids)
        end = start + n
        self._reserve(end)
        cos, sin = self.cos[start:end], self.sin[start:end]
        # a mask only where a token must not see another one of the same pass; the query heads of a group share their keys as more rows
        mask = torch.ones(n, end, dtype=torch.bool, device=self.device).tril(start).repeat(self.groups, 1) if n > 1 else None

        def attend(place, attention, q, k, v):
            cache = self.cache[place]
            cache[0, start:end], cache[1, start:end] = rotated(k, cos, sin), v
            q = rotated(q, cos, sin).view(n, self.heads, self.groups, self.width).permute(1, 2, 0, 3).reshape(1, self.heads, -1, self.width)
            keys, values = cache[:, None, :end].transpose(2, 3)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=attention.scaling)
            return mixed.view(self.heads, self.groups, n, self.width).permute(2, 0, 1, 3).reshape(n, -1, self.width)

        hidden = run_layers(self.model, self.model.model.embed_tokens(ids), attend)
        self.length = end
        return project(self.model.lm_head, hidden if last is None else hidden[-last:])
