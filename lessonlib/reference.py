"""The files that the course ships and the numbers it records, each with the commit and the command that made it."""

import subprocess
from dataclasses import replace

import numpy as np
import torch

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import Sampling
from lessonlib.distil.heal import perplexity, text_rows
from lessonlib.errors import LessonError
from lessonlib.files import DATA, ROOT, read_json, read_jsonl, shown, write_json
from lessonlib.lesson import SHIPPED, SHIPPED_ANSWERS, SHIPPED_TOKENS, Lesson
from lessonlib.measure.estimate import ratio_estimate
from lessonlib.measure.offline import offline_alpha
from lessonlib.measure.scoreboard import provenance
from lessonlib.pair.chat import end_of_turn_ids
from lessonlib.pair.draft_files import load_draft
from lessonlib.traffic.answers import Answers, write_shipped

REFERENCE = DATA / "reference"
WRITTEN = ("data/answers", "data/reference", "checkpoints")  # by the commands of `make reference`, one after the other
PERPLEXITY_ROWS = 64  # of 512 tokens each
OPENINGS = ("The history of the city begins with", "In the morning the farmer", "A good teacher is", "The government of the United States has",
            "The word is used to", "The function returns", "When the war was over, the people", "It is important to", "The river flows", "This module provides")


def recorded_by():
    """`provenance`, of a checkout in which nothing differs from its commit but what these commands write; LessonError otherwise, for nobody could make
    the file again.
    """
    made = provenance()
    changed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *(f":(exclude){path}" for path in WRITTEN)]
    if made["commit"] is None or subprocess.run(changed, cwd=ROOT, capture_output=True, text=True, check=True).stdout:
        raise LessonError("a recorded number must name the commit that made it, and this folder is no clone as committed; commit first, or run the "
                          "command in a fresh clone.")
    return {**made, "commit": made["commit"].removesuffix("-dirty")}


def ship_answers(lesson):
    """Draw (or go on drawing) the tiny preset's three runs of answers and write them to data/answers."""
    made = recorded_by()  # before the first file changes the checkout
    lesson = Lesson(replace(lesson.preset, max_new_tokens=SHIPPED_TOKENS), lesson.folder)
    for name, count in SHIPPED.items():
        rows = lesson.prompts.train if name == "train" else lesson.prompts.heldout
        answers = lesson.draw(name, [row["prompt"] for row in rows[:count]])
        write_shipped(Answers({**answers.header, **made}, answers.rows), SHIPPED_ANSWERS / f"{name}.jsonl.gz")
        print(f"  {shown(SHIPPED_ANSWERS / name)}.jsonl.gz: {len(answers):,} answers, {sum(len(row['resp_ids']) for row in answers.rows):,} tokens", flush=True)


def figure(estimate):
    """An Estimate as the records hold it."""
    return {"value": float(estimate), "low": estimate.low, "high": estimate.high}


def figures(measured):
    """alpha, top1 and kl of an OfflineAlpha with their intervals, as the records hold them."""
    return {key: figure(value) for key, value in zip(("alpha", "top1", "kl"), measured)}


def by_answer(measured):
    """alpha of each answer of an OfflineAlpha, to four digits: with the answers' lengths, what two records of the same text need to be paired."""
    return [round(row.mean(), 4) for row in np.split(measured.per_position.astype(float), np.cumsum(measured.lengths)[:-1])]


def recorded_trainings():
    """The long trainings on record, one record a seed, seed 0 first."""
    return [read_json(path) for path in sorted(REFERENCE.glob("trainings_*.json.gz"))]


def recorded_gain(record, after, before, run="heldout"):
    """How much higher alpha is after one recorded training than after another (names in record["runs"]), an Estimate paired answer by answer;
    run: the held-out answers, "heldout" or "heldout-greedy".
    """
    lengths = record["heldout_lengths"][run]
    gains = np.subtract(*(record["runs"][name][run]["alpha_by_answer"] for name in (after, before)))
    return ratio_estimate(gains * lengths, lengths)


def record_off_the_shelf(lesson, text):
    """Measure the shipped off-the-shelf draft: perplexity on held-out generic text, alpha on held-out chat answers."""
    made = recorded_by()
    lesson = Lesson(replace(lesson.preset, heldout_prompts=SHIPPED["heldout"]), lesson.folder)
    target, tokenizer = lesson.target, lesson.tokenizer
    draft = load_draft(lesson.preset.draft, target)
    text_held_out = text_rows(tokenizer, (row["text"] for row in read_jsonl(text / "heldout.jsonl", "text")), 512, separator=0)[:PERPLEXITY_ROWS]
    found = {}
    for name in ("heldout", "heldout-greedy"):
        measured = offline_alpha(draft, target, lesson.answers(name).sequences())
        found[name] = figures(measured)
        found[name] |= {"positions": len(measured.per_position), "alpha_by_answer": by_answer(measured), "answer_lengths": list(measured.lengths)}
    result = {**made, "healing": read_json(ROOT / "checkpoints" / "off-the-shelf" / "draft.json"),
              "heldout_generic_tokens": text_held_out.numel(),
              "perplexity": {name: perplexity(model, text_held_out) for name, model in (("target", target), ("draft", draft))},
              "before_distillation": found}
    write_json(REFERENCE / "off_the_shelf.json", result)
    print(f"  perplexity on {text_held_out.numel():,} tokens of held-out generic text: target {result['perplexity']['target']:.1f}, draft {result['perplexity']['draft']:.1f}")
    for name, values in found.items():
        print(f"  {name} answers: " + ", ".join(f"{key} {values[key]['value']:.4f} [{values[key]['low']:.4f}, {values[key]['high']:.4f}]" for key in ("alpha", "top1", "kl")))


def record_sentences(lesson):
    """Let the shipped off-the-shelf draft go on from ten openings, to show how it writes: the first draw of each, none picked."""
    made = recorded_by()
    tokenizer, decoder = lesson.tokenizer, Decoder(load_draft(lesson.preset.draft, lesson.target))
    sentences = []
    for number, opening in enumerate(OPENINGS):
        prompt = tokenizer(opening, add_special_tokens=False)["input_ids"]
        sampling = Sampling(0.7, top_p=0.9, generator=torch.Generator().manual_seed(number))
        written = decoder.decode(prompt, 0, 60, eos_token_ids=end_of_turn_ids(tokenizer), sampling=sampling).tokens
        sentences.append(sentence_of(opening + tokenizer.decode(written, skip_special_tokens=True)))
    write_json(REFERENCE / "off_the_shelf_sentences.json", {**made, "temperature": 0.7, "top_p": 0.9, "sentences": sentences})
    print("\n".join(f"  {sentence}" for sentence in sentences))


def sentence_of(text):
    """`text` on one line, up to the first full stop after its eighth word."""
    words = text.split()
    end = next((i for i, word in enumerate(words) if i >= 8 and word.endswith(".")), len(words) - 1)
    return " ".join(words[: end + 1])
