"""The command line's bad input: one sentence that names the fix, exit code 2, nothing half-written."""

import json
import subprocess
import sys

import pytest
from support import answers_of, sequences, tiny, word_tokenizer

from lessonlib.cli import LOSSES, main, parser
from lessonlib.distil.losses import DIVERGENCES
from lessonlib.files import ROOT, read_json
from lessonlib.pair import presets


def refused(capsys, *arguments):
    """What a refused command says; it must be one line."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said and said.startswith(f"lessonlib {arguments[0]}: "), said
    return said


def lines(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_every_step_has_help():
    listed = subprocess.run([sys.executable, "-m", "lessonlib", "--help"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    steps = parser()._subparsers._group_actions[0].choices
    assert len(steps) >= 10
    for name, step in steps.items():
        assert name in listed
        assert len(step.format_help()) > 100


def test_the_losses_to_choose_from_are_those_there_are():
    assert LOSSES == ("ce", *DIVERGENCES)


def pair(folder, layers=5):
    """A random target and a random draft on disk: the target, and the options that choose the two."""
    target = tiny(layers=layers, vocab=97)
    for name, model in (("target", target), ("draft", tiny(seed=1, layers=1, vocab=97))):
        model.save_pretrained(folder / name)
        word_tokenizer(size=97).save_pretrained(folder / name)
    return target, ["--preset", "custom", "--target", folder / "target", "--draft-model", folder / "draft", "--prompts", folder / "prompts.jsonl"]


def test_prompts_files_that_cannot_be_used(capsys, tmp_path):
    out = tmp_path / "answers.jsonl"
    generate = ["generate", "--preset", "tiny", "--out", out, "--input"]
    assert "is missing" in refused(capsys, *generate, tmp_path / "none.jsonl")
    assert "is empty" in refused(capsys, *generate, lines(tmp_path / "empty.jsonl"))
    good = [{"prompt": f"Question {i}?"} for i in range(6)]
    assert "line 7 is not JSON" in refused(capsys, *generate, lines(tmp_path / "bad.jsonl", *good, "{oops\n"))
    assert 'no field "prompt"' in refused(capsys, *generate, lines(tmp_path / "field.jsonl", {"text": "Hi"}))
    assert "temperature cannot be -1" in refused(capsys, *generate, lines(tmp_path / "good.jsonl", *good), "--temperature", "-1")
    long = lines(tmp_path / "long.jsonl", {"prompt": "word " * 9000})
    assert "do not fit the model's 8,192 positions" in refused(capsys, *generate, long)
    assert not out.exists()


def test_stores_and_drafts_that_do_not_match(capsys, tmp_path):
    train = ["train", "--preset", "tiny", "--out", tmp_path / "draft", "--labels"]
    assert "is no label store" in refused(capsys, *train, tmp_path / "none")
    assert not (tmp_path / "draft").exists()
    answers = lines(tmp_path / "answers.jsonl", {"answers": 1, "target": "another", "tokenizer": "", "template": "", "temperature": 1.0, "seed": 0},
                    {"row": 0, "prompt_ids": [1, 2], "resp_ids": [3]})
    assert "another model" in refused(capsys, "score", "--preset", "tiny", "--answers", answers, "--out", tmp_path / "labels")
    assert "another model" in refused(capsys, "alpha", "--preset", "tiny", "--answers", answers)
    assert "is missing" in refused(capsys, "alpha", "--preset", "tiny", "--answers", tmp_path / "none.jsonl")


def test_settings_that_mean_nothing(capsys, monkeypatch):
    say = ["say", "--preset", "tiny", "Hello", "--max-new-tokens", "4"]
    assert "K" in refused(capsys, *say, "--K", "-1")
    assert "temperature cannot be -0.5" in refused(capsys, *say, "--temperature", "-0.5")
    assert "no preset 'huge'" in refused(capsys, "say", "--preset", "huge", "Hello")
    monkeypatch.setattr(presets, "gpu_gb", lambda: 0.0)
    assert "needs a CUDA GPU" in refused(capsys, "say", "--preset", "spark", "Hello")


@pytest.mark.parametrize("step, option, value", [
    ("generate", "--batch", "0"), ("generate", "--limit", "-1"), ("generate", "--max-new-tokens", "0"), ("score", "--k", "0"),
    ("train", "--layers", "0"), ("train", "--micro-batch", "0"), ("sweep", "--sweep-tokens", "0"), ("lesson", "--train-prompts", "some"),
    ("heal", "--length", "0"), ("heal", "--batch", "1.5")])
def test_a_count_below_one_is_refused(capsys, step, option, value):
    assert f"{option}: cannot be {value}; give a whole number, 1 or more" in refused(capsys, step, option, value)


def test_a_seed_below_zero_and_a_k_of_zero_are_refused_before_anything_runs(capsys):
    assert "--seed: cannot be -1; give a whole number, 0 or more" in refused(capsys, "lesson", "--seed", "-1")
    assert "below 2**32" in refused(capsys, "lesson", "--seed", str(2**64))
    assert "--sweep-k cannot be 0,1" in refused(capsys, "lesson", "--preset", "tiny", "--sweep-k", "0,1")


def test_a_learning_rate_of_zero_is_not_taken_for_none_given(capsys, tmp_path):
    assert "learning rate above 0" in refused(capsys, "train", "--preset", "tiny", "--labels", tmp_path, "--out", tmp_path / "draft", "--lr", "0")


@pytest.mark.parametrize("prompt", [5, None, {"text": "Hi"}, [], ["Hi"], [{"role": "user"}]])
def test_a_prompt_that_is_no_text_is_refused_by_its_row(capsys, tmp_path, prompt):
    given = ["--preset", "tiny", "--input", lines(tmp_path / "prompts.jsonl", {"prompt": "Hi"}, {"prompt": prompt})]
    for step in (["generate", *given, "--out", tmp_path / "answers.jsonl"], ["sweep", *given]):
        assert 'prompts.jsonl row 2: the field "prompt" is neither a text nor a list of messages' in refused(capsys, *step)


@pytest.mark.parametrize("layers, given, kept", [(5, [], [0, 1, 2, 4]), (2, [], [0, 1]), (5, ["--layers", "1,3"], [1, 3])])
def test_an_off_the_shelf_draft_keeps_the_first_three_layers_and_the_last_unless_told_otherwise(tmp_path, layers, given, kept):
    _, chosen = pair(tmp_path, layers)
    for name in ("train", "heldout"):
        lines(tmp_path / f"{name}.jsonl", {"text": "one two three " * 9})
    main([*map(str, ["heal", *chosen, "--text", tmp_path, "--out", tmp_path / "healed", "--steps", 1, "--batch", 2, "--length", 6, *given])])
    assert read_json(tmp_path / "healed" / "draft.json")["layers"] == kept


def test_alpha_is_measured_on_the_targets_own_answers_alone(capsys, tmp_path):
    target, chosen = pair(tmp_path)
    for writer, name in ((target, "own.jsonl"), (tiny(seed=2), "another.jsonl")):
        answers = answers_of(writer, sequences(4))
        lines(tmp_path / name, answers.header, *answers.rows)
    main([*map(str, ["alpha", *chosen, "--answers", tmp_path / "own.jsonl", "--labels", tmp_path / "labels"])])
    said = capsys.readouterr().out
    assert "positions of 4 answers" in said and "from the labels alone, alpha at T = 1 lies between" in said
    assert "written by another model" in refused(capsys, "alpha", *chosen, "--answers", tmp_path / "another.jsonl")
    assert "no-draft is missing" in refused(capsys, "alpha", *chosen, "--answers", tmp_path / "own.jsonl", "--draft", tmp_path / "no-draft")


def test_a_pair_that_shares_no_tokenizer_is_refused_before_any_work(capsys, tmp_path):
    _, chosen = pair(tmp_path)
    lines(tmp_path / "prompts.jsonl", *({"prompt": f"Question {i}?"} for i in range(40)))
    path = tmp_path / "draft" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    names = {i: word for word, i in tokenizer["model"]["vocab"].items()}
    tokenizer["model"]["vocab"].update({names[11]: 12, names[12]: 11})
    path.write_text(json.dumps(tokenizer))
    capsys.readouterr()  # what writing the pair printed
    said = refused(capsys, "lesson", *chosen, "--folder", tmp_path / "run", "--board", tmp_path / "board.md")
    assert "do not share a tokenizer: id 11 is" in said and "12 is" in said
    assert not list((tmp_path / "run").iterdir()) and not (tmp_path / "board.md").exists()


def test_one_prompt_is_answered_the_same_with_and_without_a_draft(capsys):
    texts = []
    for K in (0, 2):
        main(["say", "--preset", "tiny", "What is the capital of France?", "--max-new-tokens", "12", "--K", str(K)])
        texts.append(capsys.readouterr().out.splitlines()[1])
    assert texts[0] == texts[1] and "Paris" in texts[0]
    main(["say", "--preset", "tiny", "What is the capital of France?", "--max-new-tokens", "12", "--dtype", "bfloat16"])
    first, text, *_ = capsys.readouterr().out.splitlines()
    assert "on cpu in bfloat16" in first.replace("cuda", "cpu") and "Paris" in text


def test_heads_are_trained_measured_and_decoded_with_for_a_pair_of_ones_own(capsys, tmp_path):
    target, own = pair(tmp_path)
    lines(tmp_path / "prompts.jsonl", *({"prompt": f"w{i} w{i + 1}"} for i in range(12)))
    answers = tmp_path / "answers.jsonl"
    main([str(word) for word in ["generate", *own, "--input", tmp_path / "prompts.jsonl", "--out", answers, "--max-new-tokens", "12", "--temperature", "0"]])
    main([str(word) for word in ["score", *own, "--answers", answers, "--out", tmp_path / "labels", "--k", "8"]])
    for options in (["--medusa", "2"], ["--eagle", "2,4", "--passes", "2"]):
        heads, prompts = tmp_path / options[0][2:], ["--input", tmp_path / "prompts.jsonl", "--sweep-prompts", "2", "--sweep-tokens", "8", "--sweep-k", "2,3"]
        main([str(word) for word in ["train", *own, "--labels", tmp_path / "labels", "--out", heads, *options, "--train-steps", "3", "--batch-size", "4", "--lr", "1e-3"]])
        capsys.readouterr()
        main([str(word) for word in ["alpha", *own, "--answers", answers, "--draft", heads]])
        assert "guess 1: alpha 0." in capsys.readouterr().out
        for more in ([], ["--tree", "5"]):
            main([str(word) for word in ["sweep", *own, "--draft", heads, *prompts, *more]])
            swept = capsys.readouterr().out
            assert "texts part" not in swept and ("tokens ahead, so no larger K" in swept) == (options[0] == "--medusa" or bool(more))
            main([str(word) for word in ["say", *own, "w1 w2 w3", "--draft", heads, "--max-new-tokens", "8", *more]])
            with_heads = capsys.readouterr().out.splitlines()[1]
            main([str(word) for word in ["say", *own, "w1 w2 w3", "--K", "0", "--max-new-tokens", "8"]])
            assert capsys.readouterr().out.splitlines()[1] == with_heads
    main([str(word) for word in ["sweep", *own, "--draft", "ngram", *prompts]])
    assert "no tree" in refused(capsys, "sweep", *own, "--draft", "ngram", *prompts, "--tree", "5")
    assert "no tree" in refused(capsys, "say", *own, "w1", "--tree", "5")
    assert "two things to train" in refused(capsys, "train", *own, "--labels", tmp_path / "labels", "--out", tmp_path / "x", "--medusa", "2", "--layers", "2")
    assert "name layers from 1 to 5" in refused(capsys, "train", *own, "--labels", tmp_path / "labels", "--out", tmp_path / "x", "--eagle", "9")
    assert "give it with --eagle" in refused(capsys, "train", *own, "--labels", tmp_path / "labels", "--out", tmp_path / "x", "--medusa", "2", "--passes", "2")
    for draft in ("ngram", tmp_path / "medusa"):
        assert "is no model of its own" in refused(capsys, "train", *own, "--labels", tmp_path / "labels", "--out", tmp_path / "x", "--draft", draft)
    assert "is no model of its own" in refused(capsys, "alpha", *own, "--answers", answers, "--draft", "ngram")
    assert "leave --T and --labels out" in refused(capsys, "alpha", *own, "--answers", answers, "--draft", tmp_path / "medusa", "--T", "2")
