"""The heads on record: trained on tens of millions of the target's answer tokens, measured by distance, and shipped in few bits."""

from dataclasses import asdict, dataclass
from time import perf_counter

import torch

from lessonlib.distil.heads import train_heads
from lessonlib.distil.train import Recipe
from lessonlib.drafts.eagle import EagleHead
from lessonlib.drafts.head_files import load_heads, save_heads
from lessonlib.drafts.medusa import MedusaHeads
from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, write_json
from lessonlib.labels.score_answers import score_answers
from lessonlib.lesson import SHIPPED_ANSWERS
from lessonlib.measure.ahead import look_ahead_measured
from lessonlib.measure.scoreboard import provenance
from lessonlib.pair.load import EAGLE, MEDUSA
from lessonlib.pair.short_head import most_frequent
from lessonlib.reference import REFERENCE, figure, recorded_by
from lessonlib.reference_trainings import kept
from lessonlib.traffic.answers import Answers, generate, read_shipped
from lessonlib.traffic.engine import BatchEngine

PROMPTS, TOKENS, TEXTS_AT_ONCE = 10_000, 256, 1024
DRAWN = ((0.0, 0), (0.5, 2), (0.5, 4), (1.0, 1), (1.0, 3))  # temperature and seed of each run of answers
BATCH, PASSES = 96, 4
MOST_FREQUENT = 8192  # of the target's 49,152 tokens
RANKS = 16  # whose shares are on record


@dataclass(frozen=True)
class HeadsRun:
    """One training on record. layers: whose features an EAGLE head reads, passes: in which it practises; count: of Medusa heads; ship: the shipped
    folder's name, bits: of a weight there.
    """

    name: str
    steps: int
    lr: float
    layers: tuple | None = None
    passes: int = PASSES
    count: int | None = None
    ship: str | None = None
    bits: int = 4

    def fresh(self, target):
        """The heads before training, the same each time."""
        torch.manual_seed(0)
        return EagleHead(target, self.layers) if self.layers else MedusaHeads(target, self.count)


SHORT = 1_000  # steps, in which heads are compared with each other
RUNS = (HeadsRun("eagle", 4_000, 3e-3, layers=(10, 20, 30), ship=EAGLE),
        HeadsRun("medusa", SHORT, 3e-3, count=3, ship=MEDUSA),
        HeadsRun("eagle, short", SHORT, 3e-3, layers=(10, 20, 30)),
        HeadsRun("eagle, layer 30", SHORT, 3e-3, layers=(30,)),
        HeadsRun("eagle, one pass", SHORT, 3e-3, layers=(10, 20, 30), passes=1))


def record_heads(lesson, only=None):
    """Train the RUNS (or the one named by `only`, and stop there), measure them on held-out answers, ship two and write data/reference/heads.json.

    Finished runs stay, so that several GPUs can each be given some. Each run learns from the same labels.
    """
    if only not in (None, *(run.name for run in RUNS)):
        raise LessonError(f"there is no training {only!r} of heads; name one of: {'; '.join(run.name for run in RUNS)}.")
    made, target = recorded_by(), lesson.target
    texts = [row["prompt"] for row in lesson.prompts.heldout]
    heldout = {name: read_shipped(SHIPPED_ANSWERS / f"{name}.jsonl.gz", lesson.tokenizer, texts).sequences() for name in ("heldout", "heldout-greedy")}
    store = labelled(lesson)
    vocabulary = most_frequent((store.sequence(i) for i in range(len(store))), MOST_FREQUENT)
    found = {run.name: kept(lesson.folder / f"run {run.name}.json", lambda run=run: trained(run, lesson, store, heldout, vocabulary))
             for run in RUNS if only in (None, run.name)}
    if only is not None:
        return
    shipped = {}
    for run in RUNS:
        if run.ship:
            heads, ways = load_heads(lesson.folder / run.name, target), found[run.name]["training answers"]["ways"]
            # a tree is chosen by what the answers it was trained on say, and measured on others
            save_heads(heads, CHECKPOINTS / run.ship, target, run.bits, [(share, ranks) for share, *ranks in ways], made_by=provenance(),
                       vocabulary=vocabulary.tolist(), training={key: found[run.name][key] for key in ("recipe", "passes", "tokens", "seconds")})
            shipped[run.name] = {name: by_distance(look_ahead_measured(load_heads(CHECKPOINTS / run.ship, target), target, answers, PASSES, RANKS))
                                 for name, answers in heldout.items()}
            print(f"  {run.name}: greedy favourite right, by distance: trained {row(found[run.name]['heldout-greedy']['shares'])}, as shipped in {run.bits} bits {row(shipped[run.name]['heldout-greedy']['shares'])}", flush=True)
    write_json(REFERENCE / "heads.json", {**made, "answers": [{"temperature": T, "seed": seed} for T, seed in DRAWN], "sequences": len(store), "tokens": store.rows,
                                          "vocabulary": len(vocabulary), "runs": found, "shipped": shipped})


def labelled(lesson):
    """The target's labels on all DRAWN answers, as one store."""
    prompts = [row["prompt"] for row in lesson.prompts.train[:PROMPTS]]
    runs = [generate(lesson.target, lesson.tokenizer, prompts, lesson.folder / f"answers T = {T:g}, seed {seed}.jsonl", T, TOKENS, seed, BatchEngine(lesson.target, TEXTS_AT_ONCE))
            for T, seed in DRAWN]
    header = {**runs[0].header, "temperature": [T for T, _ in DRAWN], "seed": [seed for _, seed in DRAWN]}
    return score_answers(lesson.target, Answers(header, [row for run in runs for row in run.rows]), lesson.folder / "labels", lesson.preset.k)


def trained(run, lesson, store, heldout, vocabulary):
    """One run: its recipe, its losses, and what its guesses are worth at each distance."""
    heads, target = run.fresh(lesson.target), lesson.target
    recipe = Recipe(steps=run.steps, lr=run.lr, batch_size=BATCH, save_every=1_000)
    start = perf_counter()
    losses = train_heads(heads, target, store, recipe, "kl", run.passes, lesson.folder / f"{run.name}.training", label=run.name)
    seconds = perf_counter() - start
    save_heads(heads.eval().requires_grad_(False), lesson.folder / run.name, target)
    every = max(1, len(losses) // 40)
    # greedy answers come first in the store, and were drawn for all prompts: those to train on, so that a tree can be chosen without a look at others
    measured = {**heldout, "training answers": [store.sequence(i) for i in range(min(1_000, len(store)))]}
    result = {"recipe": asdict(recipe), "passes": run.passes, "layers": run.layers, "parameters": sum(weight.numel() for weight in heads.parameters()),
              "tokens": round(run.steps * BATCH * store.rows / len(store)), "seconds": seconds,
              "losses": [round(sum(losses[i:i + every]) / len(losses[i:i + every]), 4) for i in range(0, len(losses), every)], "losses_every": every,
              **{name: by_distance(look_ahead_measured(heads, target, answers, PASSES, RANKS)) for name, answers in measured.items()},
              "some of the vocabulary": by_distance(look_ahead_measured(heads, target, heldout["heldout"], PASSES, RANKS, vocabulary=vocabulary.to(target.device)))}
    print(f"  {run.name}: {seconds:.0f} s, greedy favourite right, by distance: {row(result['heldout-greedy']['shares'])}", flush=True)
    return result


def by_distance(found):
    """A LookedAhead as the records hold it."""
    return {"alpha": [figure(each.alpha) for each in found.guesses], "top1": [figure(each.top1) for each in found.guesses],
            "shares": [[round(share, 4) for share in each.shares] for each in found.guesses], "ways": [[round(share, 5), *ranks] for share, ranks in found.ways]}


def row(shares):
    """The favourites' shares, by distance, as text."""
    return " ".join(f"{each[0]:.3f}" for each in shares)
