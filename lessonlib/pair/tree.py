"""The shape of several proposals that share their beginnings: who stands on whom, and what a verifying pass needs to know of it."""

from functools import lru_cache

import torch

from lessonlib.errors import LessonError


@lru_cache(maxsize=256)
def tree_of(parents):
    """The Tree of these parents (a tuple); the same one for the same parents."""
    return Tree(parents)


class Tree:
    """Rows 0 to M of a verifying pass: row 0 is the text's last token, row i + 1 the proposal i, which stands on the row parents[i].

    depths: of each row, 0 for row 0. deepest: the most proposals that can be kept. ranks: of each proposal among those on the same row, from 0.
    Raises LessonError for a parent that does not come before its child.
    """

    def __init__(self, parents):
        self.parents, self.depths, self.ranks = tuple(parents), [0], []
        self.path = [(0,)]  # of each row: the rows from the text's last token to it
        children = {}
        for place, parent in enumerate(self.parents):
            if not 0 <= parent <= place:
                raise LessonError(f"proposal {place} of a tree stands on row {parent}, which does not come before it; order a tree from its root on.")
            self.depths.append(self.depths[parent] + 1)
            self.path.append((*self.path[parent], place + 1))
            self.ranks.append(children.get(parent, 0))
            children[parent] = self.ranks[-1] + 1
        self.deepest = max(self.depths)
        self.is_chain = self.parents == tuple(range(len(self.parents)))
        self._on = {}

    def __len__(self):
        return len(self.parents)

    def on(self, device):
        """The TreeTensors of this shape on a device; made once."""
        if device not in self._on:
            self._on[device] = TreeTensors(self, device)
        return self._on[device]


class TreeTensors:
    """A Tree's shape as tensors: depths [M+1]; sees [M+1, M+1], the rows that each row stands on, itself among them; parents [M]; elder [M, M], who of the
    proposals on the same row comes before; by_rank, the proposals of each rank.
    """

    def __init__(self, tree, device):
        n = len(tree) + 1
        sees = torch.zeros(n, n, dtype=torch.bool)
        for row, path in enumerate(tree.path):
            sees[row, list(path)] = True
        parents, ranks = torch.tensor(tree.parents, dtype=torch.long), torch.tensor(tree.ranks, dtype=torch.long)
        elder = (parents[:, None] == parents) & (ranks < ranks[:, None])
        self.depths, self.sees, self.parents, self.elder = (each.to(device) for each in (torch.tensor(tree.depths), sees, parents, elder))
        self.by_rank = [(ranks == rank).nonzero()[:, 0].to(device) for rank in range(max(tree.ranks, default=-1) + 1)]
