"""Trees of a fixed shape: which proposals are worth their place in a pass, chosen once by how often each way of favourites was the right one."""

from dataclasses import dataclass

import torch

from lessonlib.decode.warp import is_whole
from lessonlib.errors import LessonError
from lessonlib.pair.tree import tree_of


def sparse_tree(ways, budget):
    """The (parents, ranks) of the tree of `budget` proposals that kept most where `ways` were counted, parents first.

    ways: (share, ranks) pairs, the most frequent first: how often, of all places, the true tokens that follow were the drafter's favourites of just these
    ranks, one after another, counted from 0. A way is never more frequent than its beginning, so the first `budget` of them are a tree, and no
    other of its size keeps more there. As Medusa's sparse trees are chosen (Cai et al. 2024, appendix), but by whole ways. LessonError where there is no way.
    """
    rows, parents, ranks = {(): 0}, [], []
    for _, way in ways[:max(0, budget)]:
        parents.append(rows[way[:-1]])
        ranks.append(way[-1])
        rows[way] = len(parents)
    if not parents:
        raise LessonError("no way of guesses was ever right where they were counted, or none is asked for, so there is no tree; measure them on more answers.")
    return tuple(parents), tuple(ranks)


def deepest(tree, vocabulary):
    """How many tokens ahead a (parents, ranks) tree goes. Raises LessonError for what is no such pair, and for ranks beyond a `vocabulary` of so many tokens."""
    try:
        parents, ranks = tree
        whole = len(parents) == len(ranks) > 0 and all(is_whole(each) and each >= 0 for each in (*parents, *ranks))
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise LessonError(f"{tree!r} is no tree of guesses; take the pair of parents and ranks that sparse_tree makes.")
    if max(ranks) >= vocabulary:
        raise LessonError(f"a tree asks for favourite number {max(ranks) + 1} of a draft that may name {vocabulary} tokens; take a narrower tree.")
    return tree_of(tuple(parents)).deepest


def up_to(tree, depth):
    """The part (parents, ranks) of a (parents, ranks) tree that is no deeper than `depth`."""
    parents, ranks = tree
    chosen = [i for i, deep in enumerate(tree_of(tuple(parents)).depths[1:]) if deep <= depth]
    row = {0: 0} | {i + 1: place + 1 for place, i in enumerate(chosen)}
    return tuple(row[parents[i]] for i in chosen), tuple(ranks[i] for i in chosen)


@dataclass(frozen=True)
class Level:
    """One depth of a tree, as tensors: `proposals`, which ones are there; of each, `parents`, the place among the states gone on from that it stands on, and
    `ranks`; `widest`, how many of the likeliest tokens are needed. To get those states: `run`, the proposals of the depth before that have any on them;
    of each `run_parents`, its own parent's place among the states before; `slots`, where its pair is cached; `sees` [n, later], what it stands on.
    """

    proposals: torch.Tensor
    parents: torch.Tensor
    ranks: torch.Tensor
    widest: int
    run: torch.Tensor
    run_parents: torch.Tensor
    slots: torch.Tensor
    sees: torch.Tensor


def levels_of(parents, ranks, device):
    """(parents, a Level for each depth of the (parents, ranks) tree)."""
    tree, levels = tree_of(tuple(parents)), []
    has_children, slot, before = set(parents), {}, [0]  # slot: of each row that is gone on from; before: the rows behind the states of the depth before
    for depth in range(1, tree.deepest + 1):
        here = [i for i in range(len(parents)) if tree.depths[i + 1] == depth]
        run = [0] if depth == 1 else [i + 1 for i in range(len(parents)) if tree.depths[i + 1] == depth - 1 and i + 1 in has_children]
        sees = torch.zeros(len(run), len(slot) + len(run) * (depth > 1), dtype=torch.bool)
        if depth > 1:
            slot |= {row: len(slot) + place for place, row in enumerate(run)}
            for place, row in enumerate(run):
                sees[place, [slot[seen] for seen in tree.path[row][1:]]] = True
        numbers = (here, [run.index(parents[i]) for i in here], [ranks[i] for i in here])
        on_run = ([row - 1 for row in run], [0 if depth < 3 else before.index(parents[row - 1]) for row in run], [slot.get(row, 0) for row in run])
        levels.append(Level(*(torch.tensor(each, device=device) for each in numbers), 1 + max(numbers[2]), *(torch.tensor(each, device=device) for each in on_run), sees.to(device)))
        before = run
    return tuple(parents), levels
