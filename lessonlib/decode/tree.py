"""Which proposals of a tree are kept: the longest way down that the target itself would have taken, greedily or by chance."""

import torch

from lessonlib.kernels.draw import draw


def accept_tree_greedy(target_tokens, tokens, shape):
    """Keep the proposals that equal the target's own choice after what they stand on.

    target_tokens: [M+1], the target's argmax at each row; tokens: [M]; shape: TreeTensors. No two proposals on one row are alike.
    Returns (row [], next_token []): the row of the deepest kept proposal (0 where none is) and the token written after it.
    """
    row = _deepest(tokens == target_tokens[shape.parents], shape)
    return row, target_tokens[row]


def accept_tree(target_probs, draft_probs, tokens, shape, uniforms):
    """Keep or refuse the proposals on each row one after another, each time going on with what the refused one has left of the target's odds.

    target_probs: [M+1, V], p at each row. draft_probs: [M+1, V], at each row the distribution that the proposals on it were drawn from, one after
    another and without replacement; or None where they were chosen without chance, as the likeliest are. tokens: [M]; shape: TreeTensors;
    uniforms: [M+1] in [0, 1). Returns (row, next_token) as `accept_tree_greedy`. Of the proposals on a row the first is kept with probability
    min(1, p(x)/q(x)); if it is refused, p becomes the residual, q loses x, and the next one is judged by those. So the written tokens have exactly
    the target's distribution. Source: Jeon et al. 2024 (recursive rejection sampling without replacement); for one proposal a row, Leviathan et al. 2023.
    """
    p, q = target_probs.clone(), None if draft_probs is None else draft_probs.clone()
    willing = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for chosen in shape.by_rank:
        rows, x = shape.parents[chosen], tokens[chosen][:, None]
        ours = p[rows]
        if q is None:
            willing[chosen] = uniforms[chosen].double() < ours.gather(-1, x)[:, 0]
            left = ours.scatter(-1, x, 0.0)
        else:
            theirs = q[rows]
            # u < p/q without the division; in float64, where a coin never rounds up to 1
            willing[chosen] = uniforms[chosen].double() * theirs.gather(-1, x)[:, 0] < ours.gather(-1, x)[:, 0]
            left = (ours - theirs).clamp_min(0)
            q[rows] = _normal(theirs.scatter(-1, x, 0.0), theirs)
        p[rows] = _normal(left, ours)
    # who stands behind an elder that is kept is not asked
    row = _deepest(willing & ~(shape.elder & willing).any(-1), shape)
    return row, draw(p[row], uniforms[len(tokens)])


def typical(target_probs, tokens, shape, epsilon=0.09, delta=0.3):
    """Keep proposals that the target finds typical enough: p(x) above the smaller of epsilon and delta exp(-entropy). Not exact: what is written
    no longer has the target's distribution.

    target_probs: [M+1, V]; tokens: [M]; shape: TreeTensors. Returns (row, next_token) as `accept_tree_greedy`: the target's favourite follows.
    Source: Cai et al. 2024, section 2.3.1, for Medusa.
    """
    entropy = -torch.special.xlogy(target_probs, target_probs).sum(-1)
    least = torch.minimum(torch.full_like(entropy, epsilon), delta * torch.exp(-entropy))
    row = _deepest(target_probs[shape.parents].gather(-1, tokens[:, None])[:, 0] > least[shape.parents], shape)
    return row, target_probs[row].argmax(-1)


def _deepest(kept, shape):
    """The deepest row all of whose proposals are kept [M]; of equally deep ones the first."""
    refused = torch.cat([torch.zeros_like(kept[:1]), ~kept]) if len(kept) else kept.new_zeros(1)
    whole = ~(shape.sees & refused).any(-1)
    return torch.where(whole, shape.depths, -1).argmax()


def _normal(weights, otherwise):
    """Rows of weights as odds that sum to 1; where a row is all 0, which has probability 0 or is never asked for, `otherwise`."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), otherwise)
