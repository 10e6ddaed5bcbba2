"""The arithmetic of a Llama- or Qwen-style body, and nothing else: what a decoding step and a whole pass over texts share.

transformers' own forward has a dozen small operations a layer beside its products. On a GPU each reads and writes the whole of the hidden
states, a fifth of a long pass; on a CPU a step of a small model waits as long for Python as for memory. Here they are as few as PyTorch allows.
"""

from functools import partial

import torch
import torch.nn.functional as F

from lessonlib.errors import LessonError
from lessonlib.kernels.backend import why_plain
from lessonlib.kernels.packed import packed_attention
from lessonlib.kernels.products import linear

# classes whose arithmetic is written out below, and the rotary tables that do not change with the text's length
CLASSES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")


def why_not(model):
    """Why the arithmetic here is not this model's, in a few words, or None where it is."""
    if plain := why_plain():
        return plain
    if type(model).__name__ not in CLASSES:
        return f"{type(model).__name__} is not one of {', '.join(CLASSES)}"
    config = model.config
    if set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return "some of its layers look back through a window only"
    if model.model.rotary_emb.rope_type not in ROPES:
        return f"its rotary table changes with the length of the text ({model.model.rotary_emb.rope_type})"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    if getattr(config, "attention_dropout", 0) and model.training:
        return "it drops attention out while it trains"
    if len({p.dtype for p in model.parameters()}) > 1:
        return "its weights are of more than one number format"
    return next(filter(None, map(_odd, model.modules())), None)


def check_target(target):
    """Refuse (LessonError) a target of heads whose hidden states lessonlib cannot read."""
    if why := why_not(target):
        raise LessonError(f"heads need a target whose arithmetic lessonlib has, and {why}.")


def hooked(module):
    """Whether something besides a module's class has a say in its forward or backward pass."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)) or "forward" in vars(module)


def _odd(module):
    """What a module does that the arithmetic here would leave out, or None. Exact types, since an adapter is a Linear too, or holds nothing but such."""
    if hooked(module):
        return "something hooks into its forward pass"
    if getattr(module, "gradient_checkpointing", False):
        return "it runs its layers again for their gradients"
    kind = type(module)
    known = kind in (torch.nn.Linear, torch.nn.Embedding, torch.nn.ModuleList, torch.nn.SiLU) or kind.__module__.startswith(("transformers.models.", "transformers.activations"))
    return None if known else f"it holds a {kind.__name__}"


def read_texts(model, ids, packing=None, tapped=None):
    """The hidden states [B, S, width] after the final norm of ids [B, S], padded on the right if at all, or of a packed row [1, N]; with gradients.

    tapped: as in `run_layers`.
    """
    body = model.model
    positions = torch.arange(ids.shape[1], device=ids.device) if packing is None else packing.positions[0]
    cos, sin = rotary_table(model, positions)

    def attend(place, attention, q, k, v):
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if packing is not None:
            return packed_attention(q[0], k[0], v[0], packing.starts, packing.longest, attention.scaling)[None]
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=attention.scaling, enable_gqa=True).transpose(1, 2)

    return run_layers(model, body.embed_tokens(ids), attend, tapped)


def run_layers(model, hidden, attend, tapped=None):
    """Hidden states [..., width] through all layers and the final norm; those behind the layers that `tapped` names, counted from 1, are put into it.

    attend(place, attention, q, k, v) mixes values for the layer at `place`: q [..., heads, head width] and k, v [..., key heads, head width],
    not yet rotated, to [..., heads, head width]; `attention` is the layer's own module.
    """
    body = model.model
    for place, layer in enumerate(body.layers[:model.config.num_hidden_layers]):
        hidden = run_layer(layer, hidden, partial(attend, place))
        if tapped is not None and place + 1 in tapped:
            tapped[place + 1] = hidden
    return normed(body.norm, hidden)


def run_layer(layer, hidden, attend):
    """Hidden states [..., width] through one layer; attend(attention, q, k, v) as in `run_layers`."""
    attention, x = layer.self_attn, normed(layer.input_layernorm, hidden)
    q, k, v = (project(module, x).unflatten(-1, (-1, attention.head_dim)) for module in (attention.q_proj, attention.k_proj, attention.v_proj))
    if hasattr(attention, "q_norm"):
        q, k = normed(attention.q_norm, q), normed(attention.k_norm, k)
    hidden = hidden + project(attention.o_proj, attend(attention, q, k, v).flatten(-2))
    mlp, x = layer.mlp, normed(layer.post_attention_layernorm, hidden)
    return hidden + project(mlp.down_proj, F.silu(project(mlp.gate_proj, x)) * project(mlp.up_proj, x))


def attend_to_cache(cache, places, end, q, k, v, cos, sin, mask, scale):
    """Attention of n new rows to the first `end` places of a cache [2, room, key heads, width], in which `places` (a slice, or int64 [n]) become theirs.

    q [n, heads, width] and k, v [n, key heads, width], not rotated; cos, sin [n, 1, width]; mask: bool [groups * n, end], the rows once for each
    query head of a group, which share their keys as more rows; None lets all be seen. Returns [n, heads, width].
    """
    n, heads, width = k.shape
    groups = q.shape[1] // heads
    cache[0, places], cache[1, places] = rotated(k, cos, sin), v
    q = rotated(q, cos, sin).view(n, heads, groups, width).permute(1, 2, 0, 3).reshape(1, heads, -1, width)
    keys, values = cache[:, None, :end].transpose(2, 3)
    mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)
    return mixed.view(heads, groups, n, width).permute(2, 0, 1, 3).reshape(n, -1, width)


def project(module, x):
    """A Linear module's product."""
    return linear(x, module.weight, module.bias)


def normed(module, x):
    """An RMSNorm module's output."""
    return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)


@torch.no_grad()
def rotary_table(model, positions):
    """(cos, sin), each [N, 1, head width], of positions [N], for `rotated`."""
    cos, sin = model.model.rotary_emb(model.lm_head.weight, positions[None])
    half = cos.shape[-1] // 2
    # rotating by halves is a swap of the two with the first one's sine negated
    return cos[0, :, None], torch.cat([-sin[0, :, None, :half], sin[0, :, None, half:]], -1)


def rotated(x, cos, sin):
    """Heads x [..., N, heads, head width] turned by their positions' angles."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
