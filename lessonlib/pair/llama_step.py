"""A decoding step of a Llama- or Qwen-style model with nothing in it but its arithmetic: the same weights, a quarter of the Python.

On a CPU a step of a small model waits as long for Python as for memory: transformers' own forward of the tiny target takes twice the time
that its weights take to be read. Here each layer is some twenty calls, and the cache is a block of memory that rolling back only counts.
"""

import torch
import torch.nn.functional as F

from lessonlib.kernels.few_rows import linear

# classes whose arithmetic is written out below, and the rotary tables that do not change with the text's length
CLASSES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")
ROOM = 256  # tokens the cache has room for at first; it doubles when they are used up


def why_not(model):
    """Why LlamaStep cannot run this model, in a few words, or None where it can."""
    if type(model).__name__ not in CLASSES:
        return f"{type(model).__name__} is not one of {', '.join(CLASSES)}"
    config = model.config
    if set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return "some of its layers look back through a window only"
    if model.model.rotary_emb.rope_type not in ROPES:
        return f"its rotary table changes with the length of the text ({model.model.rotary_emb.rope_type})"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "something hooks into its forward pass"
    plain = (torch.nn.Linear, torch.nn.Embedding, torch.nn.ModuleList)
    odd = next((type(module).__name__ for module in model.modules() if not list(module.children()) and not isinstance(module, plain)
                and not type(module).__name__.endswith(("RMSNorm", "RotaryEmbedding", "SiLU", "SiLUActivation"))), None)
    return f"it holds a {odd}" if odd else None


class LlamaStep:
    """A Llama-, Qwen2- or Qwen3-style causal LM that reads a text piece by piece, one text at a time, and can take back its last tokens.

    The weights are the model's own, read where they lie. Same interface and same logits (to rounding) as `CachedModel`.
    """

    why = None  # nothing keeps it from running the model

    def __init__(self, model):
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
        room = max(ROOM, room)
        while room < length:
            room *= 2
        weight = self.model.lm_head.weight
        cache = weight.new_empty(len(self.model.model.layers), 2, room, self.heads, self.width)
        if self.cache is not None:
            cache[:, :, :self.length] = self.cache[:, :, :self.length]
        cos, sin = self.model.model.rotary_emb(weight, torch.arange(room, device=self.device)[None])
        half = self.width // 2
        # rotating by halves is a swap of the two with the first one's sine negated
        self.cos, self.sin = cos[0, :, None], torch.cat([-sin[0, :, None, :half], sin[0, :, None, half:]], -1)
        self.cache = cache

    @torch.inference_mode()
    def run(self, tokens, last=None):
        """Read more tokens (a list or a 1-D tensor); returns logits [n, V], one row a token, or [last, V] of the last ones only."""
        ids = torch.as_tensor(tokens, dtype=torch.long, device=self.device)
        start, n = self.length, len(ids)
        end = start + n
        self._reserve(end)
        cos, sin = self.cos[start:end], self.sin[start:end]
        body = self.model.model
        # a mask only where a token must not see another one of the same pass; the query heads of a group share their keys as more rows
        mask = torch.ones(n, end, dtype=torch.bool, device=self.device).tril(start).repeat(self.groups, 1) if n > 1 else None
        hidden = F.embedding(ids, body.embed_tokens.weight)
        for layer, cache in zip(body.layers, self.cache):
            hidden = hidden + self._attention(layer.self_attn, _normed(layer.input_layernorm, hidden), cache, start, end, cos, sin, mask)
            mlp, x = layer.mlp, _normed(layer.post_attention_layernorm, hidden)
            hidden += _linear(mlp.down_proj, F.silu(_linear(mlp.gate_proj, x), inplace=True).mul_(_linear(mlp.up_proj, x)))
        self.length = end
        return _linear(self.model.lm_head, _normed(body.norm, hidden if last is None else hidden[-last:]))

    def _attention(self, attention, x, cache, start, end, cos, sin, mask):
        n = end - start
        q = _linear(attention.q_proj, x).view(n, -1, self.width)
        k = _linear(attention.k_proj, x).view(n, -1, self.width)
        if hasattr(attention, "q_norm"):
            q, k = _normed(attention.q_norm, q), _normed(attention.k_norm, k)
        cache[0, start:end] = _rotated(k, cos, sin)
        cache[1, start:end] = _linear(attention.v_proj, x).view(n, -1, self.width)
        q = _rotated(q, cos, sin).view(n, self.heads, self.groups, self.width).permute(1, 2, 0, 3).reshape(1, self.heads, -1, self.width)
        keys, values = cache[:, None, :end].transpose(2, 3)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=attention.scaling)
        mixed = mixed.view(self.heads, self.groups, n, self.width).permute(2, 0, 1, 3).reshape(n, -1)
        return _linear(attention.o_proj, mixed)


def _linear(module, x):
    return linear(x, module.weight, module.bias)


def _normed(module, x):
    return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)


def _rotated(x, cos, sin):
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
