"""Notebook 00: a recorded text, round by round, with what was kept, what was refused and both models' bets."""

import re
from math import ceil
from pathlib import Path

import anywidget
import ipywidgets
import traitlets
from IPython.display import publish_display_data

from lessonlib.errors import LessonError
from lessonlib.workbook import style
from lessonlib.workbook.explorable import VIEW

COLUMNS = 88  # of the page that the still's text is written on, in characters
LINE = 0.26  # inches a line of it: half a line is whole pixels too
BETS, BETS_AT = 5, {"target": 0, "draft": 45}  # how many of each model's bets are shown; their left edges, in characters
LABEL, BAR = 13, 26  # characters beside a bar, and those that a bet of 1 is long
KEPT, OWN = "#cfeee2", "#eaf3fb"  # behind a kept guess and behind the target's own token: light SHARED, light TARGET
MONO = {"family": "DejaVu Sans Mono", "va": "center", "parse_math": False}
SMALL = {"color": style.QUIET, "fontsize": 9.5, "va": "center"}


def shown(token):
    """A token as a picture can show it: its spaces and line ends are signs."""
    return token.replace("\n", "⏎").replace(" ", "·")


class Rounds(anywidget.AnyWidget):
    """The rounds of one decoding, stepped through in the browser; Python reads and sets the one that is shown as `number`.

    rounds: as `record_rounds` gives them; tokenizer: turns their ids into text; start: the round shown first, from 1.
    Raises LessonError where there are no rounds, and for a `number` that is none of them.
    """

    _esm = Path(__file__).with_name("rounds.js")
    _css = Path(__file__).with_name("rounds.css")
    rounds = traitlets.List(traitlets.Dict()).tag(sync=True)
    number = traitlets.Int().tag(sync=True)

    def __init__(self, rounds, tokenizer, start=1):
        if not rounds:
            raise LessonError("There is no round to show; record at least one: record_rounds(..., max_new_tokens=24).")
        super().__init__(rounds=[told(i, len(rounds), found, tokenizer) for i, found in enumerate(rounds, 1)], number=start)

    @traitlets.validate("number")
    def one_of_the_rounds(self, proposal):
        """The number, or LessonError where no round has it."""
        if not 1 <= proposal.value <= len(self.rounds):
            raise LessonError(f"There is no round {proposal.value}; choose one from 1 to {len(self.rounds)}.")
        return proposal.value

    def _ipython_display_(self):
        """Two outputs: the living text (else the still), and an empty box (else the caption: the living text has its own)."""
        caption = style.checked_caption(self.rounds[self.number - 1]["sentence"])
        outputs = (
            (self, *style.still_bundle(still(self.rounds[: self.number]), caption)),
            (ipywidgets.Box(layout={"display": "none"}), style.caption_bundle(caption), {}),
        )
        for widget, data, metadata in outputs:
            view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
            publish_display_data({VIEW: view, **data}, metadata)


def told(number, count, found, tokenizer):
    """A Round as the browser and the still show it: words for its ids, what happened as a heading and as a sentence."""
    words = {
        name: [shown(tokenizer.decode([token])) for token in ids]
        for name, ids in (("proposed", found.proposed), ("written", found.written))
    }
    bets = {
        name: [[shown(tokenizer.decode([token])), odds] for token, odds in own[:BETS]]
        for name, own in (("target", found.target_bets), ("draft", found.draft_bets))
    }
    told = {**words, **bets, "kept": found.kept}
    return {**told, "heading": heading(number, told), "sentence": sentence(number, count, told, found.rejected)}


def heading(number, told):
    """What became of the proposal, in a line."""
    K, kept = len(told["proposed"]), told["kept"]
    then = " and writes one of its own" if len(told["written"]) > kept else "; the text ends among them"
    return f"Round {number}: the draft proposes {K} token{'s' * (K != 1)}, the target keeps {kept or 'none'}{then}."


def sentence(number, count, told, rejected):
    """What the picture shows, in words."""
    (own, odds), others = told["target"][0], dict(told["draft"])
    draft_odds = f"{others[own]:.2f}" if own in others else f"less than {ceil(100 * told['draft'][-1][1]) / 100:.2f}"
    guesses = ", ".join(f"“{word}”" for word in told["proposed"])
    kept = f"{told['kept'] or 'none'} and refuses the {'next' if told['kept'] else 'first'}" if rejected else "all that is still text"
    return (
        f"Round {number} of {count}: the draft proposes {guesses}; the target keeps {kept}. The last token written is "
        f"“{own}”: the target bets {odds:.2f} on it, the draft {draft_odds}."
    )


def still(rounds):
    """The figure of the last of `rounds`, with the text up to it: every place in characters across and lines down."""
    page, last = laid_out(rounds), rounds[-1]
    proposal_at = max(line for line, *_ in page) + 3
    fig, ax = style.figure(7.6, LINE * (proposal_at + BETS + 3.5))
    ax.set(xlim=(-0.5, COLUMNS), ylim=(proposal_at + BETS + 2.5, -1))
    ax.set_axis_off()
    with style.look():
        ax.text(0, 0, "The text so far. Green: a guess that was kept. Blue, bold: the target's own token.", **SMALL)
        for line, column, word, kept in page:
            draw_token(ax, line, column, word, "kept" if kept else "own")
        ax.text(0, proposal_at - 1.2, last["heading"], **SMALL)
        draw_proposal(ax, proposal_at, last)
        draw_bets(ax, proposal_at + 1.7, "target", last["target"], color=style.TARGET)
        draw_bets(ax, proposal_at + 1.7, "draft", last["draft"], color=style.DRAFT, hatch="////")
    return fig


def laid_out(rounds):
    """Every token of the text as (line, column, word, whether it was a kept guess); one with a line end inside is cut there."""
    places, line, column = [], 1, 0
    for told in rounds:
        for i, word in enumerate(told["written"]):
            for piece in re.findall("[^⏎]*⏎|[^⏎]+", word):
                if column + len(piece) > COLUMNS:
                    line, column = line + 1, 0
                places.append((line, column, piece, i < told["kept"]))
                line, column = (line + 1, 0) if piece.endswith("⏎") else (line, column + len(piece))
    return places


def draw_token(ax, line, column, word, fate):
    """A token in its box: kept by the target, refused by it, or its own."""
    background, edge, looks = {
        "kept": (KEPT, "white", {"color": style.INK}),
        "refused": ("white", style.DRAFT, {"color": style.DRAFT}),
        "own": (OWN, "white", {"color": style.TARGET, "fontweight": "bold"}),
    }[fate]
    box = {"boxstyle": "square,pad=0.12", "facecolor": background, "edgecolor": edge, "linewidth": 0.8}
    ax.text(column, line, word, fontsize=9.8, bbox=box, **looks, **MONO)
    if fate == "refused":
        ax.plot([column, column + len(word)], [line, line], color=style.DRAFT, linewidth=1.2, zorder=5)


def draw_proposal(ax, line, told):
    """The proposed tokens side by side, those thrown away struck out, and the target's own token after them."""
    kept, column = told["kept"], 0
    for i, word in enumerate(told["proposed"]):
        draw_token(ax, line, column, word, "kept" if i < kept else "refused")
        column += len(word) + 1.5
    for word in told["written"][kept:]:
        draw_token(ax, line, column + 2, word, "own")


def draw_bets(ax, line, name, bets, **looks):
    """One model's likeliest tokens as bars under a heading."""
    left, color = BETS_AT[name] + LABEL, looks["color"]
    ax.text(BETS_AT[name], line, f"The {name}'s bets for the last token", color=color, fontweight="bold", va="center")
    for i, (word, odds) in enumerate(bets, 1):
        label = word if len(word) <= LABEL else word[: LABEL - 1] + "…"
        ax.text(left - 0.7, line + i, label, ha="right", fontsize=9, **MONO)
        ax.barh(line + i, BAR * odds, 0.72, left=left, edgecolor="white", linewidth=0, **looks)
        ax.text(left + BAR * odds + 0.5, line + i, f"{odds:.2f}", va="center", color=color, fontsize=9)
