"""Notebook 02: the loss against a whole vector of odds, its gradient, and the loss at a temperature."""

import torch

from lessonlib.distil.divergences import forward_kl
from lessonlib.workbook.checks.common import keeps_the_gradient, odds, tensor
from lessonlib.workbook.exercise import Exercise, Mistake, Property


def logits(rng, *shape):
    """Random logits, float64."""
    return 2 * torch.from_numpy(rng.standard_normal(shape))


def one_hot_of(probs):
    """The label that says only which token is likeliest."""
    return torch.zeros_like(probs).scatter(-1, probs.argmax(-1, keepdim=True), 1.0)


def soft_label_loss(draft_logits, target_probs):
    """Cross-entropy against the target's whole vector, mean over rows: draft_logits and target_probs [R, V], one number."""
    return -(target_probs * draft_logits.log_softmax(-1)).sum(-1).mean()


def _entropy(p):
    return torch.special.entr(p).sum(-1)


def _mixes_one_hot_losses(fn, rng):
    """Whether the loss is the mean of the one-hot losses, each weighted by its odds."""
    for _ in range(5):
        z, p = logits(rng, 1, 9), odds(rng, 1, 9)
        one_by_one = torch.stack([fn(z, torch.eye(9, dtype=z.dtype)[x:x + 1]) for x in range(9)])
        if abs(float(fn(z, p) - (p[0] * one_by_one).sum())) > 1e-5:  # fp32 is good enough
            return False
    return True


def _rows(rng):
    R, V = int(rng.integers(1, 4)), int(rng.integers(3, 6))
    return logits(rng, R, V), odds(rng, R, V)


ex_2_1 = Exercise(
    "2.1",
    soft_label_loss,
    returns="one number: the mean over the rows",
    look="'The loss you know, with a soft label' above: minus the sum over x of p(x) log q(x), with log q from log_softmax.",
    edges=[
        ("two places, three tokens", (tensor([1, 0, -1], [0, 2, 0]), tensor([0.5, 0.3, 0.2], [0.1, 0.8, 0.1]))),
        ("a one-hot label: the ordinary loss", (tensor([1, 0, -1]), tensor([0, 1, 0]))),
        ("a draft that knows nothing", (tensor([0, 0, 0, 0]), tensor([0.7, 0.1, 0.1, 0.1]))),
        ("a token the draft hardly knows", (tensor([0, 0, -800]), tensor([0.5, 0.3, 0.2]))),
    ],
    draw=_rows,
    mistakes=[
        Mistake(
            "softmax over the wrong axis",
            lambda z, p: -(p * z.log_softmax(0)).sum(-1).mean(),
            "the softmax runs over the places, not over the vocabulary: the vocabulary is the last dimension, dim=-1",
        ),
        Mistake(
            "summed over rows",
            lambda z, p: -(p * z.log_softmax(-1)).sum(),
            "summed over the places where a mean belongs: a loss must not grow with the length of the text",
        ),
        Mistake(
            "mean over everything",
            lambda z, p: -(p * z.log_softmax(-1)).mean(),
            "the mean runs over the vocabulary as well: sum over the tokens, then average over the places",
        ),
        Mistake(
            "hard label",
            lambda z, p: -(one_hot_of(p) * z.log_softmax(-1)).sum(-1).mean(),
            "only the target's favourite is used as the label: weigh every token with its odds p(x)",
        ),
        Mistake(
            "models swapped",
            lambda z, p: -(z.softmax(-1) * p.clamp_min(1e-300).log()).sum(-1).mean(),
            "the two models are swapped: weigh with the target's odds, take the logarithm of the draft's",
        ),
        Mistake(
            "KL for cross-entropy",
            lambda z, p: (-(p * z.log_softmax(-1)).sum(-1) - _entropy(p)).mean(),
            "this is the KL divergence: the target's entropy has been taken off already; asked is the cross-entropy alone",
        ),
        Mistake(
            "sign",
            lambda z, p: (p * z.log_softmax(-1)).sum(-1).mean(),
            "the minus sign is missing: a logarithm of odds is negative, a loss is not",
        ),
        Mistake(
            "no softmax",
            lambda z, p: -(p * z).sum(-1).mean(),
            "logits are not logarithms of odds yet: their normaliser is missing, log_softmax subtracts it",
        ),
        Mistake(
            "no logarithm",
            lambda z, p: -(p * z.softmax(-1)).sum(-1).mean(),
            "the logarithm is missing: q(x) stands where log q(x) belongs",
        ),
        Mistake(
            "underflow",
            lambda z, p: -(p * z.softmax(-1).log()).sum(-1).mean(),
            "softmax first and then a logarithm: far down the odds round to 0, whose logarithm is infinite; use log_softmax",
        ),
    ],
    properties=[
        keeps_the_gradient(_rows, place=0),
        Property(
            "the soft loss is the mean of the one-hot losses, each weighted by its token's odds",
            _mixes_one_hot_losses,
            "the loss is not linear in the label",
        )
    ],
)


def soft_label_gradient(draft_logits, target_probs):
    """The gradient of that loss at one place in the draft's logits: draft_logits and target_probs [V], returns [V]."""
    return draft_logits.softmax(-1) - target_probs


def _sums_to_zero(fn, rng):
    return all(abs(float(fn(logits(rng, 20), odds(rng, 20)).sum())) < 1e-6 for _ in range(5))


def _place(rng):
    V = int(rng.integers(3, 6))
    return logits(rng, V), odds(rng, V)


def _through_probs(z, p):
    q = z.softmax(-1)
    return -p / q


ex_2_2 = Exercise(
    "2.2",
    soft_label_gradient,
    returns="a vector like draft_logits",
    look="'The gradient is q - p' above: in the draft's logits it is q(x) - p(x), token by token, with q = softmax(logits).",
    edges=[
        ("three tokens", (tensor(1, 0, -1), tensor(0.5, 0.3, 0.2))),
        ("a one-hot label", (tensor(1, 0, -1), tensor(0, 1, 0))),
        ("nothing left to learn", (tensor(0, 0, 0, 0), tensor(0.25, 0.25, 0.25, 0.25))),
    ],
    draw=_place,
    mistakes=[
        Mistake(
            "p - q",
            lambda z, p: p - z.softmax(-1),
            "the sign is turned: p - q is the step that descent takes, the gradient itself is q - p",
        ),
        Mistake(
            "hard label",
            lambda z, p: z.softmax(-1) - one_hot_of(p),
            "this is the gradient for a one-hot label on the target's favourite: subtract the whole vector p",
        ),
        Mistake(
            "in the odds, not the logits",
            _through_probs,
            "this is the derivative in the odds q(x); the logits lie one softmax before them, and there it becomes simpler",
        ),
        Mistake(
            "logits for odds",
            lambda z, p: z - p,
            "p was taken from the logits themselves: put them through a softmax first",
        ),
        Mistake(
            "divided by V",
            lambda z, p: (z.softmax(-1) - p) / len(p),
            "divided by the size of the vocabulary: the loss sums over tokens, so does its gradient",
        ),
        Mistake(
            "gradient of the squared error",
            lambda z, p: (q := z.softmax(-1)) * ((q - p) - (q * (q - p)).sum()),
            "the softmax's slope is multiplied in: that belongs to a squared error; in this loss the logarithm cancels it",
        ),
        Mistake(
            "its length",
            lambda z, p: (z.softmax(-1) - p).norm(),
            "this is the length of the gradient: asked is the vector, one number for each token",
        ),
    ],
    properties=[
        Property(
            "the gradient sums to 0: what one token gains the others lose",
            _sums_to_zero,
            "adding a constant to all logits changes nothing, so no gradient can point that way",
        )
    ],
)


def distil_loss(target_logits, draft_logits, T):
    """T squared times KL(p || q) with both softened by T: target_logits and draft_logits [V], returns one number."""
    return T**2 * forward_kl((target_logits / T).log_softmax(-1), (draft_logits / T).log_softmax(-1))


def _log(z, T=1.0):
    return (z / T).log_softmax(-1)


def _two_models(rng):
    V = int(rng.integers(3, 6))
    return logits(rng, V), logits(rng, V), float(rng.choice([1.5, 2.0, 3.0, 4.0]))


def _gradient_keeps_its_scale(fn, rng):
    """Whether the gradient at T = 200 and at T = 400 is the same within 3 %."""
    z, y = logits(rng, 30), logits(rng, 30)
    sizes = []
    for T in (200.0, 400.0):
        leaf = y.clone().requires_grad_()
        fn(z, leaf, T).backward()
        sizes.append(float(leaf.grad.norm()))
    return abs(sizes[0] / sizes[1] - 1) < 0.03


ex_2_3 = Exercise(
    "2.3",
    distil_loss,
    returns="one number",
    look="'T and T squared' above: divide both models' logits by T, take KL(p || q) of the two softmaxes, times T squared.",
    edges=[
        ("T = 1: the plain KL", (tensor(2, 1, 0), tensor(0, 1, 2), 1.0)),
        ("T = 2", (tensor(2, 1, 0), tensor(0, 1, 2), 2.0)),
        ("two equal models", (tensor(2, 1, 0), tensor(2, 1, 0), 3.0)),
        ("logits far apart", (tensor(900, 0, -900), tensor(890, 3, -880), 2.0)),
    ],
    draw=_two_models,
    tolerance=1e-5,  # fp32 is good enough
    mistakes=[
        Mistake(
            "T squared missing",
            lambda z, y, T: forward_kl(_log(z, T), _log(y, T)),
            "the factor T squared is missing: without it the gradients shrink as T grows",
        ),
        Mistake(
            "times T",
            lambda z, y, T: T * forward_kl(_log(z, T), _log(y, T)),
            "multiplied by T once: both the slope of y/T and the softened difference shrink by T, so the factor is its square",
        ),
        Mistake(
            "divided by T squared",
            lambda z, y, T: forward_kl(_log(z, T), _log(y, T)) / T**2,
            "divided by T squared: the gradients have shrunk already, the loss has to be multiplied",
        ),
        Mistake(
            "divided by V",
            lambda z, y, T: T**2 * forward_kl(_log(z, T), _log(y, T)) / len(z),
            'divided by the size of the vocabulary, as kl_div does with "mean" and, for a single row, with "batchmean": sum',
        ),
        Mistake(
            "temperature on the target only",
            lambda z, y, T: T**2 * forward_kl(_log(z, T), _log(y)),
            "only the target's logits are divided by T: the draft would learn to be that soft at temperature 1",
        ),
        Mistake(
            "temperature on the draft only",
            lambda z, y, T: T**2 * forward_kl(_log(z), _log(y, T)),
            "only the draft's logits are divided by T: the draft would learn to be T times too sharp",
        ),
        Mistake(
            "logits multiplied by T",
            lambda z, y, T: T**2 * forward_kl(_log(z, 1 / T), _log(y, 1 / T)),
            "the logits are multiplied by T: that sharpens the odds, dividing flattens them",
        ),
        Mistake(
            "odds divided by T",
            lambda z, y, T: T**2 * (z.softmax(-1) / T * (_log(z) - _log(y))).sum(),
            "T is applied to the odds, after the softmax: it divides the logits, before it",
        ),
        Mistake(
            "KL swapped",
            lambda z, y, T: T**2 * forward_kl(_log(y, T), _log(z, T)),
            "the divergence is swapped, KL(q || p): weigh with the target's odds p",
        ),
        Mistake(
            "cross-entropy for KL",
            lambda z, y, T: T**2 * -(_log(z, T).exp() * _log(y, T)).sum(),
            "this is the cross-entropy: the target's entropy has still to be taken off, so that equal models give 0",
        ),
        Mistake(
            "sign",
            lambda z, y, T: -(T**2) * forward_kl(_log(z, T), _log(y, T)),
            "the sign is turned: log p - log q, weighed with p, is never negative in sum",
        ),
        Mistake(
            "underflow",
            lambda z, y, T: T**2 * ((p := (z / T).softmax(-1)) * (p / (y / T).softmax(-1)).log()).sum(),
            "odds far down round to 0 and 0 log 0 is no number: take the difference of two log_softmax instead",
        ),
    ],
    properties=[
        keeps_the_gradient(_two_models, place=1),
        Property(
            "for large T the gradient no longer depends on T",
            _gradient_keeps_its_scale,
            "T may have been treated as a constant somewhere",
        )
    ],
)
