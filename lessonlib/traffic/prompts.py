"""The prompts (t1): read, rid of repeats, kept apart from the benchmark, and split into train and held-out without leaks."""

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from lessonlib.errors import LessonError
from lessonlib.files import DATA, atomic_path, fingerprint, read_jsonl, write_json
from lessonlib.traffic.duplicates import deduplicate, leaks
from lessonlib.traffic.sources import heldout_prompts, package_prompts
from lessonlib.traffic.templates import choose, template_prompts, variety

SHORTEST, LONGEST = 12, 2000  # characters of a prompt
TRAIN, HELDOUT = 10_000, 500  # our own mixture is made this large at least and then cut, so that a part is like the whole
SPARE = 1.2  # templates written for each one needed: some repeat, some leak
FATES = ("too short", "too long", "exact", "near", "benchmark", "leaking", "left over", "train", "heldout")


@dataclass
class PromptSet:
    """Train and held-out rows {"prompt", "source"}, in a seeded order, and the report of what became of every row read."""

    train: list
    heldout: list
    report: dict = field(repr=False)

    def table(self):
        """The report as a plain-text table, one line a source."""
        names = ["read", *FATES]
        lines = {source: [counts[name] for name in names] for source, counts in self.report["sources"].items()}
        lines["all"] = [sum(column) for column in zip(*lines.values())]
        width = max(map(len, [*lines, "source"]))
        text = ["  ".join(["source".ljust(width), *(name.rjust(6) for name in names)])]
        for source, counts in lines.items():
            cells = [f"{count:,}".rjust(max(6, len(name))) for count, name in zip(counts, names)]
            text.append("  ".join([source.ljust(width), *cells]))
        shares = [f"{name} {share:.2f}" for name, share in self.report["variety"].items()]
        return "\n".join([*text, f"distinct first three words: {', '.join(shares)}", *self.report["notes"]])


def build_prompts(seed=0, train=TRAIN, heldout=HELDOUT, benchmark=DATA / "prompts_short.jsonl", sources=None, show=True):
    """Build `train` and `heldout` prompts with nothing in common with each other or with the JSONL file `benchmark`.

    `sources` is any rows {"prompt", "source"}, as `jsonl_prompts` and `ultrachat_prompts` give them; None means our own
    mixture: all of the packages' prompts, templates to fill up, and in the held-out half two sets that are never trained on.
    Returns a PromptSet (fewer than asked, with a note, if the sources run out); LessonError without even one of each.
    """
    if train < 1 or heldout < 1:
        raise LessonError(f"{train} train and {heldout} held-out prompts were asked for; ask for at least one of each.")
    fate = Fates()
    rng = random.Random(f"prompts {seed}")
    own_mixture = sources is None
    kept_out, pool = (heldout_prompts(), package_prompts()) if own_mixture else ([], list(sources))
    size, aside = (max(train, TRAIN), max(heldout, HELDOUT)) if own_mixture else (train, heldout)
    missing = size + aside - len(kept_out) - len(pool) // 2  # about a third of the pool are repeats
    templates = list(template_prompts(round(SPARE * max(0, missing)), seed)) if own_mixture else []

    rows = [row | {"prompt": row["prompt"].strip(), "kept out": number < len(kept_out)}
            for number, row in enumerate(kept_out + pool + templates)]
    rows = fate.drop(rows, "too short", [row for row in rows if len(row["prompt"]) < (SHORTEST if own_mixture else 1)])
    rows = fate.drop(rows, "too long", [row for row in rows if len(row["prompt"]) > LONGEST])
    _, exact, near = deduplicate(rows)
    rows = fate.drop(fate.drop(rows, "exact", exact), "near", near)
    if benchmark is not None:
        rows = fate.drop(rows, "benchmark", leaks(rows, read_jsonl(benchmark, "prompt"))[1])

    kept_out = [row for row in rows if row["kept out"]]
    rows = [row for row in rows if not row["kept out"]]
    if not own_mixture:
        aside = min(aside, max(1, len(rows) * heldout // (train + heldout)))
    rest = mixture(rows, size + aside - len(kept_out), rng)
    chosen = kept_out + rest[:max(0, aside - len(kept_out))]
    rng.shuffle(chosen)
    held = {id(row) for row in chosen}
    rows = [row for row in rows if id(row) not in held]
    rows = fate.drop(rows, "leaking", leaks(rows, chosen)[1])
    learned = mixture(rows, size, rng)[:train]
    if not learned or not chosen:
        raise LessonError(f"Too few different prompts are left ({len(rows) + len(chosen)}) for one to train on and one "
                          "to hold out; give more prompts that differ.")
    fate.settle(learned, chosen[:heldout], rows, chosen)
    learned, chosen = ([{"prompt": row["prompt"], "source": row["source"]} for row in part]
                       for part in (learned, chosen[:heldout]))
    result = PromptSet(learned, chosen, make_report(learned, chosen, fate, seed, train, heldout))
    if show:
        print(result.table(), flush=True)
    return result


def mixture(rows, size, rng):
    """Shuffle all the real prompts among `rows` with as many templates, in their shares, as make up `size`."""
    real = [row for row in rows if "frame" not in row]
    rows = real + choose([row for row in rows if "frame" in row], size - len(real))
    rng.shuffle(rows)
    return rows


class Fates:
    """Counts, source by source, what became of every row."""

    def __init__(self):
        self.counts = {}

    def count(self, fate, rows):
        """Note that `rows` met `fate`."""
        for row in rows:
            self.counts.setdefault(row["source"], Counter())[fate] += 1

    def drop(self, rows, fate, dropped):
        """`rows` without those `dropped`, which are counted under `fate`."""
        gone = {id(row) for row in dropped}
        self.count(fate, dropped)
        return [row for row in rows if id(row) not in gone]

    def settle(self, train, heldout, left, chosen):
        """Count the rows that were used and, of those `left` and `chosen`, the ones that were not needed."""
        used = {id(row) for row in train + heldout}
        self.count("train", train)
        self.count("heldout", heldout)
        self.count("left over", [row for row in left + chosen if id(row) not in used])


def make_report(learned, chosen, fate, seed, train, heldout):
    """What `PromptSet.report` holds: counts by source, variety, what falls short, and fingerprints of both halves."""
    notes = [f"Only {len(part):,} {name} prompts are left of the {asked:,} asked for; the run uses what there is."
             for name, part, asked in (("train", learned, train), ("held-out", chosen, heldout)) if len(part) < asked]
    openings = {"train": [row["prompt"] for row in learned],
                "templates": [row["prompt"] for row in learned if row["source"] == "templates"],
                "real": [row["prompt"] for row in learned if row["source"] != "templates"]}
    return {
        "seed": seed,
        "sources": {source: {"read": sum(counts.values())} | {name: counts[name] for name in FATES}
                    for source, counts in sorted(fate.counts.items())},
        "variety": {name: round(variety(part), 4) for name, part in openings.items() if part},
        "train": fingerprint(learned), "heldout": fingerprint(chosen), "notes": notes,
    }


def write_prompts(prompts, folder):
    """Write `folder`/prompts_train.jsonl, prompts_heldout.jsonl and prompts_report.json; returns their paths."""
    paths = [Path(folder) / f"prompts_{name}" for name in ("train.jsonl", "heldout.jsonl", "report.json")]
    for path, rows in zip(paths, (prompts.train, prompts.heldout)):
        with atomic_path(path) as temporary:
            temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    write_json(paths[2], prompts.report)
    return paths
