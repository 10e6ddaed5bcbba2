"""vLLM's log-probabilities become the labels that the scorer gives: the true top k, in order, each at its place, with the tail they leave."""

import pytest
import torch
from support import answers_of, naive_logits, sequences, tiny

from lessonlib.errors import LessonError
from lessonlib.kernels.topk_lse import NO_TAIL
from lessonlib.labels.score_answers import score_answers
from lessonlib.labels.scorer import score
from lessonlib.labels.vllm_scorer import top_of, vllm_score

SEQS = sequences(30)


class Reader:
    """Reads as vLLM does: the token that stands there first, then the k largest in no order, the last sequence first."""

    name = "vllm"

    def __init__(self, model):
        self.model, self.read = model, []

    def labels(self, seqs, k):
        for place in reversed(range(len(seqs))):
            self.read.append(seqs[place])
            odds = naive_logits(self.model, *seqs[place]).log_softmax(-1)
            yield place, [[[token, row[token].item()], *([i, row[i].item()] for i in sorted(row.topk(k).indices.tolist()) if i != token)]
                          for row, token in zip(odds, seqs[place][1])]


def test_the_true_top_k_is_kept_in_order():
    standing, top = [9, -5.0], [[4, -0.5], [7, -3.0], [2, -1.5]]
    ids, values = top_of([[standing, *top], [top[1], top[0], top[2]]], 3)
    assert ids.tolist() == [[4, 2, 7]] * 2 and values.tolist() == [[-0.5, -1.5, -3.0]] * 2
    assert ids.dtype == torch.long and values.dtype == torch.float32
    assert top_of([[standing, *top]], 4)[0].tolist() == [[4, 2, 7, 9]]
    with pytest.raises(LessonError, match="fewer than 4 log-probabilities"):
        top_of([[standing, *top], top], 4)


@pytest.mark.parametrize("k", [1, 8, 60])
def test_labels_equal_the_scorers_own(k):
    model = tiny(sharp=3)
    found, expected = list(vllm_score(Reader(model), SEQS, k)), list(score(model, SEQS, k))
    assert len(found) == len(expected) == len(SEQS)
    for a, b in zip(found, expected):
        assert torch.equal(a.ids, b.ids) and a.lse.eq(0).all() and a.log_tails == {}
        torch.testing.assert_close(a.logits, b.logits - b.lse[:, None], rtol=0, atol=1e-4)
        torch.testing.assert_close(a.log_tail.exp(), b.log_tail.exp(), rtol=0, atol=1e-5)


def test_a_tail_that_rounding_has_carried_below_zero_is_none():
    class Certain:
        def labels(self, seqs, k):
            yield 0, [[[1, 1e-7], [2, -20.0]]]

    assert next(vllm_score(Certain(), [([1], [1])], 2)).log_tail.tolist() == [NO_TAIL]


def test_a_store_by_vllm_holds_what_the_scorers_store_holds_and_says_who_read(tmp_path):
    model = tiny(sharp=2)
    stores = [score_answers(model, answers_of(model, SEQS), tmp_path / name, 8, show=False, engine=engine)
              for name, engine in (("ours", None), ("vllm", Reader(model)))]
    assert [store.manifest.get("engine") for store in stores] == [None, "vllm"]
    for i in range(len(SEQS)):
        assert stores[0].sequence(i) == stores[1].sequence(i)
        (ids, gaps, lse), (other_ids, other_gaps, other_lse) = (store.kl_inputs(i) for store in stores)
        assert torch.equal(ids, other_ids)
        torch.testing.assert_close((gaps - lse[:, None]).exp(), (other_gaps - other_lse[:, None]).exp(), rtol=0, atol=1e-3)


def test_an_interrupted_store_is_gone_on_with_by_the_same_engine_alone(tmp_path, monkeypatch):
    model = tiny()
    answers, reader = answers_of(model, SEQS), Reader(model)
    settings = dict(k=8, shard_rows=40, show=False)
    real, stop = Reader.labels, 20

    def stopping(self, seqs, k):
        for place, positions in sorted(real(self, seqs, k)):
            if place == stop:
                raise KeyboardInterrupt
            yield place, positions

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Reader, "labels", stopping)
        score_answers(model, answers, tmp_path, engine=reader, **settings)
    with pytest.raises(LessonError, match=r"another run \(engine differ\)"):
        score_answers(model, answers, tmp_path, **settings)
    reader.read.clear()
    assert score_answers(model, answers, tmp_path, engine=reader, **settings).rows == sum(len(resp) for _, resp in SEQS)
    assert 0 < len(reader.read) < len(SEQS)


def test_what_vllm_cannot_score_is_refused_before_a_store_is_begun(tmp_path):
    model = tiny()
    for seqs, temperatures, said in ((SEQS, (2.0,), "no tail mass at temperatures other than 1"), ([([1] * 100, [2] * 28)], (), "do not fit")):
        with pytest.raises(LessonError, match=said):
            score_answers(model, answers_of(model, seqs), tmp_path / "s", 8, temperatures, show=False, engine=Reader(model))
    assert list(tmp_path.iterdir()) == []
    assert score_answers(model, answers_of(model, [([1] * 100, [2] * 27)]), tmp_path / "s", 8, show=False, engine=Reader(model)).rows == 27
