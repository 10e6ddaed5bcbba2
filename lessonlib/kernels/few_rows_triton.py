"""A few rows through a layer's weights on a GPU, each weight read once at the speed of memory: norm, product, activation and residual in one kernel.

Decoding multiplies one to sixteen rows with every weight there is, so its floor is the time of reading them. The kernel's programs share out the
outputs and, where those are too few to keep the whole GPU reading, the inputs as well: the last program of an output to finish adds up what the
others have left, always in the same order, so that the same rows give the same digits. How many of the sixteen rows there are is read from
memory, which lets one captured CUDA graph serve them all; rows that are not there are not read.

The norm costs no pass of its own: a row's mean square is summed beside the product, and divides it in the end.
"""

from functools import cache

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

ROWS = 16  # the fewest that the matrix units take
OUTPUTS, WARPS = 64, 4  # outputs a program, which are the rows of a Hopper matrix instruction


class Scratch:
    """Where the programs of one output meet: partial sums, and a count of who has been there. Shared by all kernels of a stream."""

    def __init__(self, device):
        self.sums = torch.empty(4 * 2**20, device=device)
        self.arrived = torch.zeros(4096, dtype=torch.int32, device=device)


def few_rows(x, weights, out, count, scratch, norm=None, eps=0.0, biases=None, residual=None, gated=False):
    """out[:n] = (normed x[:n]) @ the weights' rows, one weight's after another (+ their biases) (+ residual[:n]), n = count[0] <= ROWS.

    x [ROWS, width], up to three weights [outputs, width], residual and out [ROWS, all outputs]; norm [width]: an RMSNorm's weight for x, with its eps.
    gated: of the two weights' products, silu of the first times the second, out [ROWS, outputs]. Defined by `few_rows_defined`. Returns out.
    """
    width, dtype = x.shape[1], weights[0].dtype
    sizes = [len(weight) for weight in weights] + [0] * (3 - len(weights))
    outputs, inputs, splits, stages = _planned(x.device, tuple(sizes[:1] if gated else sizes), width, dtype.itemsize, gated)
    blocks = sum(triton.cdiv(size, outputs) for size in (sizes[:1] if gated else sizes))
    w, b = [*weights, *[weights[0]] * (3 - len(weights))], [*(biases or [None] * len(weights)), *[None] * (3 - len(weights))]
    _few_rows[(blocks, splits)](x, x if norm is None else norm, eps, *w, *(x if each is None else each for each in b), x if residual is None else residual, out, count,
                                scratch.sums, scratch.arrived, *sizes, out.shape[1], width, splits, norm is not None, biases is not None, residual is not None,
                                gated, ROWS, outputs, inputs, stages, num_warps=WARPS)
    return out


def few_rows_defined(x, weights, count, norm=None, eps=0.0, biases=None, residual=None, gated=False):
    """What `few_rows` computes, for the rows that there are."""
    x = x[:int(count)]
    x = x if norm is None else F.rms_norm(x, norm.shape, norm, eps)
    parts = [F.linear(x, weight, bias) for weight, bias in zip(weights, biases or [None] * len(weights))]
    made = F.silu(parts[0]) * parts[1] if gated else torch.cat(parts, -1)
    return made if residual is None else made + residual[:int(count)]


@cache
def _planned(device, sizes, width, itemsize, gated):
    """(outputs and inputs of a program's step, programs an output, steps on their way from memory)."""
    processors, shared = _device(device)
    outputs = OUTPUTS // 2 if gated else OUTPUTS
    inputs = min(128 if itemsize == 2 else 64, max(16, triton.next_power_of_2(width)))
    blocks, splits = sum(triton.cdiv(size, outputs) for size in sizes), 1
    while splits < 8 and blocks * splits <= processors and width // (2 * splits) >= 4 * inputs:
        splits *= 2
    stages = min(6 if blocks * splits <= processors else 4, shared // ((OUTPUTS + ROWS) * inputs * itemsize))
    return outputs, inputs, splits, max(1, stages)


def _device(device):
    """(multiprocessors, bytes of shared memory that a program can have)."""
    if device.type != "cuda":
        return 4, 2**17  # the interpreter's
    found = torch.cuda.get_device_properties(device)
    return found.multi_processor_count, found.shared_memory_per_block_optin


@triton.jit
def _few_rows(x, norm, eps, weight0, weight1, weight2, bias0, bias1, bias2, residual, out, count, sums, arrived, N0, N1, N2, stride, K: tl.constexpr,
              SPLITS: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr,
              ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    block, split = tl.program_id(0), tl.program_id(1)
    weight, bias, N, first, local = weight0, bias0, N0, 0, block
    if not GATED:  # which weight this program's outputs are of
        blocks0, blocks1 = tl.cdiv(N0, BN), tl.cdiv(N1, BN)
        if block >= blocks0 + blocks1:
            weight, bias, N, first, local = weight2, bias2, N2, N0 + N1, block - blocks0 - blocks1
        elif block >= blocks0:
            weight, bias, N, first, local = weight1, bias1, N1, N0, block - blocks0
    place, row = local * BN + tl.arange(0, BN), tl.arange(0, ROWS)
    there, live = place < N, row < tl.load(count)
    acc, gate, squares = tl.zeros([BN, ROWS], tl.float32), tl.zeros([BN, ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    share: tl.constexpr = tl.cdiv(tl.cdiv(K, BK), SPLITS) * BK
    begin = split * share
    for k in tl.range(begin, tl.minimum(begin + share, K), BK, num_stages=STAGES):
        column = k + tl.arange(0, BK)
        inside = column < K
        x_part = tl.load(x + row[None, :] * K + column[:, None], mask=live[None, :] & inside[:, None], other=0.0)
        if NORM:
            wide = x_part.to(tl.float32)
            squares += tl.sum(wide * wide, 0)
            x_part = (wide * tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)[:, None]).to(x_part.dtype)
        at = place[:, None].to(tl.int64) * K + column[None, :]
        mask = there[:, None] & inside[None, :]
        acc = tl.dot(tl.load(weight + at, mask=mask, other=0.0), x_part, acc, input_precision="ieee")
        if GATED:
            gate = tl.dot(tl.load(weight1 + at, mask=mask, other=0.0), x_part, gate, input_precision="ieee")

    lane = tl.arange(0, BN)[:, None] * ROWS + row[None, :]
    SIZE: tl.constexpr = 2 * BN * ROWS + ROWS
    last = True
    if SPLITS > 1:
        mine = sums + (block * SPLITS + split) * SIZE
        tl.store(mine + lane, acc)
        if GATED:
            tl.store(mine + BN * ROWS + lane, gate)
        if NORM:
            tl.store(mine + 2 * BN * ROWS + row, squares)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + block, 1) == SPLITS - 1
    if last:
        if SPLITS > 1:
            tl.debug_barrier()
            acc, gate, squares = tl.zeros([BN, ROWS], tl.float32), tl.zeros([BN, ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
            for other in tl.static_range(SPLITS):
                theirs = sums + (block * SPLITS + other) * SIZE
                acc += tl.load(theirs + lane, cache_modifier=".cg")
                if GATED:
                    gate += tl.load(theirs + BN * ROWS + lane, cache_modifier=".cg")
                if NORM:
                    squares += tl.load(theirs + 2 * BN * ROWS + row, cache_modifier=".cg")
            tl.store(arrived + block, 0)
        if NORM:
            scale = tl.rsqrt(squares / K + eps)[None, :]
            acc, gate = acc * scale, gate * scale
        if BIAS:
            acc += tl.load(bias + place, mask=there, other=0.0).to(tl.float32)[:, None]
            if GATED:
                gate += tl.load(bias1 + place, mask=there, other=0.0).to(tl.float32)[:, None]
        if GATED:
            acc = acc * tl.sigmoid(acc) * gate
        at = row[None, :] * stride + (first + place)[:, None]
        mask = there[:, None] & live[None, :]
        if RESIDUAL:
            acc += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=mask)
