"""The label store: its size, its precision, and a refusal for everything that does not match."""

import json
import os

import pytest
import torch
from safetensors import SafetensorError

from lessonlib.errors import LessonError
from lessonlib.kernels.topk_lse import topk_lse
from lessonlib.labels.scorer import Scored
from lessonlib.labels.store import LabelStore, StoreWriter
from lessonlib.pair import tensor_files

FACTS = {"target": "a", "tokenizer": "b", "vocabulary": 200_000}


def scored_of(logits, k, temperatures=()):
    """What the scorer would keep of rows of logits."""
    return Scored(*topk_lse(logits, k), {T: topk_lse(logits / T, k)[3] for T in temperatures})


def write(folder, rows, k, temperatures=(), shard_rows=4096):
    """A finished store of one-token prompts, a sequence for each [R, V] of logits."""
    writer = StoreWriter(folder, k, FACTS, temperatures, shard_rows)
    for i, logits in enumerate(rows):
        writer.add([i], list(range(len(logits))), scored_of(logits, k, writer.temperatures))
    writer.close()
    return LabelStore(folder)


def random_rows(count=6, vocabulary=500, spread=4.0, rows=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, vocabulary, generator=generator) * spread + 3 for _ in range(count)]


def peaky_rows(rows=16, vocabulary=151_936):
    """64 logits from 30 down to 12, each row with its own offset, over a large vocabulary of small ones."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocabulary, generator=generator) * 2
    favourites = torch.stack([torch.randperm(vocabulary, generator=generator)[:64] for _ in range(rows)])
    spaced = torch.linspace(30, 12, 64) + torch.rand(rows, 1, generator=generator)
    return logits.scatter(-1, favourites, spaced)


def data_bytes(path):
    """The bytes of a safetensors file that are tensors: all but the 8-byte length and the header."""
    raw = path.read_bytes()
    return len(raw) - 8 - int.from_bytes(raw[:8], "little")


def test_388_bytes_a_position(tmp_path):
    store = write(tmp_path, random_rows(10, rows=300), 64, shard_rows=1000)
    shards = sorted(tmp_path.glob("labels-*"))
    assert len(shards) == 4 and store.rows == 3000
    assert [data_bytes(path) for path in shards] == [388 * 900] * 3 + [388 * 300]
    assert sum(path.stat().st_size for path in shards) / store.rows < 389


def test_what_goes_in_comes_out(tmp_path):
    rows = random_rows()
    store = write(tmp_path, rows, 8, shard_rows=25)
    assert len(store) == 6 and store.rows == 60 and len(list(tmp_path.glob("labels-*"))) == 3
    for i, logits in enumerate(rows):
        assert store.sequence(i) == ([i], list(range(10)))
        ids, gaps, lse = store.kl_inputs(i)
        values, order = logits.topk(8)
        assert torch.equal(ids, order) and ids.dtype == torch.int64
        assert (gaps[:, 0] == 0).all() and (gaps.diff() <= 0).all()
        torch.testing.assert_close(gaps, values - values[:, :1], rtol=5e-4, atol=0)
        tail = logits.double().softmax(-1).scatter(-1, order, 0.0).sum(-1)
        torch.testing.assert_close(store.log_tail(i).double().exp(), tail, rtol=1e-4, atol=0)
        torch.testing.assert_close(1 - (gaps.double() - lse[:, None]).exp().sum(-1), tail, rtol=1e-4, atol=1e-14)
    torch.testing.assert_close(store.top_mass(), torch.cat([1 - store.log_tail(i).exp() for i in range(6)]))


def test_probabilities_are_within_a_thousandth_where_raw_fp16_logits_are_not(tmp_path):
    rows = peaky_rows()
    store = write(tmp_path, [rows], 64)
    ids, gaps, lse = store.kl_inputs(0)
    exact = rows.softmax(-1).gather(-1, ids)
    worst = ((gaps - lse[:, None]).exp() - exact).abs().amax(-1)
    assert worst.max() < 1e-3 and worst.mean() < 1.5e-4
    values = rows.gather(-1, ids)
    raw = ((values.half().float() - rows.logsumexp(-1, keepdim=True)).exp() - exact).abs().amax(-1)
    assert (raw > 1e-3).float().mean() > 0.4  # the rows are nasty enough to tell


def test_no_tail_is_ever_negative(tmp_path):
    rows = peaky_rows()
    ids, values, lse, _ = topk_lse(rows, 64)
    naive = 1 - (values.half().double() - lse.double()[:, None]).exp().sum(-1)
    assert 0.2 < (naive < 0).float().mean() < 0.8  # fp16 logits beside the exact logsumexp: negative in about half the rows
    for name, logits in (("peaky", rows), ("flat", torch.zeros(4, 151_936)), ("random", torch.cat(random_rows()))):
        store = write(tmp_path / name, [logits], 64)
        ids, gaps, lse = store.kl_inputs(0)
        mass = (gaps.double() - lse[:, None]).exp().sum(-1)
        assert (mass <= 1).all() and (mass > 0).all() and torch.isfinite(lse).all() and torch.isfinite(gaps).all()
        tail = logits.double().softmax(-1).scatter(-1, ids, 0.0).sum(-1)
        torch.testing.assert_close(1 - mass, tail, rtol=1e-4, atol=1e-14)


@pytest.mark.parametrize("k", [3, 5])
def test_nothing_outside_the_k_has_its_own_mark(tmp_path, k):
    logits = torch.tensor([[1.0, 0.5, 0.0, -torch.inf, -torch.inf]])
    store = write(tmp_path, [logits], k)
    ids, gaps, lse = store.kl_inputs(0)
    assert store.log_tail(0).exp().item() == 0 and torch.isfinite(gaps).all() and torch.isfinite(lse).all()
    torch.testing.assert_close((gaps - lse[:, None]).exp()[:, :3], logits.double().softmax(-1)[:, :3], rtol=1e-3, atol=0)
    assert (gaps - lse[:, None]).exp().sum().item() == pytest.approx(1, abs=1e-15)


def test_ids_past_65535_come_back(tmp_path):
    logits = torch.zeros(3, 151_936)
    logits[:, 151_643], logits[:, 65_536], logits[:, 20_571] = 9.0, 8.0, 7.0
    writer = StoreWriter(tmp_path, 3, FACTS)
    writer.add([151_643, 151_644], [151_643, 7, 151_935], scored_of(logits, 3))
    writer.close()
    store = LabelStore(tmp_path)
    assert store.kl_inputs(0)[0].tolist() == [[151_643, 65_536, 20_571]] * 3
    assert store.sequence(0) == ([151_643, 151_644], [151_643, 7, 151_935])


def test_another_temperature_needs_its_own_normaliser(tmp_path):
    z = torch.tensor([[4.0, 2, 1, 0, -1]])
    with pytest.raises(LessonError, match="no normaliser for T = 2"):
        write(tmp_path / "one", [z], 3).kl_inputs(0, T=2.0)
    store = write(tmp_path / "two", [z], 3, temperatures=(2,))
    for T in (2, 2.0):
        ids, gaps, lse = store.kl_inputs(0, T)
        p = (gaps / T - lse[:, None]).exp()
        assert p[0].tolist() == pytest.approx([.5530, .2034, .1234], abs=6e-5)
        assert 1 - p.sum() == pytest.approx(.1202, abs=6e-5)
        assert store.log_tail(0, T).exp() == pytest.approx(.1202, abs=6e-5)
    # dividing the logsumexp of T = 1 by T is not it
    wrong = 1 - (z[0, :3] / 2 - z.logsumexp(-1) / 2).exp().sum()
    assert wrong == pytest.approx(-.446, abs=5e-4)
    with pytest.raises(LessonError, match=r"no normaliser for T = 3.0 \(they have: 1, 2.0\)"):
        store.log_tail(0, 3.0)


def edited(folder, **facts):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | facts))


def flip(path, where=-1):
    raw = bytearray(path.read_bytes())
    raw[where] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("damage, said", [
    (lambda folder: (folder / "labels-00001.safetensors").write_bytes(b"x"), "torn"),
    (lambda folder: os.truncate(folder / "labels-00001.safetensors", 300), "torn"),
    (lambda folder: os.truncate(folder / "texts-00000.safetensors", 300), "torn"),
    (lambda folder: (folder / "labels-00000.safetensors").unlink(), "torn"),
    (lambda folder: flip(folder / "labels-00000.safetensors"), "damaged"),
    (lambda folder: flip(folder / "texts-00001.safetensors"), "damaged"),
    (lambda folder: flip(folder / "labels-00000.safetensors", 10), "damaged"),
    (lambda folder: edited(folder, complete=False), "unfinished"),
    (lambda folder: edited(folder, labels=2), "this version"),
    (lambda folder: (folder / "manifest.json").unlink(), "no label store"),
    (lambda folder: os.truncate(folder / "manifest.json", 40), "cannot be read as JSON"),
])
def test_a_damaged_store_is_refused(tmp_path, damage, said):
    write(tmp_path, random_rows(), 8, shard_rows=40)
    damage(tmp_path)
    with pytest.raises(LessonError, match=said) as caught:
        LabelStore(tmp_path)
    assert "\n" not in str(caught.value)


SHARD = {"rows": 60, "sequences": 6, "labels": {"bytes": 1}, "texts": {}}


@pytest.mark.parametrize("change", [
    lambda m: [1], lambda m: {name: m[name] for name in m if name != "k"}, lambda m: {name: m[name] for name in m if name != "complete"},
    lambda m: {name: m[name] for name in m if name != "shards"}, lambda m: m | {"shards": "x"}, lambda m: m | {"shards": {}},
    lambda m: m | {"shards": [1]},
    lambda m: m | {"shards": [SHARD]}, lambda m: m | {"shards": [], "rows": 0, "sequences": 0}, lambda m: m | {"k": "8"}, lambda m: m | {"k": 9},
    lambda m: m | {"rows": 61}, lambda m: m | {"sequences": 5}, lambda m: m | {"vocabulary": 5}, lambda m: m | {"vocabulary": "x"},
    lambda m: m | {"temperatures": [2.0]}, lambda m: m | {"complete": "yes"},
    lambda m: m | {"rows": 59, "shards": [m["shards"][0] | {"rows": 59}]},
    lambda m: m | {"sequences": 7, "shards": [m["shards"][0] | {"sequences": 7}]}])
def test_a_manifest_of_the_wrong_shape_is_one_sentence(tmp_path, change):
    write(tmp_path, random_rows(), 8)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(change(manifest)))
    with pytest.raises(LessonError, match="torn or edited; delete it and score again"):
        LabelStore(tmp_path)
    try:
        StoreWriter(tmp_path, 8, FACTS)
    except LessonError as error:
        assert "torn or edited" in str(error) or "another run" in str(error)


@pytest.mark.parametrize("name, value", [("k", 64), ("target", "z"), ("tokenizer", "z"), ("vocabulary", 7)])
def test_a_store_of_something_else_is_refused(tmp_path, name, value):
    write(tmp_path, random_rows(), 8)
    LabelStore(tmp_path, {"k": 8, **FACTS})
    with pytest.raises(LessonError, match=f"another {name}"):
        LabelStore(tmp_path, {"k": 8, **FACTS, name: value})


@pytest.mark.parametrize("k, facts, temperatures, named", [
    (9, FACTS, (), "k"), (8, FACTS | {"target": "z"}, (), "target"), (8, FACTS, (2.0,), "temperatures"),
    (8, {"target": "a"}, (), "tokenizer, vocabulary"), (8, FACTS | {"seed": 1}, (), "seed")])
def test_a_store_is_not_gone_on_with_by_another_run(tmp_path, k, facts, temperatures, named):
    write(tmp_path, random_rows(), 8)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(LessonError, match=rf"\({named} differ\)"):
        StoreWriter(tmp_path, k, facts, temperatures)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_response_longer_than_a_shard_is_refused(tmp_path):
    with pytest.raises(LessonError, match="larger shard_rows"):
        write(tmp_path, random_rows(), 8, shard_rows=9)


def full_disk(*args, **kwargs):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_a_full_disk_keeps_what_was_finished_and_nothing_half_written(tmp_path, monkeypatch):
    rows = random_rows()
    write(tmp_path / "whole", rows, 8, shard_rows=20)
    writer = StoreWriter(tmp_path / "cut", 8, FACTS, shard_rows=20)
    for i in range(4):
        writer.add([i], list(range(10)), scored_of(rows[i], 8))  # the third writes the first shard
    with monkeypatch.context() as patch:
        patch.setattr(tensor_files, "save_file", full_disk)
        with pytest.raises(LessonError, match="disk is full"):
            writer.add([4], list(range(10)), scored_of(rows[4], 8))
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == \
        ["labels-00000.safetensors", "manifest.json", "texts-00000.safetensors"]
    with pytest.raises(LessonError, match="unfinished"):
        LabelStore(tmp_path / "cut")
    again = StoreWriter(tmp_path / "cut", 8, FACTS, shard_rows=20)
    assert again.sequences == 2 and not again.complete
    for i in range(2, 6):
        again.add([i], list(range(10)), scored_of(rows[i], 8))
    again.close()
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "cut")]
    assert files[0] == files[1]


def test_shards_are_mapped_and_not_copied_into_memory(tmp_path):
    store, path = write(tmp_path, random_rows(), 8), tmp_path / "labels-00000.safetensors"
    assert store.kl_inputs(5)[0].any()
    with open(path, "rb+") as file:  # what changes in the file changes in what is read
        file.seek(path.stat().st_size - data_bytes(path))
        file.write(bytes(data_bytes(path)))
    assert not store.kl_inputs(5)[0].any()
