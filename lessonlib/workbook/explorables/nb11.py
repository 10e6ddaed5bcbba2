"""Notebooks 11 and 12: a tree of guesses grown to a budget, and what it is worth a round."""

from itertools import accumulate

import numpy as np

from lessonlib.decode.sparse_tree import sparse_tree
from lessonlib.workbook import style
from lessonlib.workbook.explorable import Explorable, Slider
from lessonlib.workbook.trees import layout

MOST = 63  # guesses in a tree


class GrowTree(Explorable):
    """Grow a tree by budget, depth and width: the tree that keeps most of what these leave, and its tokens a round.

    ways: (share, ranks) pairs as `look_ahead_measured` counts them. Whose they are: `name`.
    """

    width, height, columns = 8.4, 3.6, 2

    def __init__(self, ways, name):
        self.counted, self.name, self.share = ways, name, {way: share for share, way in ways}
        # of the largest tree: a slider that went further would change nothing
        self.deepest, widest = (max(map(most, [way for _, way in ways[:MOST]])) for most in (len, lambda way: 1 + max(way)))
        deepest = self.deepest
        self.sliders = (Slider("budget", "guesses in the tree", 15, 1, MOST, 1), Slider("depth", "deepest guess", deepest, 1, deepest, 1),
                        Slider("favourites", "favourites tried at a place", min(4, widest), 1, widest, 1))
        super().__init__()

    def tree(self, budget, depth, favourites):
        """The (parents, ranks) of the best tree within the three."""
        return sparse_tree(self.within(depth, favourites), budget)

    def within(self, depth, favourites):
        """The ways no deeper than `depth`, of no more than so many favourites at a place."""
        return [(share, way) for share, way in self.counted if len(way) <= depth and max(way) < favourites]

    def worth(self, depth, favourites):
        """Tokens a round of the best trees of 0, 1, 2, ... guesses, up to MOST: each is the one before it and one guess more."""
        return list(accumulate((share for share, _ in self.within(depth, favourites)[:MOST]), initial=1.0))

    def setup(self, axes):
        """The tree on the left; what each guess adds on the right, with a mark."""
        self.left, self.right = axes
        (self.ways,) = self.left.plot([], [], color=style.QUIET, linewidth=0.9)
        (self.guesses,) = self.left.plot([], [], "o", color=style.DRAFT, markersize=4)
        self.left.set(xlim=(-0.2, self.deepest + 0.2), ylim=(-0.05, 1.05), xticks=range(self.deepest + 1), yticks=[], xlabel="guesses ahead")
        self.left.grid(False)
        best = self.worth(self.deepest, 1 + MOST)
        self.right.plot(range(len(best)), best, color=style.GRID, linewidth=2)
        (self.curve,) = self.right.plot([], [], color=style.TARGET, linewidth=2.2)
        (self.dot,) = self.right.plot([0], [1], "o", markersize=9, color=style.DRAFT)
        self.right.set(xlim=(0, MOST + 1), ylim=(1, 1.04 * max(best)), xlabel="guesses in the tree", ylabel="tokens a round")

    def draw(self, budget, depth, favourites):
        """Grow it to these."""
        parents, ranks = self.tree(budget, depth, favourites)
        places = np.array(layout(parents), float)
        spread = np.ptp(places[:, 1])
        places[:, 1] = (places[:, 1] - places[:, 1].min()) / spread if spread else 0.5
        pieces = [(*zip(places[parent], places[row]),) for row, parent in enumerate(parents, 1)]
        self.ways.set_data([x for piece in pieces for x in (*piece[0], np.nan)], [y for piece in pieces for y in (*piece[1], np.nan)])
        self.guesses.set_data(*places.T)
        worth = self.worth(depth, favourites)
        self.curve.set_data(range(len(worth)), worth)
        n, deep = len(parents), int(places[:, 0].max())
        found = worth[n]
        self.dot.set_data([n], [found])
        chain = 1 + sum(self.share.get((0,) * n, 0.0) for n in range(1, depth + 1))
        style.finding(self.left, f"{n} guess{'es' * (n > 1)}, {deep} deep")
        style.finding(self.right, f"{found:.2f} tokens a round")
        return (f"With {n} guess{'es' * (n > 1)}, at most {depth} deep and {favourites} at a place, a round of {self.name} is worth {found:.2f} tokens; "
                f"the chain of that depth, of {depth} guesses, is worth {chain:.2f}.")
