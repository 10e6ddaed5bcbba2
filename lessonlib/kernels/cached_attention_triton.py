"""Attention of a few new rows to a cache of keys and values: rotation, writing to the cache and attending in one kernel.

Sixteen rows of a key head have programs of their own, which share out the tokens that are cached, in pieces of equal length whatever the length of the text;
the last piece has the new rows as well, whose keys it rotates and writes to the cache. They may be a chain or a tree: who sees whom is read from memory.
The last program to finish merges the pieces by their maxima and sums. How long the text is and how many rows are new is read from memory, which lets one
captured CUDA graph serve every step of a text.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lessonlib.kernels.few_rows_triton import ROWS, capability, memory

KEYS = 64  # cached tokens a step of the loop, of two bytes a number; half as many of four
PIECES = 4  # programs a key head: more take longer to merge than they save up to a thousand tokens


def cached_attention(qkv, cos, sin, cache, start, count, shape, scale, groups, out, scratch, norms=None, eps=0.0):
    """out[:n] = attention of the rows qkv[:n] to start[0] cached tokens and to those of each other that they stand on; cache[:, start:start + n] becomes their keys and values.

    qkv [room, (groups + 2) * key heads * width], room a power of 2 from ROWS to 64: queries, keys, values, not rotated; shape: int64 [2, room], each row's depth,
    which is its place behind the cached tokens, and the rows it sees, a bit each; cos, sin [positions, width] as `lessonlib.pair.llama` has them; cache
    [2, positions, key heads, width]; norms: the RMSNorm weights [width] of queries and keys, with their eps. out [room, groups * key heads * width].
    """
    heads, width = cache.shape[2:]
    half = max(16, triton.next_power_of_2(width // 2))
    rows = ROWS * triton.next_power_of_2(groups)
    q_norm, k_norm = norms or (cos, cos)
    early = capability(qkv.device) >= 9
    _attend[(heads, PIECES, len(qkv) // ROWS)](qkv, cos, sin, q_norm, k_norm, eps, cache, start, count, shape, scale, out, scratch.sums, scratch.arrived, heads, cache.stride(0), groups,
                             triton.next_power_of_2(groups), width, half, ROWS, len(qkv), KEYS * 2 // cache.itemsize, PIECES, norms is not None, _stages(qkv.device), early, num_warps=8 if rows * half >= 8192 else 4,
                             **({"launch_pdl": True} if early else {}))
    return out


def _stages(device):
    """Steps of keys and values on their way from memory: with as little shared memory as the Spark's GPU has (99 KB), one at a time."""
    return 3 if memory(device) > 2**17 else 1


@triton.jit
def _halves(at, mask, norm, eps, WIDTH: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr):
    """The two halves of rows of heads in fp32, normed where the model does that."""
    a = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(at + WIDTH // 2, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        lane = tl.arange(0, HALF)
        inside = lane < WIDTH // 2
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / WIDTH + eps)[:, None]
        a = a * scale * tl.load(norm + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
        b = b * scale * tl.load(norm + WIDTH // 2 + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    return a, b


@triton.jit
def _rotated(a, b, cos, sin, at, mask, MIDDLE: tl.constexpr):
    """Two halves turned by their positions' angles."""
    turned_a = a * tl.load(cos + at, mask=mask, other=0.0) + b * tl.load(sin + at, mask=mask, other=0.0)
    turned_b = b * tl.load(cos + at + MIDDLE, mask=mask, other=0.0) + a * tl.load(sin + at + MIDDLE, mask=mask, other=0.0)
    return turned_a, turned_b


@triton.jit
def _merged(highest, total, a, b, scores, values_a, values_b):
    """The running maximum, sum and mix of values with some more scores [R, n] and values [n, HALF]."""
    higher = tl.maximum(highest, tl.max(scores, 1))
    origin = tl.where(higher == -float("inf"), 0.0, higher)
    keep, weights = tl.exp2(highest - origin), tl.exp2(scores - origin[:, None])
    total = total * keep + tl.sum(weights, 1)
    weights = weights.to(values_a.dtype)
    a = tl.dot(weights, values_a, a * keep[:, None], input_precision="ieee")
    b = tl.dot(weights, values_b, b * keep[:, None], input_precision="ieee")
    return higher, total, a, b


@triton.jit
def _attend(qkv, cos, sin, q_norm, k_norm, eps, cache, start, count, shape, scale, out, sums, arrived, heads, plane, groups, GROUPS: tl.constexpr,
            WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, ROOM: tl.constexpr, KEYS: tl.constexpr, PIECES: tl.constexpr, NORM: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    head, piece, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    R: tl.constexpr = ROWS * GROUPS
    MIDDLE: tl.constexpr = WIDTH // 2
    start, count = tl.load(start), tl.load(count)
    depths, bits = shape, shape + ROOM
    stride = (groups + 2) * heads * WIDTH
    r, lane = tl.arange(0, R), tl.arange(0, HALF)
    row, query = block * ROWS + r // GROUPS, head * groups + r % GROUPS
    live, inside = (row < count) & (r % GROUPS < groups), lane < MIDDLE
    mask = live[:, None] & inside[None, :]
    qa, qb = _halves(qkv + row[:, None] * stride + query[:, None] * WIDTH + lane[None, :], mask, q_norm, eps, WIDTH, HALF, NORM)
    qa, qb = _rotated(qa, qb, cos, sin, (start + tl.load(depths + row))[:, None] * WIDTH + lane[None, :], mask, MIDDLE)
    dtype = cache.dtype.element_ty
    qa, qb = qa.to(dtype), qb.to(dtype)
    per = scale * 1.4426950408889634  # scores in powers of 2

    highest, total = tl.full([R], -float("inf"), tl.float32), tl.zeros([R], tl.float32)
    a, b = tl.zeros([R, HALF], tl.float32), tl.zeros([R, HALF], tl.float32)
    share = tl.cdiv(tl.cdiv(start, KEYS), PIECES) * KEYS
    begin = piece * share
    end = tl.minimum(begin + share, start)
    for at in tl.range(begin, end, KEYS, num_stages=STAGES):
        token = (at + tl.arange(0, KEYS)).to(tl.int64)
        there = (token < end)[:, None] & inside[None, :]
        key = cache + (token[:, None] * heads + head) * WIDTH + lane[None, :]
        scores = tl.dot(qa, tl.trans(tl.load(key, mask=there, other=0.0)), input_precision="ieee")
        scores = tl.dot(qb, tl.trans(tl.load(key + MIDDLE, mask=there, other=0.0)), scores, input_precision="ieee") * per
        scores = tl.where((token < end)[None, :], scores, -float("inf"))
        highest, total, a, b = _merged(highest, total, a, b, scores, tl.load(key + plane, mask=there, other=0.0), tl.load(key + plane + MIDDLE, mask=there, other=0.0))
    if piece == PIECES - 1:  # the new rows
        new = tl.arange(0, ROOM)
        fresh = (new < count)[:, None] & inside[None, :]
        source = qkv + new[:, None] * stride + (groups * heads + head) * WIDTH + lane[None, :]
        ka, kb = _halves(source, fresh, k_norm, eps, WIDTH, HALF, NORM)
        ka, kb = _rotated(ka, kb, cos, sin, (start + tl.load(depths + new))[:, None] * WIDTH + lane[None, :], fresh, MIDDLE)
        ka, kb = ka.to(dtype), kb.to(dtype)
        va = tl.load(source + heads * WIDTH, mask=fresh, other=0.0).to(dtype)
        vb = tl.load(source + heads * WIDTH + MIDDLE, mask=fresh, other=0.0).to(dtype)
        slot = cache + ((start + new).to(tl.int64)[:, None] * heads + head) * WIDTH + lane[None, :]
        first = fresh & (block == 0)  # the other rows' programs have the same new keys
        tl.store(slot, ka, mask=first)
        tl.store(slot + MIDDLE, kb, mask=first)
        tl.store(slot + plane, va, mask=first)
        tl.store(slot + plane + MIDDLE, vb, mask=first)
        own = tl.dot(qa, tl.trans(ka), input_precision="ieee")
        own = tl.dot(qb, tl.trans(kb), own, input_precision="ieee") * per
        seen = (tl.load(bits + row)[:, None] >> new[None, :]) & 1
        own = tl.where((seen != 0) & (new < count)[None, :], own, -float("inf"))
        highest, total, a, b = _merged(highest, total, a, b, own, va, vb)

    cell = r[:, None] * HALF + lane[None, :]
    SIZE: tl.constexpr = 2 * R * HALF + 2 * R
    group = block * heads + head
    mine = sums + (group * PIECES + piece) * SIZE
    tl.store(mine + cell, a, mask=live[:, None])
    tl.store(mine + R * HALF + cell, b, mask=live[:, None])
    tl.store(mine + 2 * R * HALF + r, highest, mask=live)
    tl.store(mine + 2 * R * HALF + R + r, total, mask=live)
    tl.debug_barrier()
    if tl.atomic_add(arrived + group, 1) == PIECES - 1:
        tl.debug_barrier()
        highest, total = tl.full([R], -float("inf"), tl.float32), tl.zeros([R], tl.float32)
        a, b = tl.zeros([R, HALF], tl.float32), tl.zeros([R, HALF], tl.float32)
        for other in tl.static_range(PIECES):
            theirs = sums + (group * PIECES + other) * SIZE
            their_highest = tl.load(theirs + 2 * R * HALF + r, mask=live, other=-float("inf"), cache_modifier=".cg")
            higher = tl.maximum(highest, their_highest)
            origin = tl.where(higher == -float("inf"), 0.0, higher)
            keep, add = tl.exp2(highest - origin), tl.exp2(their_highest - origin)
            total = total * keep + tl.load(theirs + 2 * R * HALF + R + r, mask=live, other=0.0, cache_modifier=".cg") * add
            a = a * keep[:, None] + tl.load(theirs + cell, mask=live[:, None], other=0.0, cache_modifier=".cg") * add[:, None]
            b = b * keep[:, None] + tl.load(theirs + R * HALF + cell, mask=live[:, None], other=0.0, cache_modifier=".cg") * add[:, None]
            highest = higher
        tl.store(arrived + group, 0)
        place = out + row[:, None] * (groups * heads * WIDTH) + query[:, None] * WIDTH + lane[None, :]
        tl.store(place, (a / total[:, None]).to(out.dtype.element_ty), mask=mask)
        tl.store(place + MIDDLE, (b / total[:, None]).to(out.dtype.element_ty), mask=mask)
