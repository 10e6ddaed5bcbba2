"""Drafts cut out of a target: the same numbers, shared memory, and files that bring them back whole."""

from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_model as safetensors_load, save_model as safetensors_save
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config
from transformers import Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lessonlib.errors import LessonError
from lessonlib.files import read_json
from lessonlib.pair.draft_files import load_draft, save_draft
from lessonlib.pair.few_bits import dequantise_layers, quantise_layers
from lessonlib.pair.layers_draft import cast_parameters, layers_draft, shared_parts
from lessonlib.pair.load import load_model
from lessonlib.pair.tokenizer_check import check_pair, model_fingerprint

SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=5, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
SHAPES = {"llama tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
          "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": False}),
          "qwen2 sliding": (Qwen2ForCausalLM, Qwen2Config,
                            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
          "qwen3 tied": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True})}
IDS = torch.randint(97, (2, 12), generator=torch.Generator().manual_seed(0))


def random_target(shape="llama tied", seed=0, **changes):
    model, config, more = SHAPES[shape]
    torch.manual_seed(seed)
    target = model(config(**SIZES | more | changes)).eval().requires_grad_(False)
    for parameter in target.parameters():  # norms start at one, which would hide that they were left out
        parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return target


@pytest.fixture(params=SHAPES)
def target(request):
    return random_target(request.param)


def test_all_layers_give_the_targets_own_logits(target):
    assert torch.equal(layers_draft(target, range(5))(IDS).logits, target(IDS).logits)


def test_a_draft_of_some_layers_is_the_target_with_the_others_taken_out(target):
    kept = (0, 2, 4)
    draft, slow = layers_draft(target, kept), deepcopy(target)
    slow.model.layers = torch.nn.ModuleList(target.model.layers[i] for i in kept)
    slow.config.num_hidden_layers = slow.model.config.num_hidden_layers = len(kept)
    slow.config.layer_types = slow.model.config.layer_types = [target.config.layer_types[i] for i in kept] \
        if getattr(target.config, "layer_types", None) else None
    assert torch.equal(draft(IDS, use_cache=False).logits, slow(IDS, use_cache=False).logits)
    assert draft.config.num_hidden_layers == 3 and target.config.num_hidden_layers == 5
    assert draft.kept_layers == kept


def test_the_cache_of_a_draft_has_its_own_places(target):
    draft = layers_draft(target, (1, 4))
    assert [layer.self_attn.layer_idx for layer in draft.model.layers] == [0, 1]
    assert [layer.self_attn.layer_idx for layer in target.model.layers] == [0, 1, 2, 3, 4]
    assert all(module.config is draft.config for module in draft.modules() if hasattr(module, "config"))
    whole = draft(IDS).logits[:, -1]
    grown = draft.generate(IDS, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert torch.equal(grown[:, 12], whole.argmax(-1))
    assert torch.equal(draft(grown[:, :-1]).logits[:, -1].argmax(-1), grown[:, -1])  # with and without the cache


def test_only_the_layers_are_new_memory_and_only_they_train(target):
    draft = layers_draft(target, (0, 4))
    assert shared_parts(draft, target) == ["embed", "norm", "head"]
    assert shared_parts(draft, random_target(seed=1)) == []
    memory = {parameter.data_ptr() for parameter in target.parameters()}
    for name, parameter in draft.named_parameters():
        own = name.startswith("model.layers.")
        assert (parameter.data_ptr() in memory) != own and parameter.requires_grad == own, name
        assert parameter.dtype == torch.float32, name
    before = {name: parameter.clone() for name, parameter in target.named_parameters()}
    optimizer = torch.optim.SGD([parameter for parameter in draft.parameters() if parameter.requires_grad], lr=1.0)
    draft(IDS).logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in draft.model.layers.parameters())
    optimizer.step()
    assert all(torch.equal(parameter, before[name]) for name, parameter in target.named_parameters())
    assert not torch.equal(draft.model.layers[0].mlp.up_proj.weight, target.model.layers[0].mlp.up_proj.weight)


def test_another_dtype_for_the_draft_leaves_the_target_and_the_rotary_frequencies_alone(target):
    draft, logits = layers_draft(target, (0, 1)), target(IDS).logits
    cast_parameters(draft, torch.bfloat16)
    assert {parameter.dtype for parameter in draft.parameters()} == {torch.bfloat16}
    assert (draft.lm_head.weight is draft.model.embed_tokens.weight) == target.config.tie_word_embeddings  # one copy
    assert draft.model.rotary_emb.inv_freq.dtype == torch.float32
    assert draft(IDS).logits.dtype == torch.bfloat16
    assert torch.equal(target(IDS).logits, logits)


def test_a_bf16_target_gives_fp32_layers_that_run_in_its_dtype_once_cast():
    target = random_target().to(torch.bfloat16)
    draft = layers_draft(target, range(5))
    assert {p.dtype for p in draft.model.layers.parameters()} == {torch.float32}
    target.model.rotary_emb = deepcopy(draft.model.rotary_emb)
    assert torch.equal(cast_parameters(draft, torch.bfloat16)(IDS).logits, target(IDS).logits)


@pytest.mark.parametrize("kept", [(), (5,), (-1, 0)])
def test_layers_that_are_not_there_are_refused(kept):
    with pytest.raises(LessonError, match="0 to 4"):
        layers_draft(random_target(), kept)


def test_a_model_of_another_shape_is_refused():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2))
    with pytest.raises(LessonError, match="GPT2LMHeadModel"):
        layers_draft(gpt2, (0,))


def trained(target, kept=(0, 4)):
    """A draft whose layers are no longer the target's."""
    draft = layers_draft(target, kept)
    with torch.no_grad():
        for parameter in draft.model.layers.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return draft


def test_a_saved_draft_holds_its_layers_alone_and_comes_back_identical(target, tmp_path):
    draft = trained(target)
    for _ in range(2):  # the second time over the first
        save_draft(draft, tmp_path / "draft", target, kind="truncated", seed=3)
    note = read_json(tmp_path / "draft/draft.json")
    assert (note["kind"], note["layers"], note["shares"], note["bits"], note["seed"]) == \
        ("truncated", [0, 4], ["embed", "norm", "head"], 32, 3)
    own = sum(parameter.numel() for parameter in draft.model.layers.parameters())
    assert (tmp_path / "draft/layers.safetensors").stat().st_size < 4 * own + 4096
    loaded = load_draft(tmp_path / "draft", target)
    assert torch.equal(loaded(IDS).logits, draft(IDS).logits)
    assert loaded.kept_layers == (0, 4)
    assert loaded.lm_head.weight.data_ptr() == target.lm_head.weight.data_ptr()


def test_a_draft_takes_the_targets_dtype_unless_it_is_to_train(target, tmp_path):
    save_draft(trained(target), tmp_path / "draft", target)
    target.to(torch.bfloat16)
    draft = load_draft(tmp_path / "draft", target)
    assert {parameter.dtype for parameter in draft.parameters()} == {torch.bfloat16}
    assert draft(IDS).logits.dtype == torch.bfloat16
    masters = load_draft(tmp_path / "draft", target, dtype=torch.float32).model.layers
    assert {parameter.dtype for parameter in masters.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in masters.parameters())


def test_a_draft_that_shares_tensors_survives_save_pretrained_and_safetensors(target, tmp_path):
    draft = trained(target)
    expected = draft(IDS).logits
    draft.save_pretrained(tmp_path / "plain")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)(IDS).logits, expected)
    assert torch.equal(load_draft(tmp_path / "plain", target)(IDS).logits, expected)
    safetensors_save(draft, tmp_path / "alone.safetensors")
    empty = type(target)(draft.config).eval()
    safetensors_load(empty, tmp_path / "alone.safetensors")
    assert torch.equal(empty(IDS).logits, expected)


def test_a_draft_of_its_own_is_saved_whole(target, tmp_path):
    draft = random_target(seed=1, num_hidden_layers=2)
    save_draft(draft, tmp_path / "draft", target)
    assert read_json(tmp_path / "draft/draft.json")["shares"] == []
    assert torch.equal(load_draft(tmp_path / "draft", target)(IDS).logits, draft(IDS).logits)


@pytest.mark.parametrize("bits", [8, 7, 4])
def test_few_bits_move_no_weight_by_more_than_half_a_step(target, tmp_path, bits):
    draft = trained(target)
    with torch.no_grad():
        draft.model.layers[0].mlp.up_proj.weight[3] = 0.0
        draft.model.layers[0].mlp.up_proj.weight[4] = 1e-7
    state = {name: parameter.detach() for name, parameter in draft.model.layers.named_parameters()}
    small = quantise_layers(state, bits)
    back = dequantise_layers(small)
    assert back.keys() == state.keys()
    for name, weight in state.items():
        if weight.dim() == 1:
            assert torch.equal(back[name], weight)
        else:
            assert small[name].numel() == weight.numel() // (2 if bits == 4 else 1) and small[name].element_size() == 1
            step = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
            assert ((back[name] - weight).abs() <= step * 0.5001).all(), name
            assert (back[name] - weight).abs().max() > 0, name
    save_draft(draft, tmp_path / "draft", target, bits=bits)
    loaded = load_draft(tmp_path / "draft", target)
    for name, parameter in loaded.model.layers.named_parameters():
        assert torch.equal(parameter, back[name]), name
    save_draft(loaded, tmp_path / "again", target, bits=bits)
    assert (tmp_path / "again/layers.safetensors.gz").read_bytes() == (tmp_path / "draft/layers.safetensors.gz").read_bytes()


@pytest.mark.parametrize("asked", [{"bits": 8}, {"bits": 4}, {"base": "off-the-shelf"}, {"bits": 16}])
def test_few_bits_and_a_base_are_refused_for_a_whole_model(tmp_path, asked):
    with pytest.raises(LessonError, match="bits"):
        save_draft(random_target(seed=1), tmp_path / "draft", random_target(), **asked)
    assert list(tmp_path.iterdir()) == []


def test_a_draft_is_stored_as_its_difference_from_the_one_it_was_trained_from(target, tmp_path):
    base = trained(target)
    save_draft(base, tmp_path / "base", target, bits=8)
    draft = load_draft(tmp_path / "base", target)
    with torch.no_grad():
        for parameter in draft.model.layers.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.001)
    save_draft(draft, tmp_path / "draft", target, bits=4, base=str(tmp_path / "base"))
    loaded, begun = load_draft(tmp_path / "draft", target), load_draft(tmp_path / "base", target)
    for (name, weight), back, old in zip(draft.model.layers.named_parameters(), loaded.model.layers.parameters(), begun.model.layers.parameters()):
        step = (weight - old).abs().amax(-1, keepdim=True) / 7 if weight.dim() == 2 else torch.tensor(1e-6)
        assert ((back - weight).abs() <= 0.51 * step + 1e-7).all(), name
    coarse = quantise_layers({"w": draft.model.layers[0].mlp.up_proj.weight}, 4)  # the weights themselves in as many bits lie much further off
    assert (dequantise_layers(coarse)["w"] - draft.model.layers[0].mlp.up_proj.weight).abs().max() > 20 * (loaded.model.layers[0].mlp.up_proj.weight - draft.model.layers[0].mlp.up_proj.weight).abs().max()
    with pytest.raises(LessonError, match="from the draft that it replaces"):
        save_draft(draft, tmp_path / "base", target, base=str(tmp_path / "base"))
    # another draft in the base's place would give a draft that nobody has trained
    save_draft(trained(target), tmp_path / "base", target, bits=8)
    with pytest.raises(LessonError, match="difference from the draft .*base, which has changed since"):
        load_draft(tmp_path / "draft", target)
    save_draft(trained(target, (0,)), tmp_path / "other", target)
    with pytest.raises(LessonError, match="has other layers"):
        save_draft(draft, tmp_path / "draft", target, base=str(tmp_path / "other"))


def test_four_layers_of_the_embedded_target_ship_in_13_mb(embedded, tmp_path):
    target = load_model(embedded)
    save_draft(layers_draft(target, (0, 1, 2, 29)), tmp_path / "draft", target, bits=8)
    assert 12e6 < sum(path.stat().st_size for path in (tmp_path / "draft").iterdir()) < 14e6


def test_a_draft_of_another_target_is_refused(tmp_path):
    save_draft(trained(random_target()), tmp_path / "draft", random_target())
    with pytest.raises(LessonError, match="another target"):
        load_draft(tmp_path / "draft", random_target(seed=1))


def test_a_whole_draft_of_another_target_is_refused(tmp_path):
    save_draft(random_target(seed=1, num_hidden_layers=2), tmp_path / "draft", random_target())
    with pytest.raises(LessonError, match="another target"):
        load_draft(tmp_path / "draft", random_target(seed=2))


def test_a_draft_replaces_a_draft_and_nothing_else(tmp_path):
    target = random_target()
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        save_draft(trained(target), tmp_path / "empty", target)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    (tmp_path / "empty/notes.txt").write_text("beside a draft")
    for place in (tmp_path / "mine", tmp_path / "mine/thesis.txt", tmp_path / "empty"):
        with pytest.raises(LessonError, match="holds (thesis|notes).txt, which is no part of a draft"):
            save_draft(trained(target), place, target)
    with pytest.raises(LessonError, match="name another place"):
        save_draft(trained(target), tmp_path / "mine/thesis.txt/draft", target)
    assert (tmp_path / "empty/notes.txt").read_text() == "beside a draft"
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("note", ["[1]", "{}", '{"target_fingerprint": "", "target": "", "layers": [0]}'])
def test_a_note_that_is_none_is_refused(tmp_path, note):
    save_draft(trained(random_target()), tmp_path / "draft", random_target())
    (tmp_path / "draft/draft.json").write_text(note)
    with pytest.raises(LessonError, match="not the note of a draft"):
        load_draft(tmp_path / "draft", random_target())


@pytest.mark.parametrize("damage", ["torn", "gone", "fewer"])
def test_a_damaged_draft_is_refused(tmp_path, damage):
    target, folder = random_target(), tmp_path / "draft"
    save_draft(trained(target), folder, target)
    path = folder / "layers.safetensors"
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "gone":
        path.unlink()
    else:
        save_draft(trained(target, (0,)), tmp_path / "other", target)
        path.write_bytes((tmp_path / "other/layers.safetensors").read_bytes())
    with pytest.raises(LessonError):
        load_draft(folder, target)


def test_two_vocabularies_are_refused():
    with pytest.raises(LessonError, match="97 tokens and the draft 98"):
        check_pair(random_target(), random_target(vocab_size=98))


def test_a_models_fingerprint_is_that_of_its_weights_however_they_are_loaded(target, tmp_path):
    target.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    mark = model_fingerprint(target)
    assert mark == model_fingerprint(load_model(tmp_path / "model", dtype=torch.float32))
    assert mark == model_fingerprint(load_model(tmp_path / "model", dtype=torch.bfloat16))
    target.model.layers[3].mlp.up_proj.weight.mul_(1.01)
    assert mark != model_fingerprint(target)
    target.model.layers[3].mlp.up_proj.weight.copy_(load_model(tmp_path / "model").model.layers[3].mlp.up_proj.weight)
    assert mark == model_fingerprint(target)
    target.config.rms_norm_eps = 1e-3
    assert mark != model_fingerprint(target)
