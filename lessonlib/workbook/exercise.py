"""How an exercise is checked: the reader's function against the library's on the same inputs, with the likely slip named.

Five stages, in this order: shape, type, edge case, value, property. A diagnosis is found by running named wrong answers on
the same inputs and looking for the one that gives what the reader's function gave.
"""

import contextlib
import copy
import inspect
import io
import linecache
import os
import re
import textwrap
from dataclasses import dataclass

import numpy as np
import torch

STAGES = ("shape", "type", "edge case", "value", "property")
SEED = 0
NO_IDEA = {
    "shape": "the result does not have the form that was asked for",
    "type": "the right form but the wrong kind of value",
    "edge case": "this special case needs a thought of its own",
    "value": "not one of the usual slips: work this input through by hand, then print your steps",
}
MANY = "many random inputs"
PROPERTY_STOPS = "the error says it; if it names no line of yours, the check could not go on with what your function gave"


class NotRight(AssertionError):
    """An exercise that is not right or not written, under STRICT=1."""


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give: its `name`, a function that gives it, and the `cause` in words for the reader."""

    name: str
    answer: callable
    cause: str


@dataclass(frozen=True)
class Property:
    """Something that holds of every right answer: `holds(fn, rng)` says whether it does, `cause` is told when not."""

    sentence: str
    holds: callable
    cause: str


@dataclass
class Outcome:
    """What a function did with one input: its value or its error, what it printed, and whether it changed the input."""

    value: object = None
    error: Exception = None
    printed: str = ""
    changed: bool = False


@dataclass(frozen=True)
class Verdict:
    """`state` is "right", "not written" or "wrong"; `text` is what the reader sees; `mistake` names the diagnosis."""

    state: str
    text: str
    mistake: str = None


class Exercise:
    """A check: call it with the reader's function and it hands back that function if right, the library's otherwise.

    number: "0.1"; library: the right function, with the reader's name and signature; returns: what comes back, in words;
    look: where in the notebook to read on; edges: (what is special, arguments) pairs; draw(rng) -> arguments, called
    `trials` times with a numpy generator of a fixed seed; mistakes: at least three `Mistake`s; properties: `Property`s.
    """

    def __init__(self, number, library, returns, look, edges, draw, mistakes, properties=(), trials=30, tolerance=1e-6):
        self.number, self.library, self.returns, self.look = number, library, returns, look
        self.name, self.parameters = library.__name__, list(inspect.signature(library).parameters)
        self.label = f"Exercise {number}, {self.name}"
        self.mistakes, self.properties, self.tolerance = mistakes, properties, tolerance
        rng = np.random.default_rng(SEED)
        self.inputs = [("edge case", note, args) for note, args in edges] + [("value", "", draw(rng)) for _ in range(trials)]

    def __call__(self, fn):
        """Print one line if `fn` is right, else what was tried, got and wanted, the likely cause and where to look."""
        verdict = self.judge(fn)
        if verdict.state != "right" and os.environ.get("STRICT") == "1":
            raise NotRight(verdict.text)
        print(verdict.text)
        return fn if verdict.state == "right" else self.library

    def judge(self, fn):
        """The `Verdict` on `fn`."""
        if not callable(fn):
            return Verdict("wrong", f"✗ {self.label}: hand over the function itself, {self.name}, without calling it.")
        got = [run(fn, args) for _, _, args in self.inputs]
        if all(outcome.error is None and (outcome.value is None or outcome.value is Ellipsis) for outcome in got):
            return Verdict(
                "not written",
                f"· {self.label}: not written yet (it returns nothing); the library's is used for now.",
            )
        wanted = [run(self.library, args) for _, _, args in self.inputs]
        faults = [fault(g, w, kind, self.tolerance) for g, w, (kind, _, _) in zip(got, wanted, self.inputs)]
        if any(faults):
            stage = min(filter(None, faults), key=STAGES.index)
            # the edge cases come in the author's order; of the random inputs the shortest is the easiest to follow by hand
            example = min(
                (i for i, f in enumerate(faults) if f == stage),
                key=lambda i: (0 if self.inputs[i][1] else len(self.told(i)), i),
            )
            only_here = all(f is None or kind == stage for f, (kind, _, _) in zip(faults, self.inputs))
            cause = self.generic_cause(got[example], stage if stage != "edge case" or only_here else "value")
            got_text, wanted_text = said(got[example], stage, fn), said(wanted[example], stage, self.library)
            if got_text == wanted_text:  # three digits do not show the difference
                got_text, wanted_text = said(got[example], stage, fn, 8), said(wanted[example], stage, self.library, 8)
            return self.wrong(
                stage,
                self.told(example),
                got_text,
                wanted_text,
                self.diagnose(got, faults),
                cause,
                got[example].printed,
            )
        for check in self.properties:
            held = run(lambda rng: check.holds(fn, rng), (np.random.default_rng(SEED),))
            if held.error is not None:
                return self.wrong("property", MANY, said(held, "property", fn), check.sentence, None, PROPERTY_STOPS)
            if not held.value:
                return self.wrong("property", MANY, "it does not hold", check.sentence, None, check.cause)
        return Verdict("right", f"✓ {self.label}: right on all {len(self.inputs)} inputs; yours is used from here on.")

    def diagnose(self, got, faults):
        """The mistake that gives what the reader's function gave wherever that is wrong; of several, the nearest."""

        def agrees(mistake, i):
            return alike(run(mistake.answer, self.inputs[i][2]), got[i], self.tolerance)

        wrong = [i for i, stage in enumerate(faults) if stage]
        fitting = [mistake for mistake in self.mistakes if all(agrees(mistake, i) for i in wrong)]
        return max(fitting, key=lambda mistake: sum(agrees(mistake, i) for i in range(len(got))), default=None)

    def generic_cause(self, outcome, stage):
        """What to say where no named mistake fits."""
        if outcome.error is not None:
            return "the error says it; try the input above in a cell of its own"
        return "your function changes its input in place: work on a copy" if outcome.changed else NO_IDEA[stage]

    def told(self, i):
        """Input number `i` in words."""
        _, note, args = self.inputs[i]
        return ", ".join(f"{name} = {brief(value)}" for name, value in zip(self.parameters, args)) + (
            f"  ({note})" if note else ""
        )

    def wrong(self, stage, tried, got, wanted, mistake, cause, printed=""):
        """The verdict with its five lines."""
        rows = {
            "tried": tried,
            "got": got,
            "wanted": f"{wanted}: {self.returns}" if stage in ("shape", "type") else wanted,
            "likely cause": mistake.cause if mistake else cause,
            "where to look": self.look,
        }
        if printed.strip():
            rows["it printed"] = printed.strip().splitlines()[0]
        text = [f"✗ {self.label}: not right yet ({stage}); the library's is used until it is."]
        for label, row in rows.items():
            text += textwrap.wrap(row, 98, initial_indent=f"  {label:<15}", subsequent_indent=" " * 17)
        return Verdict("wrong", "\n".join(text), mistake.name if mistake else None)


def run(fn, args):
    """The `Outcome` of `fn` on a copy of `args`, whatever it does."""
    mine, printed = copy.deepcopy(args), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            value = fn(*mine)
    except Exception as error:  # the reader's own error: it is shown, with its line
        return Outcome(error=error, printed=printed.getvalue())
    changed = not all(untouched(after, before) for after, before in zip(mine, args))
    return Outcome(value=value, printed=printed.getvalue(), changed=changed)


def untouched(after, before):
    """Whether an argument still holds what it held: arrays, numbers and lists are compared, other objects are not."""
    if isinstance(before, (list, tuple)):
        return len(after) == len(before) and all(map(untouched, after, before))
    if isinstance(before, (int, float)):
        return after == before
    return not isinstance(before, (torch.Tensor, np.ndarray)) or np.array_equal(array(after), array(before), equal_nan=True)


def fault(got, wanted, kind, tolerance):
    """The stage at which `got` differs from `wanted` on an input of this kind, or None."""
    if wanted.error is not None:
        raise wanted.error
    if got.error is not None or got.changed:
        return kind
    return differs(got.value, wanted.value, tolerance, kind)


def differs(got, wanted, tolerance, kind):
    """The first stage at which two values differ, or None: numbers, words, arrays, and tuples of them (or arrays for those)."""
    if isinstance(wanted, (tuple, list)):
        if isinstance(got, (np.ndarray, torch.Tensor)) and got.ndim:
            got = tuple(got)
        if not isinstance(got, (tuple, list)) or len(got) != len(wanted):
            return "shape"
        return min(
            filter(None, (differs(g, w, tolerance, kind) for g, w in zip(got, wanted))), key=STAGES.index, default=None
        )
    if got is None or wanted is None:
        return None if got is wanted else "type"
    if isinstance(wanted, str):
        return "type" if not isinstance(got, str) else None if got == wanted else kind
    try:
        got_array, wanted_array = array(got), array(wanted)
    except (TypeError, ValueError):
        return "type"
    if not {got_array.dtype.kind, wanted_array.dtype.kind} <= set("biuf"):
        return "type"
    if got_array.shape != wanted_array.shape:
        return "shape"
    wanted_tensor = isinstance(wanted, torch.Tensor) and wanted.ndim > 0
    allowed = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[wanted_array.dtype.kind]
    if got_array.dtype.kind not in allowed or (wanted_tensor and not isinstance(got, torch.Tensor)):
        return "type"
    return None if np.allclose(got_array, wanted_array, rtol=tolerance, atol=tolerance, equal_nan=True) else kind


def array(value):
    """A number, a tensor or an array as a numpy array."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def alike(one, other, tolerance):
    """Whether two outcomes are the same, errors by their kind, and a whole number like a float of its value."""
    if one.error is not None or other.error is not None:
        return type(one.error) is type(other.error)
    pairs = (one.value, other.value), (other.value, one.value)
    return one.changed == other.changed and any(differs(*pair, tolerance, "value") is None for pair in pairs)


def said(outcome, stage, fn, digits=3):
    """An outcome in words: its error with the line it came from, or its value, with its kind where that is at fault."""
    if outcome.error is not None:
        trace, line, code = outcome.error.__traceback__, "", getattr(inspect.unwrap(fn), "__code__", None)
        while trace is not None:
            if trace.tb_frame.f_code is code:
                line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
            trace = trace.tb_next
        message = " ".join(str(outcome.error).split())
        return f"it stopped with {type(outcome.error).__name__}: {message}" + (f"   in the line: {line}" if line else "")
    text = brief(outcome.value, digits)
    if stage == "shape":
        return f"{text}  ({form(outcome.value)})"
    return f"{text}  ({kind_of(outcome.value)})" if stage == "type" else text


def form(value):
    """The form of a value in words."""
    if isinstance(value, (tuple, list)):
        return f"{len(value)} values"
    shape = list(np.shape(array(value))) if value is not None else []
    return f"an array of shape {shape}" if shape else "one value"


def kind_of(value):
    """The kind of a value in a word, item by item for a tuple."""
    if isinstance(value, (tuple, list)):
        return ", ".join(map(kind_of, value))
    return (
        type(value.item()).__name__
        if isinstance(value, (torch.Tensor, np.generic)) and value.ndim == 0
        else type(value).__name__
    )


def brief(value, digits=3):
    """A value as short as it can be read: numbers to `digits` significant digits, long rows cut."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (tuple, list)):
        items = [brief(item, digits) for item in value[:8]] + (["..."] if len(value) > 8 else [])
        return ("({})" if isinstance(value, tuple) else "[{}]").format(", ".join(items))
    if isinstance(value, (float, np.floating)):
        return f"{value:.{digits}g}"
    # the address of an object is another one in every run
    return str(value) if isinstance(value, (int, np.integer)) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
