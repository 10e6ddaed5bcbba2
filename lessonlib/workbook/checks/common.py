"""What the checks of several notebooks are made of: random odds, worked odds, and a round's tokens and speed."""

import torch


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


def written(alpha, K):
    """Tokens a round writes: a sum, so that it has no special case at alpha = 1."""
    return sum(alpha**i for i in range(K + 1))


def speed(alpha, K, c):
    """Times as fast as plain decoding, with verifying at v = 1."""
    return written(alpha, K) / (K * c + 1)
