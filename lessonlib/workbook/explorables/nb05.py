"""Notebook 05: how wide the interval of alpha is, and how much of the lost alpha lies where the target is unsure."""

import numpy as np

from lessonlib.workbook import style
from lessonlib.workbook.checks.nb05 import interval
from lessonlib.workbook.explorable import Choice, Explorable, Slider

DRAWS, SUBSETS = 400, 20  # resamples of an interval, and sets of answers that its width is averaged over


def interval_width(totals, counts, n, rng):
    """The mean width of the 95 % interval of alpha, by whole answers, from n of the answers drawn by lot."""
    widths = []
    for _ in range(SUBSETS):
        lot = rng.choice(len(totals), n, replace=False)
        chosen = lot[rng.integers(0, n, (DRAWS, n))]
        widths.append(np.ptp(interval(totals, counts, chosen)))
    return float(np.mean(widths))


class HowSure(Explorable):
    """Width of alpha's interval over the number of answers, by answer and as if every position were on its own.

    totals, counts: sum of the overlap and number of positions of each answer; spread: standard deviation of the overlap from
    position to position.
    """

    def __init__(self, totals, counts, spread, seed=0):
        totals, counts, rng = np.asarray(totals, float), np.asarray(counts), np.random.default_rng(seed)
        self.sizes = [n for n in (8, 16, 32, 64, 128, 256) if n < len(totals)] + [len(totals)]
        self.by_answer = [interval_width(totals, counts, n, rng) for n in self.sizes]
        self.by_position = [2 * 1.96 * spread / np.sqrt(n * counts.mean()) for n in self.sizes]
        options = tuple(map(str, self.sizes))
        self.sliders = (Choice("answers", "answers read", options[len(options) // 2], options),)
        super().__init__()

    def setup(self, ax):
        """Both widths over the number of answers, and a mark on each."""
        self.ax = ax
        style.lines(ax, self.sizes, {"by answer": self.by_answer, "by position": self.by_position})
        ax.set(xscale="log", ylim=(0, 1.15 * max(self.by_answer + self.by_position)), xlabel="answers read",
               ylabel="width of the 95 % interval of alpha")
        ax.set_xticks(self.sizes, map(str, self.sizes))
        ax.minorticks_off()
        style.place_labels(ax)
        self.marks = [ax.plot([0], [0], "o", markersize=9, color=colour, clip_on=False)[0] for colour in style.COLOURS[:2]]

    def draw(self, answers):
        """Mark both widths at this many answers."""
        place = self.sizes.index(int(answers))
        wide, narrow = self.by_answer[place], self.by_position[place]
        for mark, width in zip(self.marks, (wide, narrow)):
            mark.set_data([int(answers)], [width])
        style.finding(self.ax, f"{answers} answers: plus and minus {wide / 2:.3f}")
        verdict = f", which is {wide / narrow:.1f} times too narrow" if wide > narrow else ""
        return (f"With {answers} answers the interval by whole answers is {wide:.3f} wide; counting every position as on its own "
                f"it would be {narrow:.3f}{verdict}.")


class WhereLost(Explorable):
    """A slider over the target's entropy: which share of the positions lies above it, and which share of the lost alpha.

    entropy: of the target's odds at each position, in nats; overlap: of both models' odds there.
    """

    sliders = (Slider("threshold", "threshold, target's entropy", 1.0, 0.0, 6.0, 0.1, unit="nats"),)
    grid = np.linspace(0, 6, 61)

    def __init__(self, entropy, overlap):
        self.entropy, self.overlap = np.asarray(entropy, float), np.asarray(overlap, float)
        self.lost = 1 - self.overlap
        super().__init__()

    def unsure(self, threshold):
        """Which positions have an entropy of `threshold` or more."""
        return self.entropy >= threshold - 1e-9

    def above(self, threshold):
        """(share of positions, share of the lost alpha) at an entropy of `threshold` or more."""
        above = self.unsure(threshold)
        return above.mean(), self.lost[above].sum() / self.lost.sum()

    def setup(self, ax):
        """Both shares over the threshold, and where the slider stands."""
        self.ax = ax
        positions, lost = zip(*map(self.above, self.grid))
        style.lines(ax, self.grid, {"positions": positions, "lost alpha": lost})
        ax.set(ylim=(0, 1.05), xlabel="target's entropy at the position, nats", ylabel="share at this entropy or more")
        style.place_labels(ax)
        (self.rule,) = ax.plot([0, 0], [0, 1.05], color=style.QUIET, linewidth=1.2, linestyle=(0, (2, 2)))

    def draw(self, threshold):
        """Move the rule and read off both shares."""
        positions, lost = self.above(threshold)
        self.rule.set_xdata([threshold, threshold])
        style.finding(self.ax, f"{positions:.0%} of the positions hold {lost:.0%} of the lost alpha")
        above = self.unsure(threshold)
        alphas = [f"{self.overlap[part].mean():.2f}" if part.any() else "-" for part in (above, ~above)]
        return (f"At {threshold:.1f} nats or more lie {positions:.0%} of the positions and {lost:.0%} of the lost alpha; "
                f"alpha is {alphas[0]} there and {alphas[1]} at the other positions.")
