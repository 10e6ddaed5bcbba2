"""The command line's bad input: one sentence that names the fix, exit code 2, nothing half-written."""

import json
import subprocess
import sys

import pytest

from lessonlib.cli import main, parser
from lessonlib.files import ROOT
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
    assert "is missing" in refused(capsys, "alpha", "--preset", "tiny", "--answers", tmp_path / "none.jsonl")
    assert "is missing" in refused(capsys, "alpha", "--preset", "tiny", "--answers", answers, "--draft", tmp_path / "no-draft")


def test_settings_that_mean_nothing(capsys, monkeypatch):
    say = ["say", "--preset", "tiny", "Hello", "--max-new-tokens", "4"]
    assert "K" in refused(capsys, *say, "--K", "-1")
    assert "temperature cannot be -0.5" in refused(capsys, *say, "--temperature", "-0.5")
    assert "--sweep-tokens cannot be 0" in refused(capsys, "sweep", "--preset", "tiny", "--sweep-tokens", "0")
    assert "no preset 'huge'" in refused(capsys, "say", "--preset", "huge", "Hello")
    monkeypatch.setattr(presets, "gpu_gb", lambda: 0.0)
    assert "needs a CUDA GPU" in refused(capsys, "say", "--preset", "spark", "Hello")


def test_one_prompt_is_answered_the_same_with_and_without_a_draft(capsys):
    texts = []
    for K in (0, 2):
        main(["say", "--preset", "tiny", "What is the capital of France?", "--max-new-tokens", "12", "--K", str(K)])
        texts.append(capsys.readouterr().out.splitlines()[1])
    assert texts[0] == texts[1] and "Paris" in texts[0]
