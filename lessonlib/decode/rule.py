"""The keep-or-resample rule: what makes speculative decoding exact. Everything here is vectorised over leading dimensions."""

import torch

from lessonlib.kernels.draw import draw


def keep_probability(target_probs, draft_probs):
    """alpha at each position: the probability that one token drawn from the draft is kept, sum over x of min(p(x), q(x)) = 1 - TV.

    target_probs, draft_probs: [..., V]; returns [...]. Source: Leviathan et al. 2023, section 3. Built in notebook 01.
    """
    return torch.minimum(target_probs, draft_probs).sum(-1)


def accept_greedy(target_tokens, draft_tokens):
    """Keep proposals while they equal the target's own choice; the target's next choice follows them.

    target_tokens: [..., K+1], the target's argmax after each prefix; draft_tokens: [..., K].
    Returns (kept [...], next_token [...]): how many proposals are kept and the token written after them. Built in notebook 00.
    """
    kept = (draft_tokens == target_tokens[..., :-1]).long().cumprod(-1).sum(-1)
    return kept, target_tokens.gather(-1, kept[..., None])[..., 0]


def accept(target_probs, draft_probs, draft_tokens, uniforms):
    """Keep each proposal x with probability min(1, p(x)/q(x)); at the first rejection draw from the residual, at none from the bonus row.

    target_probs: [..., K+1, V], p after each prefix of the block. draft_probs: [..., K, V], the exact distribution each proposal was
    drawn from, or None where the draft proposed its argmax (a distribution with all its mass on that token). draft_tokens: [..., K].
    uniforms: [..., K+1] in [0, 1): K coins and one for the resampled or bonus token. Returns (kept [...], next_token [...]).
    The written tokens have exactly the target's distribution. Source: Leviathan et al. 2023, appendix A.1. Built in notebook 08.
    """
    K = draft_tokens.shape[-1]
    p_proposed = target_probs[..., :K, :].gather(-1, draft_tokens[..., None])[..., 0]
    if draft_probs is None:
        q_proposed = torch.ones_like(p_proposed)
    else:
        q_proposed = draft_probs.gather(-1, draft_tokens[..., None])[..., 0]
    # u < p/q, written without the division so that q = 0 needs no special case; in float64, where a coin never rounds up to 1
    kept = (uniforms[..., :K].double() * q_proposed < p_proposed).long().cumprod(-1).sum(-1)

    V = target_probs.shape[-1]
    p_next = target_probs.gather(-2, kept[..., None, None].expand(*kept.shape, 1, V))[..., 0, :]
    if K == 0:
        return kept, draw(p_next, uniforms[..., K])
    rejected = kept.clamp_max(K - 1)[..., None]
    if draft_probs is None:
        residual = p_next.scatter(-1, draft_tokens.gather(-1, rejected), 0.0)
    else:
        q_next = draft_probs.gather(-2, rejected[..., None].expand(*kept.shape, 1, V))[..., 0, :]
        residual = (p_next - q_next).clamp_min(0)
    # p = q to the last digit leaves an empty residual: such a rejection has probability 0, p itself is the limit
    use_target = (kept == K) | (residual.sum(-1) <= 0)
    return kept, draw(torch.where(use_target[..., None], p_next, residual), uniforms[..., K])
