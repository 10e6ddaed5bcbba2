"""A few rows through a layer's weights on a GPU, each weight read once at the speed of memory: product, bias, activation, residual and norm in one kernel.

Decoding multiplies a few rows with every weight there is, so its floor is the time of reading them. The kernel's programs share out the
outputs and, where those are too few to keep the whole GPU reading, the inputs as well: the last program of an output to finish adds up what the
others have left, always in the same order, so that the same rows give the same digits. How many of the rows there is room for are there is read from
memory, which lets one captured CUDA graph serve them all; rows that are not there are not read.

A norm costs no pass of its own. Whoever writes the rows that it is for leaves them also times its weight, and the sum of squares of its own part of
each row; the product of the former is divided by the root of the mean of the latter, once it is summed.

A kernel of a graph waits for the one before it to finish. On a Hopper GPU a small one is set up while that one still runs (a programmatic dependent
launch), and waits inside.
"""

from functools import cache

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROWS = 16  # the fewest that the matrix units take
OUTPUTS, WARPS = 64, 4  # outputs a program, which are the rows of a Hopper matrix instruction
SMALL = 2**25  # bytes of weights up to which a kernel is set up early: measured on an H200, larger ones lose by it


class Scratch:
    """Where the programs of one output meet: partial sums, and a count of who has been there. Shared by all kernels of a stream."""

    def __init__(self, device):
        self.sums = torch.empty(4 * 2**20, device=device)
        self.arrived = torch.zeros(4096, dtype=torch.int32, device=device)


class NormedRows:
    """Rows [room, width] and what the product of their norm needs: `scaled`, times the norm's weight; `squares` [parts, room], sums to be added."""

    def __init__(self, room, width, dtype, device):
        self.rows, self.scaled = (torch.zeros(room, width, dtype=dtype, device=device) for _ in range(2))
        self.squares = torch.zeros(triton.cdiv(width, OUTPUTS), room, device=device)


def few_rows(x, weights, out, count, scratch, eps=0.0, biases=None, residual=None, gated=False, norm=None):
    """The rows x[:n] times the weights' rows, one weight's after another (+ their biases) (+ residual[:n]), into out[:n], n = count[0] <= room.

    x [room, width], room a power of 2 from ROWS on, or NormedRows: then of the rows over their root mean square (with eps) times their norm's weight. Up to three weights [outputs, width];
    gated: of two weights' products, silu of the first times the second. out, residual [room, all outputs]; of one weight's product it
    may be NormedRows of the norm whose weight is `norm`, for the next product. Defined by `few_rows_defined`. Returns out.
    """
    normed, leaves = isinstance(x, NormedRows), isinstance(out, NormedRows)
    rows, squares = (x.scaled, x.squares) if normed else (x, x)
    made, scaled, out_squares = (out.rows, out.scaled, out.squares) if leaves else (out, out, out)
    room, width, dtype = *rows.shape, weights[0].dtype
    sizes = [len(weight) for weight in weights] + [0] * (3 - len(weights))
    own = tuple(sizes[:1] if gated else sizes)
    inputs, splits, stages = _planned(rows.device, own, room, width, dtype.itemsize, gated)
    w, b = [*weights, *[weights[0]] * (3 - len(weights))], [*(biases or [None] * len(weights)), *[None] * (3 - len(weights))]
    early = capability(rows.device) >= 9 and sum(sizes) * width * dtype.itemsize <= SMALL
    _few_rows[(sum(triton.cdiv(size, OUTPUTS) for size in own), splits)](
        rows, squares, eps, *w, *(rows if each is None else each for each in b), made if residual is None else residual, made, scaled, out_squares,
        made if norm is None else norm, count, scratch.sums, scratch.arrived, *sizes, made.shape[1], width, len(squares) if normed else 1,
        triton.next_power_of_2(len(squares)) if normed else 1, splits, normed, biases is not None, residual is not None, gated, leaves, room, OUTPUTS, inputs,
        stages, early, num_warps=WARPS, **({"launch_pdl": True} if early else {}))
    return out


def few_rows_defined(x, weights, count, norm_of_x=None, eps=0.0, biases=None, residual=None, gated=False):
    """What `few_rows` leaves in the first `count` rows of out, x being the rows themselves and norm_of_x their norm's weight."""
    x = x[:count]
    x = x if norm_of_x is None else F.rms_norm(x, norm_of_x.shape, norm_of_x, eps)
    parts = [F.linear(x, weight, bias) for weight, bias in zip(weights, biases or [None] * len(weights))]
    made = F.silu(parts[0]) * parts[1] if gated else torch.cat(parts, -1)
    return made if residual is None else made + residual[:count]


def look_up(ids, embedding, out, count, norm):
    """The rows of an embedding for ids [room] into NormedRows, for the norm of weight `norm`."""
    width = embedding.shape[1]
    early = capability(embedding.device) >= 9
    _look_up[(len(ids),)](ids, embedding, out.rows, out.scaled, out.squares, norm, count, len(out.squares), width, triton.next_power_of_2(width),
                      triton.next_power_of_2(len(out.squares)), len(ids), early, num_warps=WARPS, **({"launch_pdl": True} if early else {}))


@cache
def _planned(device, sizes, room, width, itemsize, gated):
    """(inputs of a step, programs an output, steps on their way from memory)."""
    inputs = min(128 if itemsize == 2 and not gated else 64, max(16, triton.next_power_of_2(width)))
    blocks, splits = sum(triton.cdiv(size, OUTPUTS) for size in sizes), 1
    while 4 * blocks <= processors(device) and splits < 8 and width // (2 * splits) >= 4 * inputs:  # meeting costs more than it brings where there are more
        splits *= 2
    stages = min(6 if blocks * splits <= processors(device) else 4, memory(device) // ((OUTPUTS * (1 + gated) + room) * inputs * itemsize))
    return inputs, splits, max(1, stages)


def processors(device):
    """A GPU's multiprocessors; as many as make a small test meet itself elsewhere."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@cache
def memory(device):
    """Bytes of shared memory that a program can have."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin if device.type == "cuda" else 2**17


@cache
def capability(device):
    """The major number of a GPU's compute capability; 0 of what is none."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


@triton.jit
def _few_rows(x, squares, eps, weight0, weight1, weight2, bias0, bias1, bias2, residual, out, scaled, out_squares, norm, count, sums, arrived,
              N0, N1, N2, stride, K: tl.constexpr, parts, PARTS: tl.constexpr, SPLITS: tl.constexpr, NORMED: tl.constexpr, BIAS: tl.constexpr,
              RESIDUAL: tl.constexpr, GATED: tl.constexpr, LEAVES: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
              STAGES: tl.constexpr, EARLY: tl.constexpr):
    block, split = tl.program_id(0), tl.program_id(1)
    weight, bias, N, first, local = weight0, bias0, N0, N0 * 0, block
    if not GATED:  # of which weight the outputs here are
        blocks0, blocks1 = tl.cdiv(N0, BN), tl.cdiv(N1, BN)
        if block >= blocks0 + blocks1:
            weight, bias, N, first, local = weight2, bias2, N2, N0 + N1, block - blocks0 - blocks1
        elif block >= blocks0:
            weight, bias, N, first, local = weight1, bias1, N1, N0, block - blocks0
    place, row = local * BN + tl.arange(0, BN), tl.arange(0, ROWS)
    there = place < N
    share: tl.constexpr = tl.cdiv(tl.cdiv(K, BK), SPLITS) * BK
    begin = split * share
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    live = row < tl.load(count)
    acc, gate = tl.zeros([BN, ROWS], tl.float32), tl.zeros([BN, ROWS], tl.float32)
    for k in tl.range(begin, tl.minimum(begin + share, K), BK, num_stages=STAGES):
        column = k + tl.arange(0, BK)
        inside = column < K
        x_part = tl.load(x + row[None, :] * K + column[:, None], mask=live[None, :] & inside[:, None], other=0.0)
        at = place[:, None].to(tl.int64) * K + column[None, :]
        mask = there[:, None] & inside[None, :]
        acc = tl.dot(tl.load(weight + at, mask=mask, other=0.0), x_part, acc, input_precision="ieee")
        if GATED:
            gate = tl.dot(tl.load(weight1 + at, mask=mask, other=0.0), x_part, gate, input_precision="ieee")

    lane = tl.arange(0, BN)[:, None] * ROWS + row[None, :]
    SIZE: tl.constexpr = 2 * BN * ROWS
    last = True
    if SPLITS > 1:
        mine = sums + (block * SPLITS + split) * SIZE
        tl.store(mine + lane, acc, mask=live[None, :])
        if GATED:
            tl.store(mine + BN * ROWS + lane, gate, mask=live[None, :])
        tl.debug_barrier()
        last = tl.atomic_add(arrived + block, 1) == SPLITS - 1
    if last:
        if SPLITS > 1:
            tl.debug_barrier()
            acc, gate = tl.zeros([BN, ROWS], tl.float32), tl.zeros([BN, ROWS], tl.float32)
            for other in tl.static_range(SPLITS):
                theirs = sums + (block * SPLITS + other) * SIZE
                acc += tl.load(theirs + lane, mask=live[None, :], other=0.0, cache_modifier=".cg")
                if GATED:
                    gate += tl.load(theirs + BN * ROWS + lane, mask=live[None, :], other=0.0, cache_modifier=".cg")
            tl.store(arrived + block, 0)
        if NORMED:
            part = tl.arange(0, PARTS)
            total = tl.sum(tl.load(squares + part[:, None] * ROWS + row[None, :], mask=(part < parts)[:, None] & live[None, :], other=0.0), 0)
            scale = tl.rsqrt(total / K + eps)[None, :]
            acc, gate = acc * scale, gate * scale
        if BIAS:
            acc += tl.load(bias + place, mask=there, other=0.0).to(tl.float32)[:, None]
            if GATED:
                gate += tl.load(bias1 + place, mask=there, other=0.0).to(tl.float32)[:, None]
        if GATED:
            acc = acc * tl.sigmoid(acc) * gate
        into = row[None, :] * stride + (first + place)[:, None]
        written = there[:, None] & live[None, :]
        if RESIDUAL:
            acc += tl.load(residual + into, mask=written, other=0.0).to(tl.float32)
        made = acc.to(out.dtype.element_ty)
        tl.store(out + into, made, mask=written)
        if LEAVES:
            wide = tl.where(written, made.to(tl.float32), 0.0)
            tl.store(scaled + into, (wide * tl.load(norm + place, mask=there, other=0.0).to(tl.float32)[:, None]).to(made.dtype), mask=written)
            tl.store(out_squares + block * ROWS + row, tl.sum(wide * wide, 0), mask=live)


@triton.jit
def _look_up(ids, embedding, rows, scaled, squares, norm, count, parts, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
             EARLY: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if row < tl.load(count):
        inside = column < WIDTH
        x = tl.load(embedding + tl.load(ids + row) * WIDTH + column, mask=inside, other=0.0)
        wide = x.to(tl.float32)
        tl.store(rows + row * WIDTH + column, x, mask=inside)
        tl.store(scaled + row * WIDTH + column, (wide * tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)).to(x.dtype), mask=inside)
        part = tl.arange(0, PARTS)  # all of them are summed: the first holds the row's, the others nothing
        tl.store(squares + part * ROWS + row, tl.where(part == 0, tl.sum(wide * wide, 0), 0.0), mask=part < parts)
