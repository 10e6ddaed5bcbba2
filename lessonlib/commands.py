"""What each subcommand of `python -m lessonlib` does, for the reader's own pair as for the course's."""

import math
from dataclasses import asdict, replace
from pathlib import Path

import torch

from lessonlib.errors import LessonError
from lessonlib.files import DATA, check_writable, read_jsonl, shown, write_json
from lessonlib.lesson import NGRAM, Lesson, recipe_of, run_lesson
from lessonlib.pair.presets import preset

PASSES = 4  # in which an EAGLE head practises unless told otherwise
MEASURED = 256  # of the answers that heads were trained on, to say what each guess is worth


def a_model(draft, name):
    """`draft`, if it is a model of its own; LessonError for heads and look-up, which are none."""
    if hasattr(draft, "propose"):
        raise LessonError(f"{name} is no model of its own but proposes with the target's help; this step needs a separate or truncated draft.")
    return draft


def lesson_of(options):
    """The Lesson that the common options describe: its preset with the given sizes, its folder."""
    chosen = preset(options.preset, options.target, options.draft_model, options.prompts)
    sizes = {name: getattr(options, name) for name in ("seed", "train_prompts", "heldout_prompts", "max_new_tokens", "train_steps", "batch_size",
                                                       "sweep_prompts", "sweep_tokens", "sweep_k", "k") if getattr(options, name, None) is not None}
    if any(K < 1 for K in sizes.get("sweep_k", ())):
        raise LessonError(f"--sweep-k cannot be {','.join(map(str, sizes['sweep_k']))}; give 1 or more, plain decoding is always beside them.")
    if "train_steps" in sizes:
        sizes["separate_steps"] = sizes["train_steps"]
    if getattr(options, "dtype", None):
        sizes["dtype"] = getattr(torch, options.dtype)
    chosen = replace(chosen, **sizes)
    print(chosen, flush=True)
    return Lesson(chosen, options.folder, getattr(options, "field", "prompt"))


def prompt_texts(path, field):
    """The prompts in `field` of a JSON Lines file, each a text or a list of messages; LessonError names the row that holds neither."""
    found = [row[field] for row in read_jsonl(path, field)]
    for number, prompt in enumerate(found, 1):
        messages = isinstance(prompt, list) and prompt and all(isinstance(part, dict) and {"role", "content"} <= part.keys() for part in prompt)
        if not (isinstance(prompt, str) or messages):
            raise LessonError(f'{shown(path)} row {number}: the field "{field}" is neither a text nor a list of messages; '
                              "name the field that holds the prompt.")
    return found


def lesson(options):
    """The whole pipeline."""
    run_lesson(lesson_of(options), options.board)


def prompts(options):
    """Build the train and held-out prompts."""
    made = lesson_of(options)
    print(made.prompts.table())
    print(f"  written to {shown(made.folder)}")


def generate(options):
    """Have the target answer prompts."""
    from lessonlib.traffic.answers import generate as run
    from lessonlib.traffic.vllm_engine import choose_engine

    check_writable(options.out)
    made = lesson_of(options)
    texts = prompt_texts(options.input, options.field)[:options.limit]
    run(made.target, made.tokenizer, texts, options.out, options.temperature, made.preset.max_new_tokens, made.preset.seed,
        choose_engine(made.target, options.engine, options.batch))
    print(f"  written to {shown(options.out)}")


def score(options):
    """Label answers with the target's odds, and check their alignment."""
    from lessonlib.labels.alignment import check_alignment
    from lessonlib.labels.score_answers import score_answers
    from lessonlib.traffic.answers import read_answers
    from lessonlib.traffic.vllm_engine import VllmEngine

    check_writable(options.out)
    made = lesson_of(options)
    store = score_answers(made.target, read_answers(options.answers), options.out, made.preset.k, options.temperatures,
                          engine=VllmEngine(made.target) if options.engine == "vllm" else None)
    check = check_alignment(made.target, store)
    size = sum(entry["labels"]["bytes"] for entry in store.manifest["shards"])
    print(f"  {store.rows:,} positions, {size / store.rows:.1f} bytes each; re-read one by one they differ by {check.kl:.1e} nats "
          f"(shifted by one row: {check.kl_late:.2f}); top-{store.k} mass {store.top_mass().mean():.3f}")


def train(options):
    """Train a draft, or heads on the target, on labels."""
    from lessonlib.distil.distil import train_draft
    from lessonlib.distil.heads import train_heads
    from lessonlib.distil.losses import Objective
    from lessonlib.drafts.eagle import EagleHead
    from lessonlib.drafts.head_files import save_heads
    from lessonlib.drafts.medusa import MedusaHeads
    from lessonlib.drafts.truncated import truncated_draft
    from lessonlib.labels.store import LabelStore
    from lessonlib.measure.ahead import look_ahead_measured
    from lessonlib.pair.draft_files import check_draft_folder, save_draft
    from lessonlib.pair.tokenizer_check import model_fingerprint

    objective = Objective(options.loss, T=options.T, beta=options.beta, ce_weight=options.ce_weight, renormalise=options.renormalise)
    check_draft_folder(options.out)
    starts = [name for name in ("draft", "layers", "medusa", "eagle") if getattr(options, name) is not None]
    if len(starts) > 1:
        raise LessonError(f"--{starts[0]} and --{starts[1]} name two things to train; give one of them.")
    if options.passes is not None and options.eagle is None:
        raise LessonError("--passes says how an EAGLE head practises; give it with --eagle.")
    made, fresh = lesson_of(options), bool({*starts} - {"draft"})
    given = {name: value for name in ("lr", "micro_batch") if (value := getattr(options, name)) is not None}
    recipe = replace(recipe_of(made.preset, "B" if fresh else "A"), **given)
    store = LabelStore(options.labels, expect={"target": model_fingerprint(made.target)})
    checkpoint = options.out.with_name(options.out.name + ".training")
    if options.medusa or options.eagle is not None:
        torch.manual_seed(made.preset.seed)  # what an EAGLE head begins with is partly drawn
        heads = MedusaHeads(made.target, options.medusa) if options.medusa else EagleHead(made.target, options.eagle or None)
        losses = train_heads(heads, made.target, store, recipe, objective, options.passes or PASSES, checkpoint)
        found = look_ahead_measured(heads.eval(), made.target, [store.sequence(i) for i in range(min(MEASURED, len(store)))], options.passes or PASSES)
        save_heads(heads, options.out, made.target, ways=found.ways,
                   training={"objective": asdict(objective), "recipe": asdict(recipe), "last_loss": losses[-1]})
        print("  favourite right, by distance, on answers it was trained on: " + " ".join(f"{each.shares[0]:.2f}" for each in found.guesses))
    else:
        draft = truncated_draft(made.target, options.layers) if fresh else a_model(made.load(options.draft, torch.float32), options.draft)
        losses = train_draft(draft, store, recipe, objective, checkpoint=checkpoint, dtype=made.preset.dtype)
        save_draft(draft, options.out, made.target, kind=f"first {options.layers} layers" if fresh else "separate",
                   training={"objective": asdict(objective), "recipe": asdict(recipe), "last_loss": losses[-1]})
    print(f"  written to {shown(options.out)}")


def alpha(options):
    """Measure a draft offline on held-out answers."""
    from lessonlib.drafts.head_files import heads_note, load_heads
    from lessonlib.labels.score_answers import score_answers
    from lessonlib.measure.ahead import look_ahead_measured
    from lessonlib.measure.offline import alpha_bracket, offline_alpha
    from lessonlib.pair.load import locate
    from lessonlib.traffic.answers import check_written_by, read_answers

    made = lesson_of(options)
    answers = read_answers(options.answers)
    check_written_by(answers, made.target)
    name = options.draft or made.preset.draft
    place = None if name == NGRAM else locate(name)
    if isinstance(place, Path) and heads_note(place):
        if options.T != 1 or options.labels:
            raise LessonError("heads are measured at T = 1, and from the answers alone; leave --T and --labels out.")
        print(f"  {len(answers):,} answers, T = 1; each guess where the text before it is the target's")
        for distance, each in enumerate(look_ahead_measured(load_heads(place, made.target), made.target, answers.sequences()).guesses, 1):
            print(f"  guess {distance}: alpha {each.alpha}  top-1 {each.top1}")
        return
    draft = a_model(made.load(options.draft), name)
    found = offline_alpha(draft, made.target, answers.sequences(), options.T)
    print(f"  {len(found.per_position):,} positions of {len(answers):,} answers, T = {options.T:g}")
    for name, value in (("alpha", found.alpha), ("top-1", found.top1), ("KL(p || q), nats", found.kl)):
        print(f"  {name:<18}{value}")
    if options.labels:
        store = score_answers(made.target, answers, options.labels, made.preset.k)
        low, high = alpha_bracket(draft, store)
        print(f"  from the labels alone, alpha at T = 1 lies between {low:.4f} and {high:.4f}")


def sweep(options):
    """Sweep K in the real decoder."""
    from lessonlib.decode.drafter import Sampling
    from lessonlib.measure.sweep import sweep as run
    from lessonlib.pair.chat import chat_ids, end_of_turn_ids

    made = lesson_of(options)
    p = made.preset
    if options.input or not p.prompts:
        texts = prompt_texts(options.input or DATA / "prompts_short.jsonl", options.field)
    else:
        texts = [row["prompt"] for row in made.prompts.heldout]
    texts = texts[:p.sweep_prompts]
    draft = made.load(options.draft, tree=options.tree)
    sampling = Sampling(options.temperature, options.top_k, options.top_p, torch.Generator().manual_seed(p.seed))
    found = run(made.target, draft, [chat_ids(made.tokenizer, text) for text in texts], p.sweep_k, p.sweep_tokens,
                end_of_turn_ids(made.tokenizer, made.target.generation_config), sampling, adaptive=True)
    print(found.table())
    if (ahead := getattr(draft, "ahead", math.inf)) < max(p.sweep_k):
        print(f"  This draft guesses no more than {ahead} tokens ahead, so no larger K was swept.")
    for line in [*found.parted(), *found.warnings()]:
        print(line)
    print("  " + "; ".join(f"c({K}) = {c:.3f}" for K, c in found.costs.c_at.items()) + "; " + "; ".join(f"v({K}) = {v:.2f}" for K, v in found.costs.v.items()))
    print("  steps: " + "; ".join(f"{name} by {path}" for name, path in found.costs.paths.items()))


def say(options):
    """Let the target answer one prompt, with a draft or alone."""
    from lessonlib.decode.decoder import spec_sample
    from lessonlib.pair.chat import chat_ids, end_of_turn_ids

    made = lesson_of(options)
    target = made.target
    draft = made.load(options.draft, tree=options.tree) if options.K else None
    found = spec_sample(target, draft, chat_ids(made.tokenizer, options.prompt), options.K, made.preset.max_new_tokens,
                        end_of_turn_ids(made.tokenizer, target.generation_config), options.temperature, options.top_k, options.top_p,
                        torch.Generator().manual_seed(made.preset.seed))
    print(made.tokenizer.decode(found.tokens, skip_special_tokens=True))
    print(f"  {len(found.tokens)} tokens in {found.rounds} rounds, {len(found.tokens) / found.seconds:.1f} tokens a second; "
          f"kept of those tested, by position: {[round(share, 2) for share in found.conditional]}")


def generic_text(options):
    """Fetch and clean generic text."""
    from lessonlib.traffic.generic_text import write_generic_text

    print("fetching and cleaning generic text: about a minute", flush=True)
    for name, counts in write_generic_text(options.out, options.source).items():
        print(f"  {name}: " + ", ".join(f"{source} {count:,} characters" for source, count in counts.items()))


def heal(options):
    """Make an off-the-shelf draft out of some of the target's layers."""
    from lessonlib.distil.heal import heal as run, perplexity, text_rows
    from lessonlib.distil.train import Recipe
    from lessonlib.measure.scoreboard import provenance
    from lessonlib.pair.draft_files import check_draft_folder, load_draft, save_draft
    from lessonlib.pair.layers_draft import layers_draft
    from lessonlib.pair.tokenizer_check import model_fingerprint

    check_draft_folder(options.out)
    made = lesson_of(options)
    target, on_gpu = made.target, made.preset.device == "cuda"
    rows, heldout = (text_rows(made.tokenizer, (row["text"] for row in read_jsonl(options.text / f"{name}.jsonl", "text")), options.length,
                               separator=options.separator) for name in ("train", "heldout"))
    print(f"  generic text: {rows.numel():,} training tokens, {heldout.numel():,} held out", flush=True)
    last = target.config.num_hidden_layers - 1
    draft = layers_draft(target, options.layers or (*range(min(3, last)), last))
    recipe = Recipe(steps=options.steps, lr=options.lr, batch_size=options.batch, micro_batch=min(options.batch, 32), seed=made.preset.seed, save_every=1000)
    losses = run(draft, target, rows, recipe, checkpoint=options.out.with_name(options.out.name + ".training"),
                 dtype=torch.bfloat16 if on_gpu else torch.float32)
    save_draft(draft.eval(), options.out, target, kind="off-the-shelf", bits=options.bits, made_by=provenance(), healing={
        "recipe": asdict(recipe), "training_tokens": rows.numel(), "tokens_seen": recipe.steps * options.batch * options.length,
        "last_loss": sum(losses[-100:]) / len(losses[-100:])})
    found = {name: perplexity(model, heldout) for name, model in (("target", target), ("draft", load_draft(options.out, target)))}
    write_json(options.out.with_name(options.out.name + ".perplexity.json"), {"heldout_tokens": heldout.numel(), "target_fingerprint": model_fingerprint(target), **found})
    print(f"  perplexity on {heldout.numel():,} held-out tokens: target {found['target']:.2f}, draft as saved {found['draft']:.2f}")
    print(f"  written to {shown(options.out)}")


def reference(options):
    """Make anew what the course ships."""
    from lessonlib.reference import record_off_the_shelf, record_sentences, ship_answers
    from lessonlib.reference_board import record_board
    from lessonlib.reference_decoding import record_decoded, record_leaks, ship_distilled
    from lessonlib.reference_heads import record_heads, ship_heads
    from lessonlib.reference_trainings import record_plain, record_trainings

    made = lesson_of(options)
    if made.preset.name != "tiny":
        raise LessonError("the files that the course ships belong to the tiny preset; add --preset tiny.")
    drafts = options.drafts or made.folder / "seed-0"
    if options.what == "answers":
        ship_answers(made)
    elif options.what == "sentences":
        record_sentences(made)
    elif options.what == "trainings":
        record_trainings(made, options.text)
    elif options.what == "plain":
        record_plain(made)
    elif options.what == "distilled":
        ship_distilled(made, drafts)
    elif options.what == "decoded":
        record_decoded(made, drafts)
    elif options.what == "leaks":
        record_leaks(made)
    elif options.what == "heads":
        record_heads(made, options.only)
    elif options.what == "shipped-heads":
        ship_heads(made)
    elif options.what == "board":
        record_board(made)
    else:
        record_off_the_shelf(made, options.text)
