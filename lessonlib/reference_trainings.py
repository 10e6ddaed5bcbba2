"""The long trainings on record: every draft and objective of notebooks 06, 07 and 09 on a hundred times what a notebook can wait for."""

import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import perf_counter

import torch

from lessonlib.distil.distil import train_draft
from lessonlib.distil.heal import text_rows
from lessonlib.distil.losses import Objective
from lessonlib.files import read_json, read_jsonl, write_json
from lessonlib.kernels.backend import reason
from lessonlib.labels.faults import FavouriteOnly, OneRowLate
from lessonlib.labels.score_answers import score_answers
from lessonlib.lesson import SHIPPED_ANSWERS, SHIPPED_SEED, Lesson, recipe_of
from lessonlib.measure.offline import offline_alpha
from lessonlib.measure.scoreboard import provenance
from lessonlib.pair.draft_files import load_draft, save_draft
from lessonlib.pair.layers_draft import layers_draft
from lessonlib.reference import REFERENCE, by_answer, figures, recorded_by, recorded_gain
from lessonlib.traffic.answers import Answers, generate, read_shipped

PROMPTS, TOKENS, BATCH = 8_000, 256, 32  # prompts to train on, tokens an answer at most, answers a step
OPENING = 32  # tokens of a piece of generic text that stand for its prompt
EPOCHS = 2
CURVE = (25, 50, 100, 200, 400)  # steps after which, as before the first, alpha is measured on CURVE_ANSWERS held-out answers
CURVE_ANSWERS = 100


@dataclass(frozen=True)
class Run:
    """One training on record. layers: of the target, to begin with, or None for the off-the-shelf draft; fault: the labels' mistake;
    writer: whose text it learns from; once: on record for the first seed only; keep: the folder its draft is kept in, in 8 bits.
    """

    name: str
    layers: tuple | None
    objective: Objective
    epochs: int = EPOCHS
    fault: type | None = None
    writer: str = "target"
    once: bool = False
    keep: str | None = None


A, B = None, (0, 1, 2, 3)
RUNS = (
    Run("A, ce", A, Objective("ce"), keep="A-ce"),
    Run("A, kl", A, Objective("kl"), keep="A-kl"),
    *(Run(f"A, {name}", A, Objective(name)) for name in ("reverse_kl", "jsd", "tv", "lk")),
    Run("B, ce", B, Objective("ce")),
    Run("B, kl", B, Objective("kl"), keep="B-kl"),
    Run("B, one row late", B, Objective("kl"), fault=OneRowLate),
    Run("B, T = 4 on the top 64", B, Objective("kl", T=4.0, renormalise=True)),
    Run("B, T = 4 on all odds", B, Objective("kl", T=4.0)),
    Run("B, favourite only", B, Objective("kl"), fault=FavouriteOnly),
    Run("A, kl, 6 epochs", A, Objective("kl"), epochs=6, once=True, keep="A-kl-6-epochs"),
    Run("A, jsd, 6 epochs", A, Objective("jsd"), epochs=6, once=True),
    Run("A, kl on generic text", A, Objective("kl"), writer="generic", once=True),
    Run("A, kl + 0.1 ce", A, Objective("kl", ce_weight=0.1), once=True),
    Run("first 1, kl", (0,), Objective("kl"), once=True),
    Run("first 2, kl", (0, 1), Objective("kl"), once=True),
    Run("first 8, kl", tuple(range(8)), Objective("kl"), once=True),
    Run("first 3 and the last, kl", (0, 1, 2, 29), Objective("kl"), once=True),
    Run("first 6 and the last 2, kl", (0, 1, 2, 3, 4, 5, 28, 29), Objective("kl"), once=True),
)


def record_trainings(lesson, text):
    """Train and measure every draft of RUNS; writes data/reference/trainings_N.json.gz, N the preset's seed. Finished runs stay.

    Each seed draws other answers to the same prompts and takes them in another order. text: folder of the generic text (`generic-text` makes it).
    """
    made, seed = recorded_by(), lesson.preset.seed
    lesson, heldout = _sized(lesson)
    runs = [run for run in RUNS if seed == SHIPPED_SEED or not run.once]
    stores = labelled(lesson, seed, text, {run.writer for run in runs})
    store = stores["target"]
    result = {**made, "seed": seed, "answers": len(store), "tokens": store.rows, "top_mass": float(store.top_mass().mean()),
              "heldout_lengths": {name: [len(resp) for _, resp in sequences] for name, sequences in heldout.items()},
              "untrained": {}, "runs": {}}
    for name, layers in (("A", A), *((run.name.partition(",")[0], run.layers) for run in runs if run.layers)):
        if name not in result["untrained"]:
            result["untrained"][name] = measured(fresh(lesson, layers), lesson, heldout)
    for run in runs:
        result["runs"][run.name] = kept(lesson.folder / f"run {run.name}.json", lambda run=run: trained(run, lesson, stores, heldout, seed))
        found = result["runs"][run.name]
        print(f"  {run.name:<30} alpha {found['heldout']['alpha']['value']:.4f}  greedy top-1 {found['heldout-greedy']['top1']['value']:.4f}", flush=True)
    write_json(REFERENCE / f"trainings_{seed}.json.gz", result)


def record_plain(lesson):
    """Train draft A by forward KL twice on the same labels in the same order, with the kernels and with the functions that define them; writes
    data/reference/kernels_or_plain.json.
    """
    made, seed = recorded_by(), lesson.preset.seed
    lesson, heldout = _sized(lesson)
    stores, run = labelled(lesson, seed, None, {"target"}), Run("A, kl", A, Objective("kl"))
    result = {**made, "seed": seed, "tokens": run.epochs * stores["target"].rows, "heldout_lengths": {name: [len(resp) for _, resp in rows] for name, rows in heldout.items()},
              "runs": {}}
    for name, asked in (("kernels", ""), ("plain", "plain")):
        start = perf_counter()
        with kernels_asked_for(asked):
            found = {"kernels": reason(lesson.target.device), **trained(run, lesson, stores, heldout, seed)}
        result["runs"][name] = {**found, "seconds": perf_counter() - start}
        print(f"  {name:<8} alpha {found['heldout']['alpha']['value']:.4f} [{found['heldout']['alpha']['low']:.4f}, {found['heldout']['alpha']['high']:.4f}]  "
              f"greedy top-1 {found['heldout-greedy']['top1']['value']:.4f}  {perf_counter() - start:.0f} s", flush=True)
    print(f"  kernels - plain, paired: {recorded_gain(result, 'kernels', 'plain'):+.4f}")
    write_json(REFERENCE / "kernels_or_plain.json", result)


@contextmanager
def kernels_asked_for(what):
    """Within it, LESSON_KERNELS is `what`."""
    before = os.environ.get("LESSON_KERNELS", "")
    os.environ["LESSON_KERNELS"] = what
    try:
        yield
    finally:
        os.environ["LESSON_KERNELS"] = before


def _sized(lesson):
    """(the lesson at the recordings' size, {run: held-out answers})."""
    seed = lesson.preset.seed
    lesson = Lesson(replace(lesson.preset, seed=SHIPPED_SEED, train_prompts=PROMPTS, max_new_tokens=TOKENS, batch_size=BATCH), lesson.folder / f"seed-{seed}")
    texts = [row["prompt"] for row in lesson.prompts.heldout]
    return lesson, {name: read_shipped(SHIPPED_ANSWERS / f"{name}.jsonl.gz", lesson.tokenizer, texts).sequences() for name in ("heldout", "heldout-greedy")}


def labelled(lesson, seed, text, writers):
    """{writer: the target's labels on that writer's text}: of its own answers and, if `writers` names it, of as many tokens of generic text."""
    prompts = [row["prompt"] for row in lesson.prompts.train[:PROMPTS]]
    drawn = generate(lesson.target, lesson.tokenizer, prompts, lesson.folder / "answers.jsonl", 1.0, TOKENS, seed=1_000 * seed)
    found = {"target": score_answers(lesson.target, drawn, lesson.folder / "labels-target", lesson.preset.k, temperatures=(4.0,))}
    if "generic" in writers:
        length = sum(len(row["resp_ids"]) for row in drawn.rows) // len(prompts)
        pages = text_rows(lesson.tokenizer, (row["text"] for row in read_jsonl(text / "train.jsonl", "text")), OPENING + length, separator=0)
        pages = pages[torch.randperm(len(pages), generator=torch.Generator().manual_seed(seed))[:len(prompts)]].tolist()
        rows = [{"prompt_ids": page[:OPENING], "resp_ids": page[OPENING:]} for page in pages]
        # under the target's own header, for it is to read what others wrote
        found["generic"] = score_answers(lesson.target, Answers({**drawn.header, "writer": "generic"}, rows), lesson.folder / "labels-generic", lesson.preset.k)
    return found


def kept(path, make):
    """What `make` gives, kept in `path` so that an interrupted recording goes on with it."""
    if not path.exists():
        write_json(path, make())
    return read_json(path)


def fresh(lesson, layers):
    """The draft a run begins with, its trainable weights in fp32."""
    return load_draft(lesson.preset.draft, lesson.target, torch.float32) if layers is None else layers_draft(lesson.target, layers)


def measured(draft, lesson, heldout):
    """alpha, top-1 and KL with their intervals, and alpha of every answer, on each run of held-out answers."""
    found = {name: offline_alpha(draft, lesson.target, sequences, batch_tokens=16_384) for name, sequences in heldout.items()}
    return {name: {**figures(each), "alpha_by_answer": by_answer(each)} for name, each in found.items()}


def trained(run, lesson, stores, heldout, seed):
    """One run: its recipe, the losses, alpha on the way, and what it has come to."""
    draft, store, curve = fresh(lesson, run.layers), stores[run.writer], {}

    def alpha_of(draft):
        return figures(offline_alpha(draft, lesson.target, heldout["heldout"][:CURVE_ANSWERS], batch_tokens=16_384))["alpha"]

    recipe = replace(recipe_of(lesson.preset, "A" if run.layers is None else "B"), steps=run.epochs * len(stores["target"]) // BATCH, batch_size=BATCH,
                     lr=rate(run), seed=seed)

    def look(step, loss):
        if step + 1 in CURVE:
            training, _ = draft.training, draft.eval()
            curve[step + 1] = alpha_of(draft)
            draft.train(training)

    curve[0] = alpha_of(draft)
    labels = run.fault(store) if run.fault else store
    losses = train_draft(draft, labels, recipe, run.objective, on_step=look, dtype=torch.bfloat16 if lesson.preset.device == "cuda" else None, label=run.name)
    if run.keep:
        save_draft(draft.eval(), lesson.folder / run.keep, lesson.target, kind=run.name, bits=8, made_by=provenance(), recipe=asdict(recipe))
    every = max(1, len(losses) // 40)
    return {"objective": asdict(run.objective), "layers": run.layers, "recipe": asdict(recipe), "fault": run.fault and run.fault.__name__, "writer": run.writer,
            "losses": [round(sum(losses[i:i + every]) / len(losses[i:i + every]), 4) for i in range(0, len(losses), every)], "losses_every": every,
            "alpha_by_step": curve, **measured(draft.eval(), lesson, heldout)}


def rate(run):
    """The learning rate: a draft that can write already takes a smaller one."""
    return 1e-3 if run.layers is None else 2e-3
