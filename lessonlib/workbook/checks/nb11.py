"""Notebook 11: which token each Medusa head is to guess, what a tree of guesses is worth, and the rule that is not exact."""

import numpy as np
import torch

from lessonlib.workbook.checks.common import odds, tensor
from lessonlib.workbook.exercise import Exercise, Mistake, Property


def places_of(S, k):
    """(places of the states, places of their labels) for head k in a text of S tokens: the state at t is to guess token t + 1 + k."""
    states = torch.arange(max(0, S - 1 - k))
    return states, states + 1 + k


def _length_and_head(rng):
    k = int(rng.integers(1, 4))
    return int(rng.integers(k + 2, 12)), k


def _shifted(by, cut=0):
    """A wrong answer whose labels stand `by` further on, of states cut by `cut` more."""
    def answer(S, k):
        states = torch.arange(max(0, S - 1 - k + cut))
        return states, states + 1 + k + by
    return answer


def _counting(fn, rng):
    """Whether, in texts where the next token is the last one plus one, head k's label is its state's own token plus 1 + k."""
    for _ in range(20):
        S, k = _length_and_head(rng)
        text = torch.arange(S) + int(rng.integers(0, 50))
        states, labels = fn(S, k)
        if not torch.equal(text[labels], text[states] + 1 + k):
            return False
    return True


ex_11_1 = Exercise(
    "11.1",
    places_of,
    returns="two rows of whole numbers of the same length: places of states, places of their labels",
    look="'Which token is it to guess?' above: the output layer on the state at t names token t + 1, and head k goes k further.",
    edges=[
        ("head 1, four tokens", (4, 1)),
        ("head 2, four tokens: one pair", (4, 2)),
        ("a text too short for the head", (3, 3)),
    ],
    draw=_length_and_head,
    mistakes=[
        Mistake("one too near", _shifted(-1, 1), "the labels are one too near: token t + 1 is the output layer's own guess, and head 1 goes one further"),
        Mistake("one too far", _shifted(1, -1), "the labels are one too far: head k guesses token t + 1 + k"),
        Mistake("head counts for nothing", lambda S, k: (torch.arange(S - 1), torch.arange(1, S)), "the head's number is not used: this is the next token for every head"),
        Mistake("past the end", lambda S, k: (torch.arange(S), torch.arange(S) + 1 + k), "the last labels lie past the end of the text: the last 1 + k states have no label"),
        Mistake("wrapped around", lambda S, k: (torch.arange(S), (torch.arange(S) + 1 + k) % S), "the ends wrap around: leave out the states whose label does not exist"),
        Mistake("labels and states swapped", lambda S, k: places_of(S, k)[::-1], "the two are swapped: first the states, then the labels"),
        Mistake("below nothing", lambda S, k: (torch.arange(S - 1 - k), torch.arange(1 + k, S)),
                "a text too short for the head has no pair at all, two empty rows: let the number of states stop at 0, as max(0, ...) does"),
        Mistake("states cut from the front", lambda S, k: (torch.arange(1 + k, S), torch.arange(1 + k, S)), "state and label stand at the same place: a state is to guess what comes after it"),
    ],
    properties=[Property("in a text that counts, head k's label is its state's own token plus 1 + k", _counting, "something outside the arguments is used")],
)


def tokens_of_tree(parents, ranks, shares):
    """Tokens a round that a tree of guesses is to keep, the target's own among them, if its guesses were right independently of each other.

    parents: of each guess the row it stands on, 0 for the text's last token and i + 1 for guess i; ranks: which of its head's favourites it is, from 0;
    shares[d][r]: how often the favourite of rank r is right at depth d + 1.
    """
    return 1 + _walked(parents, ranks, shares, np.prod)


def _tree(rng):
    """A tree that grows at random, at most three deep, and shares of three favourites at each depth."""
    shares = [sorted(rng.dirichlet(np.ones(4))[:3].tolist(), reverse=True) for _ in range(3)]
    parents, ranks, depths = [], [], [0]
    for _ in range(int(rng.integers(3, 10))):
        row = int(rng.choice([row for row, depth in enumerate(depths) if depth < 3 and parents.count(row) < 3]))
        ranks.append(parents.count(row))
        parents.append(row)
        depths.append(depths[row] + 1)
    return parents, ranks, shares


def _walked(parents, ranks, shares, value):
    """Sum over guesses of value(the shares on its way)."""
    ways, total = {0: []}, 0.0
    for row, (parent, rank) in enumerate(zip(parents, ranks), 1):
        ways[row] = ways[parent] + [shares[len(ways[parent])][rank]]
        total += value(ways[row])
    return total


def _leaves(parents, ranks, shares):
    ways, inner = {0: []}, set(parents)
    for row, (parent, rank) in enumerate(zip(parents, ranks), 1):
        ways[row] = ways[parent] + [shares[len(ways[parent])][rank]]
    return 1 + sum(np.prod(way) * len(way) for row, way in ways.items() if row and row not in inner)


CHAIN = ([0, 1, 2], [0, 0, 0], [[0.5, 0.2], [0.4, 0.1], [0.3, 0.1]])
ex_11_2 = Exercise(
    "11.2",
    tokens_of_tree,
    returns="one number, 1 or more",
    look="'What a tree is worth' above: a guess is kept if it is right and all that it stands on are, and each that is kept is one token more.",
    edges=[
        ("a chain of three", CHAIN),
        ("two guesses for the first place", ([0, 0], [0, 1], CHAIN[2])),
        ("each of two goes on", ([0, 0, 1, 2], [0, 1, 0, 0], CHAIN[2])),
        ("no guess at all", ([], [], CHAIN[2])),
    ],
    draw=_tree,
    mistakes=[
        Mistake("without the target's own", lambda *tree: tokens_of_tree(*tree) - 1, "the token that the target itself adds to every round is missing: one more"),
        Mistake("not multiplied", lambda *tree: 1 + _walked(*tree, lambda way: way[-1]), "each guess counts by its own share: it is kept only where all that it stands on are, so multiply along its way"),
        Mistake("depth forgotten", lambda parents, ranks, shares: 1 + _walked(parents, ranks, [shares[0]] * 9, np.prod), "every depth takes the first head's shares: a guess at depth d takes shares[d - 1]"),
        Mistake("rank forgotten", lambda parents, ranks, shares: tokens_of_tree(parents, [0] * len(ranks), shares), "every guess takes its head's first favourite's share: take that of its rank"),
        Mistake("only the leaves", _leaves, "only ways to the end are counted: a way that breaks off halfway has kept its first half too"),
        Mistake("parent is a guess number", lambda parents, ranks, shares: tokens_of_tree(list(range(len(parents))), ranks, (list(shares) + [shares[-1]] * 9)), "every guess stands on the one before it here: use its parent's row"),
    ],
)


def typical_threshold(p, epsilon, delta):
    """What the odds of a guess must exceed for typical acceptance to keep it, at odds p [V]: the smaller of epsilon and delta exp(-entropy of p), in nats."""
    return float(min(epsilon, delta * torch.exp(-_entropy(p))))


def _entropy(p):
    return -torch.special.xlogy(p, p).sum()


def _row_of_odds(rng):
    return odds(rng, int(rng.integers(3, 7)), sharpness=float(rng.choice([0.5, 2, 4]))), float(rng.choice([0.1, 0.3, 0.6])), float(rng.choice([0.3, 0.8]))


EVEN, SHARP = tensor(0.25, 0.25, 0.25, 0.25), tensor(0.9, 0.08, 0.02, 0.0)
ex_11_3 = Exercise(
    "11.3",
    typical_threshold,
    returns="one number",
    look="'A rule that is not exact' above: the threshold is the smaller of the two.",
    edges=[
        ("unsure: delta exp(-H) is the smaller", (EVEN, 0.5, 0.3)),
        ("sure, with odds of 0 in it: epsilon is the smaller", (SHARP, 0.05, 0.8)),
        ("sure to the end", (tensor(0.0, 1.0, 0.0), 0.9, 0.8)),
    ],
    draw=_row_of_odds,
    mistakes=[
        Mistake("the larger", lambda p, epsilon, delta: float(max(epsilon, delta * torch.exp(-_entropy(p)))), "this is the larger of the two: the smaller one is the threshold"),
        Mistake("epsilon only", lambda p, epsilon, delta: epsilon, "the entropy is not used: where the target is unsure, less is asked for"),
        Mistake("entropy only", lambda p, epsilon, delta: float(delta * torch.exp(-_entropy(p))), "epsilon is not used: where the target is sure, epsilon is the smaller"),
        Mistake("sign of the entropy", lambda p, epsilon, delta: float(min(epsilon, delta * torch.exp(_entropy(p)))),
                "the more unsure, the more is asked for here: it is exp of minus the entropy"),
        Mistake("entropy in bits", lambda p, epsilon, delta: float(min(epsilon, delta * torch.exp(-_entropy(p) / np.log(2)))),
                "the entropy is in bits: with exp it is in nats, the natural logarithm"),
        Mistake("NaN at odds of 0", lambda p, epsilon, delta: float(min(delta * torch.exp((p * p.log()).sum()), epsilon)),
                "0 times log 0 is NaN: torch.special.xlogy(p, p) makes it 0"),
        Mistake("delta forgotten", lambda p, epsilon, delta: float(min(epsilon, torch.exp(-_entropy(p)))), "delta is not used: it multiplies exp(-H)"),
        Mistake("epsilon and delta swapped", lambda p, epsilon, delta: typical_threshold(p, delta, epsilon), "epsilon and delta are swapped: epsilon stands alone, delta multiplies"),
    ],
)
