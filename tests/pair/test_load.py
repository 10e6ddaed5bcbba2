"""Loading: what goes wrong is one sentence, and nothing is loaded that is not the model."""

import json
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from lessonlib.errors import LessonError
from lessonlib.pair import load
from lessonlib.pair.presets import TINY


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                         num_attention_heads=2, max_position_embeddings=32))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def sentence(name, **options):
    with pytest.raises(LessonError) as caught:
        load.load_model(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_tiny_presets_target_and_tokenizer(embedded):
    target, tokenizer = load.load_target(TINY), load.load_tokenizer(TINY)
    assert not target.training and not any(parameter.requires_grad for parameter in target.parameters())
    assert {parameter.dtype for parameter in target.parameters()} == {torch.float32}
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    assert tokenizer.decode(target(ids).logits[0, -1].argmax()) == " Paris"


def test_nothing_that_bends_the_distribution_is_kept(folder):
    (folder / "generation_config.json").write_text(json.dumps(
        {"repetition_penalty": 1.1, "top_k": 50, "temperature": 0.6, "do_sample": True, "eos_token_id": [2, 7],
         "bos_token_id": 1}))
    kept = load.load_model(folder).generation_config
    assert kept.eos_token_id == [2, 7] and kept.bos_token_id == 1
    assert not any(getattr(kept, name, None) for name in ("repetition_penalty", "top_k", "temperature", "do_sample"))


def test_the_dtype_is_the_one_asked_for(folder):
    for dtype in (torch.float32, torch.bfloat16):
        assert {parameter.dtype for parameter in load.load_model(folder, dtype=dtype).parameters()} == {dtype}


def test_a_missing_folder(tmp_path, monkeypatch):
    for name in (tmp_path / "nothing", "./nothing", "a/b/c"):
        assert "missing" in sentence(name)
    monkeypatch.setattr(load, "CHECKPOINTS", tmp_path)
    said = sentence("off-the-shelf")
    assert said.index("python -m lessonlib generic-text") < said.index("python -m lessonlib heal --preset tiny --out checkpoints/off-the-shelf")
    assert "reference distilled" in sentence("distilled") and "reference heads" in sentence("eagle")


def test_a_misspelt_folder_beside_others_is_not_asked_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LessonError, match="folder .*models/misspelt is missing"):
        load.locate("models/misspelt")
    assert load.locate("some-organisation/model") == "some-organisation/model"


def test_a_folder_without_a_model(tmp_path):
    assert str(tmp_path) in sentence(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert "causal language model" in sentence(tmp_path)


def test_weights_that_are_torn_or_missing(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    assert "torn" in sentence(folder)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    assert "model.layers.1.mlp.up_proj.weight" in sentence(folder)


def test_offline_and_not_fetched_before(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "hub cannot be reached" in sentence("somebody/some-model")


@pytest.mark.parametrize("kind, words", [(GatedRepoError, "licence"), (RepositoryNotFoundError, "no model of that name")])
def test_what_the_hub_refuses(monkeypatch, kind, words):
    def refuse(*args, **kwargs):
        response = httpx.Response(403, request=httpx.Request("GET", "https://example.org"))
        try:
            raise kind("no", response=response)
        except kind as error:
            raise OSError("a long\nexplanation") from error

    monkeypatch.setattr(AutoConfig, "from_pretrained", refuse)
    assert words in sentence("somebody/some-model")


def test_a_model_larger_than_the_memory(tmp_path):
    LlamaConfig(hidden_size=65536, intermediate_size=262144, num_hidden_layers=200, num_attention_heads=64,
                architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "huge")
    assert "GB free" in sentence(tmp_path / "huge")


def test_memory_that_ends_while_loading(folder, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.")

    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", full)
    assert "does not fit into memory" in sentence(Path(folder))
