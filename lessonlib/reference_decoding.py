"""What the trained drafts come to in the decoder, on record: the one that the course ships, the table of all of them, and the leaked benchmark."""

from dataclasses import asdict, replace

from lessonlib.distil.distil import train_draft
from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, DATA, read_json, read_jsonl, shown, write_json
from lessonlib.labels.score_answers import score_answers
from lessonlib.lesson import SHIPPED, Lesson, recipe_of
from lessonlib.measure.offline import offline_alpha, offline_alphas
from lessonlib.measure.sweep import sweep
from lessonlib.pair.chat import chat_ids, end_of_turn_ids
from lessonlib.pair.draft_files import NOTE, load_draft, save_draft
from lessonlib.pair.load import DISTILLED
from lessonlib.reference import REFERENCE, figure, figures, recorded_by
from lessonlib.reference_trainings import RUNS
from lessonlib.traffic.answers import generate

KEPT = "A-kl-6-epochs"  # the recorded training whose draft is shipped
DECODED = {"A, off-the-shelf": None, **{run.name: run.keep for run in RUNS if run.keep}}  # the folders of what trainings keep
TOKENS = 256  # an answer at most
CHOOSE_ON, CHOOSE_TOKENS, KS = 4, 48, (1, 2, 3, 4, 5)  # K is chosen on so many other prompts, so that the table's own did not choose it
LEAK_SEEDS, LEAK_K, LEAK_TOKENS, FRESH = range(5), 3, 32, 20
LEAK_STEPS, LEAK_BATCH = 60, 5  # twelve times through the twenty


def benchmark():
    """The twenty short prompts."""
    return [row["prompt"] for row in read_jsonl(DATA / "prompts_short.jsonl", "prompt")]


def kept_draft(kept, name, target):
    """A draft that `reference trainings` kept in the folder `kept`."""
    if not (kept / name / NOTE).is_file():
        raise LessonError(f"{shown(kept)} holds no draft {name}; name the folder of the recorded trainings of seed 0 (reference trainings --seed 0).")
    return load_draft(kept / name, target)


def ship_distilled(lesson, kept):
    """Write the recorded draft KEPT to checkpoints/distilled, as its difference from the off-the-shelf one in 4 bits, and record what it measures."""
    made = recorded_by()
    lesson, target = Lesson(replace(lesson.preset, heldout_prompts=SHIPPED["heldout"]), lesson.folder), lesson.target
    whole, note = kept_draft(kept, KEPT, target), read_json(kept / KEPT / NOTE)
    save_draft(whole, CHECKPOINTS / DISTILLED, target, kind="distilled", bits=4, base=lesson.preset.draft, training=note["kind"], recipe=note["recipe"], made_by=note["made_by"])
    drafts = {"as trained, in 8 bits": whole, "as shipped": load_draft(DISTILLED, target)}
    found = {name: {} for name in drafts}
    for run in ("heldout", "heldout-greedy"):
        for name, measured in zip(drafts, offline_alphas(list(drafts.values()), target, lesson.answers(run).sequences())):
            found[name][run] = figures(measured)
    write_json(REFERENCE / "distilled.json", {**made, "drafts": found})
    for name, runs in found.items():
        print(f"  {name:<22} alpha {runs['heldout']['alpha']['value']:.4f}  greedy top-1 {runs['heldout-greedy']['top1']['value']:.4f}", flush=True)


def record_decoded(lesson, kept):
    """The course's table of the decoder: twenty short prompts, each draft at the K that was best on others; writes data/reference/decoded.json."""
    made, target, tokenizer = recorded_by(), lesson.target, lesson.tokenizer
    drafts = {name: load_draft(lesson.preset.draft, target) if folder is None else kept_draft(kept, folder, target) for name, folder in DECODED.items()}
    others = [chat_ids(tokenizer, row["prompt"]) for row in lesson.prompts.heldout[:CHOOSE_ON]]
    prompts, end = [chat_ids(tokenizer, prompt) for prompt in benchmark()], end_of_turn_ids(tokenizer, target.generation_config)
    result = {**made, "tokens": TOKENS, "prompts": len(prompts), "drafts": {}}
    for name, draft in drafts.items():
        choice = sweep(target, draft, others, KS, CHOOSE_TOKENS, end, show=False)
        swept = sweep(target, draft, prompts, (choice.best.K,), TOKENS, end)
        result["drafts"][name] = {"chosen_by": {row.K: float(row.speedup) for row in choice.rows[1:]}, **decoded(swept)}
        print(f"  {name}:\n{swept.table()}", flush=True)
    write_json(REFERENCE / "decoded.json", result)


def decoded(swept):
    """What a Sweep of one K measured, as the records hold it."""
    plain, row = swept.rows
    return {"K": row.K, "speedup": figure(row.speedup), "predicted": row.predicted,
            "predicted_by_position": row.predicted_by_position, "tokens_per_round": row.counts.tokens_per_round, "per_tested": row.counts.per_tested,
            "conditional": row.counts.conditional, "c": swept.costs.c, "v": swept.costs.v[row.K], "tokens_per_second": row.tokens_per_second,
            "plain_tokens_per_second": plain.tokens_per_second, "identical": row.identical, "tokens_written": len(plain.counts.tokens)}


def record_leaks(lesson):
    """The benchmark leaked: the off-the-shelf draft trained on the twenty prompts with the target's own answers, decoded on them and on as many
    fresh ones, by the clock before and after for the first seed; five seeds, which differ in the order; writes data/reference/leaks.json.
    """
    made, target, tokenizer = recorded_by(), lesson.target, lesson.tokenizer
    prompts = {"leaked": benchmark(), "fresh": [row["prompt"] for row in lesson.prompts.heldout[-FRESH:]]}
    answers = {name: generate(target, tokenizer, texts, lesson.folder / f"twenty_{name}.jsonl", 0.0, LEAK_TOKENS) for name, texts in prompts.items()}
    store = score_answers(target, answers["leaked"], lesson.folder / "labels-leaked", lesson.preset.k)
    end = end_of_turn_ids(tokenizer, target.generation_config)

    def judged(draft, timed):
        return {name: {**figures(offline_alpha(draft, target, found.sequences())),
                       **(decoded(sweep(target, draft, [row["prompt_ids"] for row in found.rows], (LEAK_K,), LEAK_TOKENS, end, show=False)) if timed else {})}
                for name, found in answers.items()}

    recipe = replace(recipe_of(lesson.preset, "A"), steps=LEAK_STEPS, batch_size=LEAK_BATCH, lr=1e-3)
    result = {**made, "recipe": asdict(recipe), "K": LEAK_K, "tokens": LEAK_TOKENS, "before": judged(lesson.fresh("A").eval(), timed=True), "after": {}}
    for seed in LEAK_SEEDS:
        draft = lesson.fresh("A")
        train_draft(draft, store, replace(recipe, seed=seed), "kl", label=f"leak, seed {seed}")
        result["after"][seed] = judged(draft.eval(), timed=seed == LEAK_SEEDS[0])
        print("\n".join(f"  {name}: alpha {found['alpha']['value']:.3f}" for name, found in result["after"][seed].items()), flush=True)
    write_json(REFERENCE / "leaks.json", result)
