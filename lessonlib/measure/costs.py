"""What a step costs: c and v(K), the two times that the speed-up formula needs, measured on this machine."""

from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import torch

from lessonlib.decode.drafter import Sampling
from lessonlib.errors import LessonError
from lessonlib.kernels.copies import to_device
from lessonlib.pair.step import context_length, path, step_of, synchronize


@dataclass(frozen=True)
class StepCosts:
    """Seconds of one target step and of one draft step, their ratio c, and v: {K: time of a pass over K + 1 tokens / one step}.

    paths: how each of them runs, and why no quicker way does: {"target": words, "draft": words}.
    """

    target_seconds: float
    draft_seconds: float
    c: float
    v: dict
    paths: dict = field(default_factory=dict)


class _Proposals:
    """A Drafter in the shape of a model's step, so that both are timed alike: its step is propose(1), and then it is told of one more token.

    It is not reset for each turn: one that reads its text only when it proposes would read the whole prefix in every time that is taken.
    """

    why = None

    def __init__(self, drafter, device):
        self.drafter, self.device, self.name = drafter, device, type(drafter).__name__

    def read(self, tokens):
        self.drafter.reset(tokens or [0], Sampling())

    def run(self, tokens):
        self.drafter.propose(1)
        self.told = tokens.tolist()

    def rollback(self, length):
        self.drafter.observe(self.told)


@torch.inference_mode()  # as the decoder runs a drafter
def step_costs(target, draft, Ks, prefix=128, repeats=9):
    """Measure StepCosts with `prefix` tokens in each cache: medians of `repeats` rounds, in each of which everything is timed once.

    Timing everything in turn, round after round, lets what else the machine does fall on all alike. draft: a causal LM or a Drafter around
    one, whose step is timed; any other Drafter, whose propose(1) is timed, greedily; or None (c is 0 then). The prefix is shortened where
    one of them has too few positions for it; LessonError where they are too few for a pass.
    """
    draft = getattr(getattr(draft, "step", None), "model", draft)
    steps = {"target": step_of(target)}
    longest = [context_length(target)]
    if hasattr(draft, "propose"):
        steps["draft"] = _Proposals(draft, steps["target"].device)
        longest.append(getattr(draft, "longest", None))
    elif draft is not None:
        steps["draft"] = step_of(draft)
        longest.append(context_length(draft))
    widths, turns = sorted({1, *(K + 1 for K in Ks)}), repeats + 2  # two turns of warm-up
    jobs = [("target", n) for n in widths] + [(name, 1) for name in steps if name == "draft"]
    for n in longest:
        if n is not None and widths[-1] > n:
            raise LessonError(f"a pass over {widths[-1]:,} tokens cannot be timed with a model of {n:,} positions; take a smaller K.")
    room = max(widths[-1], turns)  # a pass is taken back, but a drafter's text grows by a token a turn
    prefix = max(0, min([prefix, *(n - room for n in longest if n is not None)]))
    text = [token % target.config.get_text_config().vocab_size for token in range(prefix + widths[-1])]
    rows = {n: to_device(torch.tensor(text[:n]), steps["target"].device) for n in widths}  # there already, as in a round
    for step in steps.values():
        step.read(text[:prefix])
    seconds = {job: [] for job in jobs}
    for turn in range(turns):
        for name, n in jobs:
            step = steps[name]
            synchronize(step.device)
            start = perf_counter()
            step.run(rows[n])
            synchronize(step.device)
            if turn >= 2:
                seconds[name, n].append(perf_counter() - start)
            step.rollback(prefix)
    middle = {job: median(times) for job, times in seconds.items()}
    one, own = middle["target", 1], middle.get(("draft", 1), 0.0)
    return StepCosts(one, own, own / one, {n - 1: middle["target", n] / one for n in widths},
                      {name: path(step) for name, step in steps.items()})
