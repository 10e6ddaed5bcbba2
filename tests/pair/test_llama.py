"""The lean body gives the model's own hidden states and gradients, text by text and packed."""

import pytest
import torch
import torch.nn.functional as F
from pair.llama_shapes import CLOSE, SHAPES, random_model

from lessonlib.kernels.packed import packed_responses
from lessonlib.pair import llama
from lessonlib.pair.hidden import body_and_head
from lessonlib.pair.llama import read_texts, why_not

IDS = torch.randint(64, (3, 17), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_hidden_states_are_the_models_own(shape):
    model = random_model(shape)
    torch.testing.assert_close(read_texts(model, IDS), model.model(IDS, use_cache=False).last_hidden_state, **CLOSE)


@pytest.mark.parametrize("shape", SHAPES)
def test_so_are_the_gradients(shape):
    found = []
    for body in (lambda model: body_and_head(model)[0](IDS), lambda model: model.model(IDS, use_cache=False).last_hidden_state):
        model = random_model(shape).requires_grad_(True).train()
        body(model).square().mean().backward()
        found.append({name: p.grad for name, p in model.model.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_packed_row_is_its_texts_one_by_one(monkeypatch):
    def by_text(q, k, v, starts, longest, scale):
        parts = zip(*(each.transpose(0, 1).split(starts.diff().tolist(), 1) for each in (q, k, v)))
        return torch.cat([F.scaled_dot_product_attention(*part, is_causal=True, scale=scale, enable_gqa=True) for part in parts], 1).transpose(0, 1)

    monkeypatch.setattr(llama, "packed_attention", by_text)
    model, texts = random_model("llama, scaled positions"), [([1, 2], [3, 4, 5]), ([6], [7]), ([8, 9, 10], [11])]
    ids, _, packing = packed_responses(texts, "cpu")
    alone = torch.cat([read_texts(model, torch.tensor([prompt + resp]))[0] for prompt, resp in texts])
    torch.testing.assert_close(read_texts(model, ids, packing)[0], alone, **CLOSE)


def test_what_only_the_models_own_forward_does_is_left_to_it():
    model = random_model("llama")
    model.config.attention_dropout = 0.1
    assert why_not(model) is None and "drops attention" in why_not(model.train())
    model = random_model("llama")
    model.model.layers[1].gradient_checkpointing = True  # as `gradient_checkpointing_enable` and its later names leave it
    assert "gradients" in why_not(model)
