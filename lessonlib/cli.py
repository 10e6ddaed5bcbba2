"""The command line: each step of the course for the reader's own pair. `python -m lessonlib --help` lists them."""

import argparse
import sys
from pathlib import Path

from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, shown


def main(arguments=None):
    """Run one subcommand; what the reader can mend ends in one sentence and exit code 2, Ctrl-C in exit code 130."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except LessonError as error:
        print(f"lessonlib {options.command}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"\nlessonlib {options.command}: stopped; what was finished is kept, and the same command goes on from there.", file=sys.stderr)
        sys.exit(130)


def parser():
    """The argument parser, one subparser a step."""
    top = argparse.ArgumentParser("python -m lessonlib", description="Distil a draft model for a target and measure what it earns.")
    steps = top.add_subparsers(dest="command", required=True, metavar="STEP")

    step = add(steps, "generic-text", generic_text, "fetch generic text (addresses, Python documentation, dictionary) to heal a draft on")
    step.add_argument("--out", type=Path, default=CHECKPOINTS / "generic-text", help="folder for train.jsonl and heldout.jsonl")
    step.add_argument("--source", type=Path, help="a folder of .txt of your own, instead of fetching")

    step = add(steps, "heal", heal, "make the off-the-shelf draft: a few of the target's layers, trained on generic text (about 10 minutes on a large GPU)")
    step.add_argument("--text", type=Path, default=CHECKPOINTS / "generic-text", help="folder with train.jsonl and heldout.jsonl (see generic-text)")
    step.add_argument("--out", type=Path, default=CHECKPOINTS / "healed", help="folder for the draft")
    step.add_argument("--layers", type=numbers, default=(0, 1, 2, 29), help="which of the target's layers to keep")
    step.add_argument("--steps", type=int, default=7000)
    step.add_argument("--batch", type=int, default=32, help="rows of text a step")
    step.add_argument("--length", type=int, default=512, help="tokens a row")
    step.add_argument("--lr", type=float, default=2e-3)
    step.add_argument("--seed", type=int, default=0)
    step.add_argument("--bits", type=int, default=8, choices=(8, 32))
    return top


def add(steps, name, run, text):
    """Add a subcommand with its function and one line of help."""
    step = steps.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    step.set_defaults(run=run)
    return step


def numbers(text):
    """Comma-separated whole numbers as a tuple."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 0,1,2") from None


def generic_text(options):
    """Fetch and clean generic text."""
    from lessonlib.traffic.generic_text import write_generic_text

    print("fetching and cleaning generic text: about a minute", flush=True)
    for name, counts in write_generic_text(options.out, options.source).items():
        print(f"  {name}: " + ", ".join(f"{source} {count:,} characters" for source, count in counts.items()))


def heal(options):
    """Make an off-the-shelf draft."""
    from dataclasses import asdict

    import torch

    from lessonlib.distil.heal import heal as run, perplexity, text_rows
    from lessonlib.distil.train import Recipe
    from lessonlib.files import read_jsonl
    from lessonlib.pair.draft_files import load_draft, save_draft
    from lessonlib.pair.layers_draft import layers_draft
    from lessonlib.pair.load import load_target, load_tokenizer
    from lessonlib.pair.presets import preset

    chosen = preset("tiny")
    print(chosen, flush=True)
    tokenizer, target = load_tokenizer(chosen), load_target(chosen)
    rows, heldout = (text_rows(tokenizer, (row["text"] for row in read_jsonl(options.text / f"{name}.jsonl", "text")), options.length,
                               separator=0) for name in ("train", "heldout"))
    print(f"  generic text: {rows.numel():,} training tokens, {heldout.numel():,} held out", flush=True)
    draft = layers_draft(target, options.layers)
    recipe = Recipe(steps=options.steps, lr=options.lr, batch_size=options.batch, micro_batch=min(options.batch, 32), seed=options.seed,
                    save_every=1000)
    on_gpu = chosen.device == "cuda"
    losses = run(draft, target, rows, recipe, checkpoint=options.out.with_suffix(".training"), dtype=torch.bfloat16 if on_gpu else torch.float32)
    note = {"recipe": asdict(recipe), "training_tokens": rows.numel(), "tokens_seen": recipe.steps * options.batch * options.length,
            "last_loss": sum(losses[-100:]) / len(losses[-100:])}
    save_draft(draft.eval(), options.out, target, kind="off-the-shelf", bits=options.bits, healing=note)
    shipped = load_draft(options.out, target)
    for name, model in (("target", target), ("draft as saved", shipped)):
        print(f"  perplexity on {heldout.numel():,} held-out tokens, {name}: {perplexity(model, heldout):.2f}", flush=True)
    print(f"  {shown(options.out)} is the draft", flush=True)
