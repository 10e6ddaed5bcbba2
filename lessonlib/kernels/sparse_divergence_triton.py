"""A divergence between a few stored odds and a row of logits, and its gradient written over those logits: one Triton kernel.

p is the target, q the draft; a bucket is one of k stored tokens, or all the others together, the rest. A row's loss is T^2 D(log p, log q)
over its k + 1 buckets, with q = softmax(logits / T). Call G_i the derivative of D in log q_i, and G their sum. Since the
derivative of log q_i in logit x is (1 - q_x) / T inside bucket i and -q_x / T outside it, the gradient of the loss is

    T (G_x - q_x G) in a stored logit x,    T (q_x / q_rest) (G_rest - q_rest G) in any other:

each divergence only has to name its G. For forward KL G = -p, so its gradient is T times q minus a target that spreads the tail of p over the
draft's own tail. Cross-entropy with token y is forward KL from one stored token of probability 1.

One program a row: it lifts the k stored logits out (leaving -inf), sums what is left in one pass (the tail never is 1 minus something), works
out the k + 1 buckets, and in a second pass turns each exponential into its gradient. A log-probability below FLOOR counts as FLOOR and has no
gradient. Defined by `Objective.__call__` in `lessonlib.distil.losses`, whose objectives these are.
"""

import torch
import triton
import triton.language as tl

from lessonlib.kernels.exponentials_triton import exp_from, finite

BLOCK, WARPS, STAGES = 4096, 8, 4  # logits of a row at a time, warps a program, blocks on their way from memory
FLOOR = tl.constexpr(-1e4)
NAMES = ("kl", "reverse_kl", "jsd", "tv", "lk")


def divergence_and_gradient(logits, ids, log_p, name, scale=1.0, T=1.0, beta=0.5, resp_ids=None, ce_weight=0.0):
    """One loss a row, fp32 [R]; logits [R, V] (rows contiguous) become scale times the gradient of the sum of all of them.

    ids int64 [R, k], log_p fp32 [R, k + 1]: the target's log-probabilities over its stored tokens and the rest. With resp_ids [R],
    ce_weight times the cross-entropy with them is added, for which T must be 1.
    """
    losses, ids, log_p = logits.new_empty(len(logits), dtype=torch.float32), ids.contiguous(), log_p.contiguous()
    if len(logits):
        k = ids.shape[1]
        _divergence[(len(logits),)](logits, logits.stride(0), ids, log_p, resp_ids, losses, logits.shape[1], k, scale, T, beta, ce_weight,
                                    NAMES.index(name), resp_ids is not None, triton.next_power_of_2(k), BLOCK, STAGES, num_warps=WARPS)
    return losses


@triton.jit
def _divergence(logits, stride, ids, log_p, resp_ids, losses, V, k, scale, T, beta, ce_weight,
                NAME: tl.constexpr, CE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
                STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    per_T = 1.0 / T
    slot = tl.arange(0, K)
    stored = slot < k
    token = tl.load(ids + row * k + slot, mask=stored, other=0)
    x = tl.load(logits + token, mask=stored, other=-float("inf")).to(tl.float32)
    if CE:
        written = tl.load(resp_ids + row)
        x_written = tl.load(logits + written).to(tl.float32)
    tl.debug_barrier()
    tl.store(logits + token, -float("inf"), mask=stored)
    tl.debug_barrier()

    largest, masses = -float("inf"), tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, V, BLOCK, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK)
        rest = tl.load(logits + place, mask=place < V, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(rest, 0))
        masses = masses * tl.exp((largest - finite(larger)) * per_T) + exp_from(rest, finite(larger), per_T)
        largest = larger
    mass, largest = tl.sum(masses, 0), finite(largest)

    origin = tl.maximum(tl.max(x, 0), tl.where(mass == 0, -float("inf"), largest))
    shifted = (x - origin) * per_T
    rest_mass = mass * tl.exp((largest - origin) * per_T)
    total = tl.log(tl.sum(tl.exp(shifted), 0) + rest_mass)
    log_q, log_q_rest = shifted - total, tl.log(mass) + (largest - origin) * per_T - total
    q, q_rest = tl.exp(log_q), tl.exp(log_q_rest)
    log_p += row * (k + 1)
    log_p_top, log_p_rest = tl.load(log_p + slot, mask=stored, other=FLOOR), tl.load(log_p + k)
    tv = (tl.sum(tl.abs(tl.exp(log_p_top) - q), 0) + tl.abs(tl.exp(log_p_rest) - q_rest)) / 2
    value, G = _bucket(log_p_top, log_q, tv, beta, NAME)
    value_rest, G_rest = _bucket(log_p_rest, log_q_rest, tv, beta, NAME)
    loss = T * T * (tl.sum(value, 0) + value_rest)
    G_top = tl.sum(G, 0)
    slope = T * (G - q * (G_top + G_rest))
    slope_rest = T * (G_rest * tl.sum(q, 0) - q_rest * G_top)  # G_rest - q_rest G, with 1 - q_rest written out: it may be tiny
    if CE:
        loss += ce_weight * (total + origin - x_written)
        slope += ce_weight * (q - (token == written).to(tl.float32))
        slope_rest += ce_weight * q_rest
    tl.store(losses + row, loss)

    share = tl.where(mass == 0, 0.0, slope_rest * scale / mass)
    for start in tl.range(0, V, BLOCK, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK)
        rest = tl.load(logits + place, mask=place < V, other=-float("inf")).to(tl.float32)
        tl.store(logits + place, exp_from(rest, largest, per_T) * share, mask=place < V)
    tl.debug_barrier()
    tl.store(logits + token, slope * scale, mask=stored)
    if CE:
        among_stored = tl.max(((token == written) & stored).to(tl.int32), 0)
        tl.store(logits + written, tl.exp(x_written - largest) * share - ce_weight * scale, mask=among_stored == 0)


@triton.jit
def _bucket(log_p, log_q, tv, beta, NAME: tl.constexpr):
    """A bucket's part of the divergence, and its derivative in log q; tv is the row's total variation."""
    live = log_q >= FLOOR
    log_p, log_q = tl.maximum(log_p, FLOOR), tl.where(log_q < FLOOR, FLOOR, log_q)  # a NaN stays one
    p, q = tl.exp(log_p), tl.exp(log_q)
    if NAME == 0:  # forward KL
        value, G = p * (log_p - log_q), -p
    elif NAME == 1:  # reverse KL
        value, G = q * (log_q - log_p), q * (log_q - log_p + 1)
    elif NAME == 2:  # JSD: the mixture's own derivative cancels, since beta p + (1 - beta) q is m
        higher = tl.maximum(log_p + tl.log(beta), log_q + tl.log(1 - beta))
        log_m = tl.maximum(higher + tl.log(tl.exp(log_p + tl.log(beta) - higher) + tl.exp(log_q + tl.log(1 - beta) - higher)), FLOOR)
        value, G = beta * p * (log_p - log_m) + (1 - beta) * q * (log_q - log_m), (1 - beta) * q * (log_q - log_m)
    else:
        sign = (q > p).to(tl.float32) - (q < p).to(tl.float32)
        value, G = tl.abs(p - q) / 2, sign * q / 2
        if NAME == 4:  # LK: forward KL and TV, weighed by a constant of the row
            w = tl.exp(-3 * (1 - tv))
            value, G = w * p * (log_p - log_q) + (1 - w) * value, (1 - w) * G - w * p
    return value, tl.where(live, G, 0.0)
