"""The heads on record: trained on tens of millions of the target's answer tokens, measured by distance, and shipped in few bits."""

from dataclasses import asdict, dataclass
from time import perf_counter

import torch

from lessonlib.distil.heads import train_heads
from lessonlib.distil.train import Recipe
from lessonlib.drafts.eagle import EagleHead
from lessonlib.drafts.head_files import heads_note, load_heads, noted_ways, save_heads
from lessonlib.drafts.medusa import MedusaHeads
from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, read_json, shown, write_json
from lessonlib.labels.score_answers import score_answers
from lessonlib.lesson import SHIPPED_ANSWERS
from lessonlib.measure.ahead import look_ahead_measured
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
DECODED = 16  # held-out real prompts that the board decodes, and by whose answers no tree is chosen
ROUNDED = 100  # held-out answers of each run, on which heads are measured once more when they have been rounded


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
    bits: int = 7

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
    """Train the RUNS (or the one named by `only`, and stop there), measure them on held-out answers, write data/reference/heads.json and ship two.

    Finished runs stay, so that several GPUs can each be given some. Each run learns from the same labels.
    """
    if only not in (None, *(run.name for run in RUNS)):
        raise LessonError(f"there is no training {only!r} of heads; name one of: {'; '.join(run.name for run in RUNS)}.")
    made, heldout, store = recorded_by(), heldout_answers(lesson), labelled(lesson)
    vocabulary = most_frequent((store.sequence(i) for i in range(len(store))), MOST_FREQUENT)
    found = {run.name: kept(lesson.folder / f"run {run.name}.json", lambda run=run: trained(run, lesson, store, heldout, vocabulary))
             for run in RUNS if only in (None, run.name)}
    if only is not None:
        return
    write_json(REFERENCE / "heads.json", {**made, "answers": [{"temperature": T, "seed": seed} for T, seed in DRAWN], "sequences": len(store), "tokens": store.rows,
                                          "vocabulary": len(vocabulary), "runs": found})
    ship_heads(lesson)


def ship_heads(lesson):
    """Write the trained heads that are shipped to checkpoints/, in few bits, and what those are worth on held-out answers to data/reference/heads.json."""
    made, target, record = recorded_by(), lesson.target, read_json(REFERENCE / "heads.json")
    heldout, shipped = {name: answers[:ROUNDED] for name, answers in heldout_answers(lesson).items()}, {"made_by": made, "answers": ROUNDED}
    for run in RUNS:
        if run.ship:
            heads, note = load_heads(lesson.folder / run.name, target), heads_note(lesson.folder / run.name)
            if note["training"] != {key: record["runs"][run.name][key] for key in note["training"]}:
                raise LessonError(f"the heads in {shown(lesson.folder / run.name)} are not those on record; run `python -m lessonlib reference heads` with this folder first.")
            save_heads(heads, CHECKPOINTS / run.ship, target, run.bits, noted_ways(note), made_by=made, **{key: note[key] for key in ("vocabulary", "training")})
            rounded = load_heads(CHECKPOINTS / run.ship, target)
            before, *found = (by_distance(look_ahead_measured(*each, PASSES, RANKS)) for each in ((heads, target, heldout["heldout-greedy"]), *((rounded, target, answers) for answers in heldout.values())))
            shipped[run.ship] = {"bits": run.bits, "heldout-greedy, not rounded": before, **dict(zip(heldout, found))}
            print(f"  {run.name}: greedy favourite right, by distance: {row(before['shares'])}, in {run.bits} bits {row(shipped[run.ship]['heldout-greedy']['shares'])}", flush=True)
    write_json(REFERENCE / "heads.json", {**record, "shipped": shipped})


def heldout_answers(lesson):
    """The shipped answers to the held-out prompts: {run: sequences}."""
    texts = [row["prompt"] for row in lesson.prompts.heldout]
    return {name: read_shipped(SHIPPED_ANSWERS / f"{name}.jsonl.gz", lesson.tokenizer, texts).sequences() for name in ("heldout", "heldout-greedy")}


def decoded_prompts(lesson):
    """The held-out real prompts that the board decodes."""
    return [row["prompt"] for row in lesson.prompts.heldout if row["source"] != "templates"][:DECODED]


def ways_on_others(heads, lesson):
    """The ways by which a tree of these heads is chosen: counted on held-out greedy answers to prompts that the board does not decode."""
    texts, decoded = [row["prompt"] for row in lesson.prompts.heldout], {*decoded_prompts(lesson)}
    rows = read_shipped(SHIPPED_ANSWERS / "heldout-greedy.jsonl.gz", lesson.tokenizer, texts).rows
    others = [(row["prompt_ids"], row["resp_ids"]) for row in rows if row["resp_ids"] and texts[row["row"]] not in decoded]
    return look_ahead_measured(heads, lesson.target, others, PASSES, RANKS).ways


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
    heads.eval().requires_grad_(False)
    every = max(1, len(losses) // 40)
    # greedy ones come first in the store
    known = look_ahead_measured(heads, target, [store.sequence(i) for i in range(min(1_000, len(store)))], PASSES, RANKS)
    result = {"recipe": asdict(recipe), "passes": run.passes, "layers": run.layers, "parameters": sum(weight.numel() for weight in heads.parameters()),
              "tokens": round(run.steps * BATCH * store.rows / len(store)), "seconds": seconds,
              "losses": [round(sum(losses[i:i + every]) / len(losses[i:i + every]), 4) for i in range(0, len(losses), every)], "losses_every": every,
              **{name: by_distance(look_ahead_measured(heads, target, answers, PASSES, RANKS)) for name, answers in heldout.items()}, "training answers": by_distance(known),
              "some of the vocabulary": by_distance(look_ahead_measured(heads, target, heldout["heldout"], PASSES, RANKS, vocabulary=vocabulary.to(target.device)))}
    save_heads(heads, lesson.folder / run.name, target, ways=ways_on_others(heads, lesson), vocabulary=vocabulary.tolist(),
               training={key: result[key] for key in ("recipe", "passes", "tokens", "seconds")})
    print(f"  {run.name}: {seconds:.0f} s, greedy favourite right, by distance: {row(result['heldout-greedy']['shares'])}", flush=True)
    return result


def by_distance(found):
    """A LookedAhead as the records hold it."""
    return {"alpha": [figure(each.alpha) for each in found.guesses], "top1": [figure(each.top1) for each in found.guesses],
            "shares": [[round(share, 4) for share in each.shares] for each in found.guesses]}


def row(shares):
    """The favourites' shares, by distance, as text."""
    return " ".join(f"{each[0]:.3f}" for each in shares)
