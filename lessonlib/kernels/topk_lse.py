"""What is kept of a row of logits: its k largest, the logsumexp of all, and the log of the probability that the rest share."""

import torch
import torch.nn.functional as F

from lessonlib.kernels.backend import why_torch
from lessonlib.kernels.rows import by_rows

NO_TAIL = -1e4  # the log tail mass of a row whose k largest hold everything: exp of it is exactly 0, and it is finite
MOST_K = 128  # the kernel sorts in registers, of which there are enough for this many


def topk_lse(logits, k, T=1.0):
    """The k largest of each row in falling order, and the normalisers of logits / T, computed in fp32 (float64 stays float64).

    logits: [R, V], k <= V. Returns (ids int64 [R, k], values [R, k], lse [R], log_tail [R]): lse = log sum exp of logits / T over V;
    log_tail = log of 1 - the k probabilities at T, NO_TAIL where nothing is left. It comes from the rest's own sum against the k's, so a
    tail of 1e-12 keeps its digits, and so does a tail of all but 1e-6 (`lse` minus the rest's sum could round to nothing or below).
    A NaN anywhere in a row makes its lse NaN. Tied values come in any order.
    """
    if k <= MOST_K and logits.dtype != torch.float64 and not why_torch(logits.device):
        from lessonlib.kernels.topk_lse_triton import top_and_rest
        ids, values, top, rest = top_and_rest(logits, k, T)
    else:
        ids, values, top, rest = by_rows(lambda rows: top_and_rest_defined(rows, k, T), logits)
    return ids, values, torch.logaddexp(top, rest), F.logsigmoid(rest - top).clamp_min(NO_TAIL)


def top_and_rest_defined(logits, k, T=1.0):
    """(ids, values, top [R], rest [R]): the k largest of each row, and the logsumexp of logits / T over them and over all the others."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    values, ids = logits.topk(k, dim=-1)
    rest = logits.scatter(-1, ids, -torch.inf)
    return ids, values, (values / T).logsumexp(-1), (rest if T == 1 else rest.div_(T)).logsumexp(-1)
