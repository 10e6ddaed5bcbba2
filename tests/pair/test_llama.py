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


class Adapter(torch.nn.Linear):
    """A Linear that adds something of its own, as adapters do."""

    def forward(self, x):
        return super().forward(x) + x.sum()


class Wrapper(torch.nn.Module):
    """Nothing but Linears inside, and another sum of them."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.more = inner, torch.nn.Linear(32, 32)

    def forward(self, x):
        return self.inner(x) + self.more(x)


def changed(how):
    """A model whose own forward does something that the lean body does not."""
    model = random_model("llama", torch.float32)
    layer = model.model.layers[1]
    if how == "dropout":
        model.config.attention_dropout = 0.1
        model.train()
    elif how == "recomputing":
        layer.gradient_checkpointing = True  # as `gradient_checkpointing_enable` and its later names leave it
    elif how == "adapter":
        layer.self_attn.q_proj.__class__ = Adapter
    elif how == "wrapper":
        layer.self_attn.q_proj = Wrapper(layer.self_attn.q_proj)
    elif how == "own forward":
        layer.mlp.forward = lambda x: x
    elif how == "hook":
        layer.mlp.register_full_backward_hook(lambda *_: None)
    elif how == "norm":
        layer.input_layernorm = torch.nn.RMSNorm(32)
    elif how == "formats":
        model.model.embed_tokens.bfloat16()
    return model


@pytest.mark.parametrize("how, said", [("dropout", "drops attention"), ("recomputing", "gradients"), ("adapter", "Adapter"), ("wrapper", "Wrapper"), ("own forward", "hooks"),
                                       ("hook", "hooks"), ("norm", "RMSNorm"), ("formats", "more than one number format")])
def test_what_only_the_models_own_forward_does_is_left_to_it(how, said):
    model = changed(how)
    assert said in why_not(model)
    if how not in ("dropout", "formats"):
        assert torch.equal(body_and_head(model)[0](IDS), model.model(IDS, use_cache=False).last_hidden_state)


def test_a_change_after_the_body_was_taken_is_seen():
    model = random_model("llama", torch.float32)
    body, seen = body_and_head(model)[0], []
    model.model.layers[0].register_forward_hook(lambda *_: seen.append(1))
    body(IDS)
    assert seen


def test_only_the_layers_that_the_configuration_counts_are_run():
    model = random_model("llama")
    model.config.num_hidden_layers = 1
    torch.testing.assert_close(read_texts(model, IDS), model.model(IDS, use_cache=False).last_hidden_state, **CLOSE)


def test_the_padding_token_gets_no_gradient_where_the_model_gives_it_none():
    model = random_model("llama").requires_grad_(True)
    model.model.embed_tokens.padding_idx = int(IDS[0, 0])
    read_texts(model, IDS).square().sum().backward()
    assert not model.model.embed_tokens.weight.grad[IDS[0, 0]].any() and model.model.embed_tokens.weight.grad.any()


def test_plain_kernels_are_the_models_own_forward(monkeypatch):
    monkeypatch.setenv("LESSON_KERNELS", "plain")
    assert "LESSON_KERNELS=plain" in why_not(random_model("llama"))
