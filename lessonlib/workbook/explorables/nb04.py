"""Notebook 04: how many of the target's favourites to store: what they hold, position by position, and what they weigh."""

import numpy as np

from lessonlib.workbook import style
from lessonlib.workbook.checks.nb04 import label_bytes
from lessonlib.workbook.explorable import Choice, Explorable, Slider

KS = tuple(2**i for i in range(11))
BINS = np.linspace(0, 1, 21)


class StoredTop(Explorable):
    """What storing k favourites keeps, position by position, and what it takes: a histogram, and mass over bytes.

    masses: the target's probability on its k favourites, [positions, 11], a column for each k of KS.
    """

    width, height, columns = 8.6, 3.4, 2
    sliders = (Choice("k", "k, favourites stored", "64", tuple(map(str, KS)), unit="tokens"),
               Slider("millions", "size of the data set", 2.0, 0.1, 10.0, 0.1, unit="M positions"))

    def __init__(self, masses):
        self.masses = np.asarray(masses, dtype=np.float64)
        self.means = self.masses.mean(0)
        super().__init__()

    def setup(self, axes):
        """A histogram over positions at the left; at the right the mean mass against the bytes, and a dot that moves along."""
        self.left, self.right = axes
        middle = (BINS[1:] + BINS[:-1]) / 2
        self.bars = self.left.bar(middle, [0.0] * len(middle), width=0.045, color=style.TARGET)
        self.left.set(xlim=(0, 1), ylim=(0, 1), xlabel="the target's probability on its k favourites", ylabel="share of positions")
        self.mean = self.left.axvline(0.5, color=style.DRAFT, linewidth=2, linestyle=(0, (5, 1.6)), label="mean")
        self.left.legend(frameon=False, loc="upper left")
        self.right.plot([label_bytes(1, k, 0)[0] for k in KS], self.means, color=style.TARGET, linewidth=2.2)
        (self.dot,) = self.right.plot([388], [1], "o", markersize=9, color=style.DRAFT)
        self.right.set(xscale="log", xlim=(8, 8000), ylim=(0, 1.02), xlabel="bytes a position", ylabel="mean mass")

    def draw(self, k, millions):
        """Move the bars and the dot to this k."""
        column = self.masses[:, KS.index(int(k))]
        # a mass of 1 may come out a rounding above it
        for bar, count in zip(self.bars, np.histogram(column.clip(0, 1), BINS)[0]):
            bar.set_height(count / len(column))
        mean, low = self.means[KS.index(int(k))], (column < 0.5).mean()
        self.mean.set_xdata([mean, mean])
        size = label_bytes(1, int(k), 0)[0]
        self.dot.set_data([size], [mean])
        style.finding(self.left, f"The {k} likeliest hold {mean:.2f}" if int(k) > 1 else f"The likeliest holds {mean:.2f}")
        style.finding(self.right, f"{millions:.1f} M x {size:,} B = {size * millions / 1e3:.2f} GB")
        return (f"With k = {k} a position takes {size:,} bytes, {millions:.1f} M of them {size * millions / 1e3:.2f} GB; here the k hold "
                f"{mean:.3f} of the target's odds on average, and less than half at {low:.1%} of the positions.")
