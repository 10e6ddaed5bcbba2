"""Drawing from a distribution by inverse CDF: one uniform number a draw, so that a draw can be repeated anywhere."""

import torch

COLDEST = 1e-4  # the lowest temperature above 0: dividing logits by much less overflows, and nothing but the favourite is ever drawn anyway


def draw(weights, uniforms):
    """Draw one index per row with probability proportional to weights; one of weight 0 is never drawn.

    weights: [..., V], not negative, at least one positive; uniforms: [...] in [0, 1). Returns int64 [...].
    The sums are float64: over a large vocabulary fp32 sums would lose the small probabilities.
    """
    cdf = weights.cumsum(-1, dtype=torch.float64)
    total = cdf[..., -1:]
    # a number that was rounded up to 1 on its way here (to fp32, say) would name an entry past the last positive one
    point = torch.minimum(uniforms[..., None].double() * total, torch.nextafter(total, torch.zeros_like(total)))
    # weights that are no numbers name an entry all the same: whoever looks at them finds out later, on a device where nobody can wait for it
    return torch.searchsorted(cdf, point, right=True)[..., 0].clamp_max(weights.shape[-1] - 1)
