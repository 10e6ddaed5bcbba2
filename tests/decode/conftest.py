"""Tiny models to decode with: quick, in float64, with greedy texts that wander and drafts of every quality.

The fixture `tiny` hands out what stands here.
"""

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lessonlib.decode.drafter import Block, ModelDrafter, Sampling
from lessonlib.drafts.truncated import truncated_draft
from lessonlib.pair.layers_draft import cast_parameters


def tiny_llama(vocabulary=64, layers=2, seed=0, positions=160, scale=1.0):
    """A random Llama in float64 whose next token depends on what came before; `scale` is the spread of its logits."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=positions)
    return randomised(LlamaForCausalLM(config).double().eval().requires_grad_(False), scale)


def randomised(model, scale=1.0):
    """Give every matrix numbers that keep a vector's length, more or less; the head's make logits of spread `scale`."""
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            size = 1.0 if "embed" in name else (scale if "lm_head" in name else 1.5) / weight.shape[1] ** 0.5
            weight.copy_(torch.randn_like(weight) * size)
    return model


def disturbed(model, amount, seed=1):
    """A copy of a model with noise on every matrix, `amount` times its own spread: the more, the worse a draft."""
    torch.manual_seed(seed)
    copy = type(model)(model.config).to(model.dtype).eval().requires_grad_(False)
    copy.load_state_dict(model.state_dict())
    for weight in copy.parameters():
        if weight.dim() == 2:
            weight.add_(torch.randn_like(weight) * weight.std() * amount)
    return copy


def cut(model, layers=1):
    """The model's first layers under its own head, as the course truncates."""
    return cast_parameters(truncated_draft(model, layers), torch.float64)


def logits_without_cache(model, texts):
    """Logits [n, L, V] of equally long texts (lists of ids): one forward pass of transformers over the whole, no cache."""
    with torch.inference_mode():
        return model(torch.tensor(texts), use_cache=False).logits


def greedy_without_cache(model, prompts, n):
    """What plain greedy decoding writes after equally long prompts, every step reading the whole text anew.

    Returns the texts (lists of n ids) and the smallest gap between first and second logit met on the way.
    """
    texts, gap = torch.tensor(prompts), float("inf")
    for _ in range(n):
        best = logits_without_cache(model, texts.tolist())[:, -1].topk(2)
        gap = min(gap, (best.values[:, 0] - best.values[:, 1]).min().item())
        texts = torch.cat([texts, best.indices[:, :1]], 1)
    return texts[:, len(prompts[0]):].tolist(), gap


class Script:
    """Knows what the target will write and errs where told to: of each round's proposals, the first `kept` are right."""

    def __init__(self, truth, kept, vocabulary=64):
        self.truth, self.kept, self.vocabulary, self.asked = truth, kept, vocabulary, []

    def reset(self, prompt_ids, sampling):
        self.written, self.rounds = 0, iter(self.kept)

    def propose(self, K):
        self.asked.append(K)
        right = next(self.rounds)
        tokens = (self.truth + [0] * K)[self.written:self.written + K]
        if right < K:
            tokens[right] = (tokens[right] + 1) % self.vocabulary
        return Block(torch.tensor(tokens))

    def observe(self, tokens):
        self.written += len(tokens)


class Argmax(ModelDrafter):
    """Proposes its argmax even where the target samples."""

    def reset(self, prompt_ids, sampling):
        super().reset(prompt_ids, Sampling())


@pytest.fixture(scope="session")
def tiny():
    return SimpleNamespace(llama=tiny_llama, randomised=randomised, disturbed=disturbed, cut=cut,
                           Script=Script, Argmax=Argmax, logits_without_cache=logits_without_cache,
                           greedy_without_cache=greedy_without_cache)
