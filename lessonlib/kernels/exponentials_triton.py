"""Exponentials as the Triton kernels take them: from an origin that is finite, at a temperature."""

import triton
import triton.language as tl


@triton.jit
def finite(x):
    """x, or 0 where it is -inf: what exponentials may be taken from, since -inf from -inf would be NaN."""
    return tl.where(x == -float("inf"), 0.0, x)


@triton.jit
def exp_from(x, origin, per_T):
    """exp((x - origin) / T), by the power of 2 that the hardware has."""
    return tl.exp2((x - origin) * (per_T * 1.4426950408889634))
