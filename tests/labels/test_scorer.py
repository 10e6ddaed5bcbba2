"""The scorer, against reading each sequence alone and whole."""

import pytest
import torch
import torch.nn.functional as F
from support import naive_logits, sequences, tiny

from lessonlib.errors import LessonError
from lessonlib.labels import scorer
from lessonlib.labels.scorer import batches, score, score_one
from lessonlib.pair import llama

KINDS = ["llama", "qwen2", "gpt2"]
SEQS = sequences(9) + [([5], [6]), ([7] * 20, [1, 2]), ([3], list(range(30)))]


@pytest.mark.parametrize("batch_tokens", [1, 60, 4096])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_score_as_one_sequence_at_a_time(kind, batch_tokens):
    target = tiny(kind)
    found = list(score(target, SEQS, 8, batch_tokens, extra_temperatures=(0.5, 2.0)))
    assert len(found) == len(SEQS)
    for (prompt, resp), scored in zip(SEQS, found):
        naive = naive_logits(target, prompt, resp).double()
        ids = naive.argsort(-1, descending=True)[:, :8]
        assert torch.equal(scored.ids, ids)
        close = {"rtol": 0, "atol": 2e-5, "check_dtype": False}
        torch.testing.assert_close(scored.logits, naive.gather(-1, ids), **close)
        torch.testing.assert_close(scored.lse, naive.logsumexp(-1), **close)
        for T, log_tail in ((1.0, scored.log_tail), *scored.log_tails.items()):
            rest = (naive / T).scatter(-1, ids, -torch.inf).logsumexp(-1)
            torch.testing.assert_close(log_tail, rest - (naive / T).logsumexp(-1), rtol=0, atol=1e-4, check_dtype=False)
        assert list(scored.log_tails) == [0.5, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_score_one_gives_what_the_course_defines(kind):
    target, (prompt, resp) = tiny(kind, vocab=97), ([4, 8, 15], [16, 23, 42, 3, 2])
    ids, logits, lse = score_one(target, prompt, resp)
    assert (ids.dtype, logits.dtype, lse.dtype) == (torch.int32, torch.float16, torch.float32)
    assert ids.shape == logits.shape == (5, 64) and lse.shape == (5,)
    naive = naive_logits(target, prompt, resp)
    values, order = naive.topk(64)
    assert torch.equal(ids.long(), order)
    torch.testing.assert_close(logits.float(), values, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(lse, naive.logsumexp(-1))
    lse.requires_grad_(True).square().sum().backward()  # a reader may go on computing with them


def test_never_more_than_a_chunk_of_logits_is_held(monkeypatch):
    target, sizes = tiny(), []
    whole = list(score(target, SEQS, 8))
    monkeypatch.setitem(scorer.CHUNK, "cpu", 4)
    target.lm_head.register_forward_pre_hook(lambda module, args: sizes.append(args[0].shape[:-1].numel()))
    chunked = list(score(target, SEQS, 8))
    assert max(sizes) == 4 and sum(sizes) == sum(len(resp) for _, resp in SEQS)
    for a, b in zip(whole, chunked):
        assert torch.equal(a.ids, b.ids)
        torch.testing.assert_close(a.lse, b.lse)


def test_a_long_run_of_sequences_is_read_batch_by_batch():
    taken = []
    source = (taken.append(i) or sequence for i, sequence in enumerate(sequences(50, response=(5, 5), prompt=(5, 5))))
    found = score(tiny(), source, 4, batch_tokens=40)
    next(found)
    assert len(taken) <= 5  # four of a batch and the one that no longer fitted


def test_batches_keep_order_and_size():
    seqs = sequences(40)
    cut = list(batches(iter(seqs), 50))
    assert [sequence for batch in cut for sequence in batch] == seqs
    for batch in cut:
        assert len(batch) == 1 or len(batch) * max(len(p) + len(r) for p, r in batch) <= 50
    assert max(map(len, cut)) > 2
    assert [len(batch) for batch in batches(seqs, 1)] == [1] * 40


@pytest.mark.parametrize("bad, k, said", [
    (([1], []), 4, "no response"), (([], [1]), 4, "prompt is empty"), (([1], [61]), 4, "token id 61"),
    (([-1], [1]), 4, "token id -1"), (([1], [2]), 0, "k cannot be 0"), (([1], [2]), 62, "k cannot be 62"),
    (([1] * 100, [2] * 29), 4, "positions"), (([1, 2**63], [1]), 4, "token id 9223372036854775808"), (([1], [1, -2**70]), 4, "token id -"),
    (([1, 2.5, 3], [1]), 4, "flat list"), (([1], [2, float("nan"), 3]), 4, "flat list"), (([1, [2]], [1]), 4, "flat list")])
def test_what_cannot_be_scored_is_refused(bad, k, said):
    with pytest.raises(LessonError, match=said):
        list(score(tiny(), [bad], k))


@pytest.mark.parametrize("T", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_means_nothing_is_refused(T):
    with pytest.raises(LessonError, match="temperature"):
        list(score(tiny(), SEQS, 4, extra_temperatures=(T,)))


def test_broken_weights_are_noticed():
    target = tiny("qwen2")
    target.model.embed_tokens.weight[40, 3] = torch.nan
    with pytest.raises(LessonError, match="not finite"):
        list(score(target, [([40], [2])], 4))


def test_packed_batches_are_cut_by_their_tokens_alone():
    seqs = sequences(40)
    cut = list(batches(iter(seqs), 50, packed=True))
    assert [sequence for batch in cut for sequence in batch] == seqs
    assert all(len(batch) == 1 or sum(len(p) + len(r) for p, r in batch) <= 50 for batch in cut)
    assert len(cut) < len(list(batches(seqs, 50)))


def test_a_target_that_can_run_packed_rows_does_where_that_pays(monkeypatch):
    target, rows = tiny(), []

    def by_sequence(q, k, v, starts, longest, scale):
        rows.append(len(q))
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
        parts = zip(*(each.transpose(0, 1).split(starts.diff().tolist(), 1) for each in (q, k, v)))
        return torch.cat([F.scaled_dot_product_attention(*part, is_causal=True, scale=scale) for part in parts], 1).transpose(0, 1)

    padded = list(score(target, SEQS, 8))
    monkeypatch.setattr(scorer, "why_padded", lambda target: None)
    monkeypatch.setattr(llama, "packed_attention", by_sequence)
    found = list(score(target, SEQS, 8))
    assert rows == [sum(len(p) + len(r) for p, r in SEQS)] * len(target.model.layers)
    for a, b in zip(found, padded):
        assert torch.equal(a.ids, b.ids)
        torch.testing.assert_close(a.lse, b.lse, rtol=0, atol=2e-5)
    list(score(target, [([1, 2], [3, 4, 5])] * 6, 8))
    assert len(rows) == len(target.model.layers)  # equal lengths leave no padding
