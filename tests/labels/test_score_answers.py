"""From a file of answers to a finished store: the same labels whatever interrupts, and only for this target's own text."""

from itertools import islice

import pytest
import torch
from support import answers_of, naive_logits, sequences, store_of, tiny

from lessonlib.errors import LessonError
from lessonlib.files import write_json
from lessonlib.labels import score_answers as module
from lessonlib.labels.score_answers import score_answers
from lessonlib.labels.store import LabelStore, StoreWriter

SEQS = sequences(30, response=(0, 9))
KEPT = [(prompt, resp) for prompt, resp in SEQS if resp]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_a_store_holds_every_answer_once_with_the_targets_own_odds(kind, tmp_path):
    target = tiny(kind)
    store = store_of(target, SEQS, tmp_path, temperatures=(2,), shard_rows=50)
    assert store.manifest["dtype"] == "float32" and store.manifest["vocabulary"] == 61
    assert sorted(store.sequence(i) for i in range(len(store))) == sorted(KEPT)
    assert store.rows == sum(len(resp) for _, resp in KEPT) and len(store.manifest["shards"]) > 2
    for i in range(len(store)):
        naive = naive_logits(target, *store.sequence(i)).double()
        for T in (1, 2.0):
            ids, gaps, lse = store.kl_inputs(i, T)
            torch.testing.assert_close((gaps / T - lse[:, None]).exp(), (naive / T).softmax(-1).gather(-1, ids), rtol=0, atol=1e-3)
            assert torch.equal(ids, naive.topk(8).indices)


def test_the_order_wastes_little_padding_and_is_always_the_same():
    seqs = sequences(600)
    ordered = module._ordered(seqs)
    assert ordered == module._ordered(seqs) and sorted(ordered) == sorted(seqs)
    lengths = [len(prompt) + len(resp) for prompt, resp in ordered]
    assert sum(a > b for a, b in zip(lengths, lengths[1:])) <= 2  # it falls only between windows of 256


@pytest.mark.parametrize("stop", [0, 7, 19])
def test_an_interrupted_run_ends_in_the_same_files(tmp_path, monkeypatch, stop):
    target, whole, cut = tiny(), tmp_path / "whole", tmp_path / "cut"
    store_of(target, SEQS, whole, shard_rows=40)
    real = module.score

    def interrupted(*args, **kwargs):
        yield from islice(real(*args, **kwargs), stop)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "score", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store_of(target, SEQS, cut, shard_rows=40)
    if (cut / "manifest.json").exists():
        with pytest.raises(LessonError, match="unfinished"):
            LabelStore(cut)
    scored = []
    monkeypatch.setattr(module, "score", lambda target, waiting, *rest, **more: scored.extend(waiting) or
                        real(target, waiting, *rest, **more))
    store_of(target, SEQS, cut, shard_rows=40)
    assert files(cut) == files(whole)
    assert (len(scored) < len(KEPT)) == (stop == 19)  # finished shards are not scored again


@pytest.mark.parametrize("last", ["shard", "mark"])
def test_an_interruption_while_the_last_shard_is_written_loses_nothing(tmp_path, monkeypatch, last):
    target, whole, cut = tiny(), tmp_path / "whole", tmp_path / "cut"
    store_of(target, SEQS, whole)
    with monkeypatch.context() as patch:
        if last == "shard":  # the shard is there, the manifest does not know it
            def write(path, manifest):
                if manifest["shards"]:
                    raise KeyboardInterrupt
                write_json(path, manifest)

            patch.setattr("lessonlib.labels.store.write_json", write)
        else:  # everything is there but the mark that says so
            patch.setattr(StoreWriter, "close", lambda self: self._write_shard() or (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store_of(target, SEQS, cut)
    assert (cut / "labels-00000.safetensors").exists()
    assert store_of(target, SEQS, cut).rows == LabelStore(whole).rows
    assert files(cut) == files(whole)


def test_a_finished_store_is_opened_and_not_scored_again(tmp_path, monkeypatch):
    target = tiny()
    store_of(target, SEQS, tmp_path)
    before = files(tmp_path)
    monkeypatch.delattr(module, "score")
    assert store_of(target, SEQS, tmp_path).rows == sum(len(resp) for _, resp in SEQS)
    assert files(tmp_path) == before


@pytest.mark.parametrize("change, named", [
    (dict(k=9), "k"), (dict(seqs=SEQS[:-1]), "answers"), (dict(seqs=[(p, r[:3]) for p, r in SEQS]), "answers"),
    (dict(header={"seed": 5}), "answers, seed"), (dict(header={"tokenizer": "u"}), "answers, tokenizer"),
    (dict(header={"template": "u"}), "answers, template"), (dict(header={"temperature": 0.0}), "answers, text_temperature"),
    (dict(temperatures=(2.0,)), "temperatures")])
def test_a_folder_with_labels_of_another_run_is_refused(tmp_path, change, named):
    target = tiny()
    store_of(target, SEQS, tmp_path)
    before = files(tmp_path)
    settings = {"seqs": SEQS, "header": {}, "k": 8, "temperatures": ()} | change
    with pytest.raises(LessonError, match=rf"another run \({named} differ\)"):
        score_answers(target, answers_of(target, settings["seqs"], **settings["header"]), tmp_path, settings["k"],
                      settings["temperatures"], show=False)
    assert files(tmp_path) == before


def test_the_text_of_another_model_is_refused_before_any_work(tmp_path):
    with pytest.raises(LessonError, match="written by another model"):
        score_answers(tiny(seed=1), answers_of(tiny(), SEQS), tmp_path / "labels")
    with pytest.raises(LessonError, match="no answer"):
        score_answers(tiny(), answers_of(tiny(), [([1, 2], [])]), tmp_path / "labels")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("k, temperatures, seqs, said", [
    (99_999_999, (), SEQS, "k cannot be 99999999"), (0, (), SEQS, "k cannot be 0"), (8, (1e-320,), SEQS, "temperature 1e-320"),
    (8, (), [*SEQS, ([1], [61])], "token id 61")])
def test_what_cannot_be_scored_is_refused_before_a_store_is_begun(tmp_path, monkeypatch, k, temperatures, seqs, said):
    monkeypatch.delattr(module, "StoreWriter")
    with pytest.raises(LessonError, match=said):
        store_of(tiny(), seqs, tmp_path / "labels", k, temperatures=temperatures)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_store_can_be_is_refused_before_any_scoring(tmp_path, monkeypatch):
    monkeypatch.delattr(module, "score")
    (tmp_path / "labels-00000.safetensors").write_text("mine")
    for place, said in ((tmp_path, "holds files but no manifest"), (tmp_path / "labels-00000.safetensors", "is a file"),
                        (tmp_path / "labels-00000.safetensors" / "s", "is a file")):
        with pytest.raises(LessonError, match=said):
            store_of(tiny(), SEQS, place)
    assert files(tmp_path) == {"labels-00000.safetensors": b"mine"}


def test_a_run_that_left_no_shard_yet_does_not_hold_its_folder(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "score", lambda *args, **more: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store_of(tiny(), SEQS, tmp_path, k=9)
    assert list(files(tmp_path)) == ["manifest.json"]
    assert store_of(tiny(), SEQS, tmp_path, k=8).k == 8
