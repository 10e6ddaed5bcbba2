"""The lean step gives the model's own logits, whatever is read, taken back and read again, and says which models it cannot run."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lessonlib.drafts.truncated import truncated_draft
from lessonlib.pair.llama_step import ROOM, LlamaStep, why_not
from lessonlib.pair.step import CachedModel, step_of

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4 * ROOM)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
SHAPES = {"llama": (LlamaForCausalLM, LlamaConfig, {}),
          "llama, tied, biases": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
          "llama, scaled positions": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3}),
          "llama, one head a group": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4}),
          "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
          "qwen3, wide heads": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16})}
CLOSE = dict(rtol=1e-4, atol=2e-5)  # transformers takes norms and rotary angles in fp32 whatever the weights are
TEXT = torch.randint(64, (40,), generator=torch.Generator().manual_seed(0)).tolist()


def random_model(shape, dtype=torch.float64):
    kind, config, changes = SHAPES[shape]
    torch.manual_seed(0)
    model = kind(config(**SIZES | changes)).eval().requires_grad_(False)
    for parameter in model.parameters():  # biases start at zero and norms at one, which would hide that they were left out
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
        parameter.data = parameter.data.to(dtype)
    return model


def whole(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_give_the_logits_of_the_whole(shape):
    model = random_model(shape)
    step, expected, place = LlamaStep(model), whole(model, TEXT), 0
    for piece in (1, 3, 1, 7, 1, 1, 12, 5, 9):
        torch.testing.assert_close(step.run(TEXT[place:place + piece]), expected[place:place + piece], **CLOSE)
        place += piece
    assert step.length == len(TEXT)
    step.reset()
    torch.testing.assert_close(step.run(torch.tensor(TEXT), last=2), expected[-2:], **CLOSE)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_taken_back_was_never_read(shape):
    model = random_model(shape)
    step, text, chance = LlamaStep(model), [], torch.Generator().manual_seed(1)
    for _ in range(12):
        more = torch.randint(64, (int(torch.randint(1, 6, (), generator=chance)),), generator=chance).tolist()
        text += more
        torch.testing.assert_close(step.run(more), whole(model, text)[-len(more):], **CLOSE)
        text = text[:int(torch.randint(max(0, len(text) - 5), len(text) + 1, (), generator=chance))]
        step.rollback(len(text))
        assert step.length == len(text)


def test_the_cache_grows_with_the_text():
    model = random_model("llama")
    step, text = LlamaStep(model), (TEXT * ROOM)[:3 * ROOM]
    step.read(text[:ROOM - 2])
    step.read([])
    step.read(text[ROOM - 2:-1])
    torch.testing.assert_close(step.run(text[-1:]), whole(model, text)[-1:], **CLOSE)


def test_its_weights_are_the_models_own():
    model = random_model("llama")
    step = LlamaStep(model)
    before = step.run(TEXT)
    model.model.layers[0].mlp.up_proj.weight.mul_(2)
    model.lm_head.weight.data = model.lm_head.weight.data.neg()
    step.reset()
    after = step.run(TEXT)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, whole(model, TEXT), **CLOSE)


def test_in_bf16_it_strays_no_further_from_fp32_than_transformers_does():
    exact = whole(random_model("llama"), TEXT)
    model = random_model("llama", torch.bfloat16)
    ours, theirs = LlamaStep(model).run(TEXT), CachedModel(model).run(TEXT)
    assert ours.dtype == torch.bfloat16
    assert (ours - exact).abs().mean() < 1.3 * (theirs - exact).abs().mean()


def test_a_model_is_given_the_lean_step_where_it_can_run_it():
    model = random_model("llama")
    for able in (model, truncated_draft(model, 1)):
        assert why_not(able) is None and isinstance(step_of(able), LlamaStep) and step_of(able).why is None
    torch.manual_seed(0)
    windowed = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5))
    some_windowed = Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1))
    gelu = LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))
    growing = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}))
    adapted = random_model("llama")
    adapted.model.layers[0].self_attn.q_proj = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
    hooked = random_model("llama")
    hooked.model.layers[1].register_forward_hook(lambda *seen: None)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2))
    for other, words in ((windowed, "Mistral"), (some_windowed, "window"), (gelu, "gelu"), (growing, "dynamic"), (adapted, "Tanh"), (hooked, "hooks"), (gpt2, "GPT2")):
        step = step_of(other.eval())
        assert isinstance(step, CachedModel) and words in step.why
