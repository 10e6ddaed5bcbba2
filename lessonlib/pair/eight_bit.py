"""Weights at one byte each, so that a draft is small enough to ship: whole numbers from -127 to 127, a scale a row."""

import torch

SCALE = ".scale"


def quantise_layers(state_dict):
    """Round every matrix [rows, columns] of a state dict to int8 with an fp32 scale a row; vectors (norms) stay fp32.

    Each matrix `name` becomes `name` (int8) and `name.scale` (fp32 [rows, 1]); no weight moves by more than half the scale.
    """
    small = {}
    for name, weight in state_dict.items():
        weight = weight.detach().float()
        if weight.dim() != 2:
            small[name] = weight.clone()
            continue
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        scale[scale == 0] = 1.0  # a row of zeros
        small[name], small[name + SCALE] = (weight / scale).round().to(torch.int8), scale
    return small


def dequantise_layers(state_dict):
    """The fp32 state dict that `quantise_layers` rounded."""
    return {name: tensor * state_dict[name + SCALE] if name + SCALE in state_dict else tensor
            for name, tensor in state_dict.items() if not name.endswith(SCALE)}
