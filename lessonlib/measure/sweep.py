"""The K sweep (t8): one draft in the real decoder at several K, plain decoding beside it, prediction beside measurement."""

import math
from dataclasses import dataclass

from lessonlib.decode.decoder import Decoded, Decoder, as_drafter
from lessonlib.decode.drafter import Sampling
from lessonlib.decode.warp import is_whole
from lessonlib.errors import LessonError
from lessonlib.measure.adaptive import AdaptiveK
from lessonlib.measure.costs import StepCosts, step_costs
from lessonlib.measure.difference import first_difference
from lessonlib.measure.estimate import Estimate, ratio_estimate
from lessonlib.measure.speedup import speedup, speedup_by_position
from lessonlib.progress import Progress


UNSTEADY = 1.5  # times: what lies between two timings of the same thing on a machine that does nothing else is a tenth of that


@dataclass(frozen=True)
class SweepRow:
    """One K, or the adaptive one (K is then "auto", and there is no prediction, NaN): the rounds' counts, tokens a second, measured speed-up over plain decoding with its interval over prompts, and two predictions:
    from one alpha (`per_tested`), as if something were proposed in every round, and from the acceptance of each position and the share of rounds in which
    anything was. identical: prompts whose text equals plain decoding's.
    """

    K: int
    counts: Decoded
    tokens_per_second: float
    speedup: Estimate
    predicted: float
    predicted_by_position: float
    identical: int


@dataclass(frozen=True)
class Sweep:
    """A sweep: `rows`, K = 0 (plain decoding through the same loop) first; `costs`, c and v(K) of the same run; `prompts`, how many; `adaptive`, the row
    of an AdaptiveK over the same K, or None; `differences`, where greedy texts part from plain decoding's: (K, number of the prompt, Difference).
    """

    rows: list
    costs: StepCosts
    prompts: int
    adaptive: SweepRow | None = None
    differences: tuple = ()

    @property
    def best(self):
        """The row with the highest measured speed-up among K >= 1."""
        return max(self.rows[1:], key=lambda row: row.speedup)

    def warnings(self):
        """A line, in a list, where plain decoding took another time a token than the step timed beside it: the machine was not steady then."""
        token = 1 / self.rows[0].tokens_per_second
        if 1 / UNSTEADY < token / self.costs.target_seconds < UNSTEADY:
            return []
        return [f"  Another program used this machine: a token of plain decoding took {1e3 * token:.0f} ms and a step timed on its own "
                f"{1e3 * self.costs.target_seconds:.0f} ms. Run it again when nothing else runs; these speed-ups mean little."]

    def parted(self):
        """Lines: how many greedy texts part from plain decoding's, and how near the target is to a tie at the first place where each does."""
        if not self.differences:
            return []
        gaps = [abs(difference.gap) for _, _, difference in self.differences]
        first = min(self.differences, key=lambda each: each[2].place)
        ties = all(abs(difference.gap) <= difference.rounding for _, _, difference in self.differences)
        return [f"  {len(gaps)} texts part from plain decoding's, the first (K = {first[0]}) after {first[2].place} tokens; where they do, the logits of the two tokens are "
                f"{min(gaps):.3g} to {max(gaps):.3g} apart: " + ("ties that rounding settles either way." if ties else "more than rounding explains. That is a fault; please report it.")]

    def table(self):
        """The sweep as lines of text."""
        lines = ["  K   tok/s  speed-up [95 %]        predicted  by position  tokens/round  per tested  by position in the block"]
        for row in [*self.rows, *([self.adaptive] if self.adaptive else [])]:
            counts = row.counts
            kept = " ".join("-" if math.isnan(share) else f"{share:.2f}" for share in counts.conditional)
            tested = "  -  " if math.isnan(counts.per_tested) else f"{counts.per_tested:.3f}"
            predicted = ["-" if math.isnan(value) else f"{value:.2f}x" for value in (row.predicted, row.predicted_by_position)]
            lines.append(f"  {row.K}  {row.tokens_per_second:6.1f}  {row.speedup:.2f}x {row.speedup.interval('.2f'):<12}   "
                         f"{predicted[0]:>9}  {predicted[1]:>11}  {counts.tokens_per_round:12.2f}  {tested:>10}  {kept}")
        return "\n".join(lines)


def sweep(target, draft, prompts, Ks=(1, 2, 3, 4), max_new_tokens=128, eos_token_ids=(), sampling=None, show=True, adaptive=False):
    """Decode every prompt (list of ids) plainly and with each K; returns Sweep. adaptive: and with an AdaptiveK that chooses among them.

    draft: a causal LM or a Drafter; sampling: a Sampling, greedy by default. The K take turns on each prompt, so that a machine that
    slows down slows them all; times are those of the rounds, the prompt's own reading apart. Of a drafter that guesses so many tokens ahead and no more, a
    larger K is that one. Raises LessonError for no prompts or K < 1.
    """
    if not prompts:
        raise LessonError("a sweep needs at least one prompt.")
    Ks = list(Ks)
    if not Ks or any(not is_whole(K) or K < 1 for K in Ks):
        raise LessonError(f"a sweep needs the numbers of tokens to propose, each 1 or more, not {Ks}; plain decoding is always beside them.")
    if not is_whole(max_new_tokens) or max_new_tokens < 1:
        raise LessonError(f"a sweep cannot time {max_new_tokens} new tokens; give 1 or more.")
    sampling = sampling or Sampling()
    decoder, drafter = Decoder(target), as_drafter(draft, target)
    Ks = sorted({min(K, getattr(drafter, "ahead", K)) for K in Ks})
    settings = (0, *Ks)
    for K in settings:  # warm-up: the first passes of each shape pay for what later ones find ready
        decoder.decode(prompts[0], K, min(8, max_new_tokens), drafter if K else None, eos_token_ids, sampling)
    costs = step_costs(target, drafter, Ks)
    chosen = {K: K for K in settings} | ({"auto": AdaptiveK(costs.c_at, costs.v, settings[1:])} if adaptive else {})
    settings = tuple(chosen)
    runs = {K: [] for K in settings}
    progress = Progress("sweep", len(prompts) * len(settings), "decodings", show=show)
    for prompt in prompts:
        for K in settings:
            runs[K].append(decoder.decode(prompt, chosen[K], max_new_tokens, drafter if K else None, eos_token_ids, sampling))
            progress.add()
    progress.finish()
    rows = [_row(K, runs[K], runs[0], costs) for K in settings]
    parted = [(K, number, first_difference(target, prompt, runs[0][number].tokens, runs[K][number].tokens))
              for K in settings for number, prompt in enumerate(prompts)] if sampling.greedy else []
    return Sweep(rows[:-1] if adaptive else rows, costs, len(prompts), rows[-1] if adaptive else None, tuple(each for each in parted if each[2]))


def _row(K, runs, plain, costs):
    """One K's row; time per token is compared, since sampled texts may differ in length."""
    counts = Decoded(runs[0].K)
    for run in runs:
        counts.add(run)
    per_token = [run.seconds / len(run.tokens) for run in runs]
    measured = ratio_estimate([run.seconds / len(run.tokens) for run in plain], per_token)
    conditional = [0.0 if share != share else share for share in counts.conditional]  # a position never reached adds nothing
    predicted = (math.nan, math.nan)
    if K != "auto" and not (K and math.isnan(counts.per_tested)):  # nothing is predicted from no proposal at all
        asked = counts.proposed[0] / counts.rounds if K else 0.0  # a drafter may have nothing to propose, and the round is then a plain step
        by_position = [*(asked * share for share in conditional[:1]), *conditional[1:]]
        predicted = (speedup(counts.per_tested, K, costs.c_at[K], costs.v) if K else 1.0,
                     speedup_by_position(by_position, costs.c_at[K] if K else 0.0, asked * costs.v[K] + (1 - asked) if K else 1.0))
    return SweepRow(K, counts, len(counts.tokens) / counts.seconds, measured, *predicted, sum(a.tokens == b.tokens for a, b in zip(runs, plain)))
