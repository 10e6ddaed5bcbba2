"""The whole course in one run: prompts, answers, labels, training, measurement, decoding, scoreboard; each step kept and gone on with."""

import itertools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter

import torch

from lessonlib.decode.heads import heads_drafter
from lessonlib.decode.ngram import NgramDrafter
from lessonlib.distil.distil import train_draft
from lessonlib.distil.losses import Objective
from lessonlib.distil.train import Recipe
from lessonlib.drafts.head_files import heads_note
from lessonlib.drafts.truncated import truncated_draft
from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, DATA, check_writable, shown, write_json
from lessonlib.labels.alignment import check_alignment
from lessonlib.labels.score_answers import score_answers
from lessonlib.labels.scorer import check_settings
from lessonlib.measure import scoreboard
from lessonlib.measure.offline import alpha_gain, offline_alphas
from lessonlib.measure.sweep import sweep
from lessonlib.pair.chat import chat_ids, end_of_turn_ids
from lessonlib.pair.draft_files import NOTE, load_draft, save_draft
from lessonlib.pair.layers_draft import cast_parameters
from lessonlib.pair.load import load_target, load_tokenizer, locate
from lessonlib.pair.tokenizer_check import check_same_tokenizer
from lessonlib.progress import duration
from lessonlib.traffic.answers import Answers, generate, read_shipped
from lessonlib.traffic.prompts import build_prompts, write_prompts
from lessonlib.traffic.sources import ULTRACHAT, jsonl_prompts, ultrachat_prompts

SHIPPED_ANSWERS = DATA / "answers"
SHIPPED = {"train": 2048, "heldout": 500, "heldout-greedy": 500}  # answers the course ships, of so many tokens, drawn with this seed
SHIPPED_TOKENS, SHIPPED_SEED = 64, 0
NGRAM = "ngram"  # the name of the draft that is no model
LIVE = 64  # answers of the shipped file that are drawn again, to show that the command makes them


@dataclass
class Arm:
    """One draft with one training: its letter, its name, how it was trained, and what offline measurement says of it."""

    shape: str
    training: str
    draft: torch.nn.Module
    result: object

    @property
    def name(self):
        """The draft and its training in a few words."""
        return f"{self.shape}, {self.training}"


class Lesson:
    """The pipeline of one preset, its files in one folder. Each step prints what it does; run again, it takes up what is there."""

    def __init__(self, preset, folder=None, field="prompt"):
        self.preset, self.folder, self.field = preset, Path(folder or CHECKPOINTS / f"lesson-{preset.name}"), field
        self.clock = perf_counter()

    def say(self, text):
        """One line, with the time since the lesson began."""
        print(f"[{duration(perf_counter() - self.clock)}] {text}", flush=True)

    @cached_property
    def tokenizer(self):
        """The target's tokenizer."""
        return load_tokenizer(self.preset)

    @cached_property
    def target(self):
        """The target model."""
        return load_target(self.preset)

    @cached_property
    def prompts(self):
        """Train and held-out prompts (t1), written beside the rest."""
        p, source = self.preset, None
        if p.prompts is not None:
            source = ultrachat_prompts() if p.prompts == ULTRACHAT else jsonl_prompts(p.prompts, self.field)
        found = build_prompts(seed=p.seed, sources=source, show=False)
        write_prompts(found, self.folder)
        return found

    def shipped(self, name):
        """The file in which the course ships this run of answers, or None where this run's settings are not the shipped ones'."""
        p, path = self.preset, SHIPPED_ANSWERS / f"{name}.jsonl.gz"
        count = p.train_prompts if name == "train" else p.heldout_prompts
        as_shipped = (p.name, p.prompts, p.seed) == ("tiny", None, SHIPPED_SEED) and count <= SHIPPED[name] and p.max_new_tokens <= SHIPPED_TOKENS
        return path if as_shipped and path.exists() else None

    def answers(self, name):
        """The target's answers (t2): "train" and "heldout" at T = 1, or "heldout-greedy"; the shipped ones or drawn now."""
        p = self.preset
        rows, count = (self.prompts.train, p.train_prompts) if name == "train" else (self.prompts.heldout, p.heldout_prompts)
        texts = [row["prompt"] for row in rows]
        path = self.shipped(name)
        if path is not None:
            found = read_shipped(path, self.tokenizer, texts)
            return Answers(found.header, [{**row, "resp_ids": row["resp_ids"][:p.max_new_tokens]} for row in found.rows[:count]])
        return self.draw(name, texts[:count])

    def draw(self, name, texts):
        """Draw answers to `texts` now, or go on with the file that an interrupted run left."""
        greedy = name.endswith("greedy")
        return generate(self.target, self.tokenizer, texts, self.folder / f"answers_{name}_{len(texts)}.jsonl", 0.0 if greedy else 1.0,
                        self.preset.max_new_tokens, seed=self.preset.seed + (name != "train"))

    def labels(self):
        """The label store of the training answers (t3), its alignment checked."""
        store = score_answers(self.target, self.answers("train"), self.folder / "labels", self.preset.k)
        check = check_alignment(self.target, store)
        mass = store.top_mass()
        self.say(f"labels: {store.rows:,} positions; re-read without batching they differ by {check.kl:.1e} nats, shifted by one row by {check.kl_late:.1f}; "
                 f"top-{store.k} mass {mass.mean():.3f} on average, below 0.5 at {(mass < 0.5).float().mean():.1%} of positions")
        return store

    def train(self, draft, shape, objective, store):
        """Train a draft (t5, t6) with one objective and keep it; a finished training is loaded again."""
        p = self.preset
        objective = Objective(objective) if isinstance(objective, str) else objective
        recipe = recipe_of(p, shape)
        name = f"{shape}-{objective.name}"
        train_draft(draft, store, recipe, objective, checkpoint=self.folder / f"{name}.training", dtype=p.dtype, label=f"training {name}")
        save_draft(draft, self.folder / name, self.target, kind=f"shape {shape}", training=objective.name)
        return self.load(self.folder / name)

    def fresh(self, shape, dtype=torch.float32):
        """A draft as it is before any training: A the off-the-shelf one, B the truncated target; in fp32, to be trained, or another dtype."""
        if shape == "A":
            return self.load(None, dtype)
        return cast_parameters(truncated_draft(self.target, self.preset.truncated_layers), dtype)

    def load(self, name=None, dtype=None, tree=None):
        """A draft by folder or name, the preset's separate one by default, its tokenizer checked if it comes from elsewhere; of heads and of "ngram" the
        drafter, with a `tree` of so many proposals where one is asked for (LessonError for drafts that propose no trees).
        """
        name = name or self.preset.draft
        place = None if name == NGRAM else locate(name)
        if isinstance(place, Path) and heads_note(place):
            return heads_drafter(place, self.target, tree)
        if tree is not None:
            raise LessonError(f"the draft {name} proposes one text at a time and no tree; leave the tree out, or take Medusa or EAGLE heads.")
        if name == NGRAM:
            return NgramDrafter()
        if not (isinstance(place, Path) and (place / NOTE).is_file()):  # a draft of our own making was checked when it was made
            check_same_tokenizer(self.tokenizer, load_tokenizer(name))
        return load_draft(name, self.target, dtype)

    def measure(self, drafts, sequences):
        """Offline alpha on held-out answers (t4) of drafts, a mapping from (shape, training): Arms."""
        found = offline_alphas(list(drafts.values()), self.target, sequences)
        return [Arm(shape, training, draft, result) for ((shape, training), draft), result in zip(drafts.items(), found)]


def recipe_of(preset, shape):
    """The Recipe of a preset for draft shape A (separate) or B (truncated)."""
    steps, rate = (preset.train_steps, preset.truncated_learning_rate) if shape == "B" else (preset.separate_steps, preset.learning_rate)
    micro_batch = 4 if preset.device == "cpu" else None  # answers of like length waste little padding, and four keep two cores busy
    return Recipe(steps=steps, lr=rate, batch_size=preset.batch_size, micro_batch=micro_batch, seed=preset.seed)


UNTRAINED = "untrained"
TRAININGS = (("B", "ce"), ("B", "kl"), ("A", "ce"), ("A", "kl"))


def run_lesson(lesson, board=scoreboard.BOARD, trainings=TRAININGS):
    """Run the whole pipeline of a Lesson, print its table and add a row to the scoreboard; returns the Arms and the Sweep."""
    preset = lesson.preset
    scoreboard.check_board(board)
    check_writable(lesson.folder / "anything")
    lesson.say(f"machine: {scoreboard.machine()}; {scoreboard.versions()}; about {ESTIMATES.get(preset.name, 'an hour or more')}")
    tokenizer, target = lesson.tokenizer, lesson.target
    # loaded now, so that a pair that is none is refused before any work
    drafts = {(shape, UNTRAINED): lesson.fresh(shape, target.dtype) for shape in dict.fromkeys(shape for shape, _ in trainings)}
    check_settings(target, preset.k)
    lesson.say("prompts: building train and held-out sets")
    print(lesson.prompts.table(), flush=True)
    train, heldout = lesson.answers("train"), lesson.answers("heldout")
    lesson.say(f"answers: {len(train):,} to train on and {len(heldout):,} held out, up to {preset.max_new_tokens} tokens each")
    if lesson.shipped("train"):
        live = lesson.draw("train", [row["prompt"] for row in lesson.prompts.train[:min(LIVE, preset.train_prompts)]])
        same = sum(a["resp_ids"] == b["resp_ids"] for a, b in zip(live.rows, train.rows))
        lesson.say(f"answers: shipped ones loaded; {len(live)} drawn here by the same command, {same} of them identical to the token")
    sequences = heldout.sequences()
    lesson.say("labels: the target scores its own answers")
    store = lesson.labels()
    for shape, objective in trainings:
        lesson.say(f"training draft {shape} with {objective}: {recipe_of(preset, shape).steps} steps of {preset.batch_size} answers")
        drafts[shape, objective] = lesson.train(lesson.fresh(shape), shape, objective, store)
    lesson.say(f"offline alpha of {len(drafts)} drafts on {len(sequences)} held-out answers")
    arms = lesson.measure(drafts, sequences)
    best = max(arms, key=lambda arm: arm.result.alpha)
    lesson.say(f"K sweep of draft {best.name} in the real decoder: {preset.sweep_prompts} held-out prompts, {preset.sweep_tokens} tokens, greedy")
    prompts = [chat_ids(tokenizer, row["prompt"]) for row in lesson.prompts.heldout[:preset.sweep_prompts]]
    swept = sweep(target, best.draft, prompts, preset.sweep_k, preset.sweep_tokens, end_of_turn_ids(tokenizer, target.generation_config))
    print(summary(arms, swept, best), flush=True)
    record(lesson, best, swept, board)
    write_json(lesson.folder / "result.json", {"arms": {arm.name: [*map(float, arm.result[:3])] for arm in arms}, "best": best.name,
                                               "speedup": {row.K: float(row.speedup) for row in swept.rows}})
    lesson.say(f"done; a row was added to {shown(board)}, everything else is in {shown(lesson.folder)}")
    return arms, swept


ESTIMATES = {"tiny": "10 minutes on two cores"}


def summary(arms, swept, best):
    """The closing table: every draft before and after training, then the sweep of the best."""
    kinds = {"A": "separate small model", "B": "target's first layers"}
    lines = ["", "Held-out answers of the target, T = 1, whole vocabulary; 95 % intervals over answers:",
             "  draft                     training    alpha                    top-1                    KL(p||q), nats"]
    arms = sorted(arms, key=lambda arm: arm.shape)
    for arm in arms:
        alpha, top1, kl = arm.result[:3]
        lines.append(f"  {arm.shape} {kinds[arm.shape]:<23} {arm.training:<10}  {alpha!s:<23}  {top1!s:<23}  {kl}")
    lines.append("  What each step gained in alpha, on the same positions:")
    for before, after in itertools.combinations(arms, 2):
        if before.shape == after.shape:
            lines.append(f"  {after.shape} {before.training} -> {after.training}: {alpha_gain(after.result, before.result).signed()}")
    costs = swept.costs
    v = ", ".join(f"v({K}) = {value:.2f}" for K, value in costs.v.items() if K)
    lines += ["", f"Draft {best.name} in the real decoder, greedy, {swept.prompts} prompts; one target step {costs.target_seconds * 1e3:.1f} ms, "
              f"one draft step {costs.draft_seconds * 1e3:.1f} ms: c = {costs.c:.2f}, {v}", swept.table(),
              f"  The text is plain decoding's own, token for token, in {swept.rows[-1].identical} of {swept.prompts} prompts at K = {swept.rows[-1].K}.", *swept.warnings(), ""]
    row = swept.best
    verdict = (f"Speculative decoding measures {row.speedup:.2f} x at K = {row.K}, but one prompt gives no interval." if swept.prompts == 1 else
               f"Speculative decoding wins here: {row.speedup:.2f} x at K = {row.K}." if row.speedup.low > 1 else
               f"Speculative decoding loses here: {row.speedup:.2f} x at K = {row.K}; c and v(K) cost more than alpha = {row.counts.per_tested:.2f} repays." if row.speedup.high < 1 else
               f"No clear gain or loss here: {row.speedup:.2f} x at K = {row.K}, and the interval holds 1.")
    return "\n".join([*lines, verdict])


def record(lesson, best, swept, board):
    """Add this run's row to the scoreboard."""
    row, preset = swept.best, lesson.preset
    scoreboard.add_row({
        "pair": preset.target, "draft": best.shape, "training": best.training if best.training == UNTRAINED else f"{best.training}, {recipe_of(preset, best.shape).steps} steps", "alpha [95 %]": best.result.alpha,
        "top-1": f"{best.result.top1:.3f}", "K": row.K, "c": f"{swept.costs.c:.2f}", "v(K)": f"{swept.costs.v[row.K]:.2f}",
        "tokens/round": f"{row.counts.tokens_per_round:.2f}", "predicted": f"{row.predicted:.2f}x",
        "measured [95 %]": f"{row.speedup:.2f}x {row.speedup.interval('.2f')}",
        "tok/s plain": f"{swept.rows[0].tokens_per_second:.1f}", "tok/s": f"{row.tokens_per_second:.1f}", "seed": preset.seed}, board)
