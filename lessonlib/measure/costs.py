"""What a step costs: c and v(K), the two times that the speed-up formula needs, measured on this machine."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter

from lessonlib.pair.step import CachedModel, context_length, synchronize


@dataclass(frozen=True)
class StepCosts:
    """Seconds of one target step and of one draft step, their ratio c, and v: {K: time of a pass over K + 1 tokens / one step}."""

    target_seconds: float
    draft_seconds: float
    c: float
    v: dict


def step_costs(target, draft, Ks, prefix=128, repeats=9):
    """Measure StepCosts with `prefix` tokens in each cache: medians of `repeats` rounds, in each of which everything is timed once.

    Timing everything in turn, round after round, lets what else the machine does fall on all alike. draft may be None (c is 0 then).
    The prefix is shortened where the models have too few positions for it.
    """
    steps = {"target": CachedModel(target)} | ({} if draft is None else {"draft": CachedModel(draft)})
    widths = sorted({1, *(K + 1 for K in Ks)})
    jobs = [("target", n) for n in widths] + [(name, 1) for name in steps if name == "draft"]
    longest = [n for step in steps.values() if (n := context_length(step.model)) is not None]
    prefix = max(0, min([prefix, *(n - widths[-1] for n in longest)]))
    text = [token % target.config.get_text_config().vocab_size for token in range(prefix + widths[-1])]
    for step in steps.values():
        step.read(text[:prefix])
    seconds = {job: [] for job in jobs}
    for turn in range(repeats + 2):  # two turns of warm-up
        for name, n in jobs:
            step = steps[name]
            synchronize(step.device)
            start = perf_counter()
            step.run(text[:n])
            synchronize(step.device)
            if turn >= 2:
                seconds[name, n].append(perf_counter() - start)
            step.rollback(prefix)
    middle = {job: median(times) for job, times in seconds.items()}
    one, own = middle["target", 1], middle.get(("draft", 1), 0.0)
    return StepCosts(one, own, own / one, {n - 1: middle["target", n] / one for n in widths})
