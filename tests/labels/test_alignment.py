"""The self-check of the labels: content with the target's own, loud about a shift by one row in either direction."""

import pytest
import torch
from support import sequences, store_of, tiny

from lessonlib.errors import LessonError
from lessonlib.labels.alignment import check_alignment
from lessonlib.labels.scorer import Scored, score
from lessonlib.labels.store import LabelStore, StoreWriter

SEQS = sequences(10, response=(6, 12))


def changed_store(target, seqs, folder, change):
    """A store whose labels went through `change` before they were written."""
    writer = StoreWriter(folder, 8, {})
    for number, ((prompt, resp), scored) in enumerate(zip(seqs, score(target, seqs, 8))):
        parts = (scored.ids, scored.logits, scored.lse, scored.log_tail)
        writer.add(prompt, resp, Scored(*(change(part, number) for part in parts), {}))
    writer.close()
    return LabelStore(folder)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_the_targets_own_labels_agree_at_every_position(kind, tmp_path):
    target = tiny(kind, sharp=3)
    store = store_of(target, SEQS, tmp_path)
    found = check_alignment(target, store, sequences=100)
    assert found.rows == store.rows
    assert abs(found.kl) < 1e-6 and found.kl_late > 0.1 and found.kl_early > 0.1
    assert check_alignment(target, store, sequences=1).rows == len(store.sequence(0)[1])


@pytest.mark.parametrize("by, said", [(1, r"late: row j holds the odds of response token j - 1"),
                                      (-1, r"early: row j holds the odds of response token j \+ 1")])
@pytest.mark.parametrize("wraps", [True, False])
def test_rows_shifted_by_one_are_refused_and_the_shift_is_named(tmp_path, by, said, wraps):
    target = tiny(sharp=3)

    def shifted(part, number):
        part = part.roll(by, 0)
        if not wraps:  # the row at the end comes from a position outside the response, as a wrong offset makes it
            part[0 if by == 1 else -1] = part[3]
        return part

    store = changed_store(target, SEQS, tmp_path, shifted)
    with pytest.raises(LessonError, match=f"shifted by one row, {said}") as caught:
        check_alignment(target, store)
    assert "prompt length - 1 + j" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("response, said", [((1, 1), "not this target's odds"), ((2, 2), "shifted by one row, early")])
def test_a_shift_is_noticed_in_the_shortest_answers(tmp_path, response, said):
    target, seqs = tiny(sharp=3), sequences(10, response=response)
    assert abs(check_alignment(target, store_of(target, seqs, tmp_path / "good")).kl) < 1e-6
    rows = list(score(target, [(prompt, resp + [1]) for prompt, resp in seqs], 8))
    writer = StoreWriter(tmp_path / "bad", 8, {})
    for (prompt, resp), row in zip(seqs, rows):  # one position too far to the right
        writer.add(prompt, resp, Scored(row.ids[1:], row.logits[1:], row.lse[1:], row.log_tail[1:], {}))
    writer.close()
    with pytest.raises(LessonError, match=said):
        check_alignment(target, LabelStore(tmp_path / "bad"))


@pytest.mark.parametrize("wrong", [lambda part: part[2], lambda part: part[4] * 1.03 if part.is_floating_point() and part.dim() == 2 else part[4]])
def test_a_single_wrong_row_is_noticed(tmp_path, wrong):
    def one_wrong(part, number):
        part = part.clone()
        if number == 0:
            part[4] = wrong(part)
        return part

    target = tiny(sharp=3)
    store = changed_store(target, SEQS, tmp_path, one_wrong)
    with pytest.raises(LessonError, match="not this target's odds"):
        check_alignment(target, store, sequences=10)


def test_the_labels_of_another_model_are_not_called_shifted(tmp_path):
    store = store_of(tiny(sharp=3), SEQS, tmp_path)
    with pytest.raises(LessonError, match="not this target's odds"):
        check_alignment(tiny(seed=1, sharp=3), store)


def test_a_bf16_target_agrees_within_its_precision(tmp_path):
    target = tiny(sharp=3).to(torch.bfloat16)
    store = store_of(target, SEQS, tmp_path / "good")
    assert abs(check_alignment(target, store).kl) < 0.02
    store = changed_store(target, SEQS, tmp_path / "late", lambda part, number: part.roll(1, 0))
    with pytest.raises(LessonError, match="late"):
        check_alignment(target, store)
