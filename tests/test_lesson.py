"""The lesson itself, small, from the command line: on this transformers and on an older one, interrupted, run again."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lessonlib.environment import OLDER_FOLDER
from lessonlib.files import ROOT
from lessonlib.lesson import Lesson
from lessonlib.pair.presets import preset

SMALL = ["--train-prompts", "16", "--heldout-prompts", "8", "--max-new-tokens", "16", "--train-steps", "6", "--sweep-prompts", "1",
         "--sweep-tokens", "12", "--sweep-k", "1,2"]


def command(folder, *more):
    return [sys.executable, "-m", "lessonlib", "lesson", "--preset", "tiny", "--folder", str(folder), "--board", str(folder / "board.md"), *SMALL, *more]


def run(folder, older=False):
    env = dict(os.environ)
    if older:
        env["PYTHONPATH"] = str(ROOT / OLDER_FOLDER)
    return subprocess.run(command(folder), capture_output=True, text=True, cwd=ROOT, env=env)


@pytest.mark.parametrize("change", [{"seed": 1}, {"train_prompts": 5000}, {"max_new_tokens": 128}, {"prompts": "mine.jsonl"}])
def test_shipped_answers_serve_the_settings_they_were_drawn_with_and_no_others(change, tmp_path):
    assert Lesson(preset("tiny"), tmp_path).shipped("train") is not None
    assert Lesson(replace(preset("tiny"), **change), tmp_path).shipped("train") is None


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A lesson that was stopped with Ctrl-C while it trained, then run again to its end: (stopped, finished, folder)."""
    folder = tmp_path_factory.mktemp("lesson")
    log = folder / "stopped.log"
    with open(log, "w") as output:
        process = subprocess.Popen([*command(folder)], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # a background job inherits it ignored
        # the first training's checkpoint does not exist before its end or an interruption: wait for its announcement
        while process.poll() is None and "training draft B with kl" not in log.read_text():
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        code = process.wait()
    return code, log.read_text(), run(folder), folder


def test_an_interrupted_lesson_says_so_and_is_gone_on_with(finished):
    code, stopped, again, folder = finished
    assert code == 130, stopped
    assert "the same command goes on from there" in stopped and "Traceback" not in stopped
    assert again.returncode == 0, again.stderr
    assert "training B-ce" not in again.stdout  # it was finished before, and is only loaded now
    assert "training B-kl: " in again.stdout
    assert "scoring" not in again.stdout


def test_the_lesson_ends_with_its_table_its_sweep_and_a_scoreboard_row(finished):
    *_, again, folder = finished
    assert again.stderr == ""
    for shape, kind in (("A", "separate small model"), ("B", "target's first layers")):
        for training in ("untrained", "ce", "kl"):
            assert any(line.split()[:1] == [shape] and kind in line and training in line for line in again.stdout.splitlines())
    assert "c = " in again.stdout and "v(1) = " in again.stdout
    assert "token for token, in 1 of 1 prompts" in again.stdout
    assert again.stdout.count("one prompt gives no interval") == 1 and "the interval holds 1" not in again.stdout
    rows = [line for line in (folder / "board.md").read_text().splitlines() if line.startswith("| 20")]
    assert len(rows) == 1 and "SmolLM2-135M-Instruct" in rows[0] and "transformers" in rows[0]
    assert "x [-, -] |" in rows[0] and "nan" not in rows[0]
    result = json.loads((folder / "result.json").read_text())
    assert len(result["arms"]) == 6 and set(result["speedup"]) == {"0", "1", "2"}
    # six steps are enough for the truncated draft to leave the ground
    assert result["arms"]["B, kl"][2] < result["arms"]["B, untrained"][2]


def test_the_lesson_runs_under_an_older_transformers(finished, tmp_path):
    found = run(tmp_path, older=True)
    assert found.returncode == 0, found.stderr
    assert "transformers 5.17.0" in found.stdout
    ours, older = (json.loads((Path(folder) / "result.json").read_text()) for folder in (finished[-1], tmp_path))
    for arm, values in ours["arms"].items():
        assert older["arms"][arm] == pytest.approx(values, rel=1e-2), arm


def test_another_lesson_in_the_same_folder_is_refused_in_one_sentence(finished):
    folder = finished[-1]
    found = subprocess.run(command(folder, "--train-prompts", "24"), capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1 and "labels" in found.stderr
