"""A forward step over several texts at once, each at a length of its own: one cache, one pass, no padding that any text can see."""

import torch
import torch.nn.functional as F

from lessonlib.errors import LessonError
from lessonlib.kernels.capture import captured
from lessonlib.kernels.copies import to_device
from lessonlib.pair.llama import project, rotary_table, rotated, run_layers, why_not


class BatchStep:
    """A Llama-, Qwen2- or Qwen3-style causal LM that reads B texts side by side, each from a position of its own, none beyond `room` tokens.

    What a text has in the cache beyond its own length is never seen: every token is written before a later one of its text looks for it. So taking
    tokens back is to read on from an earlier position. Raises LessonError for other models.
    """

    @torch.inference_mode()
    def __init__(self, model, texts, room):
        if why := why_not(model):
            raise LessonError(f"several texts at once need a model whose arithmetic lessonlib has, and {why}; decode them one by one.")
        self.model, self.device = model, model.lm_head.weight.device
        self.heads, self.groups = model.config.num_key_value_heads, model.config.num_attention_heads // model.config.num_key_value_heads
        self.width = model.model.layers[0].self_attn.head_dim
        self.cache = model.lm_head.weight.new_zeros(model.config.num_hidden_layers, 2, texts, room, self.heads, self.width)
        self.cos, self.sin = rotary_table(model, torch.arange(room, device=self.device))
        self.captures, self.graphs = self.device.type == "cuda", {}

    def keep(self, rows):
        """Go on with the texts at these places (list of ints) alone, in this order."""
        self.cache = self.cache[:, :, rows].contiguous()

    @torch.inference_mode()
    def prepare(self, n, last=None):
        """On a GPU, capture the graph of a pass over n tokens a text, before any text is read: a GPU is told of it once and not of its thousand operations."""
        if not self.captures:
            return
        texts = self.cache.shape[2]
        ids, starts = (torch.zeros(shape, dtype=torch.long, device=self.device) for shape in ((texts, n), texts))
        self.graphs[n, last] = self._capture(ids, starts, last)

    def read(self, texts):
        """Read all of each text (lists of ids) but its last token, padded on the right with what nobody will see."""
        width = max(map(len, texts)) - 1
        if width:
            ids = torch.tensor([text[:-1] + text[-1:] * (width - len(text) + 1) for text in texts])
            self.run(to_device(ids, self.device), [0] * len(texts), last=1)

    @torch.inference_mode()
    def run(self, ids, starts, last=None):
        """Read ids [B, n], text b's from position starts[b] (list of ints) on; returns logits [B, n, V], or [B, last, V] of the last ones only."""
        end, shape = max(starts) + ids.shape[1], (ids.shape[1], last)
        starts = to_device(torch.tensor(starts), self.device)
        return self._replay(self.graphs[shape], ids, starts) if shape in self.graphs else self._read(ids, starts, end, last)

    def _read(self, ids, starts, end, last):
        """The pass itself; it looks at the first `end` places of the cache."""
        texts, n = ids.shape
        rows = torch.arange(texts, device=self.device)[:, None]
        positions = starts[:, None] + torch.arange(n, device=self.device)
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

    @staticmethod
    def _replay(made, ids, starts):
        graph, own_ids, own_starts, logits = made
        own_ids.copy_(ids)
        own_starts.copy_(starts)
        graph.replay()
        return logits.clone()

    def _capture(self, ids, starts, last):
        room = self.cache.shape[3]  # a graph looks at all of the cache
        graph, logits = captured(lambda: self._read(ids, starts, room, last), self.device)
        return graph, ids, starts, logits
