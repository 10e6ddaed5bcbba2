"""Small random models of every shape whose arithmetic is written out in lessonlib/pair/llama.py."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024)
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
    return model(torch.tensor([tokens], device=model.device), use_cache=False).logits[0]
