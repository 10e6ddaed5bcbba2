"""The command line: each step of the course for the reader's own pair. `python -m lessonlib --help` lists them."""

import argparse
import sys
from pathlib import Path

from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, ROOT

ENGINES = ("transformers", "lessonlib", "vllm")
DRAFTS = "a folder or a name, of a draft or of heads, or ngram for look-up (default: the preset's separate draft)"
LOSSES = ("ce", "kl", "reverse_kl", "jsd", "tv", "lk")


def main(arguments=None):
    """Run one subcommand; what the reader can mend ends in one sentence and exit code 2, Ctrl-C in exit code 130."""
    options = parser().parse_args(arguments)
    try:
        from lessonlib import commands

        getattr(commands, options.command.replace("-", "_"))(options)
    except LessonError as error:
        print(f"lessonlib {options.command}: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        print(f"lessonlib {options.command}: this Python has no module {error.name}; use that of the environment, .venv/bin/python (make env makes it).",
              file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"\nlessonlib {options.command}: stopped; what was finished is kept, and the same command goes on from there.", file=sys.stderr)
        sys.exit(130)


class OneSentence(argparse.ArgumentParser):
    """A parser whose refusals are one sentence, as all others are, without the usage before it."""

    def error(self, message):
        """Say what is wrong and where the options are listed, and leave with exit code 2."""
        self.exit(2, f"{self.prog.removeprefix('python -m ')}: {message}; see {self.prog} --help.\n")


def parser():
    """The argument parser, one subparser a step."""
    top = OneSentence("python -m lessonlib", description="Distil a draft model for a target and measure what it earns.")
    steps = top.add_subparsers(dest="command", required=True, metavar="STEP")
    for add in (add_lesson, add_prompts, add_generate, add_score, add_train, add_alpha, add_sweep, add_say, add_generic_text, add_heal, add_reference):
        add(steps)
    return top


def add_step(steps, name, text, pair=True):
    """Add a subcommand with one line of help and, where it needs a pair, the options that choose one."""
    step = steps.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    if pair:
        step.add_argument("--preset", help="tiny, spark, spark-open or custom (default: LESSON_PRESET, or what this machine can run)")
        step.add_argument("--target", help="the target of a custom pair: a folder or a hub id (LESSON_TARGET)")
        step.add_argument("--draft-model", help="the separate draft of a custom pair (LESSON_DRAFT)")
        step.add_argument("--prompts", help="a JSON Lines file of prompts of your own (LESSON_PROMPTS)")
        step.add_argument("--folder", type=Path, help="where the run's files go (default: checkpoints/lesson-PRESET)")
        step.add_argument("--seed", type=seed)
    return step


def add_lesson(steps):
    """`lesson`: the whole pipeline."""
    step = add_step(steps, "lesson", "the whole pipeline, from prompts to a row in SCOREBOARD.md (tiny: under 10 minutes on two cores)")
    step.add_argument("--field", default="prompt", help="the field of your own file that holds the prompt")
    step.add_argument("--board", type=Path, default=ROOT / "SCOREBOARD.md", help="the scoreboard that gets the row")
    for name in ("train-prompts", "heldout-prompts", "max-new-tokens", "train-steps", "batch-size", "sweep-prompts", "sweep-tokens", "k"):
        step.add_argument(f"--{name}", type=positive, help="default: the preset's")
    step.add_argument("--sweep-k", type=numbers, help="the K to sweep, such as 1,2,3,4")


def add_prompts(steps):
    """`prompts`: t1."""
    step = add_step(steps, "prompts", "build train and held-out prompts, deduplicated, the benchmark's excluded (t1)")
    step.add_argument("--field", default="prompt", help="the field of your own file that holds the prompt")


def add_generate(steps):
    """`generate`: t2."""
    step = add_step(steps, "generate", "let the target answer prompts, as token ids; goes on where an interrupted run stopped (t2)")
    step.add_argument("--input", type=Path, required=True, help="JSON Lines of prompts (as `prompts` writes them)")
    step.add_argument("--field", default="prompt")
    step.add_argument("--out", type=Path, required=True, help="JSON Lines file of answers")
    step.add_argument("--temperature", type=float, default=1.0, help="0 is greedy; otherwise the whole distribution is sampled")
    step.add_argument("--max-new-tokens", type=positive)
    step.add_argument("--limit", type=positive, help="answer the first so many prompts only")
    step.add_argument("--batch", type=positive, help="prompts answered at once by transformers (32 on a processor, 256 on a GPU)")
    step.add_argument("--engine", choices=ENGINES, help="who runs the target (default: vllm for half precision on a GPU, where `make vllm` installed it, else lessonlib there; LESSON_ENGINE)")


def add_score(steps):
    """`score`: t3."""
    step = add_step(steps, "score", "label every answer with the target's odds: top k, tail mass; the alignment is checked (t3)")
    step.add_argument("--answers", type=Path, required=True)
    step.add_argument("--out", type=Path, required=True, help="folder of the label store")
    step.add_argument("--k", type=positive, help="favourite tokens kept a position (default 64)")
    step.add_argument("--temperatures", type=decimals, default=(), help="other temperatures to keep the tail mass at, such as 2,4")
    step.add_argument("--engine", choices=("transformers", "vllm"), default="transformers", help="who runs the target: vllm gives its prompt log-probabilities")


def add_train(steps):
    """`train`: t5 and t6."""
    step = add_step(steps, "train", "train a draft on labels, by cross-entropy or a divergence (t5, t6); goes on where it stopped")
    step.add_argument("--labels", type=Path, required=True, help="folder of the label store")
    step.add_argument("--out", type=Path, required=True, help="folder for the draft")
    step.add_argument("--draft", help="the draft to start from: a folder or a name (default: the preset's separate draft)")
    step.add_argument("--layers", type=positive, help="start from the target's first so many layers instead")
    step.add_argument("--medusa", type=positive, help="train so many Medusa heads on the target instead")
    step.add_argument("--eagle", type=numbers, nargs="?", const=(), help="train an EAGLE head instead, on what is behind the target's last layer, or behind layers such as 10,20,30")
    step.add_argument("--passes", type=positive, help="how many tokens an EAGLE head learns to draft on its own states (default 4)")
    step.add_argument("--loss", default="kl", choices=LOSSES)
    step.add_argument("--T", type=float, default=1.0, help="distillation temperature")
    step.add_argument("--beta", type=float, default=0.5, help="weight of the target in jsd")
    step.add_argument("--ce-weight", type=float, default=0.0, help="weight of cross-entropy added to a divergence")
    step.add_argument("--renormalise", action="store_true", help="drop the tail bucket (to see what that costs)")
    step.add_argument("--lr", type=float)
    step.add_argument("--train-steps", type=positive)
    step.add_argument("--batch-size", type=positive, help="answers a step")
    step.add_argument("--micro-batch", type=positive, help="answers run at once; the result does not depend on it")


def add_alpha(steps):
    """`alpha`: t4."""
    step = add_step(steps, "alpha", "measure a draft on held-out answers without decoding: alpha, top-1, KL, with intervals (t4)")
    step.add_argument("--answers", type=Path, required=True)
    step.add_argument("--draft", help="a folder or a name (default: the preset's separate draft)")
    step.add_argument("--T", type=float, default=1.0, help="the temperature that is served")
    step.add_argument("--labels", type=Path, help="a label store of these answers (made if it is not there): brackets alpha from it alone")


def add_sweep(steps):
    """`sweep`: t8."""
    step = add_step(steps, "sweep", "decode with each K, plain decoding beside it: measured and predicted speed-up (t8)")
    step.add_argument("--draft", help=DRAFTS)
    step.add_argument("--input", type=Path, help="JSON Lines of prompts (default: held-out ones of your own --prompts, or else the 20 benchmark prompts)")
    step.add_argument("--field", default="prompt")
    step.add_argument("--sweep-k", type=numbers, help="the K to sweep, such as 1,2,3,4")
    step.add_argument("--sweep-prompts", type=positive)
    step.add_argument("--sweep-tokens", type=positive)
    add_sampling(step)


def add_say(steps):
    """`say`: one prompt."""
    step = add_step(steps, "say", "answer one prompt, speculatively or plainly")
    step.add_argument("prompt")
    step.add_argument("--draft", help=DRAFTS)
    step.add_argument("--K", type=int, default=2, help="tokens proposed a round; 0 is plain decoding")
    step.add_argument("--max-new-tokens", type=positive)
    add_sampling(step)


def add_sampling(step):
    """What heads propose, how tokens are chosen, and in which number format the weights are."""
    step.add_argument("--tree", type=positive, help="with heads: the tree of so many proposals that, by what was measured of them, keeps most")
    step.add_argument("--dtype", choices=("float32", "bfloat16"), help="the weights' number format (default: the preset's); bfloat16 halves what a step reads, float32 is exact to the token")
    step.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    step.add_argument("--top-k", type=int)
    step.add_argument("--top-p", type=float)


def add_generic_text(steps):
    """`generic-text`: what to heal on."""
    step = add_step(steps, "generic-text", "fetch generic text (addresses, Python documentation, dictionary) to heal a draft on", pair=False)
    step.add_argument("--out", type=Path, default=CHECKPOINTS / "generic-text", help="folder for train.jsonl and heldout.jsonl")
    step.add_argument("--source", type=Path, help="a folder of .txt of your own, instead of fetching")


def add_heal(steps):
    """`heal`: the off-the-shelf draft."""
    step = add_step(steps, "heal", "make an off-the-shelf draft: some of the target's layers, trained on generic text (about 10 minutes on a large GPU)")
    step.add_argument("--text", type=Path, default=CHECKPOINTS / "generic-text", help="folder with train.jsonl and heldout.jsonl (see generic-text)")
    step.add_argument("--out", type=Path, default=CHECKPOINTS / "healed", help="folder for the draft")
    step.add_argument("--layers", type=numbers, help="which of the target's layers to keep, such as 0,1,2,29 (default: its first three and its last)")
    step.add_argument("--steps", type=positive, default=5700)
    step.add_argument("--batch", type=positive, default=32, help="rows of text a step")
    step.add_argument("--length", type=positive, default=512, help="tokens a row")
    step.add_argument("--separator", type=int, default=0, help="the token id put between documents")
    step.add_argument("--lr", type=float, default=2e-3)
    step.add_argument("--bits", type=int, default=8, choices=(8, 32))


def add_reference(steps):
    """`reference`: what the course ships."""
    step = add_step(steps, "reference", "make anew the files that the course ships: its answers, its distilled draft, and what is on record of drafts, trainings and decoding")
    step.add_argument("what", choices=("answers", "off-the-shelf", "sentences", "trainings", "plain", "distilled", "decoded", "leaks", "heads", "shipped-heads", "board"))
    step.add_argument("--text", type=Path, default=CHECKPOINTS / "generic-text", help="folder that generic-text made, for off-the-shelf and trainings")
    step.add_argument("--only", help="of heads, the one training to run, such as medusa (default: all, and then what is shipped)")
    step.add_argument("--drafts", type=Path, help="folder in which trainings of seed 0 kept its drafts, for distilled and decoded (default: seed-0 in the run's folder)")


def positive(text, least=1):
    """A whole number of `least` or more."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"cannot be {text}; give a whole number, {least} or more")
    return value


def seed(text):
    """A whole number that every generator of random numbers takes."""
    if (value := positive(text, least=0)) >= 2**32:
        raise argparse.ArgumentTypeError(f"cannot be {text}; give a whole number below 2**32")
    return value


def numbers(text):
    """Comma-separated whole numbers as a tuple."""
    return _listed(text, int, "whole numbers such as 1,2,3")


def decimals(text):
    """Comma-separated numbers as a tuple."""
    return _listed(text, float, "numbers such as 2,4")


def _listed(text, kind, wanted):
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {wanted}") from None
