"""Notebook 01: the distil slider over five words, and speed-up against alpha itself."""

import numpy as np

from lessonlib.measure.speedup import best_k, speedup
from lessonlib.workbook import style
from lessonlib.workbook.explorable import Explorable, Slider

MOST = 8  # guesses a round that the sliders reach; the best K is looked for among 0 to MOST
CEILING = 5.2  # of the speed-up axis: MOST guesses, all kept, at the lowest c, are 5.0 times as fast
K_SLIDER = Slider("K", "K, guesses a round", 3, 1, MOST, unit="tokens")
C_SLIDER = Slider("c", "c, cost of a draft step", 0.3, 0.1, 0.6, 0.01, unit="target steps")


def best_of(alpha, c):
    """(K, speed-up) of the fastest K from 0 to MOST, the smaller one where two are equally fast."""
    K = best_k(alpha, c, max_k=MOST)
    return K, speedup(alpha, K, c)


def best_said(K, speed):
    """The best K in words."""
    return f"K = {K} is best, {speed:.2f} times" if K else "no draft at all is best"


class Distil(Explorable):
    """Bars of target and draft over a few words; a slider moves the draft's odds in a straight line to the target's.

    words: their names; target_probs, draft_probs: one number each, summing to 1.
    """

    width, height, columns = 8.6, 3.4, 2
    sliders = (Slider("distil", "distil, share of the way", 0.0, 0.0, 1.0, 0.05), K_SLIDER, C_SLIDER)

    def __init__(self, words, target_probs, draft_probs):
        self.words = words
        self.p, self.q = (np.asarray(odds, dtype=np.float64) for odds in (target_probs, draft_probs))
        super().__init__()

    def setup(self, axes):
        """Bars at the left, the speed-up over K at the right."""
        self.left, self.right = axes
        both = np.minimum(self.p, self.q)
        self.groups = style.bars(self.left, self.words, {"target": self.p, "draft": self.q, "both": both})
        for group in self.groups.values():
            for _, text, _ in group:
                text.set_fontsize(8)
        for bar, text, _ in self.groups["both"]:
            bar.set_hatch("..")  # half the dots: each is drawn anew at every step
            text.set_visible(False)  # the lower of its two neighbours says the same, and every text costs time
        self.left.set(ylim=(0, 1.25 * max(self.p.max(), self.q.max())), ylabel="probability")
        (self.curve,) = style.lines(self.right, range(MOST + 1), {"speed-up": [1.0] * (MOST + 1)})
        (self.best,) = self.right.plot([0], [1], "D", markersize=11, color=style.SHARED, fillstyle="none", markeredgewidth=2)
        (self.here,) = self.right.plot([0], [1], "o", markersize=8, color=style.DRAFT, clip_on=False)
        self.right.axhline(1, color=style.QUIET, linewidth=1, linestyle=(0, (2, 2)))
        self.right.set(ylim=(0, CEILING), xlabel="K, guesses a round", ylabel="times as fast")
        self.right.text(0.03, 0.95, "● your K   ◇ best K", transform=self.right.transAxes, va="top", color=style.QUIET)

    def draw(self, distil, K, c):
        """Mix the draft's odds, and mark the chosen and the best K."""
        q = (1 - distil) * self.q + distil * self.p
        both = np.minimum(self.p, q)
        alpha = min(1.0, float(both.sum()))
        kl = max(0.0, float((self.p * np.log(self.p / q)).sum()))
        style.move_bars(self.groups, {"draft": q, "both": both})
        best, fastest = best_of(alpha, c)
        now = speedup(alpha, K, c)
        self.curve.set_ydata([speedup(alpha, k, c) for k in range(MOST + 1)])
        self.best.set_data([best], [fastest])
        self.here.set_data([K], [now])
        style.finding(self.left, f"alpha {alpha:.2f}, KL {kl:.2f} nats")
        style.finding(self.right, f"K = {K}: {now:.2f} times as fast")
        return (f"Distilled {distil:.0%} of the way, alpha is {alpha:.2f} and KL(p||q) {kl:.2f} nats; with K = {K} and "
                f"c = {c:.2f} decoding is {now:.2f} times as fast; of 0 to {MOST}, {best_said(best, fastest)}.")


class SpeedOverAlpha(Explorable):
    """Speed-up against alpha, for the K of the slider and for the best K at each alpha."""

    width, height = 7.6, 3.8
    sliders = (Slider("alpha", "alpha, chance of a keep", 0.7, 0.0, 1.0, 0.01), K_SLIDER, C_SLIDER)
    grid = np.linspace(0, 1, 101)

    def setup(self, ax):
        """Two curves, and the point that the sliders choose."""
        self.ax = ax
        flat = np.ones_like(self.grid)
        self.best, self.chosen = style.lines(ax, self.grid, {"best K": flat, "your K": flat})
        (self.diamond,) = ax.plot([0], [1], "D", markersize=11, color=style.SHARED, fillstyle="none", markeredgewidth=2)
        (self.here,) = ax.plot([0], [1], "o", markersize=8, color=style.DRAFT, clip_on=False)
        ax.text(0.03, 0.95, "● your alpha and K   ◇ best K there", transform=ax.transAxes, va="top", color=style.QUIET)
        ax.axhline(1, color=style.QUIET, linewidth=1, linestyle=(0, (2, 2)))
        ax.set(xlim=(0, 1), ylim=(0, CEILING), xlabel="alpha, chance that a tested guess is kept", ylabel="times as fast")

    def draw(self, alpha, K, c):
        """Redraw both curves for K and c, and put the point at alpha."""
        powers = np.cumsum(self.grid[None] ** np.arange(MOST + 1)[:, None], 0)  # [K, alpha]: tokens a round
        speeds = powers / (1 + c * np.arange(MOST + 1))[:, None]
        self.best.set_ydata(speeds.max(0))
        self.chosen.set_ydata(speeds[K])
        now, (best, fastest) = speedup(alpha, K, c), best_of(alpha, c)
        self.here.set_data([alpha], [now])
        self.diamond.set_data([alpha], [fastest])
        style.finding(self.ax, f"At alpha {alpha:.2f}, {best_said(best, fastest)}")
        more = f"; one more point of alpha adds {speedup(alpha + 0.01, K, c) - now:.3f}" if alpha <= 0.99 else ""
        return (f"At alpha {alpha:.2f} with K = {K} and c = {c:.2f} decoding is {now:.2f} times as fast{more}; "
                f"of 0 to {MOST}, {best_said(best, fastest)}.")
