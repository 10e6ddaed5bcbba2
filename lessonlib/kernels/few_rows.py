"""A few rows times a large matrix on a CPU, which is what decoding does: as fast as the weights can be read, whatever the rows.

PyTorch hands fp32 products to MKL. On some processors MKL takes twice the time of reading the weights for one row, and twice as much again for two
or three, so that checking guesses costs as much as writing the tokens one by one. oneDNN, which PyTorch ships for other number formats, does not.
"""

from functools import cache
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F

PROBE = (8192, 1024)  # a weight of 34 MB: more than lies in a cache


def linear(x, weight, bias=None):
    """F.linear of x [n, width] and weight [out, width], without gradients; for fp32 on a CPU by the library that is quicker on this machine."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and weight.is_contiguous() and onednn_is_quicker():
        return onednn(x, weight, bias)
    return F.linear(x, weight, bias)


def onednn(x, weight, bias=None):
    """F.linear through oneDNN, the weight read where it lies."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@cache
@torch.inference_mode()
def onednn_is_quicker():
    """Whether oneDNN takes less time than PyTorch's own product for one row and for three together: timed once a process, in a tenth of a second."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    weight, rows = torch.randn(PROBE), [torch.randn(n, PROBE[1]) for n in (1, 3)]
    seconds = {onednn: [], F.linear: []}
    for _ in range(6):
        for product, times in seconds.items():
            start = perf_counter()
            for x in rows:
                product(x, weight)
            times.append(perf_counter() - start)
    return median(seconds[onednn][1:]) < median(seconds[F.linear][1:])  # the first of each is a warm-up
