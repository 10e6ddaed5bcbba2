"""The target's answers to prompts (t2): written once, as token ids, row by row, so that an interruption loses nothing."""

import gzip
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lessonlib.errors import LessonError
from lessonlib.files import atomic_path, explained_write, fingerprint, read_jsonl, shown
from lessonlib.pair.chat import chat_ids, end_of_turn_ids, template_hash
from lessonlib.pair.step import check_fits
from lessonlib.pair.tokenizer_check import model_fingerprint, tokenizer_fingerprint
from lessonlib.progress import Progress
from lessonlib.traffic.vllm_engine import choose_engine

FORMAT = 1
NAMED = ("target", "tokenizer", "template", "temperature", "seed")  # what a header must say for the answers to be used


@dataclass(frozen=True)
class Answers:
    """A file of answers: `header` says how they were drawn, `rows` holds {"row", "prompt_ids", "resp_ids"} in the order of the prompts."""

    header: dict
    rows: list

    def __len__(self):
        return len(self.rows)

    def sequences(self):
        """(prompt_ids, resp_ids) of every row that has at least one answer token."""
        return [(row["prompt_ids"], row["resp_ids"]) for row in self.rows if row["resp_ids"]]


def generate(target, tokenizer, prompts, out, temperature=1.0, max_new_tokens=256, seed=0, engine=None, show=True):
    """Have the target answer `prompts` (list of str or of message lists) into the JSON Lines file `out`; returns Answers.

    engine: an Engine of that target, `choose_engine`'s choice unless given; temperature 0 is greedy. The first line says how the answers are drawn,
    each later line is one row of ids: they are never turned into text and back. An interrupted file is gone on with: rows it holds are neither
    repeated nor lost, and a line cut short is drawn again. Raises LessonError for a temperature below 0 or next to it, a seed outside 0 to 2**63
    - 1, a prompt that is empty or does not fit, or a file that was drawn in another way.
    """
    out, engine = Path(out), engine or choose_engine(target)
    eos = end_of_turn_ids(tokenizer, target.generation_config, target.config)
    if not (temperature == 0 or engine.coldest <= temperature < float("inf")):
        raise LessonError(f"temperature cannot be {temperature}; give 0 for greedy answers or a number of at least {engine.coldest}.")
    if not (isinstance(seed, int) and 0 <= seed < 2**63):  # what every row's own generator takes as its key
        raise LessonError(f"seed cannot be {seed}; give a whole number from 0 to 2**63 - 1.")
    if max_new_tokens < 1:
        raise LessonError(f"max_new_tokens cannot be {max_new_tokens}; an answer needs at least 1.")
    if not prompts:
        raise LessonError("there are no prompts to answer; give at least one.")
    encoded = []
    for number, prompt in enumerate(prompts, 1):
        try:
            if isinstance(prompt, str) and not prompt.strip():
                raise LessonError("the prompt is empty; give it a text, or leave it out.")
            encoded.append(chat_ids(tokenizer, prompt))
            check_fits(target, encoded[-1], max_new_tokens)
        except LessonError as error:
            raise LessonError(f"prompt {number}: {error}") from None
    header = {"answers": FORMAT, "target": model_fingerprint(target), "tokenizer": tokenizer_fingerprint(tokenizer),
              "template": template_hash(tokenizer), "temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed,
              "eos_token_ids": list(eos), "prompts": fingerprint(encoded), "engine": engine.name}
    done = _resume(out, header, encoded)
    waiting = [(number, ids) for number, ids in enumerate(encoded) if number not in done]
    if waiting:
        if done and show:
            print(f"  answers: {len(done):,} of {len(encoded):,} are in {shown(out)} already", flush=True)
        progress = Progress("answers", len(waiting), "answers", show=show)
        tokens = 0
        # closed at once when this is interrupted: what an engine holds must not live as long as a notebook remembers the traceback
        with explained_write(out), open(out, "a", encoding="utf-8") as file, closing(engine.answer(waiting, temperature, max_new_tokens, seed, eos)) as drawn:
            for number, resp_ids in drawn:
                print(json.dumps({"row": number, "prompt_ids": encoded[number], "resp_ids": resp_ids}, separators=(",", ":")), file=file, flush=True)
                tokens += len(resp_ids)
                progress.add(note=f"{tokens:,} tokens")
        progress.finish(note=f"{tokens:,} tokens")
    return read_answers(out)


def read_answers(path):
    """Read a file of answers; LessonError names the line where it is not one."""
    lines = read_jsonl(path)
    header = next(lines)
    if header.get("answers") != FORMAT:
        raise LessonError(f"{shown(path)} is not a file of answers of this version (its first line says {str(header)[:60]}); "
                          "make it with `generate`.")
    missing = [name for name in NAMED if name not in header]
    if missing:
        raise LessonError(f"{shown(path)} does not say in its first line how it was drawn ({', '.join(missing)} missing); "
                          "make it again with `generate`.")
    rows = {}
    for number, row in enumerate(lines, 2):
        if not _are_ids([row.get("row")]) or not _are_ids(row.get("prompt_ids")) or not _are_ids(row.get("resp_ids")):
            raise LessonError(f"{shown(path)} line {number} is not an answer (row, prompt_ids, resp_ids, all of whole numbers from 0 up); "
                              "make the file again with `generate`.")
        rows[row["row"]] = row
    return Answers(header, [rows[number] for number in sorted(rows)])


def _are_ids(values):
    """Whether `values` is a list of whole numbers from 0 up; True is none, though Python counts it as 1."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def check_written_by(answers, target):
    """Refuse (LessonError) answers that another model than `target` wrote."""
    writer, found = answers.header.get("target"), model_fingerprint(target)
    if writer != found:
        raise LessonError(f"these answers were written by another model ({writer}, this one is {found}); "
                          "let this target write its own with `generate`.")


def _resume(out, header, encoded):
    """The numbers of the rows that `out`, begun now if it is not there, holds; a last line that was cut short is taken away.

    encoded: the ids of the prompts, which every row in the file must carry.
    """
    first = (json.dumps(header) + "\n").encode()
    with explained_write(out):  # an empty file and one cut inside this very header hold no answer yet
        fresh = not out.exists() or (out.is_file() and first.startswith(out.read_bytes()))
    if fresh:
        with atomic_path(out) as temporary:
            temporary.write_bytes(first)
    found = next(read_jsonl(out))  # before anything is cut: the file may be somebody else's
    _refuse_another_run(out, sorted(name for name in {**header, **found} if found.get(name) != header.get(name)))
    with explained_write(out), open(out, "rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    rows = read_answers(out).rows
    if any(row["row"] >= len(encoded) or row["prompt_ids"] != encoded[row["row"]] for row in rows):
        _refuse_another_run(out, ["prompt_ids"])
    return {row["row"] for row in rows}


def _refuse_another_run(out, differ):
    if differ:
        raise LessonError(f"{shown(out)} was drawn in another way ({', '.join(differ)} differ); give another file name, or delete it to draw again.")


def write_shipped(answers, path):
    """Write answers in the form the course ships: without the prompts' ids, which the reader's own prompt set gives back."""
    # neither clock nor name in the gzip header: the same answers make the same bytes
    with atomic_path(path) as temporary, open(temporary, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        for line in [answers.header, *({"row": row["row"], "resp_ids": row["resp_ids"]} for row in answers.rows)]:
            file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())


def read_shipped(path, tokenizer, prompts):
    """Read shipped answers and give each its prompt's ids again; `prompts` must begin with the prompts that were answered.

    Raises LessonError where they are other prompts, or were encoded by another tokenizer or chat template.
    """
    lines = read_jsonl(path)
    header, rows = next(lines), list(lines)
    encoded = [chat_ids(tokenizer, prompt) for prompt in prompts[:len(rows)]]
    if header.get("answers") != FORMAT or header.get("prompts") != fingerprint(encoded):
        raise LessonError(f"the answers in {shown(path)} belong to other prompts than these; build the prompts with the course's own settings, "
                          "or draw answers of your own with `generate`.")
    return Answers(header, [{"row": row["row"], "prompt_ids": ids, "resp_ids": row["resp_ids"]} for ids, row in zip(encoded, rows)])
