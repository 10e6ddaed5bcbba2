"""The k largest of each row and the logsumexp of the others with each logit read once: `top_and_rest_defined` as two Triton kernels.

A row is cut into groups of G neighbours. The first kernel reads every logit once and leaves each group's maximum and its sum of
exponentials. The second, one program a row, takes the k groups with the largest maxima: any logit outside them is at most each
of those k maxima, so the k largest logits are inside (up to ties), whatever the row looks like. It reads those k G logits again, 3 % of a
row of 128,256 at k = 64, and takes the k largest of them. What is left over, of the groups and in them, sums to the rest.

The k largest of many numbers are found without sorting them: a float's bits, suitably flipped, are a whole number of the same order, and the
k-th largest whole number is built bit by bit from the top, keeping a bit where at least k numbers still reach that high.
"""

import torch
import triton
import triton.language as tl

from lessonlib.kernels.exponentials_triton import exp_from, finite

GROUP = 64  # logits a group: 128,256 of them make 2,004 groups, so that neither search is of more than a few thousand numbers
TILE = 64  # groups a program of the first kernel
WARPS, REGISTERS = 4, 128  # of a program of the second, and of each of its threads at most: so that several run on a multiprocessor


def top_and_rest(logits, k, T=1.0):
    """(ids int64 [R, k], values fp32 [R, k], top fp32 [R], rest fp32 [R]) of logits [R, V], fp32, bf16 or fp16."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocabulary = logits.shape
    groups = triton.cdiv(vocabulary, GROUP)
    new = logits.new_empty
    peaks, sums = new(rows, groups), new(rows, groups, dtype=torch.float32)
    ids, values = new(rows, k, dtype=torch.int64), new(rows, k, dtype=torch.float32)
    top, rest = new(rows, dtype=torch.float32), new(rows, dtype=torch.float32)
    if rows:
        _groups[(rows, triton.cdiv(groups, TILE))](logits, logits.stride(0), peaks, sums, vocabulary, groups, 1 / T, TILE, GROUP, num_warps=4)
        chosen, places, width = (max(2, triton.next_power_of_2(count)) for count in (min(k, groups), k, groups))
        _select[(rows,)](logits, logits.stride(0), peaks, sums, ids, values, top, rest, vocabulary, groups, k, 1 / T, width, chosen, places, GROUP,
                         num_warps=WARPS, maxnreg=REGISTERS)
    return ids, values, top, rest


@triton.jit
def _groups(logits, stride, peaks, sums, V, groups, per_T, TILE: tl.constexpr, G: tl.constexpr):
    """Each group's maximum, and its sum of exp((logit - maximum) / T)."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * TILE + tl.arange(0, TILE)
    place = group[:, None] * G + tl.arange(0, G)[None, :]
    x = tl.load(logits + row * stride + place, mask=place < V, other=-float("inf")).to(tl.float32)
    peak = tl.max(x, 1)
    mass = tl.sum(exp_from(x, finite(peak)[:, None], per_T), 1)
    tl.store(peaks + row * groups + group, peak, mask=group < groups)
    tl.store(sums + row * groups + group, mass, mask=group < groups)


@triton.jit
def _select(logits, stride, peaks, sums, ids, values, top, rest, V, groups, k, per_T,
            GROUPS: tl.constexpr, CHOSEN: tl.constexpr, K: tl.constexpr, G: tl.constexpr):
    """A row's k largest logits, out of its k best groups. GROUPS, CHOSEN, K: powers of 2 not below groups, min(k, groups), k."""
    BITS: tl.constexpr = logits.dtype.element_ty.primitive_bitwidth
    row = tl.program_id(0).to(tl.int64)
    ids, values = ids + row * k, values + row * k
    group = tl.arange(0, GROUPS)
    peak = tl.load(peaks + row * groups + group, mask=group < groups, other=-float("inf"))
    mass = tl.load(sums + row * groups + group, mask=group < groups, other=0.0)
    count = tl.minimum(k, groups)
    taken, slot = _largest(_rising(peak, group < groups), count, BITS)
    tl.store(ids + slot, group.to(tl.int64), mask=taken)  # for a moment, where the ids will stand
    aside = tl.where(taken, -float("inf"), peak.to(tl.float32))
    aside_highest = tl.max(aside, 0)
    aside_mass = tl.sum(mass * exp_from(aside, finite(aside_highest), per_T), 0)
    tl.debug_barrier()
    slot = tl.arange(0, CHOSEN)
    chosen = tl.load(ids + slot, mask=slot < count, other=groups).to(tl.int32)
    tl.debug_barrier()

    place = tl.reshape(chosen[:, None] * G + tl.arange(0, G)[None, :], [CHOSEN * G])
    x = tl.load(logits + row * stride + place, mask=place < V, other=-float("inf"))
    best, slot = _largest(_rising(x, place < V), k, BITS)
    x = x.to(tl.float32)
    tl.store(ids + slot, tl.arange(0, CHOSEN * G).to(tl.int64), mask=best)  # again only for a moment: which of the candidates it is
    tl.store(values + slot, x, mask=best)
    highest = finite(tl.max(x, 0))
    tl.store(top + row, tl.log(tl.sum(tl.where(best, exp_from(x, highest, per_T), 0.0), 0)) + highest * per_T)
    left = tl.where(best, -float("inf"), x)
    highest = finite(tl.maximum(tl.max(left, 0), aside_highest))  # the rest's own: beside the row's, a tail of 1e-40 would be nothing
    rest_mass = tl.sum(exp_from(left, highest, per_T), 0) + aside_mass * exp_from(aside_highest, highest, per_T)
    tl.store(rest + row, tl.log(rest_mass) + highest * per_T)
    tl.debug_barrier()
    slot = tl.arange(0, K)
    candidate = tl.load(ids + slot, mask=slot < k, other=0).to(tl.int32)
    found_ids = (tl.gather(chosen, candidate // G, 0) * G + candidate % G).to(tl.int64)
    found = tl.load(values + slot, mask=slot < k, other=-float("inf"))
    tl.debug_barrier()
    # value and slot as one number: sorting it carries the slot along, and the lower slot, which has the lower id, comes first
    keys = tl.sort(_rising(found, slot < k).to(tl.int64) * K + (K - 1 - slot), descending=True)
    source = (K - 1 - keys % K).to(tl.int32)
    tl.store(ids + slot, tl.gather(found_ids, source, 0), mask=slot < k)
    tl.store(values + slot, tl.gather(found, source, 0), mask=slot < k)


@triton.jit
def _rising(x, there):
    """uint32 in the order of x: a positive float's bits rise with it, a negative one's fall. 0, below all, where nothing is there."""
    if x.dtype.primitive_bitwidth == 16:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32)
        key = tl.where(bits >= 0x8000, 0xFFFF - bits, bits + 0x8000)
    else:
        bits = x.to(tl.uint32, bitcast=True)
        key = tl.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)
    return tl.where(there, key, 0).to(tl.uint32)


@triton.jit
def _largest(keys, k, BITS: tl.constexpr):
    """(whether a key is one of the k largest, its slot from 0 to k - 1): those above the k-th in their order, then those equal to it."""
    kth = tl.zeros([1], tl.uint32)
    for step in range(BITS):
        higher = kth + (tl.full([1], 1, tl.uint32) << (BITS - 1 - step))
        kth = tl.where(tl.sum((keys >= higher).to(tl.int32), 0) >= k, higher, kth)
    above, equal = keys > kth, keys == kth
    counts = tl.cumsum(above.to(tl.int32) + (equal.to(tl.int32) << 16), 0)  # both at once: there are fewer than 2^15 keys
    slot = tl.where(above, counts & 0xFFFF, tl.sum(above.to(tl.int32), 0) + (counts >> 16)) - 1
    return (above | equal) & (slot < k), slot
