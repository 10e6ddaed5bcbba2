"""Prompts of our own: a seeded generator over the grammar in data/prompt_templates.toml, which says how it is written."""

import random
import re
import tomllib
from collections import Counter
from functools import cache

from lessonlib.files import DATA

FRAME_CAP = 0.015  # no frame writes more than this share of the prompts
BEFORE, AFTER = 0.4, 0.35  # how often a sentence is put before a prompt, and one after it
OPENER = 0.6  # how many of those before it fit any kind of prompt
BETWEEN = r"\s*(?:\n|\s\|\s)\s*"
SLOT = re.compile(r"\{(\w+)(#?)(?::(\d+)-(\d+))?\}")
ARTICLE = re.compile(r"\b([Aa])\(n\) (?=(\w+))")
SOUNDS_LIKE_AN = re.compile(r"(?!one|un[ai]|use|euro|ewe)(?:[aeiou]|hour|honest|8|11\b|18\b)", re.IGNORECASE)


def items(text, between=BETWEEN):
    """The items of a list written as text: on lines of their own or between bars."""
    return [item.replace("\\n", "\n") for item in re.split(between, text.strip()) if item]


@cache
def grammar():
    """The lists of the grammar: (kinds, slots, passages), each a dict by name."""
    with open(DATA / "prompt_templates.toml", "rb") as file:
        table = tomllib.load(file)
    slots = {name: items(text) for name, text in table.pop("slots").items()}
    passages = {name: [items(part) for part in text.split("\n+\n")] for name, text in table.pop("passages").items()}
    kinds = {name: {"share": kind["share"], "frames": items(kind["frames"], r"\n"), "before": items(kind["before"]),
                    "after": items(kind["after"])} for name, kind in table.items()}
    return kinds, slots, passages


def fill(text, rng, slots, passages, fixed=None, drawn=None):
    """`text` with every slot filled; `fixed` holds what each {name#} stands for, `drawn` what was used already."""
    fixed = {} if fixed is None else fixed
    drawn = {} if drawn is None else drawn

    def value(match):
        name, bound, low, high = match.groups()
        key = name.lower()
        if bound and key in fixed:
            return fixed[key]
        if low:
            return str(rng.randint(int(low), int(high)))
        if key == "passage":
            sentences = [rng.choice(choices) for choices in passages[rng.choice(sorted(passages))]]
            filled = " ".join(capital(fill(sentence, rng, slots, passages, fixed, drawn)) for sentence in sentences)
        else:
            used = drawn.setdefault(key, set())
            left = [item for item in slots[key] if item not in used] or slots[key]
            used.add(item := rng.choice(left))
            filled = fill(item, rng, slots, passages, fixed, drawn)
        if bound:
            fixed[key] = filled
        return capital(filled) if name[0].isupper() else filled

    return SLOT.sub(value, text)


def capital(text):
    """`text` with its first letter a capital."""
    return text[:1].upper() + text[1:]


def article(match):
    """a or an, by the sound of the next word."""
    return match[1] + ("n " if SOUNDS_LIKE_AN.match(match[2]) else " ")


def template_prompts(count, seed=0):
    """`count` prompts of our own as rows {"prompt", "source": "templates", "kind", "frame"}, kinds mixed by their shares.

    Repeats are possible and left to the caller; a smaller count gives the first of the same rows.
    """
    kinds, slots, passages = grammar()
    rng = random.Random(f"templates {seed}")
    names = sorted(kinds)
    for _ in range(count):
        kind = rng.choices(names, [kinds[name]["share"] for name in names])[0]
        number = rng.randrange(len(kinds[kind]["frames"]))
        text = frame = kinds[kind]["frames"][number]
        if rng.random() < BEFORE:
            before = "{opener}" if rng.random() < OPENER else rng.choice(kinds[kind]["before"])
            text = f"{before} {text}"
        if kinds[kind]["after"] and rng.random() < AFTER:
            text += ("\n\n" if "\n" in frame else " ") + rng.choice(kinds[kind]["after"])
        text = ARTICLE.sub(article, fill(text, rng, slots, passages))
        yield {"prompt": text, "source": "templates", "kind": kind, "frame": f"{kind} {number}"}


def choose(rows, count):
    """The first `count` of `rows` that keep the kinds at their shares and frames under their cap; fewer if they run out."""
    kinds = grammar()[0]
    total = sum(kind["share"] for kind in kinds.values())
    room = {name: -(-count * kind["share"] // total) for name, kind in kinds.items()}
    frames, chosen = Counter(), []
    for row in rows:
        if len(chosen) < count and room[row["kind"]] and frames[row["frame"]] < FRAME_CAP * count:
            room[row["kind"]] -= 1
            frames[row["frame"]] += 1
            chosen.append(row)
    return chosen


def variety(prompts):
    """The share of different openings: distinct first three words, by the number of prompts."""
    return len({" ".join(prompt.lower().split()[:3]) for prompt in prompts}) / max(1, len(prompts))
