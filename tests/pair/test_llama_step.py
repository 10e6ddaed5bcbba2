"""The lean step gives the model's own logits, whatever is read, taken back and read again, and says which models it cannot run."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from lessonlib.drafts.truncated import truncated_draft
from lessonlib.pair.llama import why_not
from lessonlib.pair.llama_step import ROOM, LlamaStep
from lessonlib.pair.step import CachedModel, path, step_of
from pair.llama_shapes import CLOSE, SHAPES, SIZES, TEXT, random_model, whole


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
    model = random_model("llama", torch.float32)  # which is what the trainable layers of a draft are
    for able in (model, truncated_draft(model, 1)):
        assert why_not(able) is None and isinstance(step_of(able), LlamaStep) and path(step_of(able)) == "lean PyTorch (there is no Triton for cpu tensors)"
    torch.manual_seed(0)
    windowed = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5))
    some_windowed = Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1))
    gelu = LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))
    growing = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}))
    adapted = random_model("llama", torch.float32)
    adapted.model.layers[0].self_attn.q_proj = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
    hooked = random_model("llama")
    hooked.model.layers[1].register_forward_hook(lambda *seen: None)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2))
    for other, words in ((windowed, "Mistral"), (some_windowed, "window"), (gelu, "gelu"), (growing, "dynamic"), (adapted, "Sequential"), (hooked, "hooks"), (gpt2, "GPT2")):
        step = step_of(other.eval())
        assert isinstance(step, CachedModel) and words in step.why
