"""Offline acceptance, against a naive reading in float64, and the bracket that the label store alone gives."""

import math

import numpy as np
import pytest
import torch
from support import naive_logits, sequences, store_of, tiny

from lessonlib.errors import LessonError
from lessonlib.labels.scorer import score
from lessonlib.labels.store import LabelStore, StoreWriter
from lessonlib.measure import offline
from lessonlib.measure.offline import alpha_bracket, alpha_gain, offline_alpha, offline_alphas
from lessonlib.pair.layers_draft import layers_draft

SEQS = sequences(14)


def pair(kind, sharp=2.0):
    """A target and a draft of the same vocabulary that agree somewhat."""
    target = tiny(kind, sharp=sharp, layers=3)
    return target, tiny(kind, seed=1, sharp=sharp, layers=1) if kind == "gpt2" else layers_draft(target, (0, 2))


def naive(draft, target, seqs, T):
    """Overlap, same argmax and KL at every position, in float64, a sequence and a position at a time."""
    found = []
    for prompt, resp in seqs:
        for target_row, draft_row in zip(naive_logits(target, prompt, resp).double(), naive_logits(draft, prompt, resp).double()):
            p, q = ((row / T).softmax(-1).numpy() for row in (target_row, draft_row))
            found.append((sum(min(a, b) for a, b in zip(p, q)), float(p.argmax() == q.argmax()), sum(p * np.log(p / q))))
    return np.array(found)


@pytest.mark.parametrize("T", [1.0, .5, 2.0])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_equals_a_naive_reading_and_unpacks_in_the_courses_order(kind, T):
    target, draft = (model.double() for model in pair(kind))  # in whose sums the order of the terms, which batches change, shows no more
    expected = naive(draft, target, SEQS, T)
    alpha, top1, kl, per_position = found = offline_alpha(draft, target, SEQS, T)
    np.testing.assert_allclose(per_position, expected[:, 0], atol=2e-6)
    assert (alpha, top1, kl) == pytest.approx(tuple(expected.mean(0)), rel=1e-5)
    assert .02 < alpha < .98 and per_position.dtype == np.float32
    assert found.lengths == tuple(len(resp) for _, resp in SEQS) and len(per_position) == sum(found.lengths)
    for estimate in (alpha, top1, kl):
        assert estimate.low < estimate < estimate.high


@pytest.mark.parametrize("batch_tokens, chunk", [(1, 512), (50, 3), (4096, 5)])
def test_batches_and_chunks_change_nothing(batch_tokens, chunk, monkeypatch):
    target, draft = (model.double() for model in pair("llama"))
    whole = offline_alpha(draft, target, SEQS)
    monkeypatch.setattr(offline, "CHUNK", chunk)
    found = offline_alpha(draft, target, iter(SEQS), batch_tokens=batch_tokens)
    np.testing.assert_allclose(found.per_position, whole.per_position, atol=2e-6)
    assert found[:3] == pytest.approx(whole[:3], rel=1e-5)
    assert (found.alpha.low, found.alpha.high) == pytest.approx((whole.alpha.low, whole.alpha.high), rel=1e-5)


def test_a_target_keeps_all_of_its_own_proposals():
    target = tiny(sharp=3)
    alpha, top1, kl, per_position = offline_alpha(target, target, SEQS)
    assert alpha == pytest.approx(1, abs=1e-6) and top1 == 1 and abs(kl) < 1e-6 and per_position.min() > 1 - 1e-5


def test_alpha_is_the_share_that_the_accept_rule_keeps():
    target, draft = pair("llama")
    generator, kept = torch.Generator().manual_seed(0), []
    for prompt, resp in SEQS:
        p, q = (naive_logits(model, prompt, resp).double().softmax(-1) for model in (target, draft))
        tokens = q.multinomial(2000, replacement=True, generator=generator)
        keep = torch.rand(tokens.shape, generator=generator, dtype=torch.float64) < (p / q).gather(-1, tokens)
        kept.append(keep.double().mean(-1))
    found = offline_alpha(draft, target, SEQS)
    np.testing.assert_allclose(torch.cat(kept), found.per_position, atol=.05)
    assert torch.cat(kept).mean().item() == pytest.approx(found.alpha, abs=.005)


def test_the_interval_narrows_with_more_sequences():
    target, draft = pair("llama")
    seqs = sequences(80)
    few, many = offline_alpha(draft, target, seqs[:8]).alpha, offline_alpha(draft, target, seqs).alpha
    assert many.high - many.low < .6 * (few.high - few.low)
    assert few.low < many < few.high
    one = offline_alpha(draft, target, seqs[:1]).alpha
    assert math.isnan(one.low) and math.isnan(one.high)


def test_about_95_of_100_intervals_hold_the_value_of_all_text():
    target, draft = pair("llama")
    seqs = sequences(1500, response=(1, 5), prompt=(1, 3))
    whole = offline_alpha(draft, target, seqs)
    truth, cuts = float(whole.alpha), np.split(whole.per_position.astype(float), np.cumsum(whole.lengths)[:-1])
    rng, held = np.random.default_rng(0), 0
    for _ in range(100):
        drawn = [cuts[i] for i in rng.integers(0, len(cuts), 40)]
        found = offline.ratio_estimate([cut.sum() for cut in drawn], [len(cut) for cut in drawn])
        held += found.low <= truth <= found.high
    assert 88 <= held <= 100


def test_alpha_at_each_place_in_the_answer():
    target, draft = pair("llama")
    found = offline_alpha(draft, target, SEQS)
    cuts = np.split(found.per_position, np.cumsum(found.lengths)[:-1])
    places = found.by_position()
    assert len(places) == max(found.lengths) == len(found.by_position(100)) and len(found.by_position(3)) == 3
    for place, estimate in enumerate(places):
        assert estimate == pytest.approx(np.mean([cut[place] for cut in cuts if len(cut) > place]), rel=1e-6)
    assert places[0].low < places[0] < places[0].high


def test_several_drafts_are_measured_with_one_reading_of_the_target(monkeypatch):
    target, draft = pair("llama")
    drafts, read = [draft, tiny(seed=2, sharp=2), target], []
    alone = [offline_alpha(one, target, SEQS, batch_tokens=60) for one in drafts]
    real = offline._read
    monkeypatch.setattr(offline, "_read", lambda model, batch: read.append(model) or real(model, batch))
    together = offline_alphas(drafts[:2], target, SEQS, batch_tokens=60)
    assert read.count(target) == read.count(draft) > 1 and len(together) == 2
    for one, other in zip(alone, together):
        assert one[:3] == other[:3] and (one.per_position == other.per_position).all() and one.lengths == other.lengths
    with pytest.raises(LessonError, match="61 tokens and the draft 62"):
        offline_alphas([draft, tiny(vocab=62)], target, SEQS)


def test_a_gain_is_the_difference_with_an_interval_of_its_own():
    target, draft = pair("llama")
    worse = layers_draft(target, (0, 2))
    for parameter in worse.model.layers.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=.01)
    seqs = sequences(60)
    after, before = offline_alphas([draft, worse], target, seqs)
    gain, loss = alpha_gain(after, before), alpha_gain(before, after)
    assert gain == pytest.approx(after.alpha - before.alpha, abs=1e-7) == -loss and gain.low < gain < gain.high
    assert gain.high - gain.low < .5 * (after.alpha.high - after.alpha.low)  # what makes a text hard drops out
    assert (loss.low, loss.high) == pytest.approx((-gain.high, -gain.low), abs=1e-12)
    assert alpha_gain(after, after) == 0 and alpha_gain(after, after).signed() == "+0.0000 [+0.0000, +0.0000]"
    with pytest.raises(LessonError, match="the same text"):
        alpha_gain(after, offline_alpha(draft, target, seqs[1:]))


@pytest.mark.parametrize("T", [0.0, -1.0, 1e-45, math.inf, math.nan])
def test_a_temperature_that_means_nothing_is_refused(T):
    with pytest.raises(LessonError, match="temperature of 0.0001 or more"):
        offline_alpha(tiny(), tiny(), SEQS, T)


@pytest.mark.parametrize("seqs", [[], [([1], [])], [([], [1])], [*SEQS, ([1], [])]])
def test_sequences_without_a_position_are_refused(seqs):
    with pytest.raises(LessonError, match="at least one prompt token and one response token"):
        offline_alpha(tiny(), tiny(), seqs)


def test_another_vocabulary_is_refused(tmp_path):
    with pytest.raises(LessonError, match="61 tokens and the draft 62"):
        offline_alpha(tiny(vocab=62), tiny(), SEQS)
    with pytest.raises(LessonError, match="scores 61 tokens and the draft scores 62"):
        alpha_bracket(tiny(vocab=62), store_of(tiny(), SEQS, tmp_path))


@pytest.mark.parametrize("seq, said", [(([1, 61], [2]), "token id 61"), (([1], [2, -1]), "token id -1"), (([1] * 100, [2] * 29), "128 positions")])
def test_a_sequence_that_a_model_cannot_read_is_refused(seq, said):
    with pytest.raises(LessonError, match=said):
        offline_alpha(tiny(seed=1), tiny(), [*SEQS, seq])


def test_a_draft_with_fewer_positions_than_the_target_is_asked_too():
    with pytest.raises(LessonError, match="8 positions"):
        offline_alpha(tiny(max_position_embeddings=8), tiny(), SEQS)


@pytest.mark.parametrize("k", [1, 4, 16, 61])
@pytest.mark.parametrize("sharp", [.5, 2.0, 5.0])
def test_the_bracket_holds_the_true_alpha(tmp_path, sharp, k):
    target, draft = pair("llama", sharp)
    store = store_of(target, SEQS, tmp_path, k=k)
    low, high = alpha_bracket(draft, store)
    true = float(offline_alpha(draft, target, SEQS).alpha)
    assert low - 2e-4 <= true <= high + 2e-4 and 0 <= low <= high <= 1 + 1e-6
    if k == 61:
        assert high - low < 1e-6
    # and it is the bracket of the definition, not a wider one
    bottom, top, count = 0.0, 0.0, 0
    for prompt, resp in SEQS:
        for row, guess in zip(naive_logits(target, prompt, resp).double().softmax(-1), naive_logits(draft, prompt, resp).double().softmax(-1)):
            best = row.topk(k).indices
            inside = torch.minimum(row[best], guess[best]).sum()
            rest = torch.ones(61, dtype=torch.bool).index_fill(0, best, False)
            bottom, top, count = bottom + inside, top + inside + min(row[rest].sum(), guess[rest].clamp_max(row[best].min()).sum()), count + 1
    assert (low, high) == pytest.approx((bottom.item() / count, top.item() / count), abs=2e-4)


def test_the_bracket_narrows_with_k_and_is_the_same_in_any_batch(tmp_path, monkeypatch):
    target, draft = pair("llama")
    widths = []
    for k in (2, 8, 32):
        bracket = alpha_bracket(draft, store_of(target, SEQS, tmp_path / str(k), k=k))
        widths.append(bracket.high - bracket.low)
    assert widths[0] > widths[1] > widths[2] > 0
    monkeypatch.setattr(offline, "CHUNK", 4)
    assert alpha_bracket(draft, LabelStore(tmp_path / "32"), batch_sequences=3) == pytest.approx(bracket, abs=1e-6)


def test_the_bracket_reads_nothing_but_the_store(tmp_path):
    target, draft = pair("llama")
    writer = StoreWriter(tmp_path, 4, {})
    for (prompt, resp), scored in zip(SEQS, score(target, SEQS, 4)):
        writer.add(prompt, resp, scored)
    writer.close()
    assert 0 < alpha_bracket(draft, LabelStore(tmp_path)).low < 1
