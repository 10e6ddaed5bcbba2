"""How far a draft's distribution is from the target's: every divergence, defined on log-probabilities.

p is the target, q the draft. Each function takes log_p and log_q, [..., n] over the same n events, both summing to 1, and returns
[...]. The events are the whole vocabulary (the reference, in float64) or the target's top k and one bucket for the rest (as trained on):
merging events can only make two distributions look more alike, so a bucketed value never exceeds the full one.
Each is zero at p = q, never negative, and finite with finite gradients: an event of probability 0 counts as log-probability FLOOR.
"""

import torch

from lessonlib.kernels.rows import by_rows

FLOOR = -1e4


def forward_kl(log_p, log_q):
    """KL(p || q) = sum of p log(p / q): the draft must cover all that the target may say. Its gradient in the draft's logits is q - p.

    Source: Hinton et al. 2015; GKD (Agarwal et al. 2024), section 2.
    """
    log_p, log_q = log_p.clamp_min(FLOOR), log_q.clamp_min(FLOOR)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def reverse_kl(log_p, log_q):
    """KL(q || p): the draft must say nothing that the target would not. Gradient in logit x: q(x) (log(q(x) / p(x)) - KL(q || p)).

    Source: MiniLLM (Gu et al. 2024).
    """
    return forward_kl(log_q, log_p)


def jsd(log_p, log_q, beta=0.5):
    """Generalised Jensen-Shannon divergence: beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q, 0 < beta < 1.

    Source: GKD (Agarwal et al. 2024), equation 2.
    """
    log_p, log_q, b = log_p.clamp_min(FLOOR), log_q.clamp_min(FLOOR), torch.tensor(beta, dtype=log_q.dtype, device=log_q.device)
    log_m = torch.logaddexp(log_p + b.log(), log_q + (1 - b).log())
    return beta * forward_kl(log_p, log_m) + (1 - beta) * forward_kl(log_q, log_m)


def total_variation(log_p, log_q):
    """TV = half the sum of |p - q| = 1 - alpha, the very chance of a rejection. Gradient in logit x: q(x) (s(x) - sum of q s) / 2, s the
    sign of q - p: it vanishes wherever q is small, so from a bad start it learns slowly.

    Source: Leviathan et al. 2023, definition 3.2; DistillSpec (Zhou et al. 2024).
    """
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def lk(log_p, log_q):
    """w KL(p || q) + (1 - w) TV with w = exp(-3 alpha), held constant in the gradient: KL while the draft is far, TV once it is near."""
    tv = total_variation(log_p, log_q)
    w = torch.exp(-3 * (1 - tv.detach()))
    return w * forward_kl(log_p, log_q) + (1 - w) * tv


def teacher_buckets(t_logits, t_lse, T=1.0, tail_exists=True):
    """The target's log-probabilities over its k stored tokens and one bucket for the rest: float64 [R, k + 1], summing to 1.

    t_logits [R, k] at T = 1; t_lse [R] the logsumexp of logits / T, or None to renormalise over the k and leave the rest nothing.
    Stored numbers are rounded, so the k may sum past 1 or leave a tail that is only t_lse's rounding: that tail is taken as 0.
    """
    logits = t_logits.double() / T
    top = logits.logsumexp(-1, keepdim=True)
    if t_lse is None:
        return torch.cat([logits - top, torch.full_like(top, FLOOR)], -1).clamp_min(FLOOR)
    lse = t_lse[..., None].double()
    tail = -torch.expm1(top - lse)  # 1 - the k's probability, without first rounding that to 1
    real = (tail > 2 * torch.finfo(t_lse.dtype).eps * (1 + lse.abs())) & tail_exists
    log_tail = torch.where(real, tail, 1.0).log().masked_fill(~real, FLOOR)
    return torch.cat([logits - torch.where(real, lse, top), log_tail], -1).clamp_min(FLOOR)


def student_buckets(student_logits, t_ids, T=1.0):
    """The draft's log-probabilities over the same k tokens and one bucket for the rest: [R, k + 1], with finite gradients.

    student_logits [R, V] in fp32 or float64; t_ids int64 [R, k]. The rest is summed directly, not as 1 minus the k, so a tiny tail keeps
    its digits.
    """
    return _Buckets.apply(student_logits, t_ids, T).clamp_min(FLOOR)


class _Buckets(torch.autograd.Function):
    """The buckets with their gradient written out: one exponential of each logit serves both, where autograd would take a dozen passes.

    With q the draft's odds, G_i the loss's derivative in bucket i and G the sum of all of them, the derivative in a stored logit x is
    G_x - q(x) G, and in any other one (q(x) / q_rest) (G_rest - q_rest G).
    """

    @staticmethod
    def forward(ctx, logits, ids, T):
        rest = torch.empty_like(logits)  # exp(logit - largest of the rest), 0 at the stored ids

        def fill(logits, rest, ids):
            rest.copy_(logits) if T == 1 else torch.div(logits, T, out=rest)
            top = rest.gather(-1, ids)
            largest = rest.scatter_(-1, ids, -torch.inf).amax(-1, keepdim=True)
            largest.masked_fill_(largest == -torch.inf, 0.0)  # an empty rest: all of it is exp(-inf) = 0
            return top, largest, rest.sub_(largest).exp_().sum(-1, keepdim=True)

        top, largest, mass = by_rows(fill, logits, rest, ids)
        # from the row's largest down: beside logits of 20 fp32 rounds a log-probability by 1e-6, beside gaps it does not
        origin = torch.maximum(top.amax(-1, keepdim=True), largest.masked_fill(mass == 0, -torch.inf))
        log_q = torch.cat([top - origin, mass.log() + (largest - origin)], -1)
        log_q -= log_q.logsumexp(-1, keepdim=True)
        ctx.save_for_backward(rest, ids, log_q, mass)
        ctx.T = T
        return log_q

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, G):
        rest, ids, log_q, mass = ctx.saved_tensors
        slope = (G - log_q.exp() * G.sum(-1, keepdim=True)) / ctx.T
        share = torch.where(mass == 0, 0.0, slope[:, -1:] / mass)
        return (rest * share).scatter_(-1, ids, slope[:, :-1]), None, None
