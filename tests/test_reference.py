"""What the course records and ships: it names how it was made, and recomputing a part of it gives the same numbers."""

import gzip
import json
import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from lessonlib import reference, reference_board, reference_decoding, reference_heads, reference_trainings
from lessonlib.distil.losses import Objective
from lessonlib.drafts.head_files import heads_note
from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, DATA, read_json, write_json
from lessonlib.lesson import SHIPPED_ANSWERS, Lesson
from lessonlib.measure import scoreboard
from lessonlib.measure.offline import alpha_gain, offline_alpha, offline_alphas
from lessonlib.pair.draft_files import load_draft, save_draft
from lessonlib.pair.load import DISTILLED, EAGLE, MADE_BY, MEDUSA, OFF_THE_SHELF
from lessonlib.pair.presets import preset
from lessonlib.reference import OPENINGS, SHIPPED, recorded_gain, recorded_trainings
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
    files = [read_json(path) for path in sorted((DATA / "reference").glob("*.json*"))]
    files = [made for file in files for made in file.get("machines", {"": file}).values()]  # kernels.json holds several machines
    drafts = [read_json(CHECKPOINTS / name / "draft.json")["made_by"] for name in MADE_BY]
    assert len(files) >= 1
    for made in [*headers, *files, *drafts]:
        assert made["command"].startswith(("python -m lessonlib ", "python tests/benchmarks/")) and made["commit"] and not made["commit"].endswith("-dirty") and made["machine"] and "transformers" in made["versions"]


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
    folder = CHECKPOINTS / OFF_THE_SHELF
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 16e6
    draft = load_draft("off-the-shelf", lesson.target)
    assert draft.model.embed_tokens.weight.data_ptr() == lesson.target.model.embed_tokens.weight.data_ptr()
    assert draft.lm_head.weight.data_ptr() == lesson.target.lm_head.weight.data_ptr()
    assert {name for name, p in draft.named_parameters() if p.requires_grad} == {name for name, _ in draft.named_parameters() if ".layers." in name}
    assert all(torch.isfinite(p).all() for p in draft.parameters())


def test_the_distilled_draft_is_small_and_keeps_more_guesses(lesson):
    folder, shipped = CHECKPOINTS / DISTILLED, read_json(DATA / "reference" / "distilled.json")["drafts"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 8e6
    drafts = [load_draft(name, lesson.target) for name in (DISTILLED, OFF_THE_SHELF)]
    assert drafts[0].kept_layers == drafts[1].kept_layers
    distilled, begun = offline_alphas(drafts, lesson.target, lesson.answers("heldout").sequences()[:2 * ROWS])
    assert alpha_gain(distilled, begun).low > 0.03
    for run in ("heldout", "heldout-greedy"):  # four bits cost next to nothing
        assert shipped["as trained, in 8 bits"][run]["alpha"]["value"] - shipped["as shipped"][run]["alpha"]["value"] < 0.003


def test_the_five_seeds_agree_on_what_the_course_says():
    records = recorded_trainings()
    assert [record["seed"] for record in records] == [0, 1, 2, 3, 4] and len({record["tokens"] for record in records}) == 5
    for record in records:
        for after, before in (("A, kl", "A, ce"), ("B, kl", "B, ce"), ("B, kl", "B, one row late"), ("B, kl", "B, T = 4 on the top 64"), ("B, kl", "B, T = 4 on all odds")):
            gain = recorded_gain(record, after, before)
            means = [record["runs"][name]["heldout"]["alpha"]["value"] for name in (after, before)]
            assert gain.low > 0 and gain == pytest.approx(means[0] - means[1], abs=1e-4), (record["seed"], after, before)


def test_decoding_and_the_leak_are_recorded(lesson, monkeypatch, tmp_path):
    """The real recordings made short: two prompts, a few tokens, two steps."""
    small = {"REFERENCE": tmp_path, "CHECKPOINTS": tmp_path, "recorded_by": lambda: {"commit": "none"}, "Lesson": lambda preset, folder: lesson, "load_draft": lambda name, target, *_: load_draft(tmp_path / name, target) if name == DISTILLED else load_draft(name, target),
             "benchmark": lambda: ["Name a river.", "Name a lake."], "CHOOSE_ON": 1, "CHOOSE_TOKENS": 2, "KS": (1, 2), "TOKENS": 3, "FRESH": 2, "LEAK_SEEDS": (0, 1),
             "LEAK_STEPS": 2, "LEAK_BATCH": 1, "LEAK_K": 2, "LEAK_TOKENS": 3, "SHIPPED": {"heldout": 64}}
    for name, value in small.items():
        monkeypatch.setattr(reference_decoding, name, value)
    with pytest.raises(LessonError, match="holds no draft A-ce"):
        reference_decoding.record_decoded(lesson, tmp_path / "kept")
    for name in filter(None, reference_decoding.DECODED.values()):
        save_draft(load_draft(OFF_THE_SHELF, lesson.target), tmp_path / "kept" / name, lesson.target, bits=8, recipe={}, made_by={})
    reference_decoding.record_decoded(lesson, tmp_path / "kept")
    found = read_json(tmp_path / "decoded.json")["drafts"]
    assert list(found) == list(reference_decoding.DECODED) and all(each["identical"] == 2 and each["K"] in (1, 2) for each in found.values())
    reference_decoding.record_leaks(lesson)
    leaks = read_json(tmp_path / "leaks.json")
    assert leaks["before"]["leaked"] != leaks["after"]["0"]["leaked"] and leaks["recipe"]["steps"] == 2
    assert [each["fresh"].get("identical") for each in (leaks["before"], *leaks["after"].values())] == [2, 2, None]
    monkeypatch.setattr(type(lesson), "answers", lambda self, name: short(name))
    short = lambda name: replace(found := read_shipped(SHIPPED_ANSWERS / f"{name}.jsonl.gz", lesson.tokenizer, [row["prompt"] for row in lesson.prompts.heldout]), rows=found.rows[:2])  # noqa: E731
    reference_decoding.ship_distilled(lesson, tmp_path / "kept")
    as_trained, shipped = read_json(tmp_path / "distilled.json")["drafts"].values()
    assert shipped["heldout"]["alpha"]["value"] == pytest.approx(as_trained["heldout"]["alpha"]["value"], abs=1e-3)


def test_a_number_is_recorded_from_a_commit_and_no_other_state(tmp_path, monkeypatch):
    """What one command of `make reference` has written does not stop the next; anything else that differs from the commit does."""
    git = lambda *words: subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True, capture_output=True)  # noqa: E731
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(scoreboard, "ROOT", tmp_path)
    for name in ("code.py", "data/reference/old.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    with pytest.raises(LessonError, match="no clone as committed"):
        reference.recorded_by()
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    (tmp_path / "data/reference/old.json").write_text("2")
    made = reference.recorded_by()
    assert len(made["commit"]) == 12
    (tmp_path / "code.py").write_text("2")
    with pytest.raises(LessonError, match="no clone as committed"):
        reference.recorded_by()


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
    record = read_json(tmp_path / "trainings_1.json.gz")
    assert record["seed"] == 1 and record["answers"] == 4 and {run["recipe"]["seed"] for run in record["runs"].values()} == {1}
    assert [run["writer"] for run in record["runs"].values()] == ["target", "generic"]
    assert list(record["untrained"]) == ["A"]  # what is once on record belongs to seed 0
    reference_trainings.record_plain(begun)
    both = read_json(tmp_path / "kernels_or_plain.json")["runs"]
    assert "no Triton for cpu" in both["kernels"]["kernels"] and "LESSON_KERNELS=plain asks" in both["plain"]["kernels"] and not os.environ["LESSON_KERNELS"]
    assert both["kernels"]["losses"] == record["runs"]["A, kl"]["losses"] == pytest.approx(both["plain"]["losses"], abs=1e-3)
    kept = load_draft(next(path.parent for path in tmp_path.rglob("A-kl/draft.json")), lesson.target)
    assert kept.kept_layers == load_draft("off-the-shelf", lesson.target).kept_layers
    for run in record["runs"].values():
        alpha = run["heldout"]["alpha"]
        assert alpha["low"] < alpha["value"] < alpha["high"] and list(run["alpha_by_step"]) == ["0", "2"]
        assert np.average(run["heldout"]["alpha_by_answer"], weights=record["heldout_lengths"]["heldout"]) == pytest.approx(alpha["value"], abs=1e-4)
    monkeypatch.setattr(reference_trainings, "trained", None)  # what is finished is not trained again
    (tmp_path / "trainings_1.json.gz").unlink()
    reference_trainings.record_trainings(begun, tmp_path)
    assert read_json(tmp_path / "trainings_1.json.gz") == record


def test_the_kernels_train_the_draft_that_their_definitions_train():
    record = read_json(DATA / "reference" / "kernels_or_plain.json")
    ours, plain = (record["runs"][name]["heldout"]["alpha"] for name in ("kernels", "plain"))
    assert record["runs"]["kernels"]["kernels"].startswith("Triton") and "LESSON_KERNELS=plain" in record["runs"]["plain"]["kernels"] and record["tokens"] > 2e6
    assert plain["low"] < ours["value"] < plain["high"]
    assert abs(recorded_gain(record, "kernels", "plain")) < 0.002  # less than two seeds differ


@pytest.mark.parametrize("name", [EAGLE, MEDUSA])
def test_the_shipped_heads_are_those_on_record_and_rounding_cost_them_next_to_nothing(name):
    record, note = read_json(DATA / "reference" / "heads.json"), heads_note(CHECKPOINTS / name)
    shipped = record["shipped"][name]
    assert note["bits"] == shipped["bits"] and note["training"] == {key: record["runs"][name][key] for key in note["training"]} and len(note["vocabulary"]) == record["vocabulary"]
    for before, after in zip(shipped["heldout-greedy, not rounded"]["top1"], shipped["heldout-greedy"]["top1"]):
        assert abs(before["value"] - after["value"]) < 0.01
    assert sum(path.stat().st_size for path in (CHECKPOINTS / name).iterdir()) < 5e6


def test_on_the_recorded_boards_every_draft_wrote_the_targets_texts():
    boards = [read_json(path) for path in (DATA / "reference").glob("board_*.json")]
    assert boards and all(row["identical"] == board["prompts"] for board in boards for draft in board["drafts"].values() for row in draft["K"].values())


def test_heads_and_the_board_of_all_drafts_are_recorded(lesson, monkeypatch, tmp_path):
    """The real recordings made short: a few prompts, two steps of each training, one prompt decoded."""
    short_answers = {name: read_shipped(SHIPPED_ANSWERS / f"{name}.jsonl.gz", lesson.tokenizer, [row["prompt"] for row in lesson.prompts.heldout]) for name in ("heldout", "heldout-greedy")}
    small = {"REFERENCE": tmp_path, "CHECKPOINTS": tmp_path, "recorded_by": lambda: {"commit": "none"}, "TOKENS": 6}
    for module in (reference_heads, reference_board):
        for name, value in small.items():
            monkeypatch.setattr(module, name, value)
    for name, value in {"PROMPTS": 4, "DECODED": 1, "TEXTS_AT_ONCE": 4, "RANKS": 30, "DRAWN": reference_heads.DRAWN[:2], "BATCH": 4, "PASSES": 2, "MOST_FREQUENT": 40, "RUNS": tuple(replace(run, steps=8 if run.ship else 2, passes=min(run.passes, 2)) for run in reference_heads.RUNS),
                        "read_shipped": lambda path, *_: replace(short_answers[path.name.partition(".")[0]], rows=short_answers[path.name.partition(".")[0]].rows[:3])}.items():
        monkeypatch.setattr(reference_heads, name, value)
    only = "medusa"
    reference_heads.record_heads(lesson, only)
    assert (lesson.folder / f"run {only}.json").is_file() and not (tmp_path / "heads.json").exists()
    reference_heads.record_heads(lesson)
    found = read_json(tmp_path / "heads.json")
    assert list(found["runs"]) == [run.name for run in reference_heads.RUNS] and found["sequences"] == 4 * len(reference_heads.DRAWN)
    assert [len(run["heldout"]["alpha"]) for run in found["runs"].values()] == [2, 3, 2, 2, 2]
    assert len(found["runs"][only]["heldout-greedy"]["shares"][0]) == reference_heads.RANKS
    assert found["shipped"]["made_by"] == {"commit": "none"} and {*found["shipped"]} == {"made_by", "answers", "eagle", "medusa"}
    note = read_json(tmp_path / "eagle" / "draft.json")
    assert note["bits"] == 7 and note["ways"] and 0 < len(note["vocabulary"]) <= 40 and note["training"]["recipe"]["steps"] == 8
    for name in ("off_the_shelf", "distilled"):
        (tmp_path / f"{name}.json").write_bytes((DATA / "reference" / f"{name}.json").read_bytes())
    every = reference_board.every_drafter
    monkeypatch.setattr(reference_board, "every_drafter", lambda lesson: {name: each for name, each in every(lesson).items() if name in ("ngram", "distilled, 8k", "medusa", "eagle")})
    monkeypatch.setattr(reference_board, "KS", (2, 9))
    reference_board.record_board(lesson)
    board = read_json(tmp_path / f"board_{'gpu' if lesson.target.device.type == 'cuda' else 'cpu'}.json")["drafts"]
    assert all(draft["K"]["2"]["identical"] == 1 for draft in board.values())
    assert {name: [*draft["K"]] == [*draft["bytes"]] and [*draft["K"]][-1] for name, draft in board.items()} == {"ngram": "9", "distilled, 8k": "9", "medusa": "3", "eagle": "9"}
    assert board["ngram"]["parameters"] == board["ngram"]["bytes"]["2"] == 0 and board["eagle"]["minutes"] > 0 and board["eagle"]["alpha"]
    target = lesson.target
    layer, width, head = sum(p.numel() for p in target.model.layers[-1].parameters()), target.config.hidden_size, target.lm_head.weight.numel()
    assert board["eagle"]["parameters"] == layer + 3 * width**2 + 2 * width**2 + 3 * width
    assert board["eagle"]["bytes"]["2"] == 4 * (layer + 2 * width**2 + 3 * width + head + 3 * width**2 / 2)
    assert board["medusa"]["bytes"]["2"] == 4 * (2 * (width**2 + width) + head) / 2


def test_a_torn_record_is_refused_in_one_sentence(tmp_path):
    write_json(tmp_path / "record.json.gz", {"numbers": list(range(500))})
    whole = (tmp_path / "record.json.gz").read_bytes()
    assert read_json(tmp_path / "record.json.gz")["numbers"][-1] == 499
    for torn in (whole[:-9], whole[:60] + bytes(20) + whole[80:], b"no gzip"):
        (tmp_path / "record.json.gz").write_bytes(torn)
        with pytest.raises(LessonError, match="cannot be read as JSON"):
            read_json(tmp_path / "record.json.gz")
