"""Every divergence once more, in numpy and float64, straight from its definition and without logarithms of sums."""

import numpy as np


def kl(p, q):
    """KL(p || q) of two vectors; an event of p = 0 adds nothing."""
    return sum(a * (np.log(a) - np.log(b)) for a, b in zip(p, q) if a > 0)


def tv(p, q):
    """1 minus the overlap."""
    return 1 - sum(min(a, b) for a, b in zip(p, q))


def jsd(p, q, beta):
    """The generalised Jensen-Shannon divergence; beta is the weight of p."""
    m = [beta * a + (1 - beta) * b for a, b in zip(p, q)]
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


def lk(p, q):
    """KL and TV, weighed by exp(-3 alpha)."""
    w = np.exp(-3 * (1 - tv(p, q)))
    return w * kl(p, q) + (1 - w) * tv(p, q)


DEFINITIONS = {"kl": kl, "reverse_kl": lambda p, q: kl(q, p), "tv": tv, "lk": lk, "jsd": lambda p, q, beta=0.5: jsd(p, q, beta)}


def softmax(logits, T=1.0):
    """softmax(logits / T) of each row."""
    z = np.asarray(logits, np.float64) / T
    z = np.exp(z - z.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)


def buckets(probs, ids):
    """Each row's probabilities of `ids`, then of all the rest together."""
    inside = np.take_along_axis(probs, ids, -1)
    outside = probs.copy()
    np.put_along_axis(outside, ids, 0.0, -1)
    return np.concatenate([inside, outside.sum(-1, keepdims=True)], -1)
