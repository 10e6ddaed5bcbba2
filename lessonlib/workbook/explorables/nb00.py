"""Notebook 00: a recorded text, round by round, with what was kept, what was refused and both models' bets."""

from lessonlib.workbook import style
from lessonlib.workbook.explorable import Explorable, Slider

COLUMNS, LINES = 88, 12  # of the page that the text is written on, in characters
BETS = 5
KEPT, OWN = "#cfeee2", "#dbe9f5"  # behind a kept guess and behind the target's own token: light SHARED, light TARGET
MONO = {"family": "DejaVu Sans Mono", "va": "center"}
SMALL = {"color": style.QUIET, "fontsize": 9.5, "va": "center"}


def shown(token):
    """A token as a picture can show it: its spaces and line ends are signs."""
    return token.replace("\n", "⏎").replace(" ", "·")


class Rounds(Explorable):
    """A slider over the rounds of one decoding.

    rounds: as `record_rounds` gives them; tokenizer: turns their ids into text; start: the round shown first.
    """

    width, height = 7.6, 5.4

    def __init__(self, rounds, tokenizer, start=1):
        self.rounds = [told(found, tokenizer) for found in rounds]
        self.sliders = (Slider("number", "round", min(start, len(rounds)), 1, len(rounds)),)
        super().__init__()

    def setup(self, ax):
        """Every token at its place, not yet visible; a row for the proposal; two sets of bars."""
        ax.remove()
        self.figure.set_layout_engine("none")  # every place below is fixed
        self.page = self.field((0.01, 0.36, 0.98, 0.6), (0, COLUMNS), LINES)
        self.page.text(0, 0, "The text so far. Green: a guess that was kept. Blue, bold: the target's own token.", **SMALL)
        self.written = self.laid_out()
        self.head = self.page.text(0, LINES - 2.2, "", **SMALL)
        longest = max(len(found["proposed"]) for found in self.rounds)
        self.proposal = [self.token(LINES - 1, 0, "", "white") for _ in range(longest + 1)]
        self.strikes = [self.page.plot([], [], color=style.DRAFT, linewidth=1.2, zorder=5)[0] for _ in range(longest)]
        self.bars = {
            "target": self.bets(0.01, "target", color=style.TARGET),
            "draft": self.bets(0.51, "draft", color=style.DRAFT, hatch="////"),
        }

    def field(self, place, xlim, lines):
        """Bare axes at `place` of the figure, so many lines high, the first on top."""
        ax = self.figure.add_axes(place)
        ax.set(xlim=xlim, ylim=(lines, -0.6))
        for part in (ax.patch, ax.xaxis, ax.yaxis, *ax.spines.values()):
            part.set_visible(False)
        return ax

    def laid_out(self):
        """The texts of each round's tokens, at the places they have in the finished answer."""
        rounds, line, column = [], 1, 0
        for found in self.rounds:
            texts = []
            for i, word in enumerate(found["written"]):
                begun, ends, indent = word.rpartition("\n")
                seen = shown(begun + ends or indent)
                if column + len(seen) > COLUMNS:
                    line, column = line + 1, 0
                texts.append(self.token(line, column, seen, KEPT if i < found["kept"] else OWN))
                line, column = line + word.count("\n"), len(indent) + (0 if ends else column)
            rounds.append(texts)
        return rounds

    def token(self, line, column, word, background):
        """A token on its box, hidden for now."""
        box = {"boxstyle": "square,pad=0.12", "facecolor": background, "edgecolor": "white", "linewidth": 0.8}
        own = {"color": style.TARGET, "fontweight": "bold"} if background == OWN else {"color": style.INK}
        return self.page.text(column, line, word, fontsize=9.8, visible=False, bbox=box, **own, **MONO)

    def bets(self, left, name, **looks):
        """(labels, bars, values) of one model's likeliest tokens, under a heading."""
        ax = self.field((left, 0.01, 0.48, 0.33), (-0.42, 1.25), BETS)
        heading = f"The {name}'s bets for the last token"
        ax.text(-0.42, -0.75, heading, color=looks["color"], fontweight="bold", va="center")
        bars = ax.barh(range(BETS), [0.0] * BETS, 0.72, edgecolor="white", linewidth=0, **looks)
        labels = [ax.text(-0.02, i, "", ha="right", fontsize=9, **MONO) for i in range(BETS)]
        values = [ax.text(0, i, "", va="center", color=looks["color"], fontsize=9) for i in range(BETS)]
        return labels, bars, values

    def draw(self, number):
        """Show the text up to round `number`, its proposal with what became of it, and the bets."""
        found = self.rounds[number - 1]
        for i, texts in enumerate(self.written, 1):
            for text in texts:
                if text.get_visible() != (i <= number):
                    text.set_visible(i <= number)
        K, kept = len(found["proposed"]), found["kept"]
        then = " and writes one of its own" if len(found["written"]) > kept else "; the text ends among them"
        self.head.set_text(f"Round {number}: the draft proposes {K} tokens, the target keeps {kept}{then}.")
        self.draw_proposal(found)
        for name, (labels, bars, values) in self.bars.items():
            for (word, odds), label, bar, value in zip(found[name], labels, bars, values):
                label.set_text(shown(word))
                bar.set_width(odds)
                value.set(x=odds, text=f" {odds:.2f}")
        return sentence(number, len(self.rounds), found)

    def draw_proposal(self, found):
        """The proposed tokens side by side, those thrown away struck out, and the target's own token after them."""
        K, kept, column = len(found["proposed"]), found["kept"], 0
        words = [*map(shown, found["proposed"]), *map(shown, found["written"][kept:])]
        for i, text in enumerate(self.proposal):
            word = words[i] if i < len(words) else ""
            colour, background = (style.INK, KEPT) if i < kept else (style.DRAFT, "white") if i < K else (style.TARGET, OWN)
            column += 2 * (i == K)
            text.set(visible=bool(word), x=column, text=word, color=colour, fontweight="normal" if i < K else "bold")
            text.get_bbox_patch().set(facecolor=background, edgecolor=style.DRAFT if kept <= i < K else "white")
            if i < len(self.strikes):
                struck = kept <= i < K
                self.strikes[i].set_data([column, column + len(word)] if struck else [], [LINES - 1] * 2 if struck else [])
            column += len(word) + 1.5


def told(found, tokenizer):
    """A Round with words for its ids."""
    words = {name: [tokenizer.decode([token]) for token in ids]
             for name, ids in (("proposed", found.proposed), ("written", found.written))}
    bets = {name: [(tokenizer.decode([token]), odds) for token, odds in own[:BETS]]
            for name, own in (("target", found.target_bets), ("draft", found.draft_bets))}
    return {**words, **bets, "kept": found.kept, "rejected": found.rejected}


def sentence(number, count, found):
    """What the picture shows, in words."""
    (own, odds), others = found["target"][0], dict(found["draft"])
    draft_odds = f"{others[own]:.2f}" if own in others else f"less than {found['draft'][-1][1]:.2f}"
    guesses = ", ".join(f"“{shown(word)}”" for word in found["proposed"])
    kept = f"{found['kept']} and refuses the next" if found["rejected"] else "all that is still text"
    return (f"Round {number} of {count}: the draft proposes {guesses}; the target keeps {kept}. The last token written is "
            f"“{shown(own)}”: the target bets {odds:.2f} on it, the draft {draft_odds}.")
