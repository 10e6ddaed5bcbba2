"""Trees of guesses as pictures: where each stands, and one round, found and drawn with the way that was kept."""

from lessonlib.pair.tree import tree_of
from lessonlib.workbook import style
from lessonlib.workbook.explorables.nb09 import plain


def layout(parents):
    """[(x, y)] of the text's last token and of each guess: x is its depth, y such that nothing overlaps and parents stand before the middle of theirs."""
    tree, below = tree_of(tuple(parents)), {}
    for row, parent in enumerate(parents, 1):
        below.setdefault(parent, []).append(row)
    height, free = {}, 0
    for row in _from_the_leaves(below):
        if row in below:
            height[row] = sum(height[child] for child in below[row]) / len(below[row])
        else:
            height[row], free = -free, free + 1
    return [(tree.depths[row], height[row]) for row in range(len(parents) + 1)]


def _from_the_leaves(below, row=0):
    for child in below.get(row, ()):
        yield from _from_the_leaves(below, child)
    yield row


def best_round(decoder, prompts, K, longest, drafter, end):
    """(parents, tokens, kept) of the round in which most was kept while `prompts` are decoded greedily: the tokens are the text's last one and every guess,
    `kept` the rows of those that were, row 0 the first. Arguments as in `Decoder.decode`; the drafter must propose trees.
    """
    best = {"kept": -1}

    def look(text, block, kept, written, logits):
        kept = min(kept, len(written))  # what a text's end cuts off was not written
        if block is not None and kept > best["kept"]:
            best.update(kept=kept, block=block, last=text[-1], written=written)

    for prompt in prompts:
        decoder.decode(prompt, K, longest, drafter, end, on_round=look)
    tokens, parents, rows = best["block"].tokens.tolist(), best["block"].parents, [0]
    for token in best["written"][:best["kept"]]:
        rows.append(next(i for i, parent in enumerate(parents, 1) if parent == rows[-1] and tokens[i - 1] == token))
    return parents, [best["last"], *tokens], rows


def round_figure(parents, words, kept):
    """A figure of one round: the text's last token, every guess that stands on it (words, the last token's first), and the rows that were kept, drawn bold."""
    places, kept = layout(parents), {0, *kept}
    leaves = len({y for _, y in places})
    figure, ax = style.figure(8.4, max(2.2, 0.26 * leaves + 0.9))
    for row, parent in enumerate(parents, 1):
        ax.plot(*zip(places[parent], places[row]), color=style.SHARED if row in kept else style.GRID, linewidth=2.6 if row in kept else 1.2, zorder=1)
    for row, ((x, y), word) in enumerate(zip(places, words)):
        ax.annotate(plain(word), (x, y), ha="center", va="center", fontsize=9, fontweight="bold" if row in kept else "normal",
                    color=style.INK if row in kept else style.QUIET, bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": style.SHARED if row in kept else style.GRID})
    ax.set(xlim=(-0.5, max(x for x, _ in places) + 0.5), ylim=(min(y for _, y in places) - 0.8, 0.8), xticks=range(1 + max(x for x, _ in places)), yticks=[], xlabel="guesses ahead")
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    style.finding(ax, f"{len(kept) - 1} of {len(parents)} guesses kept: one way down")
    return figure
