"""Healing on running text: the rows it is cut into, the loss it takes, and the perplexity it is judged by."""

import math

import pytest
import torch
from support import tiny, word_tokenizer

from lessonlib.distil import heal as module
from lessonlib.distil.heal import heal, perplexity, text_rows
from lessonlib.distil.train import Recipe
from lessonlib.errors import LessonError
from lessonlib.pair.layers_draft import layers_draft

ROWS = torch.randint(61, (12, 9), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
RECIPE = Recipe(steps=6, lr=1e-2, batch_size=4, save_every=2)


def test_documents_become_one_stream_of_rows():
    tokenizer = word_tokenizer()
    rows = text_rows(tokenizer, (text for text in ["red green", "one two three", "blue"]), 4, separator=1)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in ("red", "green", "blue", "one", "two", "three")}
    assert rows.tolist() == [[ids["red"], ids["green"], 1, ids["one"]], [ids["two"], ids["three"], 1, ids["blue"]]]
    assert rows.dtype == torch.int32
    with pytest.raises(LessonError, match="only 9 tokens, fewer than one row of 10"):
        text_rows(tokenizer, ["red green", "one two three", "blue"], 10, separator=1)
    for length in (0, 1):
        with pytest.raises(LessonError, match="rows of 2 or more"):
            text_rows(tokenizer, ["red green"], length, separator=1)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_perplexity_is_exp_of_the_mean_cross_entropy(kind):
    model, rows = tiny(kind), ROWS
    with torch.no_grad():
        logs = model(rows.long(), use_cache=False).logits.double().log_softmax(-1)[:, :-1]
    expected = math.exp(-logs.gather(-1, rows.long()[:, 1:, None]).mean())
    assert perplexity(model, rows, batch=5) == pytest.approx(expected, rel=1e-5)


def test_a_copy_of_the_target_has_nothing_to_learn():
    target = tiny(layers=2)
    assert max(map(abs, heal(layers_draft(target, (0, 1)), target, ROWS, Recipe(steps=1, lr=1e-3, batch_size=12)))) < 1e-6


def test_the_loss_is_the_mean_divergence_on_the_whole_vocabulary_at_every_position(monkeypatch):
    target = tiny(layers=3, sharp=3)
    draft = layers_draft(target, (0,))
    with torch.no_grad():
        log_p, log_q = (model(ROWS.long(), use_cache=False).logits.double().log_softmax(-1)[:, :-1] for model in (target, draft))
    expected = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()
    recipe = Recipe(steps=1, lr=1e-3, batch_size=12, micro_batch=5)
    assert heal(draft, target, ROWS, recipe)[0] == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert heal(layers_draft(target, (0,)), target, ROWS, recipe)[0] == pytest.approx(expected, rel=1e-5)


def test_healing_brings_the_draft_nearer_and_only_its_layers_move():
    target = tiny(layers=3, sharp=3)
    draft = layers_draft(target, (0,))
    before = [p.clone() for p in target.parameters()]
    losses = heal(draft, target, ROWS, Recipe(steps=40, lr=1e-2, batch_size=4))
    assert sum(losses[-5:]) < .7 * sum(losses[:5])
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters()))


def test_every_row_once_an_epoch(monkeypatch):
    target, seen, real = tiny(), [], module.TextBatch
    monkeypatch.setattr(module, "TextBatch", lambda ids: seen.extend(ids.tolist()) or real(ids))
    heal(layers_draft(target, (0,)), target, ROWS, RECIPE)
    assert sorted(seen[:12]) == sorted(seen[12:]) == sorted(ROWS.tolist()) and seen[:12] != seen[12:]


def test_a_stopped_healing_ends_in_the_same_bits_and_other_text_is_refused(tmp_path, monkeypatch):
    target = tiny(layers=3)
    whole, cut, again = (layers_draft(target, (0,)) for _ in range(3))
    losses, made, real = heal(whole, target, ROWS, RECIPE), [], module.TextBatch

    def stopping(ids):
        made.append(ids)
        if len(made) == 5:
            raise KeyboardInterrupt
        return real(ids)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "TextBatch", stopping)
        heal(cut, target, ROWS, RECIPE, tmp_path / "run")
    for draft, teacher, rows in ((layers_draft(target, (0,)), target, (ROWS + 1) % 61), (layers_draft(target, (1,)), target, ROWS),
                                 (layers_draft(target, (0,)), tiny(layers=3, seed=9), ROWS)):
        with pytest.raises(LessonError, match="another run"):
            heal(draft, teacher, rows, RECIPE, tmp_path / "run")
    assert heal(again, target, ROWS, RECIPE, tmp_path / "run") == losses
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters()))
