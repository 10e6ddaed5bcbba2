"""A cache that is rolled back is the cache of the shorter text, on every kind of layer."""

import inspect
import warnings

import pytest
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from lessonlib.errors import LessonError
from lessonlib.pair.step import CachedModel, cache_argument, check_fits, check_length, context_length, rollback

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=160)
SHAPES = {"llama": (LlamaForCausalLM, LlamaConfig, SIZES),
          "mistral, window 5": (MistralForCausalLM, MistralConfig, SIZES | {"sliding_window": 5}),
          "qwen2, window 5 in one layer": (Qwen2ForCausalLM, Qwen2Config, SIZES | {
              "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
          "gpt2": (GPT2LMHeadModel, GPT2Config, dict(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=160))}
TEXT = torch.randint(64, (30,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(params=SHAPES)
def model(request):
    kind, config, sizes = SHAPES[request.param]
    torch.manual_seed(0)
    model = kind(config(**sizes)).eval().requires_grad_(False)
    for parameter in model.parameters():  # else every text gives much the same logits
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def whole(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def cache_of(n):
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.arange(1.0, n + 1).view(1, 1, n, 1).expand(1, 2, n, 4), torch.zeros(1, 2, n, 4), layer)
    return cache


@pytest.mark.parametrize("keep, left", [(2, 2), (1, 1), (0, 0), (3, 3), (7, 3), (3 - 1, 2), (3 - 5, 0)])
def test_a_cache_of_three_tokens_keeps_what_is_asked(keep, left):
    cache = cache_of(3)
    rollback(cache, keep)
    assert cache.get_seq_length() == left
    grown, _ = cache.update(torch.full((1, 2, 1, 4), 9.0), torch.zeros(1, 2, 1, 4), 0)
    assert grown[0, 0, :, 0].tolist() == [1.0, 2.0, 3.0][:left] + [9.0]


@pytest.mark.parametrize("keep, asked", [(2, [-1]), (0, [-3]), (-2, [-3]), (3, []), (7, [])])
def test_a_cache_is_asked_only_for_what_every_release_can_do(keep, asked):
    """Negative counts no larger than the cache: others mean different things in different releases, or are refused."""
    class Recorder:
        def __init__(self):
            self.calls = []

        def get_seq_length(self):
            return 3

        def crop(self, count):
            self.calls.append(count)

    rollback(recorder := Recorder(), keep)
    assert recorder.calls == asked


def test_rolling_back_an_empty_cache_is_no_error():
    for cache in (DynamicCache(), cache_of(3)):
        rollback(cache, 0)
        rollback(cache, 0)
        assert cache.get_seq_length() == 0


def test_pieces_give_the_logits_of_the_whole(model):
    step, pieces = CachedModel(model), []
    for a, b in ((0, 9), (9, 10), (10, 11), (11, 15), (15, 30)):
        pieces.append(step.run(TEXT[a:b]))
        assert step.length == b
    torch.testing.assert_close(torch.cat(pieces), whole(model, TEXT), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keep", range(13))
def test_after_a_rollback_the_text_goes_on_as_if_the_tokens_had_never_been_read(model, keep):
    step = CachedModel(model)
    step.read(TEXT[:8])
    step.run(TEXT[20:24])
    step.rollback(keep)
    assert step.length == keep
    kept = (TEXT[:8] + TEXT[20:24])[:keep]
    torch.testing.assert_close(step.run(TEXT[8:11]), whole(model, kept + TEXT[8:11])[keep:], rtol=1e-4, atol=1e-4)


def test_many_rounds_of_reading_and_taking_back(model):
    step, text = CachedModel(model), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        n = torch.randint(1, 6, (), generator=generator).item()
        tokens = torch.randint(64, (n,), generator=generator).tolist()
        torch.testing.assert_close(step.run(tokens), whole(model, text + tokens)[len(text):], rtol=1e-4, atol=1e-4)
        text = (text + tokens)[:len(text) + torch.randint(n + 1, (), generator=generator).item()]
        step.rollback(len(text))
        assert step.length == len(text)


def test_only_the_last_rows_are_handed_out_where_asked(model):
    rows = CachedModel(model).run(TEXT, last=2)
    torch.testing.assert_close(rows, whole(model, TEXT)[-2:], rtol=1e-4, atol=1e-4)


def test_reading_nothing_reads_nothing_and_a_reset_forgets(model):
    step = CachedModel(model)
    step.read([])
    assert step.length == 0
    step.read(TEXT)
    step.reset()
    assert step.length == 0
    torch.testing.assert_close(step.run(TEXT[:3]), whole(model, TEXT[:3]), rtol=1e-4, atol=1e-4)


def test_no_warning_of_any_kind(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = CachedModel(model)
        step.read(TEXT[:6])
        step.run(TEXT[6:9])
        step.rollback(7)
        step.run(TEXT[:2])


def test_the_cache_goes_in_under_the_name_that_the_model_knows(model):
    assert cache_argument(model) in inspect.signature(model.forward).parameters


def test_what_does_not_fit_is_refused(model):
    assert context_length(model) == 160
    check_fits(model, [0, 63], 158)
    for prompt, new, words in (([], 1, "empty"), ([64], 1, "id 64 .* vocabulary of 64"), ([3, -1], 1, "id -1"),
                               ([0], 160, "1 tokens and 160 new .* 160 positions")):
        with pytest.raises(LessonError, match=words) as caught:
            check_fits(model, prompt, new)
        assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    check_length(10**6, 10**6, None, "model")


def test_a_model_with_a_running_state_is_refused():
    with torch.device("meta"):
        sizes = SIZES | {"num_hidden_layers": 4, "num_experts": 2, "num_experts_per_tok": 1}
        model = Qwen3NextForCausalLM(Qwen3NextConfig(**sizes))
    with pytest.raises(LessonError, match="Qwen3NextForCausalLM .*linear_attention.* cannot take tokens back; take a model"):
        CachedModel(model)
