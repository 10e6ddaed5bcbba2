"""Sequences end to end in one row, none of it padding: each attends to itself alone, through the flash attention that PyTorch ships.

A body is run on [1, N] ids with position ids that begin anew at each sequence; only attention has to know where sequences end, so only
attention is exchanged, for the time of the call, through transformers' registry of attention functions.
"""

from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import torch
from transformers import AttentionInterface

from lessonlib.kernels.backend import why_plain
from lessonlib.kernels.copies import to_device

NAME = "lessonlib_packed"
CLOSE = 0.05  # how far, by norm, bf16 hidden states may lie from those of sequences run one by one; attention across sequences is off by far more


WASTE = 1.06  # padded tokens a real one beyond which packing pays: cuDNN's attention over equal lengths is that much quicker (measured, 8B, H200)


@dataclass(frozen=True)
class Packing:
    """Where the sequences of a packed row lie: positions [1, N] from 0 in each, starts int32 [B + 1] (the last is N), the longest's length."""

    positions: torch.Tensor
    starts: torch.Tensor
    longest: int


def flat_ids(sequences):
    """The ids of (prompt_ids, resp_ids) sequences one after another, int64 [N]; TypeError where some are not whole numbers."""
    return torch.frombuffer(array("q", chain.from_iterable(chain.from_iterable(sequences))), dtype=torch.long)


def packed_responses(sequences, device):
    """(ids [1, N], rows [R], Packing) of (prompt_ids, resp_ids) sequences; rows of the N hidden states predict the R response tokens."""
    lengths = torch.tensor([len(prompt) + len(resp) for prompt, resp in sequences])
    starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    ids = flat_ids(sequences)
    rows = torch.cat([start + len(prompt) - 1 + torch.arange(len(resp)) for start, (prompt, resp) in zip(starts.tolist(), sequences)])
    positions = torch.arange(len(ids)) - starts[:-1].repeat_interleave(lengths)
    packing = Packing(to_device(positions[None], device), to_device(starts.int(), device), int(lengths.max()))
    return to_device(ids[None], device), to_device(rows, device), packing


def pays(sequences):
    """Whether (prompt_ids, resp_ids) sequences would be padded so much that the packed body is the quicker one."""
    lengths = [len(prompt) + len(resp) for prompt, resp in sequences]
    return max(lengths) * len(lengths) > WASTE * sum(lengths)


def packed_body(model, ids, packing):
    """The hidden states [N, width] after the final norm of a packed row of ids [1, N]."""
    with _attention(model):
        return model.base_model(ids, position_ids=packing.positions, use_cache=False, cu_seq_lens_q=packing.starts,
                                max_length_q=packing.longest).last_hidden_state[0]


def why_padded(model, dtype=None):
    """None where `packed_body` gives what the padded body would; else the reason not to use it. Tried out once a model, and remembered.

    dtype: what matrix products run in, the model's own unless given.
    """
    weight = model.get_output_embeddings().weight
    if plain := why_plain():
        return plain
    if weight.device.type != "cuda":
        return f"PyTorch has no packed attention for a {weight.device.type}"
    if (dtype or weight.dtype) not in (torch.float16, torch.bfloat16):
        return f"flash attention does not run in {str(dtype or weight.dtype).removeprefix('torch.')}"
    if torch.cuda.get_device_capability(weight.device) < (8, 0):
        return "flash attention needs a GPU of compute capability 8.0"
    if not hasattr(model, "_lesson_why_padded"):
        model._lesson_why_padded = _try_out(model, dtype or weight.dtype)
    return model._lesson_why_padded


@torch.no_grad()
def _try_out(model, dtype):
    config = model.config.get_text_config()
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"} or getattr(config, "attn_logit_softcapping", None):
        return "this model's attention is not the plain kind in every layer"
    device = model.get_output_embeddings().weight.device
    ids, _, packing = packed_responses([([0, 1, 2], [3, 4]), ([5], [6, 7, 8, 9, 10])], device)
    with torch.autocast(device.type, dtype=dtype):
        alone = torch.cat([model.base_model(part, use_cache=False).last_hidden_state[0] for part in ids.split([5, 6], 1)])
        try:
            together = packed_body(model, ids, packing)
        except (TypeError, RuntimeError) as error:  # a forward without these arguments, or heads of a size that the kernel has not
            return f"{type(model).__name__} cannot run packed ({str(error).splitlines()[0]})"
    apart = (together - alone).float().norm() / alone.float().norm()
    return None if apart < CLOSE else f"{type(model).__name__} gives other hidden states when packed"


@contextmanager
def _attention(model):
    config = model.base_model.config
    before, config._attn_implementation = config._attn_implementation, NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def packed_attention(q, k, v, starts, longest, scale):
    """Causal attention of each sequence of a packed row by itself: q [N, heads, width], k and v [N, key heads, width] -> [N, heads, width]."""
    return torch.ops.aten._flash_attention_forward(q, k, v, starts, starts, longest, longest, 0.0, True, False, scale=scale)[0]


def _flash(module, query, key, value, attention_mask, scaling=None, cu_seq_lens_q=None, max_length_q=None, **_):
    # rotary embeddings leave fp32 under autocast; grouped key heads need not be repeated
    query, key, value = (each.to(value.dtype).transpose(1, 2)[0] for each in (query, key, value))
    return packed_attention(query, key, value, cu_seq_lens_q, max_length_q, scaling)[None], None


AttentionInterface.register(NAME, _flash)
