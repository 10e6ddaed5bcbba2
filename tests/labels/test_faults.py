"""Mistaken labels hold the mistake they are named for and nothing else."""

import torch

from lessonlib.distil.losses import kl_loss
from lessonlib.labels.faults import FavouriteOnly, OneRowLate


class Store:
    """One sequence of three positions, k = 2 of a vocabulary of 5, with a tail."""

    k, rows, manifest = 2, 3, {"answers": "x"}
    labels = torch.tensor([[3, 1], [0, 2], [4, 0]]), torch.tensor([[0.0, -1.0], [0.0, -2.0], [0.0, -0.5]]), torch.tensor([0.5, 0.2, 0.9]).double()

    def __len__(self):
        return 1

    def sequence(self, i):
        return [1, 2], [3, 0, 4]

    def kl_inputs(self, i, T=1.0):
        return self.labels


def test_one_row_late_gives_each_position_the_next_ones_odds():
    store = OneRowLate(Store())
    for part, right in zip(store.kl_inputs(0), Store.labels):
        assert torch.equal(part, right[[1, 2, 2]])
    assert (len(store), store.k, store.rows, store.sequence(0)) == (1, 2, 3, ([1, 2], [3, 0, 4]))


def test_favourite_only_is_cross_entropy_on_the_targets_argmax():
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = kl_loss(logits, *FavouriteOnly(Store()).kl_inputs(0))
    assert torch.allclose(loss, torch.nn.functional.cross_entropy(logits, torch.tensor([3, 0, 4])), atol=1e-9)
