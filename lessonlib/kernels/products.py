"""Products with a weight in fp32 on a CPU, by the quicker of the two libraries that PyTorch has for them, and their gradients.

PyTorch hands fp32 products to MKL. On some processors MKL takes twice as long as it need: over many rows, as in training, and over the two
or three of a decoding step, where checking guesses then costs as much as writing the tokens one by one. oneDNN, which PyTorch ships for other
number formats, does not.
"""

from functools import cache
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F

from lessonlib.kernels.backend import why_plain

FEW = 32  # rows below which the time of a product is that of reading its weight
PROBES = {"few": ((1, 3), (8192, 1024)), "many": ((256,), (2048, 1024))}  # rows, and a weight: for few of them of 34 MB, more than lies in a cache


def linear(x, weight, bias=None):
    """F.linear of x [..., width] and weight [out, width], with its gradients; for fp32 on a CPU by the library that is quicker on this machine."""
    usual = x.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32 or torch.is_autocast_enabled("cpu") or x.ndim < 2 or not x.numel()
    if usual or why_plain() or not onednn_is_quicker("few" if x.numel() < FEW * x.shape[-1] else "many"):
        return F.linear(x, weight, bias)
    return _Product.apply(x, weight, bias) if torch.is_grad_enabled() else onednn(x, weight, bias)


def onednn(x, weight, bias=None):
    """F.linear through oneDNN, x and weight read where they lie, however they lie; no gradient."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None if bias is None else bias.contiguous(), "none", [], "")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return onednn(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        gradient = gradient.contiguous().flatten(0, -2)  # that of a sum is one number, read again and again
        return (onednn(gradient, weight.T).view(x.shape) if of_x else None,
                onednn(gradient.T, x.flatten(0, -2).T) if of_weight else None,
                gradient.sum(0) if of_bias else None)


@cache
@torch.no_grad()
def onednn_is_quicker(rows):
    """Whether oneDNN takes less time than PyTorch's own product for rows "few" or "many": timed once a process, in a tenth of a second."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    counts, shape = PROBES[rows]
    weight, inputs = torch.ones(shape, dtype=torch.float32), [torch.ones(n, shape[1], dtype=torch.float32) for n in counts]
    seconds = {onednn: [], F.linear: []}
    for _ in range(6):
        for product, times in seconds.items():
            start = perf_counter()
            for x in inputs:
                product(x, weight)
            times.append(perf_counter() - start)
    return median(seconds[onednn][1:]) < median(seconds[F.linear][1:])  # the first of each is a warm-up
