"""Notebook 07: the four shapes a draft can have, and what a step of the truncated one reads."""

from matplotlib.patches import Rectangle

from lessonlib.measure.speedup import best_k, speedup
from lessonlib.workbook import style
from lessonlib.workbook.explorable import Choice, Explorable, Slider

BITS = {"16 bits": 2.0, "8 bits": 1.0, "4 bits": 0.5}
SHAPES = {
    "A: a separate model": "reads tokens only;\nnarrower, its own weights",
    "B: the target, cut short": "first layers, then norm\nand head of the target",
    "C: Medusa heads": "guess several places ahead\nfrom the target's last state",
    "D: an EAGLE layer": "one layer that reads the\ntarget's state and a token",
}


def four_shapes():
    """A figure of the four shapes of a draft; what belongs to the draft alone is coloured and hatched, the target's is plain."""
    fig, axes = style.figure(9.4, 3.9, columns=4)
    for ax, (name, words) in zip(axes, SHAPES.items()):
        ax.set(xlim=(0, 10), ylim=(-2.6, 11))
        ax.axis("off")
        ax.set_title(name, fontsize=10.5, fontweight="bold", color=style.INK)
        ax.text(5, -2.4, words, ha="center", va="bottom", fontsize=8.5, color=style.QUIET)
    a, b, c, d = axes
    for ax, x in ((a, 5.2), (b, 2.6), (c, 0.6), (d, 0.6)):
        _box(ax, x, 0, "embedding")
        for place in range(6):
            _box(ax, x, 1.6 + 1.25 * place, "layer", quiet=ax is b and place > 1)
        _box(ax, x, 9.5, "norm, head")
    _box(a, 0.8, 0, "embed.", 3, own=True)
    for place in range(4):
        _box(a, 0.8, 1.6 + 1.25 * place, "layer", 3, own=True)
    _box(a, 0.8, 7.1, "head", 3, own=True)
    for place in range(2):
        _box(b, 2.6, 1.6 + 1.25 * place, "layer, trained", own=True)
    b.annotate("", (7.1, 10.1), (7.1, 3.4), arrowprops={"arrowstyle": "->", "color": style.DRAFT, "connectionstyle": "arc3,rad=0.6", "lw": 1.6})
    for place in range(3):
        _box(c, 6, 6.4 + 1.55 * place, f"+{place + 2}", 3.2, own=True)
        _arrow(c, (5.1, 8.7), (6, 7 + 1.55 * place))
    _box(d, 6, 5.2, "layer", 3.4, own=True)
    _arrow(d, (5.1, 8.7), (6.6, 6.4))
    _arrow(d, (5.1, 0.6), (6.6, 5.2))
    _arrow(d, (7.9, 6.4), (5.1, 10))
    style.finding(fig, "Four shapes of a draft: what it owns (hatched) and what it takes from the target (plain)")
    return fig


def _box(ax, x, y, label, width=4.5, own=False, quiet=False):
    face = style.DRAFT if own else style.GRID if quiet else style.TARGET
    ax.add_patch(Rectangle((x, y), width, 1.1, facecolor=face, edgecolor="white", hatch="////" if own else "", linewidth=0))
    ax.text(x + width / 2, y + 0.55, label, ha="center", va="center", fontsize=8, color=style.QUIET if quiet else "white",
            bbox={"facecolor": face, "edgecolor": "none", "pad": 0.8})


def _arrow(ax, start, end):
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": style.INK, "lw": 1.2})


class BytesAStep(Explorable):
    """Layers kept, tokens in the output layer and bits a weight: the bytes a step reads, c by bytes, and what alpha it takes.

    count(config, layers, bytes_per_weight) gives the bytes; target: the config of a target of `layers` layers; other: (name, bytes)
    of a separate draft to compare with.
    """

    def __init__(self, count, target, layers, other):
        self.count, self.target, self.other = count, target, other
        self.whole = count(target, layers, 2)
        self.sliders = (Slider("kept", "layers kept", 4, 0, layers // 2),
                        Slider("vocabulary", "tokens in the draft's output layer", target["vocab_size"] // 1000, 8,
                               target["vocab_size"] // 1000, 4, unit="thousand"),
                        Choice("bits", "bits a weight of the draft", "16 bits", tuple(BITS)))
        super().__init__()

    def setup(self, ax):
        """Two bars stacked from layers and output layer: the truncated draft, and the separate one to hold it against."""
        self.ax = ax
        self.layers = ax.barh([1], [1], 0.55, color=style.TARGET)[0]
        self.head = ax.barh([1], [1], 0.55, color=style.DRAFT, hatch="////", edgecolor="white", linewidth=0)[0]
        name, size = self.other
        ax.barh([0], [size / 1e9], 0.55, color=style.QUIET)
        ax.set_yticks([1, 0], ["truncated target", name])
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="y")
        ax.set(xlim=(0, 0.62 * self.whole / 1e9), xlabel="GB read in a step")
        self.texts = [ax.text(0, 1, "", ha="center", va="center", color="white", fontsize=9,
                              bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8}) for colour in (style.TARGET, style.DRAFT)]

    def draw(self, kept, vocabulary, bits):
        """Move both parts of the draft's bar."""
        config = self.target if vocabulary == self.target["vocab_size"] // 1000 else {**self.target, "vocab_size": 1000 * vocabulary}
        head, total = (self.count(config, layers, BITS[bits]) for layers in (0, kept))
        for bar, text, name, start, end in ((self.layers, self.texts[0], "layers", 0, total - head),
                                            (self.head, self.texts[1], "head", total - head, total)):
            bar.set_x(start / 1e9)
            bar.set_width((end - start) / 1e9)
            text.set_position(((start + end) / 2e9, 1))
            text.set_text(name if end - start > 0.05 * self.whole else "")
        c = total / self.whole
        K = best_k(0.7, c)
        style.finding(self.ax, f"{total / 1e9:.2f} GB a step: c = {c:.3f} by bytes")
        return (f"{kept} layers, {config['vocab_size']:,} tokens and {bits} a weight: {total / 1e9:.2f} GB a step, {head / total:.0%} of it the "
                f"output layer. With v = 1 one guess a round pays from alpha {c:.3f} on, and at alpha 0.7 the best K is {K}: "
                f"{speedup(0.7, K, c):.2f} times as fast as plain decoding.")
