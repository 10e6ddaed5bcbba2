"""The picture that grows a tree: what it draws is the tree that keeps most, and the number it names is that tree's."""

import itertools

import pytest
from support import ways_of

from lessonlib.pair.tree import tree_of
from lessonlib.workbook.explorables.nb11 import MOST, GrowTree
from lessonlib.workbook.trees import layout, round_figure

SHARES = [[0.5, 0.2, 0.1], [0.4, 0.2, 0.1], [0.3, 0.1, 0.05]]


def every_tree(budget, depth, ranks):
    """Every tree of so many guesses: sets of ways, each with its beginning in the set."""
    ways = [way for n in range(1, depth + 1) for way in itertools.product(range(ranks), repeat=n)]
    for chosen in itertools.combinations(ways, budget):
        if all(way[:-1] in chosen or len(way) == 1 for way in chosen):
            yield chosen


def test_no_other_tree_of_its_size_is_worth_more():
    shown = GrowTree(ways_of(SHARES), "a test")
    for budget, depth, ranks in ((3, 2, 2), (4, 3, 2), (4, 2, 3)):
        best = 1 + max(sum(_odds(way) for way in tree) for tree in every_tree(budget, depth, ranks))
        assert worth_of(*shown.tree(budget, depth, ranks)) == pytest.approx(best)


def worth_of(parents, ranks):
    ways = {0: ()}
    for row, (parent, rank) in enumerate(zip(parents, ranks), 1):
        ways[row] = (*ways[parent], rank)
    return sum(map(_odds, ways.values()))


def _odds(way):
    product = 1.0
    for depth, rank in enumerate(way):
        product *= SHARES[depth][rank]
    return product


def test_it_names_the_tokens_a_round_of_the_tree_that_it_draws():
    shown = GrowTree(ways_of(SHARES), "a test")
    for budget, depth, favourites in ((1, 1, 1), (15, 3, 3), (MOST, 3, 2), (7, 2, 3)):
        for name, value in (("budget", budget), ("depth", depth), ("favourites", favourites)):
            shown.controls[name].value = value
        parents, ranks = shown.tree(budget, depth, favourites)
        worth = worth_of(parents, ranks)
        assert f"worth {worth:.2f} tokens" in shown.sentence.value and f"With {len(parents)} guess" in shown.sentence.value
        assert shown.left.get_title(loc="left").endswith(f", {tree_of(parents).deepest} deep")
        assert len(shown.guesses.get_xdata()) == len(parents) + 1 and shown.dot.get_data() == ([len(parents)], [pytest.approx(worth)])
        chain = 1 + sum(_odds((0,) * n) for n in range(1, depth + 1))
        assert f"is worth {chain:.2f}." in shown.sentence.value
    assert shown.try_the_ends() is None


def test_every_guess_of_a_layout_has_a_place_of_its_own_at_its_depth():
    for parents in ((), (0,), (0, 0, 1, 1, 2, 4, 6), (0, 1, 2, 3)):
        places = layout(parents)
        assert [x for x, _ in places] == tree_of(parents).depths and len(set(places)) == len(places)


def test_the_picture_of_a_round_says_what_was_kept():
    figure = round_figure((0, 0, 1, 1), ["so", " far", " good", " away", " $5"], (1, 4))
    assert figure.axes[0].get_title(loc="left") == "2 of 4 guesses kept: one way down"
    texts = {text.get_text(): text.get_fontweight() for text in figure.axes[0].texts}
    assert texts["·far"] == texts["·\\$5"] == "bold" and texts["·good"] == "normal"
