"""The picture that grows a tree: what it draws is the tree that keeps most, and the number it names is that tree's."""

import itertools

import pytest
import torch
from support import ways_of
from transformers import LlamaConfig, LlamaForCausalLM

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import Block
from lessonlib.drafts.head_files import heads_note, noted_ways
from lessonlib.files import CHECKPOINTS
from lessonlib.pair.load import EAGLE, MEDUSA
from lessonlib.pair.tree import tree_of
from lessonlib.workbook.explorables.nb11 import MOST, GrowTree
from lessonlib.workbook.trees import best_round, layout, round_figure

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


@pytest.mark.parametrize("name", [EAGLE, MEDUSA])
def test_every_step_of_a_slider_changes_the_tree_or_the_curve_of_the_shipped_heads(name):
    shown = GrowTree(noted_ways(heads_note(CHECKPOINTS / name)), name)
    start = {slider.name: shown.controls[slider.name].value for slider in shown.sliders}
    for slider in shown.sliders:
        seen = []
        for value in range(slider.low, slider.high + 1):
            for key, other in start.items():
                shown.controls[key].value = other
            shown.controls[slider.name].value = value
            seen.append((shown.guesses.get_xdata().tolist(), shown.guesses.get_ydata().tolist(), list(shown.curve.get_ydata())))
        assert all(before != after for before, after in itertools.pairwise(seen)), slider.name


class Knowing:
    """A drafter that knows the text: behind a wrong guess stands the right one, on it as many more right ones as the place in the text says, and a wrong one."""

    def __init__(self, text):
        self.text = text

    def reset(self, prompt_ids, sampling):
        self.place = 0

    def observe(self, tokens):
        self.place += len(tokens)

    def propose(self, K):
        right = self.text[self.place:self.place + 1 + self.place % K]
        if not right:
            return Block(torch.empty(0, dtype=torch.long))
        wrong = (right[0] + 1) % 64
        return Block(torch.tensor([wrong, *right, (right[-1] + 1) % 64]), None, (0, *((row + 1 if row else 0) for row in range(len(right))), len(right)))


def test_the_best_round_is_the_one_in_which_most_was_kept_and_its_rows_are_the_texts_tokens():
    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)).eval()
    decoder, prompt = Decoder(target), [5, 9, 2]
    text = decoder.decode(prompt, 0, 30).tokens
    kept = []
    decoder.decode(prompt, 4, 30, Knowing(text), on_round=lambda *found: kept.append(found[2]))
    parents, tokens, rows = best_round(decoder, [prompt], 4, 30, Knowing(text), ())
    assert len(rows) - 1 == max(kept) >= 2 and rows[0] == 0 and len(tokens) == len(parents) + 1
    assert all(parents[row - 1] == before for before, row in itertools.pairwise(rows))
    way, whole = [tokens[row] for row in rows], [*prompt, *text]
    assert any(whole[i:i + len(way)] == way for i in range(len(whole)))


def test_every_guess_of_a_layout_has_a_place_of_its_own_at_its_depth():
    for parents in ((), (0,), (0, 0, 1, 1, 2, 4, 6), (0, 1, 2, 3)):
        places = layout(parents)
        assert [x for x, _ in places] == tree_of(parents).depths and len(set(places)) == len(places)


def test_the_picture_of_a_round_says_what_was_kept():
    figure = round_figure((0, 0, 1, 1), ["so", " far", " good", " away", " $5"], (1, 4))
    assert figure.axes[0].get_title(loc="left") == "2 of 4 guesses kept: one way down"
    texts = {text.get_text(): text.get_fontweight() for text in figure.axes[0].texts}
    assert texts["·far"] == texts["·\\$5"] == "bold" and texts["·good"] == "normal"
