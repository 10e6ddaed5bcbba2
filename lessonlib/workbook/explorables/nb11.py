"""Notebooks 11 and 12: a tree of guesses grown to a budget, and what it is worth a round."""

from itertools import accumulate

import numpy as np

from lessonlib.decode.sparse_tree import expected_tokens, odds_of_ways, sparse_tree
from lessonlib.workbook import style
from lessonlib.workbook.explorable import Explorable, Slider
from lessonlib.workbook.trees import layout

MOST = 63  # guesses in a tree


class GrowTree(Explorable):
    """Grow a tree by budget, depth and width: the tree that keeps most of what these leave, and its tokens a round.

    shares[d][r]: how often the favourite of rank r, counted from 0, is right at depth d + 1 where all before it are. Whose they are: `name`.
    """

    width, height, columns = 8.4, 3.6, 2

    def __init__(self, shares, name):
        self.shares, self.name = [list(row) for row in shares], name
        deepest, widest = len(self.shares), len(self.shares[0])
        self.sliders = (Slider("budget", "guesses in the tree", 15, 1, MOST, 1), Slider("depth", "deepest guess", deepest, 1, deepest, 1),
                        Slider("favourites", "favourites tried at a place", min(4, widest), 1, widest, 1))
        super().__init__()

    def tree(self, budget, depth, favourites):
        """The (parents, ranks) of the best tree within the three."""
        return sparse_tree([row[:favourites] for row in self.shares[:depth]], budget)

    def worth(self, depth, favourites):
        """Tokens a round of the best trees of 0, 1, 2, ... guesses, up to MOST: each is the one before it and one guess more."""
        return list(accumulate(odds_of_ways(self.tree(MOST, depth, favourites), self.shares)))

    def setup(self, axes):
        """The tree on the left; what each guess adds on the right, with a mark."""
        self.left, self.right = axes
        (self.ways,) = self.left.plot([], [], color=style.QUIET, linewidth=0.9)
        (self.guesses,) = self.left.plot([], [], "o", color=style.DRAFT, markersize=4)
        self.left.set(xlim=(-0.2, len(self.shares) + 0.2), ylim=(-0.05, 1.05), xticks=range(len(self.shares) + 1), yticks=[], xlabel="guesses ahead")
        self.left.grid(False)
        best = self.worth(len(self.shares), len(self.shares[0]))
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
        chain = expected_tokens((range(depth), (0,) * depth), self.shares)
        style.finding(self.left, f"{n} guess{'es' * (n > 1)}, {deep} deep")
        style.finding(self.right, f"{found:.2f} tokens a round")
        return (f"With {n} guess{'es' * (n > 1)}, at most {depth} deep and {favourites} at a place, a round of {self.name} is worth {found:.2f} tokens; "
                f"the chain of that depth, of {depth} guesses, is worth {chain:.2f}.")
