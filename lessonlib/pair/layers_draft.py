"""A draft made of some of the target's layers, with the target's own embedding, final norm and head."""

from copy import deepcopy

import torch
from torch import nn

from lessonlib.errors import LessonError

SHARED = ("embed", "norm", "head")


def body_parts(model):
    """The weights that a draft may share, as {"embed", "norm", "head": weight}; LessonError unless it is Llama-like."""
    try:
        parts = {"embed": model.model.embed_tokens.weight, "norm": model.model.norm.weight, "head": model.lm_head.weight}
        if isinstance(model.model.layers, nn.ModuleList):
            return parts
    except AttributeError:
        pass
    raise LessonError(f"A draft cannot be cut out of a {type(model).__name__}: its layers, embedding, final norm and head "
                      "are not where Llama and Qwen models have them; take a target of such a shape or a separate draft.")


def layers_draft(target, layer_indices):
    """A causal LM of copies of the target's layers `layer_indices`, in that order, with the target's embedding, norm, head.

    The copies are fp32 (the weights that train), on the target's device, and know their new places, so caches work.
    Embedding, final norm and head are frozen parameters over the target's own memory: changing the draft's dtype leaves the
    target alone, and moving the target afterwards parts them. `kept_layers` on the result is the tuple of indices. Where the
    target is not in fp32, run the draft under autocast or give it one dtype with `cast_parameters`. Raises LessonError for a
    model that is not Llama-like and for indices it does not have.
    """
    parts, count = body_parts(target), len(target.model.layers)
    kept = tuple(layer_indices)
    if not kept or not all(0 <= index < count for index in kept):
        raise LessonError(f"The draft cannot keep layers {list(kept)}; name at least one of the target's: 0 to {count - 1}.")
    config = kept_config(target.config, kept)
    with torch.device("meta"):
        draft = type(target)(config)
    draft.model.layers = nn.ModuleList(deepcopy(target.model.layers[index]).float().requires_grad_(True) for index in kept)
    draft.model.rotary_emb = deepcopy(target.model.rotary_emb)
    for place, layer in enumerate(draft.model.layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = place
    for module in draft.model.modules():
        if hasattr(module, "config"):
            module.config = config
    embed, norm, head = (nn.Parameter(parts[name].detach(), requires_grad=False) for name in SHARED)
    tied = parts["head"] is parts["embed"]
    draft.model.embed_tokens.weight, draft.model.norm.weight, draft.lm_head.weight = embed, norm, embed if tied else head
    if any(tensor.is_meta for tensor in (*draft.parameters(), *draft.buffers())):
        raise LessonError(f"A draft cannot be cut out of a {type(target).__name__}: it holds weights beside its layers, "
                          "embedding, final norm and head; take a Llama or Qwen target or a separate draft.")
    draft.generation_config = deepcopy(target.generation_config)
    draft.kept_layers = kept
    return draft.eval()


def kept_config(config, kept):
    """A copy of the target's configuration for the layers `kept`: their number, and their entries of every list by layer."""
    config = deepcopy(config)
    for name in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        if value := getattr(config, name, None):
            setattr(config, name, type(value)(value[index] for index in kept))
    config.num_hidden_layers = len(kept)
    config.dtype = torch.float32
    return config


def shared_parts(draft, target):
    """Which of "embed", "norm", "head" are the target's, in its memory or copied; none for a model of another shape."""
    try:
        mine, theirs = body_parts(draft), body_parts(target)
    except LessonError:
        return []
    return [name for name in SHARED
            if (mine[name].shape, mine[name].dtype) == (theirs[name].shape, theirs[name].dtype)
            and torch.equal(mine[name].to(theirs[name].device), theirs[name])]


def cast_parameters(model, dtype):
    """Give every parameter of `model` one dtype, in place; returns the model.

    Unlike `model.to(dtype)` this leaves the rotary frequencies in fp32: in bf16 they put far positions in the wrong place.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model
