"""What a step costs: c and v(K), the two times that the speed-up formula needs, measured on this machine."""

from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import torch

from lessonlib.decode.drafter import Sampling
from lessonlib.errors import LessonError
from lessonlib.kernels.copies import to_device
from lessonlib.pair.step import context_length, path, step_of, synchronize
from lessonlib.pair.tree import tree_of


@dataclass(frozen=True)
class StepCosts:
    """Seconds of one target step and of one draft step, their ratio c, and v: {K: time of a pass that verifies what is proposed for K / one step}.

    c_at: {K: c where K are drafted a round}, of a drafter whose rounds do not cost by the token, as those of a model do; c is then the one of the largest K.
    paths: how each of them runs, and why no quicker way does: {"target": words, "draft": words}.
    """

    target_seconds: float
    draft_seconds: float
    c: float
    v: dict
    c_at: dict
    paths: dict = field(default_factory=dict)


class _Proposals:
    """A Drafter in the shape of a model's step, so that both are timed alike: its step is a round, propose(K), and then it is told of one more token.

    It is not reset for each turn: one that reads its text only when it proposes would read the whole prefix in every time that is taken.
    """

    why = None

    def __init__(self, drafter, target_step):
        self.drafter, self.target_step = drafter, target_step
        self.device, self.name, self.taps = target_step.device, type(drafter).__name__, getattr(drafter, "taps", ())
        self.ahead = getattr(drafter, "ahead", None)

    def read(self, tokens):
        """Start a text of these tokens, for a drafter that wants them with the target's hidden states."""
        tokens, self.features = tokens or [0, 0], []
        if self.taps:
            self.target_step.tap(self.taps)
            self.target_step.read(tokens[:-1])
            features = self.target_step.features.clone()
            self.target_step.tap(())
            self.target_step.reset()
            self.features = [features[-1:]]
        self.drafter.reset(tokens, Sampling(), *([features] if self.taps else []))

    def shape(self, K):
        """(the rows of the pass that verifies what it proposes for K, their Tree or None where that is a chain)."""
        parents = self.drafter.propose(K).parents
        if parents is None:  # of a lookup that finds nothing in the text timed here, the longest that it may propose
            return 1 + (K if self.ahead is None else min(K, self.ahead)), None
        return 1 + len(parents), tree_of(tuple(parents))

    def run(self, tokens, K):
        self.drafter.propose(K)
        self.drafter.observe(tokens.tolist(), *self.features)

    def rollback(self, length):
        """It goes on from where it is."""


@torch.inference_mode()  # as the decoder runs a drafter
def step_costs(target, draft, Ks, prefix=128, repeats=9):
    """Measure StepCosts with `prefix` tokens in each cache: medians of `repeats` rounds, in each of which everything is timed once.

    Timing everything in turn, round after round, lets what else the machine does fall on all alike. draft: a causal LM or a Drafter around
    one, whose step is timed; any other Drafter, of which a round of drafting is timed for each K, propose(K) and being told of a token, greedily, and
    shared out among those K; or None (c is 0 then). v(K) of a drafter that proposes trees is that of its tree for K. The prefix is shortened where
    one of them has too few positions for it; LessonError where they are too few for a pass. Without Ks, c is that of K = 1.
    """
    draft = getattr(getattr(draft, "step", None), "model", draft)
    steps, most = {"target": step_of(target)}, max(Ks, default=1)
    longest, shapes = [context_length(target)], {K: (K + 1, None) for K in Ks}
    turns, proposes = repeats + 2, hasattr(draft, "propose")  # two turns of warm-up
    for n in longest:
        if n is not None and most + 1 > n:
            raise LessonError(f"a pass over {most + 1:,} tokens cannot be timed with a model of {n:,} positions; take a smaller K.")
    if proposes:
        steps["draft"] = _Proposals(draft, steps["target"])
        longest.append(getattr(draft, "longest", None))
    elif draft is not None:
        steps["draft"] = step_of(draft)
        longest.append(context_length(draft))
    room = most + turns * max(1, len(Ks))  # a pass is taken back, but a drafter's text grows by a token a round
    prefix = max(0, min([prefix, *(n - room for n in longest if n is not None)]))
    vocabulary = target.config.get_text_config().vocab_size
    text = [token % vocabulary for token in range(prefix)]
    for name in reversed(steps):  # a drafter may need the target's step first
        steps[name].read(text)
    if proposes:
        shapes = {K: steps["draft"].shape(K) for K in Ks}
    shapes |= {0: (1, None)}
    rows = {n: to_device(torch.tensor([(prefix + i) % vocabulary for i in range(n)]), steps["target"].device) for n, _ in shapes.values()}  # there already, as in a round
    jobs = {("target", K): (lambda n=n, tree=tree: steps["target"].run(rows[n], tree=tree)) for K, (n, tree) in sorted(shapes.items())}
    if proposes:
        jobs |= {("draft", K): (lambda K=K: steps["draft"].run(rows[1], K)) for K in sorted({*Ks} or {1})}
    elif "draft" in steps:
        jobs["draft", 1] = lambda: steps["draft"].run(rows[1])
    seconds = {job: [] for job in jobs}
    for turn in range(turns):
        for job, work in jobs.items():
            step = steps[job[0]]
            synchronize(step.device)
            start = perf_counter()
            work()
            synchronize(step.device)
            if turn >= 2:
                seconds[job].append(perf_counter() - start)
            step.rollback(prefix)
    middle = {job: median(times) for job, times in seconds.items()}
    one, last = middle["target", 0], most if proposes else 1
    own = middle.get(("draft", last), 0.0) / last
    c_at = {K: (middle["draft", K] / K if proposes else own) / one for K in sorted(set(Ks))}
    return StepCosts(one, own, own / one, {K: middle["target", K] / one for K in sorted(shapes)}, c_at, {name: path(step) for name, step in steps.items()})
