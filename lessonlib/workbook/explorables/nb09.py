"""Notebook 09: labels held against the text at one shift after another, as words and as mean log-probabilities."""

from lessonlib.workbook import style
from lessonlib.workbook.explorable import Explorable, Slider

FURTHEST = 3  # places that the labels can be moved either way
PLACES = 9  # of the text shown as words


def plain(word, most=14):
    """A token as it can be drawn: spaces visible, no mathematics, nothing that a font may lack."""
    text = "".join({" ": "·", "\n": "\\n"}.get(letter, letter if letter.isascii() and letter.isprintable() else "?") for letter in word)
    return (text if len(text) <= most else text[:most - 1] + "~").replace("$", r"\$")


class ShiftedLabels(Explorable):
    """The labels' favourites beside the written tokens, moved against each other, and how likely the labels find the text at each shift.

    written, favourites: the words of one answer and the label rows' favourites there, lists of at least 15 strings.

    log_probs, shares: for the shifts -3 to 3, the labels' mean log-probability (nats) of the written token, and the share of rows whose favourite it is.
    """

    width, height, columns = 8.4, 3.6, 2
    sliders = (Slider("shift", "row j against token j +", 1, -FURTHEST, FURTHEST, 1, unit="places"),)

    def __init__(self, written, favourites, log_probs, shares):
        self.written, self.favourites = [[plain(word) for word in words] for words in (written, favourites)]
        self.log_probs, self.shares = list(map(float, log_probs)), list(map(float, shares))
        super().__init__()

    def setup(self, axes):
        """Two columns of words at the left; the curve over all shifts at the right, with a dot on the present one."""
        self.left, self.right = axes
        self.left.set(xlim=(0, 1), ylim=(-PLACES, 0.6))
        self.left.axis("off")
        for x, head, colour in ((0.02, "favourite of row j", style.TARGET), (0.56, "written token", style.DRAFT)):
            self.left.text(x, 0.1, head, color=colour, fontweight="bold", fontsize=9.5)
        for place in range(PLACES):
            self.left.text(0.02, -place - 0.8, self.favourites[FURTHEST + place], fontsize=9.5, family="DejaVu Sans Mono")
        self.words = [self.left.text(0.5, -place - 0.8, "", fontsize=9.5, family="DejaVu Sans Mono") for place in range(PLACES)]
        shifts = range(-FURTHEST, FURTHEST + 1)
        self.right.plot(shifts, self.log_probs, color=style.TARGET, linewidth=2.2)
        (self.dot,) = self.right.plot([0], [0], "o", markersize=9, color=style.DRAFT)
        self.right.set(xticks=shifts, xlabel="shift, places", ylabel="mean log-probability, nats")

    def draw(self, shift):
        """Hold row j against token j + shift."""
        same = 0
        for place, word in enumerate(self.words):
            token = self.written[FURTHEST + place + shift]
            agrees = token == self.favourites[FURTHEST + place]
            same += agrees
            word.set_text(f"{'=' if agrees else ' '} {token}")  # one text a row: each that moves costs a millisecond
            word.set_color(style.DRAFT if agrees else style.QUIET)
        here = self.log_probs[shift + FURTHEST]
        self.dot.set_data([shift], [here])
        style.finding(self.left, f"{same} of {PLACES} agree")
        style.finding(self.right, f"Shift {shift:+d}" if shift else "Shift 0, as stored")
        return (f"With row j held against token j{f' {shift:+d}' if shift else ''}, the label's favourite is the written token at "
                f"{self.shares[shift + FURTHEST]:.0%} of all rows, and the written token has a mean log-probability of {here:.1f} nats.")
