"""Notebook 02: a draft with a single number to learn, trained at one temperature and used at another."""

import torch

from lessonlib.workbook import style
from lessonlib.workbook.explorable import Choice, Explorable, Slider

TOP = 64  # tokens kept of the target's odds, as in the course's label store
SHOWN = 5
STEEPNESS = torch.arange(0.05, 8.0, 0.01, dtype=torch.float64)


def log_probs(steepness, T=1.0):
    """The draft's log-probabilities [..., TOP] by rank at temperature T: logit of rank r = -steepness * log r."""
    ranks = torch.arange(1, TOP + 1, dtype=torch.float64)
    return (-torch.as_tensor(steepness)[..., None] * ranks.log() / T).log_softmax(-1)


def fitted(target_logits, T):
    """The steepness with the least KL(p || q), both softened by T; target_logits [TOP], the likeliest first."""
    cross_entropy = -(log_probs(STEEPNESS, T) * (target_logits / T).softmax(-1)).sum(-1)
    return float(STEEPNESS[cross_entropy.argmin()])


def alpha_served(target_logits, steepness, serving=1.0):
    """alpha of such drafts, a number or a tensor of them, where both models write at the temperature `serving`."""
    return torch.minimum((target_logits / serving).softmax(-1), log_probs(steepness, serving).exp()).sum(-1)


class Served(Explorable):
    """A draft of one number, distilled at one temperature and serving at another: its bars beside the target's, alpha over the first.

    places: name -> (the target's TOP largest logits, their tokens as words).
    """

    width, height, columns = 7.6, 3.4, 2
    temperatures = [round(0.1 * i, 1) for i in range(5, 81)]

    def __init__(self, places):
        self.places = places
        self.learnt = {name: torch.tensor([fitted(z, T) for T in self.temperatures]).double() for name, (z, _) in places.items()}
        names = tuple(places)
        self.sliders = (Choice("place", "place in the text", names[0], names),
                        Slider("T", "T, distillation temperature", 1.0, 0.5, 8.0, 0.1),
                        Slider("serving", "temperature it serves at", 1.0, 0.5, 2.0, 0.1))
        super().__init__()

    def setup(self, axes):
        """Bars for the likeliest tokens at the left, alpha against T at the right."""
        self.left, self.right = axes
        words = [""] * (SHOWN + 1)
        self.bars = style.bars(self.left, words, {"target": [0.0] * len(words), "draft": [0.0] * len(words)})
        self.left.set(ylim=(0, 1.12), ylabel="odds as served")
        self.words = [self.left.text(i, -0.04, "", ha="center", va="top", fontsize=9) for i in range(SHOWN + 1)]
        (self.curve,) = self.right.plot(self.temperatures, [1.0] * len(self.temperatures), color=style.SHARED, linewidth=2.2)
        (self.dot,) = self.right.plot([1], [1], "o", color=style.DRAFT, markersize=9)
        self.right.set(ylim=(0.4, 1.02), xlim=(0.3, 8.2), xlabel="T, distillation temperature", ylabel="alpha as served")

    def draw(self, place, T, serving):
        """Both models' odds at the serving temperature, and what each T would have given."""
        z, words = self.places[place]
        steepness = self.learnt[place]
        at = min(range(len(self.temperatures)), key=lambda i: abs(self.temperatures[i] - T))
        alphas = alpha_served(z, steepness, serving).tolist()
        p, q = (z / serving).softmax(-1), log_probs(steepness[at], serving).exp()
        style.move_bars(self.bars, {name: [*v[:SHOWN].tolist(), float(v[SHOWN:].sum())] for name, v in (("target", p), ("draft", q))})
        for text, word in zip(self.words, [*words[:SHOWN], "others"]):
            text.set_text(word)
        self.curve.set_ydata(alphas)
        self.dot.set_data([T], [alphas[at]])
        best = self.temperatures[max(range(len(alphas)), key=alphas.__getitem__)]
        style.finding(self.right, f"alpha {alphas[at]:.2f}; best at T = {best:g}")
        return (f"{place[0].upper() + place[1:]}: distilled at T = {T:.1f} and serving at temperature {serving:.1f}, this draft has "
                f"alpha {alphas[at]:.2f}; the best distillation temperature here is {best:.1f}, with {max(alphas):.2f}.")
