"""What a step costs: c and v(K), the two times that the speed-up formula needs, measured on this machine."""

from dataclasses import dataclass
from time import perf_counter

import torch

from lessonlib.pair.step import CachedModel, synchronize


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
    """
    steps = {1: CachedModel(target)} | {K + 1: None for K in Ks if K}
    target_step, draft_step = steps[1], None if draft is None else CachedModel(draft)
    text = [token % target.config.vocab_size for token in range(1, prefix + 1)]
    jobs = {("target", n): (target_step, n) for n in steps}
    if draft is not None:
        jobs["draft", 1] = (draft_step, 1)
    for step in {id(s): s for s, _ in jobs.values()}.values():
        step.read(text)
    seconds = {job: [] for job in jobs}
    for turn in range(repeats + 2):  # two turns of warm-up
        for job, (step, n) in jobs.items():
            synchronize(step.device)
            start = perf_counter()
            step.run(text[:n])
            synchronize(step.device)
            if turn >= 2:
                seconds[job].append(perf_counter() - start)
            step.rollback(prefix)
    median = {job: torch.tensor(times).median().item() for job, times in seconds.items()}
    one, own = median["target", 1], median.get(("draft", 1), 0.0)
    return StepCosts(one, own, own / one, {n - 1: median["target", n] / one for n in steps})
