"""Copies to and from a device, which wait for nothing that they need not wait for."""

import torch

from lessonlib.kernels.copies import to_cpu, to_device


def test_what_goes_there_comes_back(device):
    given = [torch.arange(1000), torch.randn(3, 4)]
    there = [to_device(tensor, device) for tensor in given]
    assert {tensor.device.type for tensor in there} == {device}
    back, arrived = to_cpu(there)
    arrived()
    assert all(tensor.device.type == "cpu" and torch.equal(tensor, own) for tensor, own in zip(back, given))
