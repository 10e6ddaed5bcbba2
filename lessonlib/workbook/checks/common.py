"""What the checks of several notebooks share: random odds, worked odds, a toy model, a round's tokens and speed."""

from types import SimpleNamespace

import torch

from lessonlib.workbook.exercise import Property


def odds(rng, *shape, sharpness=2.0):
    """Random distributions over the last dimension, float64."""
    return torch.softmax(sharpness * torch.from_numpy(rng.standard_normal(shape)), -1)


def rows_of_odds(rng, sharpness=2.0):
    """The odds of two models, at one place [V] or at several [n, V] with n > V, so that no wrong axis fits."""
    V = int(rng.integers(3, 6))
    shape = (V,) if rng.random() < 0.5 else (V + int(rng.integers(1, 3)), V)
    return odds(rng, *shape, sharpness=sharpness), odds(rng, *shape, sharpness=sharpness)


def tensor(*values):
    """Worked values in float64, as the random ones are."""
    return torch.tensor(values, dtype=torch.float64)


P, Q = tensor(0.5, 0.3, 0.2), tensor(0.1, 0.6, 0.3)
PAIRS = [  # edge cases of whatever compares the odds of two models
    ("the worked example of notebook 00", (P, Q)),
    ("two equal models", (P, P)),
    ("nothing in common", (tensor(1, 0), tensor(0, 1))),
]


class ToyModel(torch.nn.Module):
    """A causal model of V tokens, called as the real ones are: what it says next depends on every token so far, in order."""

    device = torch.device("cpu")

    def __init__(self, seed, V=5, dtype=torch.float32):
        super().__init__()
        self.name = f"model {seed}" + (f" in {str(dtype).removeprefix('torch.')}" if dtype != torch.float32 else "")
        chance = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(2 * torch.randn(V, V, generator=chance), requires_grad=False)
        self.number_format = dtype

    def forward(self, input_ids, logits_to_keep=0, **ignored):
        """Logits [B, S, V] of ids [B, S], numbers that fp16 holds exactly, in an object as transformers gives them."""
        state, states = torch.zeros(len(input_ids), self.weight.shape[1]), []
        for column in input_ids.T:
            state = state / 2 + self.weight[column]
            states.append(state)
        logits = torch.stack(states, 1).half().to(self.number_format)
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])

    def __repr__(self):
        return self.name


def keeps_the_gradient(draw, place):
    """A property of losses that autograd can use; argument number `place` of `draw(rng)` is the draft's logits."""

    def holds(fn, rng):
        args = list(draw(rng))
        args[place] = args[place].clone().requires_grad_()
        return bool(getattr(fn(*args), "requires_grad", False))

    return Property(
        "the loss has a gradient in the draft's logits",
        holds,
        "hand back the tensor itself, autograd needs it: .item(), float() and .detach() cut it off from the logits",
    )


def redrawn_means(totals, counts, chosen):
    """The mean over positions in each draw of pieces [B]: totals [n] and counts [n] of the pieces, chosen [B, n]."""
    return totals[chosen].sum(1) / counts[chosen].sum(1)


def written(alpha, K):
    """Tokens a round writes: a sum, so that it has no special case at alpha = 1."""
    return sum(alpha**i for i in range(K + 1))


def speed(alpha, K, c):
    """Times as fast as plain decoding, with verifying at v = 1."""
    return written(alpha, K) / (K * c + 1)
