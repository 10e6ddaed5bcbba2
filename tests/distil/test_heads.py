"""Heads on a frozen target: what they learn is the right token (C31), from the right row, and nothing of the target moves."""

import pytest
import torch
from support import sequences, store_of, tiny

from lessonlib.distil.distil import batches_of, store_batch
from lessonlib.distil.heads import ALIKE, DISCOUNT, look_ahead, train_heads
from lessonlib.distil.losses import Objective
from lessonlib.distil.train import Recipe
from lessonlib.drafts.eagle import EagleHead
from lessonlib.drafts.medusa import MedusaHeads
from lessonlib.errors import LessonError
from lessonlib.measure.ahead import look_ahead_measured

SEQS = sequences(16)
COUNTING = [([start, start + 1], [start + 2 + i for i in range(12)]) for start in range(0, 44)]  # the next token is always the last one plus one


@pytest.fixture(scope="module")
def target():
    return tiny(sharp=3, layers=3)


@pytest.fixture(scope="module")
def store(target, tmp_path_factory):
    return store_of(target, SEQS, tmp_path_factory.mktemp("labels"), k=8)


def test_every_state_guesses_the_token_that_is_its_label(target, store):
    batch = store_batch(store, range(16), Objective("ce"), "cpu")
    ids, length, own = batch.ids.flatten(), batch.ids.shape[1], [store.sequence(i) for i in range(16)]
    hidden = target.model(batch.ids).last_hidden_state.flatten(0, 1)
    read, found = look_ahead(MedusaHeads(target, 3), target, batch.ids, batch.positions, 1)
    torch.testing.assert_close(read, hidden[batch.positions], rtol=1e-4, atol=1e-4)
    for k, (states, rows, starts) in enumerate(found, 1):
        assert len(states) == len(rows) == sum(max(0, len(resp) - k) for _, resp in own)
        # untrained, a head hands on the hidden state itself: of the position whose label is the token 1 + k further on
        at = batch.positions[rows] - k
        assert torch.equal(batch.positions[starts], at)
        torch.testing.assert_close(states, hidden[at], rtol=1e-4, atol=1e-4)
        assert torch.equal(batch.labels.rows(rows).resp_ids, ids[at + 1 + k])
    for number, (states, rows, starts) in enumerate(look_ahead(EagleHead(target, (1, 3)), target, batch.ids, batch.positions, 3)[1]):
        at = batch.positions[batch.positions % length > 0]
        assert len(states) == len(at) and torch.equal(batch.labels.rows(rows).resp_ids, ids[at + 1])
        texts = at // length
        begun = batch.positions[rows] - number  # the row of the round's first guess: a response token, with a pair before it
        may = torch.tensor([int(place) in batch.positions.tolist() and int(place) % length > 0 and int(place) // length == int(text) for place, text in zip(begun, texts)])
        assert torch.equal(starts >= 0, may) and torch.equal(batch.positions[starts[may]], begun[may])


def test_each_medusa_head_names_its_own_number_and_has_a_gradient_at_once(tmp_path):
    target = tiny(layers=1, hidden_size=64)
    store, heads, before = store_of(target, COUNTING, tmp_path, k=8), MedusaHeads(target, 3), [p.clone() for p in target.parameters()]
    seen = []

    def look(step, loss):
        if step == 0:
            seen.extend(head.w.weight.grad.abs().sum().item() for head in heads.heads)

    losses = train_heads(heads, target, store, Recipe(steps=250, lr=3e-2, batch_size=16), on_step=look, show=False)
    assert len(seen) == 3 and min(seen) > 0 and losses[-1] < 0.1 * losses[0]
    with torch.no_grad():
        hidden = target.model(torch.tensor([prompt + resp for prompt, resp in COUNTING])).last_hidden_state[:, 1:-4]
        for k, head in enumerate(heads.heads, 1):
            named, last = target.lm_head(head(hidden)).argmax(-1), torch.tensor([(prompt + resp)[1:-4] for prompt, resp in COUNTING])
            assert (named == last + 1 + k).float().mean() > 0.95
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters()))


@pytest.mark.parametrize("taps", [None, (1, 2, 3)])
def test_an_eagle_head_learns_in_every_pass(target, store, taps):
    head = EagleHead(target, taps)
    batch = store_batch(store, range(16), Objective("kl"), "cpu")

    def losses():
        with torch.no_grad():
            return [Objective("kl")(target.lm_head(states), batch.labels.rows(rows)).mean().item()
                    for states, rows, _ in look_ahead(head, target, batch.ids, batch.positions, 3)[1]]

    before = losses()
    train_heads(head, target, store, Recipe(steps=60, lr=3e-3, batch_size=16), passes=3, show=False)
    assert all(after < 0.8 * first for first, after in zip(before, losses()))


def test_micro_batches_change_nothing(target, store):
    weights = []
    for size in (16, 5):
        torch.manual_seed(0)
        head = EagleHead(target)
        train_heads(head, target, store, Recipe(steps=3, lr=1e-3, batch_size=16, micro_batch=size), passes=2, show=False)
        weights.append(torch.cat([p.detach().flatten() for p in head.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


def test_too_few_answers_are_refused(target, store):
    with pytest.raises(LessonError, match="fewer than one batch of 32"):
        train_heads(MedusaHeads(target), target, store, Recipe(steps=1, lr=1e-3, batch_size=32), show=False)


def test_the_loss_is_the_discounted_sum_of_all_guesses(target, store):
    """By hand, of the first step: pass by pass, or head by head."""
    (batch,) = batches_of(store, Recipe(steps=1, lr=1e-9, batch_size=16), Objective("kl"), "cpu", alike=ALIKE)(0)
    for heads in (EagleHead(target, (1, 3)), MedusaHeads(target, 2)):
        (loss,) = train_heads(heads, target, store, Recipe(steps=1, lr=1e-9, batch_size=16), "kl", passes=3, show=False)
        with torch.no_grad():
            ahead = look_ahead(heads, target, batch.ids, batch.positions, 3)[1]
            found = sum(DISCOUNT**n * Objective("kl")(target.lm_head(states), batch.labels.rows(rows)).sum().item() for n, (states, rows, _) in enumerate(ahead))
        assert len(ahead) == (3 if hasattr(heads, "taps") else 2) and loss == pytest.approx(found / batch.rows, rel=1e-4)


@pytest.mark.parametrize("make", [lambda target: MedusaHeads(target, 2), EagleHead])
def test_heads_learn_on_a_target_of_fewer_bits_and_are_measured_there(make, tmp_path):
    target = tiny(sharp=3, layers=3).bfloat16()
    heads, store = make(target), store_of(target, SEQS, tmp_path, k=8)
    train_heads(heads, target, store, Recipe(steps=2, lr=1e-3, batch_size=16), passes=2, show=False)
    assert {p.dtype for p in heads.parameters()} == {torch.float32}
    assert len(look_ahead_measured(heads.eval(), target, SEQS, 2).guesses) == 2


def test_a_checkpoint_of_other_layers_is_not_gone_on_with(target, store, tmp_path):
    recipe = Recipe(steps=1, lr=1e-3, batch_size=16)
    train_heads(EagleHead(target, (1, 3)), target, store, recipe, checkpoint=tmp_path / "x.training", show=False)
    with pytest.raises(LessonError, match="x.training"):
        train_heads(EagleHead(target, (2, 3)), target, store, recipe, checkpoint=tmp_path / "x.training", show=False)


def test_what_does_not_belong_together_is_refused(target, store):
    recipe = Recipe(steps=1, lr=1e-3, batch_size=16)
    for passes in (0, -1, 1.5, None):
        with pytest.raises(LessonError, match="practise"):
            train_heads(EagleHead(target), target, store, recipe, passes=passes, show=False)
    other = tiny(seed=4)
    with pytest.raises(LessonError, match="another target"):
        train_heads(MedusaHeads(other), other, store, recipe, show=False)
    with pytest.raises(LessonError, match="arithmetic lessonlib has, and GPT2LMHeadModel"):
        train_heads(torch.nn.Linear(1, 1), tiny("gpt2"), store, recipe, show=False)


def test_texts_too_short_for_a_head_train_the_others(target, tmp_path):
    store = store_of(target, [([1, 2], [3, 4]) for _ in range(8)], tmp_path, k=8)
    heads = MedusaHeads(target, 3)
    (loss,) = train_heads(heads, target, store, Recipe(steps=1, lr=1e-3, batch_size=8), show=False)
    assert loss > 0 and heads.heads[0].w.weight.abs().sum() > 0 and heads.heads[2].w.weight.abs().sum() == 0


@pytest.mark.parametrize("alike", [1, 3])
def test_none_is_left_out_for_its_length(target, tmp_path, alike):
    store = store_of(target, SEQS[:11], tmp_path, k=8)
    batches = batches_of(store, Recipe(steps=1, lr=1.0, batch_size=4, seed=5), Objective("ce"), "cpu", alike=alike)
    seen = {tuple(row) for step in range(60) for row in batches(step)[0].ids[:, :6].tolist()}
    assert len(seen) >= len({tuple((prompt + resp + [0] * 6)[:6]) for prompt, resp in SEQS[:11]})


@pytest.mark.parametrize("alike", [1, 3])
def test_every_text_once_an_epoch_and_batches_of_like_length_where_that_is_asked_for(target, store, alike):
    batches = batches_of(store, Recipe(steps=1, lr=1.0, batch_size=4, seed=5), Objective("ce"), "cpu", alike=alike)
    seen, padding = [], 0
    for step in range(8):  # two epochs of 16 texts
        (batch,) = batches(step)
        seen.append(batch.labels.resp_ids.tolist())
        padding += batch.ids.numel()
        assert torch.equal(batch.ids, batches(step)[0].ids)  # whenever it is asked for
    whole = sorted(token for _, resp in SEQS for token in resp)
    assert sorted(sum(seen[:4], [])) == sorted(sum(seen[4:], [])) == whole and seen[:4] != seen[4:]
    if alike > 1:
        mixed = batches_of(store, Recipe(steps=1, lr=1.0, batch_size=4, seed=5), Objective("ce"), "cpu")
        assert padding < sum(mixed(step)[0].ids.numel() for step in range(8))


def test_an_eagle_head_begins_by_adding_what_it_joins(target):
    head = EagleHead(target)
    feature, ids = torch.randn(3, target.config.hidden_size), torch.tensor([1, 2, 3])
    token = target.model.embed_tokens(ids)
    both = sum(x / x.pow(2).mean(-1, keepdim=True).sqrt() for x in (feature, token))
    assert torch.nn.functional.cosine_similarity(head.joined(feature, ids), both).min() > 0.9
