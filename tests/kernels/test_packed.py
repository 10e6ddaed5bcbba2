"""Packed rows: where their sequences lie, and that the body reads each as if it were alone."""

import pytest
import torch
import torch.nn.functional as F
from support import sequences, tiny
from transformers import AttentionInterface

from lessonlib.kernels import packed
from lessonlib.kernels.packed import packed_body, packed_responses, pays, why_padded

SEQS = sequences(7) + [([5], [6])]


def by_sequence(module, query, key, value, attention_mask, scaling=None, cu_seq_lens_q=None, max_length_q=None, **_):
    """What packed attention is: ordinary causal attention over each sequence by itself."""
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    starts = cu_seq_lens_q.tolist()
    assert max_length_q == max(b - a for a, b in zip(starts, starts[1:]))
    mixed = [F.scaled_dot_product_attention(*(each[:, :, a:b] for each in (query, key, value)), is_causal=True, scale=scaling)
             for a, b in zip(starts, starts[1:])]
    return torch.cat(mixed, 2).transpose(1, 2), None


@pytest.fixture()
def attention():
    """The definition in place of the GPU's kernel."""
    AttentionInterface.register(packed.NAME, by_sequence)
    yield
    AttentionInterface.register(packed.NAME, packed._flash)


def test_rows_positions_and_starts():
    ids, rows, packing = packed_responses([([1, 2], [3, 4, 5]), ([6], [7])], "cpu")
    assert ids.tolist() == [[1, 2, 3, 4, 5, 6, 7]] and rows.tolist() == [1, 2, 3, 5]
    assert packing.positions.tolist() == [[0, 1, 2, 3, 4, 0, 1]] and packing.starts.tolist() == [0, 5, 7] and packing.longest == 5
    assert packing.starts.dtype == torch.int32


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_each_sequence_is_read_as_if_alone(kind, attention):
    model = tiny(kind)
    before = model.config._attn_implementation
    ids, rows, packing = packed_responses(SEQS, "cpu")
    found = packed_body(model, ids, packing)
    alone = torch.cat([model.base_model(torch.tensor([prompt + resp])).last_hidden_state[0] for prompt, resp in SEQS])
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)
    written = torch.tensor([token for _, resp in SEQS for token in resp])
    assert torch.equal(ids[0, rows + 1], written)
    assert model.config._attn_implementation == before


def test_the_models_own_attention_is_back_after_an_error(attention):
    model = tiny()
    before = model.config._attn_implementation
    ids, _, packing = packed_responses(SEQS, "cpu")
    with pytest.raises(IndexError):
        packed_body(model, ids + 1000, packing)
    assert model.config._attn_implementation == before


def test_it_is_tried_out_on_the_model(attention, monkeypatch):
    assert packed._try_out(tiny(), torch.bfloat16) is None
    monkeypatch.setattr(packed, "packed_body", lambda model, ids, packing: model.base_model(ids, use_cache=False).last_hidden_state[0])
    assert "other hidden states" in packed._try_out(tiny(), torch.bfloat16)  # as if each sequence saw those before it
    monkeypatch.setattr(packed, "packed_body", lambda *args: (_ for _ in ()).throw(RuntimeError("no head of 8")))
    assert "cannot run packed (no head of 8)" in packed._try_out(tiny(), torch.bfloat16)
    windows = tiny()
    windows.config.layer_types = ["full_attention", "sliding_attention"]
    assert "not the plain kind" in packed._try_out(windows, torch.bfloat16)


def test_a_cpu_pads():
    assert "no packed attention for a cpu" in why_padded(tiny())


def test_packing_pays_where_much_would_be_padding():
    assert not pays([([1] * 4, [1] * 96)] * 5) and not pays([([1] * 4, [1] * 96)] * 19 + [([1], [1] * 99)])
    assert pays([([1] * 4, [1] * 96), ([1], [1] * 49)])
