"""Distilling from a store: which rows count, that cutting changes nothing, and that drafts get better."""

import math

import pytest
import torch
from support import naive_logits, sequences, store_of, tiny

from lessonlib.distil import distil as module
from lessonlib.distil.distil import backward, store_batch, train_draft
from lessonlib.distil.losses import DIVERGENCES, Objective, ce_loss, kl_loss
from lessonlib.distil.train import Recipe
from lessonlib.drafts.truncated import truncated_draft
from lessonlib.errors import LessonError
from lessonlib.pair.layers_draft import layers_draft

END = 60
SEQS = [(prompt, resp + [END]) for prompt, resp in sequences(16)]  # every answer with its end of turn
RECIPE = Recipe(steps=10, lr=1e-2, batch_size=8, save_every=4)
NAMES = ["ce", *DIVERGENCES]


@pytest.fixture(scope="module")
def target():
    return tiny(sharp=3, layers=3)


@pytest.fixture(scope="module")
def store(target, tmp_path_factory):
    return store_of(target, SEQS, tmp_path_factory.mktemp("labels"), k=8, temperatures=(2.0,))


@pytest.fixture()
def draft(target):
    return truncated_draft(target, 1)


def gradients(draft):
    return {name: p.grad.clone() for name, p in draft.named_parameters() if p.grad is not None}


def run(draft, store, indices, objective, size=None):
    """Gradients of the token mean over `indices`, in micro-batches of `size` sequences."""
    draft.zero_grad()
    batches = [store_batch(store, indices[i:i + (size or len(indices))], objective, "cpu") for i in range(0, len(indices), size or len(indices))]
    rows = sum(batch.rows for batch in batches)
    loss = sum(backward(draft, batch, 1 / rows, objective) for batch in batches) / rows
    return loss.item(), gradients(draft)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_a_batch_holds_one_row_for_each_response_token_and_no_other(kind, tmp_path):
    store = store_of(tiny(kind), SEQS, tmp_path)
    batch = store_batch(store, range(16), Objective("kl"), "cpu")
    own = [store.sequence(i) for i in range(16)]
    assert batch.rows == sum(len(resp) for _, resp in own) == len(batch.labels.ids) == len(batch.labels.resp_ids)
    assert (batch.labels.resp_ids == END).sum() >= 16
    ids = batch.ids.flatten()
    assert torch.equal(ids[batch.positions + 1], batch.labels.resp_ids)  # each row predicts the token after it
    firsts = batch.positions[torch.tensor([0, *(len(resp) for _, resp in own)]).cumsum(0)[:-1]]
    assert firsts.tolist() == [b * batch.ids.shape[1] + len(prompt) - 1 for b, (prompt, _) in enumerate(own)]
    assert store_batch(store, range(3), Objective("ce"), "cpu").labels.ids is None


@pytest.mark.parametrize("name", NAMES)
def test_only_rows_that_predict_a_response_have_a_gradient(draft, store, name):
    objective, kept = Objective(name), []
    batch = store_batch(store, range(8), objective, "cpu")

    def keep(module, args, output):
        if output.requires_grad:  # not the three tokens on which the head is tried out
            output.retain_grad()
            kept.append(output)

    draft.model.norm.register_forward_hook(keep)
    backward(draft, batch, 1.0, objective)
    grads = kept[0].grad.flatten(0, 1)
    counted = torch.zeros(len(grads), dtype=torch.bool).index_fill(0, batch.positions, True)
    assert (grads[~counted] == 0).all() and (~counted).sum() > 20  # the prompts but for their last token, last tokens, padding
    assert (grads[counted].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_token_mean_does_not_depend_on_the_micro_batches(draft, store, name):
    objective, indices = Objective(name, ce_weight=.1), list(range(8))
    loss, whole = run(draft, store, indices, objective)
    assert set(whole) == {n for n, p in draft.named_parameters() if n.startswith("model.layers.")}
    for size in (1, 2, 3):
        cut_loss, cut = run(draft, store, indices, objective, size)
        assert cut_loss == pytest.approx(loss, rel=1e-5)
        for parameter, gradient in whole.items():
            assert (cut[parameter] - gradient).abs().max() <= 2e-5 * gradient.abs().max() + 1e-8, parameter


@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_logits_change_nothing(draft, store, monkeypatch, name):
    loss, whole = run(draft, store, list(range(8)), Objective(name))
    sizes = []
    monkeypatch.setattr(module, "CHUNK", 7)
    handle = draft.lm_head.register_forward_pre_hook(lambda _, args: sizes.append(args[0].shape[:-1].numel()))
    cut_loss, cut = run(draft, store, list(range(8)), Objective(name))
    handle.remove()
    assert max(sizes) == 7 and cut_loss == pytest.approx(loss, rel=1e-5)
    for parameter, gradient in whole.items():
        assert (cut[parameter] - gradient).abs().max() <= 2e-5 * gradient.abs().max() + 1e-8, parameter


@pytest.mark.parametrize("name, T", [("ce", 1.0), ("kl", 1.0), ("kl", 2.0)])
def test_loss_and_gradient_are_those_of_whole_logits_one_sequence_at_a_time(draft, store, name, T):
    objective, indices = Objective(name, T), [3, 0, 9]
    loss, found = run(draft, store, indices, objective)
    draft.zero_grad()
    total, rows = 0.0, 0
    for i in indices:
        prompt, resp = store.sequence(i)
        logits = draft(torch.tensor([prompt + resp]), use_cache=False).logits[0, len(prompt) - 1:-1]
        ids, gaps, lse = store.kl_inputs(i, T)
        one = ce_loss(logits, torch.tensor(resp)) if name == "ce" else kl_loss(logits, ids, gaps, lse, T)
        total, rows = total + one * len(resp), rows + len(resp)
    (total / rows).backward()
    assert loss == pytest.approx((total / rows).item(), rel=1e-5)
    for parameter, gradient in gradients(draft).items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-6)


def plain_training(draft, store, recipe, order):
    """The same training as a page of plain torch."""
    optimizer = torch.optim.AdamW([p for p in draft.parameters() if p.requires_grad], betas=(.9, .95), weight_decay=0.0)
    for step, chosen in enumerate(order):
        warm = max(1, round(recipe.warmup * recipe.steps))
        optimizer.param_groups[0]["lr"] = recipe.lr * ((step + 1) / warm if step < warm else
                                                       (1 + math.cos(math.pi * (step - warm) / (recipe.steps - warm))) / 2)
        optimizer.zero_grad()
        logits, tokens = [], []
        for i in chosen:
            prompt, resp = store.sequence(i)
            logits.append(draft(torch.tensor([prompt + resp]), use_cache=False).logits[0, len(prompt) - 1:-1])
            tokens += resp
        torch.nn.functional.cross_entropy(torch.cat(logits), torch.tensor(tokens)).backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), recipe.clip)
        optimizer.step()


def seen_by(monkeypatch):
    """A list that fills with the sequences of each micro-batch."""
    seen, real = [], module.store_batch
    monkeypatch.setattr(module, "store_batch", lambda store, indices, *rest: seen.append(list(indices)) or real(store, indices, *rest))
    return seen


def test_training_equals_a_page_of_plain_torch(target, store, monkeypatch):
    recipe, seen = Recipe(steps=4, lr=1e-2, batch_size=8), seen_by(monkeypatch)
    ours, plain = truncated_draft(target, 1), truncated_draft(target, 1)
    train_draft(ours, store, recipe, "ce", show=False)
    plain_training(plain, store, recipe, seen)
    for (name, a), b in zip(ours.named_parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5, msg=name)


def test_every_sequence_once_an_epoch_in_an_order_of_the_seed(target, store, monkeypatch):
    seen = seen_by(monkeypatch)
    orders = []
    for seed, micro in ((0, None), (0, 3), (1, None)):
        seen.clear()
        train_draft(truncated_draft(target, 1), store, Recipe(steps=4, lr=1e-3, micro_batch=micro, seed=seed), "ce", show=False)
        flat = [i for part in seen for i in part]
        assert sorted(flat[:16]) == sorted(flat[16:]) == list(range(16)) and flat[:16] != flat[16:]
        assert max(map(len, seen)) == (micro or 8)
        orders.append(flat)
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("micro", [1, 2])
def test_a_training_is_the_same_whatever_the_micro_batches(target, store, micro):
    drafts = [truncated_draft(target, 1) for _ in range(2)]
    losses = [train_draft(draft, store, Recipe(steps=3, lr=1e-3, micro_batch=size), "kl", show=False) for draft, size in zip(drafts, (None, micro))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_every_objective_brings_the_draft_nearer(target, store, name):
    draft = truncated_draft(target, 1)

    def overlap():
        values = []
        for i in range(len(store)):
            p, q = (naive_logits(model, *store.sequence(i)).softmax(-1) for model in (target, draft))
            values.append(torch.minimum(p, q).sum(-1))
        return torch.cat(values).mean().item()

    before, frozen = overlap(), [p.clone() for p in target.parameters()]
    losses = train_draft(draft, store, Recipe(steps=40, lr=1e-2), name, show=False)
    assert sum(losses[-5:]) < .8 * sum(losses[:5])
    if name != "ce":  # these answers are random ids: what learns them learns nothing of the target's odds
        assert overlap() > before + .1
    assert all(torch.equal(a, b) for a, b in zip(frozen, target.parameters()))


def test_a_run_stopped_by_ctrl_c_ends_in_the_same_bits(target, store, tmp_path):
    def stop(step, loss):
        if step == 4:
            raise KeyboardInterrupt

    whole, cut, again = (truncated_draft(target, 1) for _ in range(3))
    losses = train_draft(whole, store, RECIPE, "kl", show=False)
    with pytest.raises(KeyboardInterrupt):
        train_draft(cut, store, RECIPE, "kl", tmp_path / "run", on_step=stop, show=False)
    assert train_draft(again, store, RECIPE, "kl", tmp_path / "run", show=False) == losses
    for a, b in zip(whole.parameters(), again.parameters()):
        assert torch.equal(a, b)


def test_a_checkpoint_of_other_labels_another_loss_or_another_draft_is_refused(target, store, tmp_path):
    train_draft(truncated_draft(target, 1), store, RECIPE, "kl", tmp_path / "run", show=False)
    fewer, wider = store_of(target, SEQS[:-1], tmp_path / "fewer", k=8), store_of(target, SEQS, tmp_path / "wider", k=9)
    middle = layers_draft(target, (1,))  # layers of the same names and shapes, cut out elsewhere
    trained = truncated_draft(target, 1)
    train_draft(trained, store, RECIPE, "ce", show=False)  # the same layers, trained before
    for draft, labels, objective in ((None, fewer, "kl"), (None, wider, "kl"), (None, store, "jsd"), (None, store, Objective("kl", 2.0)),
                                     (None, store, Objective("kl", ce_weight=.1)), (middle, store, "kl"), (trained, store, "kl"), (truncated_draft(target, 2), store, "kl")):
        with pytest.raises(LessonError, match="another run"):
            train_draft(draft or truncated_draft(target, 1), labels, RECIPE, objective, tmp_path / "run", show=False)


def test_labels_that_are_not_finite_stop_it_and_leave_the_draft_alone(target, store, draft, monkeypatch):
    real = store.kl_inputs
    monkeypatch.setattr(store, "kl_inputs", lambda i, T=1.0: (real(i)[0], real(i)[1] * math.nan, real(i)[2]))
    with pytest.raises(LessonError, match="step 1: the loss is nan"):
        train_draft(draft, store, RECIPE, "kl", show=False)
    assert all(torch.equal(a, b) for a, b in zip(draft.parameters(), truncated_draft(target, 1).parameters()))


def test_a_temperature_without_its_normaliser_is_refused_unless_none_is_needed(target, store, draft):
    with pytest.raises(LessonError, match="no normaliser for T = 4"):
        train_draft(draft, store, RECIPE, Objective("kl", 4.0), show=False)
    assert len(train_draft(draft, store, RECIPE, Objective("kl", 4.0, renormalise=True), show=False)) == 10
    assert len(train_draft(truncated_draft(target, 1), store, RECIPE, Objective("kl", 2.0), show=False)) == 10


def test_a_store_smaller_than_a_batch_is_refused(draft, store):
    with pytest.raises(LessonError, match="16 sequences, fewer than one batch of 17"):
        train_draft(draft, store, Recipe(steps=1, lr=1e-3, batch_size=17), show=False)


def test_an_objective_by_a_wrong_name_is_refused(draft, store):
    with pytest.raises(LessonError, match="choose one of"):
        train_draft(draft, store, RECIPE, "kll", show=False)


def test_bf16_products_train_fp32_weights(target, store):
    draft = truncated_draft(target, 1)
    losses = train_draft(draft, store, Recipe(steps=20, lr=1e-2), "kl", dtype=torch.bfloat16, show=False)
    assert losses[-1] < losses[0]
    assert {p.dtype for p in draft.parameters() if p.requires_grad} == {torch.float32}
    exact = train_draft(truncated_draft(target, 1), store, Recipe(steps=20, lr=1e-2), "kl", show=False)
    assert losses[0] != exact[0] and losses[0] == pytest.approx(exact[0], rel=.05)


def test_a_draft_over_a_low_precision_target_trains_in_that_precision_with_fp32_weights(target, tmp_path):
    low = tiny(sharp=3, layers=3).to(torch.bfloat16)
    draft, kept = truncated_draft(low, 1), []
    labels = store_of(low, SEQS, tmp_path, k=8)
    draft.lm_head.register_forward_hook(lambda module, args, output: kept.append(output.dtype))
    losses = train_draft(draft, labels, Recipe(steps=20, lr=1e-2), "kl", show=False)
    assert losses[-1] < losses[0] and set(kept) == {torch.bfloat16}
    assert {p.dtype for p in draft.parameters() if p.requires_grad} == {torch.float32}
    exact = train_draft(truncated_draft(target, 1), store_of(target, SEQS, tmp_path / "exact", k=8), Recipe(steps=20, lr=1e-2), "kl", show=False)
    assert losses[0] == pytest.approx(exact[0], rel=.05)


def test_a_packed_batch_holds_the_same_rows_and_labels(store):
    padded, packed = (store_batch(store, range(8), Objective("kl"), "cpu", pack=pack) for pack in (False, True))
    assert padded.packing is None and packed.ids.shape == (1, sum(len(p) + len(r) for p, r in map(store.sequence, range(8))))
    assert torch.equal(padded.ids.flatten()[padded.positions], packed.ids[0, packed.positions])
    assert torch.equal(padded.labels.ids, packed.labels.ids) and torch.equal(padded.labels.resp_ids, packed.labels.resp_ids)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_written_in_place_gives_what_autograd_gives(draft, store, name, monkeypatch):
    """The way a GPU goes, with the kernel's definition in the kernel's place."""
    loss, expected = run(draft, store, list(range(8)), Objective(name))

    def defined(objective, labels, vocabulary, scale):
        def loss_and_gradient(logits, rows):
            leaf = logits.clone().requires_grad_(True)
            losses = objective(leaf, labels.rows(rows))
            (losses.sum() * scale).backward()
            logits.copy_(leaf.grad)
            return losses.detach()
        return loss_and_gradient

    monkeypatch.setattr(Objective, "why_not_in_place", lambda self, device: None)
    monkeypatch.setattr(Objective, "in_place", defined)
    monkeypatch.setattr(module, "by_autograd", None)
    found_loss, found = run(draft, store, list(range(8)), Objective(name))
    assert found_loss == pytest.approx(loss, rel=1e-5) and set(found) == set(expected)
    for parameter, gradient in expected.items():
        assert (found[parameter] - gradient).abs().max() <= 2e-5 * gradient.abs().max() + 1e-8, parameter
