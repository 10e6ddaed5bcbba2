"""Weights of 8, 7 or 4 bits each, so that a draft is small enough to ship: whole numbers, a scale a row."""

import torch

SCALE = ".scale"
BITS = (8, 7, 4)


def stored_at(path, bits):
    """Where weights of so many bits lie: few bits are compressed, by a tenth to a third, since a row's weights seldom use all that its scale allows."""
    return path if bits == 32 else path.with_name(f"{path.name}.gz")


def quantise_layers(state_dict, bits=8):
    """Round every matrix [rows, columns] of a state dict to whole numbers of 8, 7 or 4 bits with an fp32 scale a row; vectors (norms) stay fp32.

    Each matrix `name` becomes `name` (int8, or uint8 with two numbers a byte) and `name.scale` (fp32 [rows, 1]); no weight moves by more than
    half the scale. 7 bits lie in bytes as 8 do, and only compress better; 4 bits need an even number of columns.
    """
    most, small = 2 ** (bits - 1) - 1, {}
    for name, weight in state_dict.items():
        weight = weight.detach().float()
        if weight.dim() != 2:
            small[name] = weight.clone()
            continue
        scale = weight.abs().amax(dim=1, keepdim=True) / most
        scale[scale == 0] = 1.0  # a row of zeros
        whole = (weight / scale).round().to(torch.int8)
        small[name], small[name + SCALE] = packed(whole) if bits == 4 else whole, scale
    return small


def dequantise_layers(state_dict):
    """The fp32 state dict that `quantise_layers` rounded."""
    return {name: (unpacked(tensor) if tensor.dtype == torch.uint8 else tensor) * state_dict[name + SCALE] if name + SCALE in state_dict else tensor
            for name, tensor in state_dict.items() if not name.endswith(SCALE)}


def packed(whole):
    """int8 [rows, columns] of numbers from -8 to 7 as uint8 [rows, columns / 2]: even columns in the low half of a byte, odd ones in the high half."""
    shifted = (whole + 8).to(torch.uint8)
    return shifted[:, ::2] | shifted[:, 1::2] << 4


def unpacked(halves):
    """What `packed` packed."""
    return torch.stack([halves & 15, halves >> 4], -1).flatten(1).to(torch.int8) - 8
