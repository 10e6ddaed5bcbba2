"""Captured work, on a machine without a GPU: what can be said of it there."""

import torch

from lessonlib.kernels.capture import Replayed


def test_graphs_are_forgotten_when_a_weight_is_replaced_and_kept_when_it_changes_in_place():
    layer, replayed = torch.nn.Linear(3, 2), Replayed()
    replayed.forget_unless(layer.parameters())
    replayed.made["key"] = "a graph"
    layer.weight.data.add_(1)
    replayed.forget_unless(layer.parameters())
    assert replayed.made == {"key": "a graph"}
    before, layer.weight = layer.weight, torch.nn.Parameter(torch.zeros(2, 3))  # the old one lives on, so that its place is not free for the new one
    replayed.forget_unless(layer.parameters())
    assert replayed.made == {}
    del before
