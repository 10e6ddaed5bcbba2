"""What the course records and ships: it names how it was made, and recomputing a part of it gives the same numbers."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lessonlib import reference_trainings
from lessonlib.distil.losses import Objective
from lessonlib.files import CHECKPOINTS, DATA, read_json
from lessonlib.lesson import Lesson
from lessonlib.measure.offline import offline_alpha
from lessonlib.pair.draft_files import load_draft
from lessonlib.pair.presets import preset
from lessonlib.reference import OPENINGS, SHIPPED
from lessonlib.reference_trainings import Run
from lessonlib.traffic.answers import generate, read_shipped

ROWS = 6


@pytest.fixture(scope="module")
def recorded():
    return read_json(DATA / "reference" / "off_the_shelf.json")


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    return Lesson(preset("tiny"), tmp_path_factory.mktemp("lesson"))


def test_every_recorded_file_names_its_commit_its_command_and_its_versions():
    headers = [json.loads(gzip.open(DATA / "answers" / f"{name}.jsonl.gz", "rt").readline()) for name in SHIPPED]
    files = [read_json(path) for path in sorted((DATA / "reference").glob("*.json"))]
    draft = read_json(CHECKPOINTS / "off-the-shelf" / "draft.json")["made_by"]
    assert len(files) >= 1
    for made in [*headers, *files, draft]:
        assert made["command"].startswith("python -m lessonlib ") and made["commit"] and not made["commit"].endswith("-dirty") and made["machine"] and "transformers" in made["versions"]


@pytest.mark.parametrize("run", ["heldout", "heldout-greedy"])
def test_a_part_of_the_recorded_alpha_is_recomputed(recorded, lesson, run):
    before = recorded["before_distillation"][run]
    weighted = np.average(before["alpha_by_answer"], weights=before["answer_lengths"])
    assert weighted == pytest.approx(before["alpha"]["value"], abs=1e-4)
    assert before["alpha"]["low"] < before["alpha"]["value"] < before["alpha"]["high"]
    draft = load_draft("off-the-shelf", lesson.target)
    found = offline_alpha(draft, lesson.target, lesson.answers(run).sequences()[:ROWS])
    by_answer = [row.mean() for row in np.split(found.per_position, np.cumsum(found.lengths)[:-1])]
    assert by_answer == pytest.approx(before["alpha_by_answer"][:ROWS], abs=1e-3)


def test_the_off_the_shelf_draft_is_a_writer_with_habits_of_its_own(recorded):
    assert 1 < recorded["perplexity"]["target"] < recorded["perplexity"]["draft"] < 60
    assert 0.2 < recorded["before_distillation"]["heldout"]["alpha"]["value"] < 0.6
    sentences = read_json(DATA / "reference" / "off_the_shelf_sentences.json")["sentences"]
    assert len(sentences) == len(OPENINGS) == 10
    for sentence in sentences:
        words = sentence.lower().split()
        assert len(words) >= 5 and len(set(words)) / len(words) > 0.5, sentence


def test_the_shipped_answers_are_drawn_again_by_the_same_command(lesson, tmp_path):
    """Greedy ones, since a sampled token at the edge of a probability may fall to either side on another processor."""
    shipped = lesson.answers("heldout-greedy")
    texts = [row["prompt"] for row in lesson.prompts.heldout[:ROWS]]
    drawn = generate(lesson.target, lesson.tokenizer, texts, tmp_path / "drawn.jsonl", 0.0, 64, seed=shipped.header["seed"], show=False)
    same = sum(a["resp_ids"] == b["resp_ids"] for a, b in zip(drawn.rows, shipped.rows))
    assert same >= ROWS - 1


def test_the_shipped_draft_is_small_and_its_rest_is_the_targets(lesson):
    folder = CHECKPOINTS / "off-the-shelf"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 16e6
    draft = load_draft("off-the-shelf", lesson.target)
    assert draft.model.embed_tokens.weight.data_ptr() == lesson.target.model.embed_tokens.weight.data_ptr()
    assert draft.lm_head.weight.data_ptr() == lesson.target.lm_head.weight.data_ptr()
    assert {name for name, p in draft.named_parameters() if p.requires_grad} == {name for name, _ in draft.named_parameters() if ".layers." in name}
    assert all(torch.isfinite(p).all() for p in draft.parameters())


def test_the_long_trainings_are_recorded_and_an_interrupted_recording_goes_on(lesson, monkeypatch, tmp_path):
    """The real recording made short: four answers of a few tokens, two runs of two steps, two held-out answers."""

    def made(preset, folder):
        one = Lesson(preset, folder)
        one.target, one.tokenizer, one.prompts = lesson.target, lesson.tokenizer, lesson.prompts
        return one

    def short(path, tokenizer, texts):
        return replace(found := read_shipped(path, tokenizer, texts), rows=found.rows[:2])

    runs = [run for run in reference_trainings.RUNS if run.name in ("A, kl", "A, kl on generic text")]
    runs = [*(replace(run, once=False) for run in runs), Run("first 1, kl", (0,), Objective("kl"), once=True)]
    small = {"PROMPTS": 4, "TOKENS": 6, "BATCH": 4, "CURVE": (2,), "CURVE_ANSWERS": 1, "RUNS": runs,
             "REFERENCE": tmp_path, "recorded_by": lambda: {"commit": "none"}, "Lesson": made, "read_shipped": short}
    for name, value in small.items():
        monkeypatch.setattr(reference_trainings, name, value)
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "The river flows past the old mill and on to the sea. " * 40}) + "\n", encoding="utf-8")
    begun = Lesson(replace(lesson.preset, seed=1), tmp_path)
    reference_trainings.record_trainings(begun, tmp_path)
    record = read_json(tmp_path / "trainings_1.json")
    assert record["seed"] == 1 and record["answers"] == 4 and {run["recipe"]["seed"] for run in record["runs"].values()} == {1}
    assert [run["writer"] for run in record["runs"].values()] == ["target", "generic"]
    assert list(record["untrained"]) == ["A"]  # what is once on record belongs to seed 0
    kept = load_draft(next(path.parent for path in tmp_path.rglob("A-kl/draft.json")), lesson.target)
    assert kept.kept_layers == load_draft("off-the-shelf", lesson.target).kept_layers
    for run in record["runs"].values():
        alpha = run["heldout"]["alpha"]
        assert alpha["low"] < alpha["value"] < alpha["high"] and list(run["alpha_by_step"]) == ["0", "2"]
        assert np.average(run["heldout"]["alpha_by_answer"], weights=record["heldout_lengths"]["heldout"]) == pytest.approx(alpha["value"], abs=1e-4)
    monkeypatch.setattr(reference_trainings, "trained", None)  # what is finished is not trained again
    (tmp_path / "trainings_1.json").unlink()
    reference_trainings.record_trainings(begun, tmp_path)
    assert read_json(tmp_path / "trainings_1.json") == record
