"""The models that these tests decode with are what they say."""

import torch
from transformers import DynamicCache, LlamaForCausalLM


def test_the_lean_llama_is_transformers_llama(tiny):
    model = tiny.llama()
    texts = torch.randint(64, (1, 40), generator=torch.Generator().manual_seed(0))
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        pieces = [model(piece, past_key_values=cache).logits for piece in texts.split([9, 1, 1, 5, 24], 1)]
        last = model(texts, past_key_values=DynamicCache(config=model.config), logits_to_keep=2).logits
    whole = tiny.logits_without_cache(model, texts.tolist())
    # transformers norms and turns in fp32 whatever the weights are
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(last, whole[:, -2:], rtol=0, atol=1e-5)
    assert whole.std() > 0.5 and isinstance(model, LlamaForCausalLM)


def test_greedy_texts_wander(tiny):
    texts, _ = tiny.greedy_without_cache(tiny.llama(), [[1], [2], [3]], 64)
    assert min(len(set(text)) for text in texts) > 10
