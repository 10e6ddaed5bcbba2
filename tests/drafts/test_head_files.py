"""Heads on disk: what comes back is what was kept, and what is not theirs is refused in one sentence."""

import json

import pytest
import torch
from support import moved, sequences, tiny, ways_of

from lessonlib.decode.decoder import Decoder, spec_greedy
from lessonlib.decode.eagle import EagleDrafter
from lessonlib.decode.medusa import MedusaDrafter
from lessonlib.drafts.eagle import EagleHead
from lessonlib.decode.heads import heads_drafter
from lessonlib.drafts.head_files import heads_note, load_heads, noted_ways, save_heads
from lessonlib.drafts.medusa import MedusaHeads
from lessonlib.errors import LessonError

WAYS = ways_of([[0.5, 0.2], [0.4, 0.1], [0.3, 0.1]])


@pytest.fixture(scope="module")
def target():
    return tiny(sharp=3, layers=3)


MAKE = {"medusa": lambda target: moved(MedusaHeads(target, 3)), "eagle": lambda target: moved(EagleHead(target, (1, 3)))}


@pytest.mark.parametrize("kind", MAKE)
def test_heads_come_back_as_they_were(target, tmp_path, kind):
    heads = MAKE[kind](target)
    for bits, far in ((32, 0), (8, 0.02), (7, 0.04), (4, 0.2)):
        save_heads(heads, tmp_path / "heads", target, bits, WAYS, recipe="r")
        found = load_heads(tmp_path / "heads", target)
        assert not found.training and not any(weight.requires_grad for weight in found.parameters())
        for (name, weight), (other, stored) in zip(heads.named_parameters(), found.named_parameters(), strict=True):
            assert name == other and (weight - stored).abs().max() <= far * weight.abs().max()
    note = heads_note(tmp_path / "heads")
    assert [way for _, way in noted_ways(note)] == [way for _, way in WAYS] and [share for share, _ in noted_ways(note)] == pytest.approx([share for share, _ in WAYS]) and note["recipe"] == "r" and note["kind"] == kind


@pytest.mark.parametrize("kind, drafter", [("medusa", MedusaDrafter), ("eagle", EagleDrafter)])
def test_they_come_to_a_drafter_whose_tree_is_chosen_by_what_was_measured(target, tmp_path, kind, drafter):
    save_heads(MAKE[kind](target), tmp_path / "heads", target, ways=WAYS)
    decoder, prompt = Decoder(target), sequences(1)[0][0]
    plain = decoder.decode(prompt, 0, 20).tokens
    for tree in (None, 4):
        made = heads_drafter(tmp_path / "heads", target, tree)
        assert isinstance(made, drafter)
        proposed = []
        found = decoder.decode(prompt, 3, 20, made, on_round=lambda text, block, *rest: proposed.append(block))
        assert found.tokens == plain
        assert all((block.parents is None and len(block.tokens) == 3) if tree is None else block.parents == (0, 0, 1, 2) for block in proposed)


def test_what_is_not_theirs_is_refused(target, tmp_path):
    folder = tmp_path / "heads"
    with pytest.raises(LessonError, match="holds no heads"):
        load_heads(folder, target)
    save_heads(MAKE["medusa"](target), folder, target)
    with pytest.raises(LessonError, match="were made for another target"):
        load_heads(folder, tiny(layers=2))
    with pytest.raises(LessonError, match="no tree can be chosen"):
        heads_drafter(folder, target, 5)
    with pytest.raises(LessonError, match="cannot be stored in 3 bits"):
        save_heads(MAKE["medusa"](target), folder, target, 3)
    note = json.loads((folder / "draft.json").read_text())
    (folder / "draft.json").write_text(json.dumps({**note, "count": 2}))
    with pytest.raises(LessonError, match="does not hold the heads"):
        load_heads(folder, target)
    spoilt = MAKE["medusa"](target)
    with torch.no_grad():
        spoilt.heads[1].w.bias[3] = torch.nan
    save_heads(spoilt, folder, target)
    with pytest.raises(LessonError, match="no numbers"):
        load_heads(folder, target)
    with pytest.raises(LessonError, match="draft.json"):
        save_heads(spoilt, folder / "draft.json", target)
    (folder / "draft.json").write_text(json.dumps({"kind": "eagle"}))
    with pytest.raises(LessonError, match="not the whole note of eagle heads"):
        load_heads(folder, target)
    for wrong in ({"count": "three"}, {"count": True}, {"count": 0}, {"bits": 5}, {"bits": [32]}, {"ways": "none"}, {"ways": [[0.5]]}, {"ways": [["half", 0]]}, {"ways": [[0.5, 0.5]]}, {"ways": [[0.5, -1]]}, {"ways": [[0.5, 0, 0]]}):
        (folder / "draft.json").write_text(json.dumps({**note, **wrong}))
        with pytest.raises(LessonError, match="not the whole note of medusa heads"):
            load_heads(folder, target)
    (folder / "draft.json").write_text(json.dumps({**note, "kind": ["medusa"]}))
    with pytest.raises(LessonError, match="holds no heads"):
        load_heads(folder, target)
    (folder / "draft.json").write_text(json.dumps({**note, "kind": "eagle", "taps": ["last"]}))
    with pytest.raises(LessonError, match="not the whole note of eagle heads"):
        load_heads(folder, target)
    (folder / "draft.json").write_text(json.dumps(note))
    (folder / "heads.safetensors").write_bytes(b"torn")
    with pytest.raises(LessonError, match="torn"):
        load_heads(folder, target)
    save_heads(MAKE["medusa"](target), folder, target, 4)
    assert not (folder / "heads.safetensors").exists()
    whole = (folder / "heads.safetensors.gz").read_bytes()
    for torn in (whole[:-20], whole[:40], b"torn", whole[:60] + bytes(20) + whole[80:]):
        (folder / "heads.safetensors.gz").write_bytes(torn)
        with pytest.raises(LessonError, match="torn"):
            load_heads(folder, target)
    (folder / "heads.safetensors.gz").unlink()
    with pytest.raises(LessonError, match="is missing"):
        load_heads(folder, target)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(LessonError, match="thesis.txt"):
        save_heads(MAKE["medusa"](target), tmp_path / "other", target)


@pytest.mark.parametrize("place", [".", ".."])
def test_the_folder_where_one_is_is_not_taken(target, tmp_path, monkeypatch, place):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(LessonError, match="where you are"):
        save_heads(MAKE["medusa"](target), place, target)
    assert (tmp_path / "here").is_dir()


@pytest.mark.parametrize("kind", MAKE)
def test_heads_are_no_drafter_and_the_sentence_says_what_is(target, kind):
    with pytest.raises(LessonError, match="heads propose through EagleDrafter"):
        spec_greedy(target, MAKE[kind](target), [3, 5, 8], 2, 4)


@pytest.mark.parametrize("kind", MAKE)
def test_a_drafter_forgets_its_graphs_when_a_weight_of_its_heads_was_replaced(target, kind):
    heads = MAKE[kind](target)
    drafter, decoder = EagleDrafter(heads) if kind == "eagle" else MedusaDrafter(heads, target), Decoder(target)
    decoder.decode([3, 5, 8], 2, 4, drafter)
    drafter.replayed.made["key"] = "a graph"
    decoder.decode([3, 5, 8], 2, 4, drafter)
    assert drafter.replayed.made == {"key": "a graph"}
    name, old = next(iter(heads.named_parameters()))
    owner, _, last = name.rpartition(".")
    setattr(heads.get_submodule(owner), last, torch.nn.Parameter(old.detach().clone(), requires_grad=False))
    decoder.decode([3, 5, 8], 2, 4, drafter)
    assert drafter.replayed.made == {}
