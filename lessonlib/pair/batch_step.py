"""A forward step over several texts at once, each at a length of its own: one cache, one pass, no padding that any text can see."""

import torch
import torch.nn.functional as F

from lessonlib.errors import LessonError
from lessonlib.pair.llama import project, rotary_table, rotated, run_layers, why_not

ROOM = 256  # tokens a text that the cache has room for at first; it doubles when they are used up


class BatchStep:
    """A Llama-, Qwen2- or Qwen3-style causal LM that reads B texts side by side, each from a position of its own.

    What a text has in the cache beyond its own length is never seen: every token is written before a later one of its text looks for it. So taking
    tokens back is to read on from an earlier position. Raises LessonError for other models.
    """

    def __init__(self, model, texts):
        if why := why_not(model):
            raise LessonError(f"several texts at once need a model whose arithmetic lessonlib has, and {why}; decode them one by one.")
        self.model, self.device, self.texts = model, model.lm_head.weight.device, texts
        self.heads, self.groups = model.config.num_key_value_heads, model.config.num_attention_heads // model.config.num_key_value_heads
        self.width = model.model.layers[0].self_attn.head_dim
        self.cache = None

    def keep(self, rows):
        """Go on with the texts at these places (list of ints) alone, in this order."""
        self.texts = len(rows)
        if self.cache is not None:
            self.cache = self.cache[:, :, rows].contiguous()

    def _reserve(self, length):
        room = 0 if self.cache is None else self.cache.shape[3]
        if length <= room:
            return
        room = max(ROOM, room)
        while room < length:
            room *= 2
        cache = self.model.lm_head.weight.new_zeros(self.model.config.num_hidden_layers, 2, self.texts, room, self.heads, self.width)
        if self.cache is not None:
            cache[:, :, :, :self.cache.shape[3]] = self.cache
        self.cos, self.sin = rotary_table(self.model, torch.arange(room, device=self.device))
        self.cache = cache

    @torch.inference_mode()
    def run(self, ids, starts, last=None):
        """Read ids [B, n], text b's from position starts[b] (list of ints) on; returns logits [B, n, V], or [B, last, V] of the last ones only."""
        texts, n = ids.shape
        end = max(starts) + n
        self._reserve(end)
        rows = torch.arange(texts, device=self.device)[:, None]
        positions = torch.tensor(starts, device=self.device)[:, None] + torch.arange(n, device=self.device)
        cos, sin = self.cos[positions], self.sin[positions]
        # the query heads of a group share their keys as more rows
        mask = (torch.arange(end, device=self.device) <= positions[:, :, None])[:, None].repeat(1, 1, self.groups, 1)

        def attend(place, attention, q, k, v):
            keys, values = self.cache[place]
            keys[rows, positions], values[rows, positions] = rotated(k, cos, sin), v
            q = rotated(q, cos, sin).view(texts, n, self.heads, self.groups, self.width).permute(0, 2, 3, 1, 4).reshape(texts, self.heads, -1, self.width)
            mixed = F.scaled_dot_product_attention(q, keys[:, :end].transpose(1, 2), values[:, :end].transpose(1, 2), attn_mask=mask, scale=attention.scaling)
            return mixed.view(texts, self.heads, self.groups, n, self.width).permute(0, 3, 1, 2, 4).reshape(texts, n, -1, self.width)

        hidden = run_layers(self.model, self.model.model.embed_tokens(ids), attend)
        return project(self.model.lm_head, hidden if last is None else hidden[:, -last:])
