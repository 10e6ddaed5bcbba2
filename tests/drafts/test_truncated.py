"""Draft shape B: the target's first layers, everything else the target's own memory, frozen; it survives every way of saving."""

import pytest
import torch
from safetensors.torch import load_model, save_model
from support import sequences, store_of, tiny
from transformers import AutoModelForCausalLM

from lessonlib.distil.distil import train_draft
from lessonlib.distil.train import Recipe
from lessonlib.drafts.truncated import truncated_draft
from lessonlib.errors import LessonError
from lessonlib.pair.draft_files import load_draft, save_draft

IDS = torch.arange(24).view(2, 12)


@pytest.fixture(params=["llama", "qwen2"])
def target(request):
    return tiny(request.param, layers=5)


def test_it_has_the_first_layers_and_shares_the_rest_frozen(target):
    draft = truncated_draft(target)
    assert draft.kept_layers == (0, 1, 2, 3) and draft.config.num_hidden_layers == len(draft.model.layers) == 4
    for name in ("model.embed_tokens", "model.norm", "lm_head"):
        mine, theirs = draft.get_submodule(name).weight, target.get_submodule(name).weight
        assert mine.data_ptr() == theirs.data_ptr() and not mine.requires_grad
    memory = {p.data_ptr() for p in target.parameters()}
    for mine, theirs in zip(draft.model.layers, target.model.layers):
        for (name, own), copied in zip(mine.named_parameters(), theirs.parameters()):
            assert torch.equal(own, copied) and own.data_ptr() not in memory and own.requires_grad and own.dtype == torch.float32, name
    assert torch.equal(truncated_draft(target, 5)(IDS).logits, target(IDS).logits)


def test_training_moves_the_layers_alone_and_saving_keeps_them(target, tmp_path):
    store = store_of(target, sequences(8), tmp_path / "labels")
    draft, before = truncated_draft(target, 2), [p.clone() for p in target.parameters()]
    train_draft(draft, store, Recipe(steps=3, lr=1e-2), show=False)
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters()))
    assert all(not torch.equal(a, b) for a, b in zip(draft.model.layers.parameters(), target.model.layers.parameters()))
    expected = draft(IDS).logits
    save_draft(draft, tmp_path / "draft", target)
    assert torch.equal(load_draft(tmp_path / "draft", target)(IDS).logits, expected)
    draft.save_pretrained(tmp_path / "plain")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "plain")(IDS).logits, expected)
    save_model(draft, tmp_path / "alone.safetensors")
    empty = type(target)(draft.config).eval()
    load_model(empty, tmp_path / "alone.safetensors")
    assert torch.equal(empty(IDS).logits, expected)


def test_whole_numbers_of_another_type_do(target):
    assert truncated_draft(target, 2.0).kept_layers == truncated_draft(target, torch.tensor(2)).kept_layers == (0, 1)


@pytest.mark.parametrize("count, said", [(0, "keep at least 1"), (-1, "keep at least 1"), (1.5, "keep at least 1"), (True, "keep at least 1"),
                                         (6, "0 to 4")])
def test_layers_that_it_cannot_have_are_refused(target, count, said):
    with pytest.raises(LessonError, match=said):
        truncated_draft(target, count)


def test_a_model_of_another_shape_is_refused():
    with pytest.raises(LessonError, match="GPT2LMHeadModel"):
        truncated_draft(tiny("gpt2"), 1)
