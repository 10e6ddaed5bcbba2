"""vLLM itself, in fp32 on the tiny target: the same greedy ids as transformers, the target's own distribution, the scorer's own labels.

It runs in .venv-vllm, which is made here where it is missing (a few minutes, once): these tests fail, and are never skipped, where it cannot
be made. The engine starts three times: for a command that is interrupted, for all that is asked of it in one block, and for a command that scores.
"""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from support import naive_logits

from lessonlib.cli import main
from lessonlib.errors import LessonError
from lessonlib.files import DATA, ROOT, read_jsonl
from lessonlib.labels.scorer import score
from lessonlib.labels.score_answers import score_answers
from lessonlib.labels.store import LabelStore
from lessonlib.labels.vllm_scorer import vllm_score
from lessonlib.pair.chat import chat_ids
from lessonlib.pair.embedded import ensure_embedded_target
from lessonlib.pair.load import load_model, load_tokenizer
from lessonlib.traffic.answers import generate, read_answers
from lessonlib.traffic.engine import TransformersEngine
from lessonlib.traffic.vllm_engine import VllmEngine
from lessonlib.traffic.vllm_environment import set_up, vllm_python

LENGTH, SEED, K = 24, 0, 64
# Sums of two numbers have short answers, so that an interrupted run has finished some rows and not others.
PROMPTS = [*(f"What is {i} plus {i * i}? Answer with one number." for i in range(2, 12)),
           *(f"{row['prompt']}{more}" for more in ("", " Be brief.", " Answer in French.") for row in read_jsonl(DATA / "prompts_short.jsonl", "prompt"))][:64]
NEAR_TIE = 1e-3  # two logits as close as this may change places between two engines in fp32, whose noise is some 1e-4


@pytest.fixture(scope="module", autouse=True)
def environment():
    """A Python with vLLM."""
    if not os.environ.get("LESSON_VLLM_PYTHON"):
        set_up()
    assert vllm_python() is not None


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(tokenizer, target), the target in a folder whose generation settings would change every answer."""
    folder = tmp_path_factory.mktemp("target")
    for file in ensure_embedded_target().iterdir():
        (folder / file.name).symlink_to(file)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps(
        settings | {"do_sample": True, "repetition_penalty": 1.5, "top_k": 5, "top_p": 0.5, "temperature": 0.3, "max_new_tokens": 3}))
    return load_tokenizer(folder), load_model(folder).requires_grad_(False)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A file of answers whose command was stopped by Ctrl-C after its first answers, and the lines that it then held."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    out = folder / "answers.jsonl"
    command = [sys.executable, "-m", "lessonlib", "generate", "--preset", "tiny", "--engine", "vllm", "--input", folder / "prompts.jsonl",
               "--out", out, "--max-new-tokens", LENGTH, "--seed", SEED]
    # started with Ctrl-C at work, as at a prompt: a shell's background job, as these tests may be, hands on that it is ignored
    run = subprocess.Popen([*map(str, command)], cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    until = time.monotonic() + 300
    while run.poll() is None and time.monotonic() < until and not (out.exists() and out.read_bytes().count(b"\n") > 1):
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == 130 and "the same command goes on from there" in said, said
    return out, out.read_text().splitlines()


@pytest.fixture(scope="module")
def found(pair, begun, tmp_path_factory):
    """All that is asked of one engine: the interrupted answers to their end, all of them in one go, greedy ones, labels."""
    tokenizer, target = pair
    rows = [(number, chat_ids(tokenizer, prompt)) for number, prompt in enumerate(PROMPTS)]
    with VllmEngine(target, tmp_path_factory.mktemp("log") / "vllm.log") as engine:
        answers = generate(target, tokenizer, PROMPTS, begun[0], 1.0, LENGTH, SEED, engine)
        at_once = dict(engine.answer(rows[::-1], 1.0, LENGTH, SEED, (tokenizer.eos_token_id,)))
        greedy = dict(engine.answer(rows, 0.0, LENGTH, SEED, (tokenizer.eos_token_id,)))
        labels = list(vllm_score(engine, answers.sequences(), K))
        pid = engine._child.pid
    return SimpleNamespace(rows=rows, answers=answers, at_once=at_once, greedy=greedy, labels=labels, pid=pid)


def test_an_interrupted_command_keeps_its_answers_and_goes_on_to_the_same_end(begun, found):
    out, lines = begun
    assert 2 <= len(lines) < 65 and out.read_text().splitlines()[:len(lines)] == lines
    assert [row["row"] for row in found.answers.rows] == list(range(64))
    # a row's numbers are its own: other neighbours change it only where floating-point noise decides
    assert sum(row["resp_ids"] == found.at_once[row["row"]] for row in found.answers.rows) >= 62


def test_the_ids_are_those_of_the_transformers_engine(pair, found):
    assert [row["prompt_ids"] for row in found.answers.rows] == [ids for _, ids in found.rows]
    end = pair[0].eos_token_id
    assert all(end not in row["resp_ids"][:-1] and (row["resp_ids"][-1] == end or len(row["resp_ids"]) == LENGTH) for row in found.answers.rows)
    assert len({row["resp_ids"][-1] == end for row in found.answers.rows}) == 2


def test_greedy_answers_are_transformers_own_but_for_near_ties(pair, found):
    tokenizer, target = pair
    expected = dict(TransformersEngine(target).answer(found.rows, 0.0, LENGTH, SEED, (tokenizer.eos_token_id,)))
    differ = [number for number, ids in expected.items() if found.greedy[number] != ids]
    assert len(differ) <= 3
    for number in differ:
        ours, theirs = expected[number], found.greedy[number]
        first = next(j for j, (a, b) in enumerate(zip(ours, theirs)) if a != b)
        logits = naive_logits(target, found.rows[number][1], ours[:first + 1])[-1]
        assert (logits[ours[first]] - logits[theirs[first]]).abs() < NEAR_TIE, number


@pytest.fixture(scope="module")
def odds(pair, found):
    """(log-probabilities [N, V] float64 under the target at every answer token, the tokens [N])."""
    seqs = found.answers.sequences()
    return torch.cat([naive_logits(pair[1], *seq) for seq in seqs]).double().log_softmax(-1), torch.tensor([token for _, resp in seqs for token in resp])


def test_sampled_tokens_are_as_likely_as_the_targets_entropy_says(odds):
    # Given what stands before it, a token's surprisal has the entropy as its mean; the differences are uncorrelated, so their variances add.
    log_p, tokens = odds
    p, surprisal = log_p.exp(), -log_p.gather(-1, tokens[:, None])[:, 0]
    entropy = -(p * log_p).sum(-1)
    sigma = ((p * log_p.square()).sum(-1) - entropy.square()).sum().sqrt()
    assert ((surprisal - entropy).sum() / sigma).abs() < 4
    # the test can tell: colder text, and text of the 50 likeliest tokens alone, would be far off
    for warped in ((log_p / 0.8).softmax(-1), p * (p >= p.topk(50).values[:, -1:])):
        warped = warped / warped.sum(-1, keepdim=True)
        assert ((-(warped * log_p).sum(-1) - entropy).sum() / sigma).abs() > 6


def test_unlikely_tokens_come_as_often_as_they_should(odds):
    log_p, tokens = odds
    unlikely = log_p < log_p.topk(50).values[:, -1:]
    chance = (log_p.exp() * unlikely).sum(-1)
    came = unlikely.gather(-1, tokens[:, None]).sum()
    assert ((came - chance.sum()) / (chance * (1 - chance)).sum().sqrt()).abs() < 4 and chance.sum() > 40


def test_its_labels_are_the_scorers(pair, found):
    expected = list(score(pair[1], found.answers.sequences(), K))
    assert len(found.labels) == len(expected) == 64
    same = []
    for theirs, ours in zip(found.labels, expected):
        values = ours.logits - ours.lse[:, None]
        torch.testing.assert_close(theirs.logits, values, rtol=0, atol=NEAR_TIE)
        torch.testing.assert_close(theirs.log_tail.exp(), ours.log_tail.exp(), rtol=0, atol=1e-4)
        same.append((theirs.ids == ours.ids).all(-1))
        # an id that is not the scorer's at its rank stands within a near-tie of it
        for row, rank in (theirs.ids != ours.ids).nonzero().tolist():
            at = (ours.ids[row] == theirs.ids[row, rank]).nonzero()
            assert abs(values[row, at.item() if len(at) else K - 1] - values[row, rank]) < NEAR_TIE
    assert torch.cat(same).float().mean() > 0.9


def test_the_engine_leaves_no_process_behind(found):
    with pytest.raises(ProcessLookupError):
        os.kill(found.pid, 0)


def test_the_command_that_scores_by_vllm_makes_the_scorers_store(pair, begun, found, tmp_path, capsys):
    main([*map(str, ["score", "--preset", "tiny", "--engine", "vllm", "--answers", begun[0], "--out", tmp_path / "theirs"])])
    assert "re-read one by one they differ by" in capsys.readouterr().out  # the alignment was checked
    theirs = LabelStore(tmp_path / "theirs")
    ours = score_answers(pair[1], read_answers(begun[0]), tmp_path / "ours", K, show=False)
    assert theirs.manifest["engine"] == "vllm" and theirs.rows == ours.rows
    for i in range(len(ours)):
        assert theirs.sequence(i) == ours.sequence(i)
        (_, gaps, lse), (_, other_gaps, other_lse) = theirs.kl_inputs(i), ours.kl_inputs(i)
        torch.testing.assert_close((gaps - lse[:, None]).exp(), (other_gaps - other_lse[:, None]).exp(), rtol=0, atol=1e-3)
    with pytest.raises(LessonError, match=r"another run \(engine differ\)"):
        score_answers(pair[1], read_answers(begun[0]), tmp_path / "theirs", K, show=False)
