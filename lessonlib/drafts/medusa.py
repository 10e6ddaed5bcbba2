"""Draft shape C: a few small heads on the target's last hidden state, each of which guesses a token further ahead, all at once and blind to each other."""

import torch
import torch.nn.functional as F
from torch import nn

from lessonlib.errors import LessonError


class MedusaHead(nn.Module):
    """h + SiLU(W h + b): what is added to the target's last hidden state h [..., width] before the target's own output layer. The identity at first.

    Source: Cai et al. 2024, section 2.1. Built in notebook 11.
    """

    def __init__(self, width):
        super().__init__()
        self.w = nn.Linear(width, width)
        nn.init.zeros_(self.w.weight)
        nn.init.zeros_(self.w.bias)

    def forward(self, h):
        return h + F.silu(self.w(h))


class MedusaHeads(nn.Module):
    """`count` MedusaHeads: head k = 1, 2, ... at position t guesses the token at t + 1 + k, through the target's frozen output layer.

    h is the target's hidden state after its final norm, the vector that its output layer takes. The weights that train are fp32, on the target's device.
    """

    def __init__(self, target, count=3):
        super().__init__()
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise LessonError(f"there cannot be {count} Medusa heads; give a whole number, 1 or more.")
        self.heads = nn.ModuleList(MedusaHead(target.config.hidden_size) for _ in range(count)).to(target.device)

    def __len__(self):
        return len(self.heads)

    def forward(self, h, count=None):
        """The states [..., count, width] of the first `count` heads, of all unless given."""
        return torch.stack([head(h) for head in self.heads[:count]], -2)
