"""Notebook 00: a recorded text, round by round, with what was kept, what was refused and both models' bets."""

from lessonlib.workbook import style
from lessonlib.workbook.explorable import Explorable, Slider

COLUMNS, LINES = 88, 13  # of the field that the text is written in
KEPT, OWN = "#cfeee2", "#dbe9f5"  # behind a kept guess and behind the target's own token: SHARED and TARGET, light
BETS = 5


def shown(token, place=""):
    """A token as a picture can show it: its spaces and line ends are signs."""
    return token.replace("\n", "⏎").replace(" ", "·") or place


class Rounds(Explorable):
    """A slider over the rounds of one decoding: `rounds` as `record_rounds` gives them, `tokenizer` turns ids into text."""

    width, height = 7.6, 5.4

    def __init__(self, rounds, tokenizer):
        self.rounds = [self.told(found, tokenizer) for found in rounds]
        self.sliders = (Slider("number", "round", 1, 1, len(rounds)),)
        super().__init__()

    @staticmethod
    def told(found, tokenizer):
        """A Round with words for its ids."""
        words = {"proposed": found.proposed, "written": found.written}
        told = {name: [tokenizer.decode([token]) for token in ids] for name, ids in words.items()}
        for name, bets in (("target", found.target_bets), ("draft", found.draft_bets)):
            told[name] = [(tokenizer.decode([token]), odds, token) for token, odds in bets[:BETS]]
        return {**told, "kept": found.kept, "rejected": found.rejected, "ids": found}

    def setup(self, ax):
        """Every token at its place, not yet visible; a row for the proposal; two sets of bars."""
        ax.remove()
        self.page = self.field((0.01, 0.36, 0.98, 0.6), COLUMNS, LINES)
        self.written, line, column = [], 1, 0
        for found in self.rounds:
            tokens = []
            for i, word in enumerate(found["written"]):
                if column + len(word) > COLUMNS and "\n" not in word:
                    line, column = line + 1, 0
                tokens.append(self.token(line, column, shown(word), KEPT if i < found["kept"] else OWN))
                line, column = (line + word.count("\n"), 0) if "\n" in word else (line, column + len(word))
            self.written.append(tokens)
        self.page.text(0, 0, "The text so far. Green: a guess that was kept. Blue, bold: the target's own token.", **SMALL)
        self.head = self.page.text(0, LINES - 2.2, "", **SMALL)
        longest = max(len(found["proposed"]) for found in self.rounds)
        self.proposal = [self.token(LINES - 1, 0, "", "white") for _ in range(longest + 1)]
        self.strikes = [self.page.plot([], [], color=style.DRAFT, linewidth=1.6)[0] for _ in range(longest)]
        self.bars = {name: self.bets(left, name, colour, hatch) for name, left, colour, hatch in
                     (("target", 0.01, style.TARGET, ""), ("draft", 0.51, style.DRAFT, "////"))}

    def field(self, place, columns, lines):
        """Axes without axes: `columns` characters wide and `lines` lines high."""
        ax = self.figure.add_axes(place)
        ax.set(xlim=(0, columns), ylim=(lines, -0.6))
        ax.axis("off")
        return ax

    def token(self, line, column, text, colour):
        """A token on its box, hidden."""
        weight = "bold" if colour == OWN else "normal"
        return self.page.text(column, line, text, family="DejaVu Sans Mono", fontsize=9.8, va="center", visible=False, fontweight=weight,
                              color=style.TARGET if colour == OWN else style.INK,
                              bbox={"boxstyle": "square,pad=0.12", "facecolor": colour, "edgecolor": "white", "linewidth": 0.8})

    def bets(self, left, name, colour, hatch):
        """(heading, labels, bars, values) of one model's likeliest tokens."""
        ax = self.field((left, 0.01, 0.48, 0.33), 1.0, BETS)
        ax.set_xlim(-0.42, 1.25)
        heading = ax.text(-0.42, -0.75, f"The {name}'s bets for the last token", color=colour, fontweight="bold", va="center")
        bars = ax.barh(range(BETS), [0.0] * BETS, 0.72, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
        labels = [ax.text(-0.02, i, "", ha="right", va="center", family="DejaVu Sans Mono", fontsize=9) for i in range(BETS)]
        values = [ax.text(0, i, "", va="center", color=colour, fontsize=9) for i in range(BETS)]
        return heading, labels, bars, values

    def draw(self, number):
        """Show the text up to round `number`, its proposal with what became of it, and the bets."""
        found = self.rounds[number - 1]
        for i, tokens in enumerate(self.written, 1):
            for text in tokens:
                if text.get_visible() != (i <= number):
                    text.set_visible(i <= number)
        self.draw_proposal(number, found)
        for name, (_, labels, bars, values) in self.bars.items():
            for (word, odds, _), label, bar, value in zip(found[name], labels, bars, values):
                label.set_text(shown(word))
                bar.set_width(odds)
                value.set_text(f" {odds:.2f}")
                value.set_x(odds)
        return self.sentence_of(number, found)

    def draw_proposal(self, number, found):
        """The proposed tokens side by side, those thrown away struck out, and the target's own token after them."""
        kept, column = found["kept"], 0
        own = "" if len(found["written"]) <= kept else shown(found["written"][-1])
        words = [shown(word) for word in found["proposed"]]
        self.head.set_text(f"Round {number}: the draft proposes {len(words)} tokens, the target keeps {kept} and writes one of its own.")
        for i, text in enumerate(self.proposal):
            word = words[i] if i < len(words) else own
            last = i == len(words)
            text.set(visible=bool(word), x=column, text=word, color=style.TARGET if last else style.INK if i < kept else style.DRAFT,
                     fontweight="bold" if last else "normal")
            text.get_bbox_patch().set_facecolor(OWN if last else KEPT if i < kept else "white")
            text.get_bbox_patch().set_edgecolor("white" if last or i < kept else style.DRAFT)
            if i < len(self.strikes):
                self.strikes[i].set_data(*(([column, column + len(word)], [LINES - 1] * 2) if kept <= i < len(words) else ([], [])))
            column += len(word) + 1.5 + 2 * (i + 1 == len(words))

    def sentence_of(self, number, found):
        """What the picture shows, in words."""
        own, odds, token = found["target"][0]
        other = dict((token, odds) for _, odds, token in found["draft"]).get(token)
        said = f"{other:.2f}" if other is not None else f"less than {found['draft'][-1][1]:.2f}"
        guesses = ", ".join(f"“{shown(word)}”" for word in found["proposed"])
        end = "refuses the next" if found["rejected"] else "has nothing to refuse"
        return (f"Round {number} of {len(self.rounds)}: the draft proposes {guesses}; the target keeps {found['kept']}, {end} and writes "
                f"“{shown(own)}”, on which it bets {odds:.2f} and the draft {said}.")


SMALL = {"color": style.QUIET, "fontsize": 9.5, "va": "center"}
