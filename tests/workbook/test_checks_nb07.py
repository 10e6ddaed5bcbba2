"""Notebook 07's checks: slips as readers write them, in loops, in two steps and in one line, each known by its name."""

import copy

import pytest
import torch

from lessonlib.drafts.truncated import truncated_draft
from lessonlib.workbook import checks
from lessonlib.workbook.checks.nb07 import LLAMA_8B, SmallLlama


def by_hand(config, layers, bytes_per_weight=2, kv=None, embedding=0, head=1):
    d, n, size = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    kv = config["num_key_value_heads"] if kv is None else config[kv]
    queries, keys, values, output = d * n * size, d * kv * size, d * kv * size, n * size * d
    gate = up = down = d * config["intermediate_size"]
    each = queries + keys + values + output + gate + up + down
    return bytes_per_weight * (sum(each for _ in range(layers)) + (head + embedding) * d * config["vocab_size"])


def with_count(**options):
    return lambda config, layers, bytes_per_weight=2: by_hand(config, layers, bytes_per_weight, **options)


def seeds_own(target, n, share=True, thaw=True, first=None):
    """The seed's way: copy, slice, share by assigning whole modules."""
    d = copy.deepcopy(target)
    d.model.layers = torch.nn.ModuleList(list(d.model.layers)[first or slice(0, n)])
    d.config.num_hidden_layers = n
    if share:
        d.model.embed_tokens, d.model.norm, d.lm_head = target.model.embed_tokens, target.model.norm, target.lm_head
    for parameter in d.model.layers.parameters():
        parameter.requires_grad = thaw
    return d


def copies_the_head_again(target, n):
    d = seeds_own(target, n)
    d.lm_head = copy.deepcopy(target.lm_head)
    return d


def the_targets_own_layers(target, n):
    d = copy.copy(target)  # shallow: its modules are the target's, so give it some of its own
    d._modules = {"model": copy.copy(target.model), "lm_head": target.lm_head}
    d.model._modules = {**target.model._modules, "layers": torch.nn.ModuleList(target.model.layers[i] for i in range(n))}
    d.config = copy.deepcopy(target.config)
    d.config.num_hidden_layers = n
    d.model.layers.requires_grad_(True)
    return d


def renumbered_from_one(target, n):
    d = seeds_own(target, n)
    for number, layer in enumerate(d.model.layers, start=1):
        layer.self_attn.layer_idx = number
    return d


def no_norm(target, n):
    d = seeds_own(target, n)
    d.model.norm = torch.nn.Identity()
    return d


def every_other_layer(target, n):
    d = seeds_own(target, n, first=slice(None, None, 2))
    d.config.num_hidden_layers = len(d.model.layers)
    return d


def grid(alphas, costs, v, floor=True, layers=None):
    every = [(sum(a**i for i in range(K + 1)) / (K * costs[N] + v[K]), N, K) for N, a in alphas.items() if N in (layers or alphas) for K in v]
    speed, N, K = max(every)
    return (N, K, speed) if speed > 1 or not floor else (0, 0, 1.0)


def closed_form_without_bonus(alphas, costs, v):
    best = (0, 0, 1.0)
    for N in alphas:
        for K in v:
            speed = (1 - alphas[N] ** K) / (1 - alphas[N]) / (K * costs[N] + v[K])
            best = (N, K, speed) if speed > best[2] else best
    return best


@pytest.mark.parametrize("name, answer, mistake", [
    ("ex_7_1", with_count(head=0), "output layer left out"),
    ("ex_7_1", with_count(embedding=1), "embedding read whole"),
    ("ex_7_1", with_count(kv="num_attention_heads"), "keys and values as wide as queries"),
    ("ex_7_1", lambda config, layers, bytes_per_weight=2: by_hand(config, layers), "16 bits whatever was asked"),
    ("ex_7_1", lambda config, layers, bytes_per_weight=2: by_hand(config, layers, 1), "weights, not bytes"),
    ("ex_7_2", lambda target, n: seeds_own(target, n, share=False), "everything copied"),
    ("ex_7_2", copies_the_head_again, "head copied"),
    ("ex_7_2", the_targets_own_layers, "layers not copied"),
    ("ex_7_2", renumbered_from_one, "places in the cache"),
    ("ex_7_2", no_norm, "norm left out"),
    ("ex_7_2", lambda target, n: seeds_own(target, n, thaw=False), "nothing trains"),
    ("ex_7_2", lambda target, n: seeds_own(target, n, first=slice(-n, None)), "last layers"),
    ("ex_7_2", every_other_layer, None),
    ("ex_7_3", lambda *args: grid(*args, floor=False), "plain decoding forgotten"),
    ("ex_7_3", lambda a, c, v: grid(a, c, v, layers=[max(a, key=a.get)]), "highest alpha"),
    ("ex_7_3", lambda a, c, v: grid(a, c, v, layers=[min(c, key=c.get)]), "lowest c"),
    ("ex_7_3", lambda a, c, v: grid(a, c, dict.fromkeys(v, 1.0)), "v taken as 1"),
    ("ex_7_3", closed_form_without_bonus, "bonus token forgotten"),
])
def test_a_slip_in_the_readers_own_words_is_recognised(name, answer, mistake):
    verdict = getattr(checks, name).judge(answer)
    assert verdict.state == "wrong" and verdict.mistake == mistake, verdict.text


@pytest.mark.parametrize("name, answer", [
    ("ex_7_1", by_hand), ("ex_7_1", lambda *args: float(by_hand(*args))), ("ex_7_2", seeds_own), ("ex_7_2", truncated_draft), ("ex_7_3", grid)])
def test_a_right_answer_written_another_way_is_right(name, answer):
    verdict = getattr(checks, name).judge(answer)
    assert verdict.state == "right", verdict.text


def test_the_seeds_figures():
    layer = by_hand(LLAMA_8B, 1, 1) - by_hand(LLAMA_8B, 0, 1)
    assert round(layer / 1e6) == 218 and round(by_hand(LLAMA_8B, 0, 1) / 1e6) == 525
    assert round(checks.ex_7_1.library(LLAMA_8B, 4) / 1e9, 1) == 2.8


def test_a_draft_is_told_in_words():
    verdict = checks.ex_7_2.judge(lambda target, n: seeds_own(target, n, thaw=False))
    said = " ".join(verdict.text.split())
    assert "got ('layers 0, 1 (the config says 2)', 'their weights: copies', 'embedding: shared'" in said and "'trains: nothing'" in said
    assert "wanted ('layers 0, 1 (the config says 2)'" in said and "'trains: layers', 'read in pieces as at once', 'target as it was')" in said


def test_what_is_no_draft_is_refused_and_an_error_is_shown_with_its_line():
    assert "not right yet (shape)" in checks.ex_7_2.judge(lambda target, n: target.model.layers[:n]).text

    def slip(target, n):
        return target.model.layer[:n]

    for answer in (slip, torch.no_grad()(slip)):
        assert "in the line: return target.model.layer[:n]" in " ".join(checks.ex_7_2.judge(answer).text.split())


def test_a_recipe_is_copied_into_the_same_model_each_time():
    recipe = SmallLlama(5, 2, True)
    one, other = copy.deepcopy(recipe), copy.deepcopy(recipe)
    assert one is not other and all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    assert one.lm_head.weight.data_ptr() == one.model.embed_tokens.weight.data_ptr() and not any(p.requires_grad for p in one.parameters())
