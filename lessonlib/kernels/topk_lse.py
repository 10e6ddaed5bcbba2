"""What is kept of a row of logits: its k largest, the logsumexp of all, and the log of the probability that the rest share."""

import torch
import torch.nn.functional as F

from lessonlib.kernels.rows import by_rows

NO_TAIL = -1e4  # the log tail mass of a row whose k largest hold everything: exp of it is exactly 0, and it is finite


def topk_lse(logits, k):
    """The k largest of each row in falling order, and its normalisers, computed in fp32 (float64 stays float64).

    logits: [R, V], k <= V. Returns (ids int64 [R, k], values [R, k], lse [R], log_tail [R]): lse = log sum exp over V;
    log_tail = log of 1 - the k probabilities, NO_TAIL where nothing is left. It comes from the rest's own sum against the k's, so a tail
    of 1e-12 keeps its digits, and so does a tail of all but 1e-6 (`lse` minus the rest's sum could round to nothing or below).
    """
    return by_rows(lambda rows: _topk_lse(rows, k), logits)


def _topk_lse(logits, k):
    logits = logits if logits.dtype == torch.float64 else logits.float()
    values, ids = logits.topk(k, dim=-1)
    top = values.logsumexp(-1)
    rest = logits.scatter(-1, ids, -torch.inf).logsumexp(-1)
    return ids, values, torch.logaddexp(top, rest), F.logsigmoid(rest - top).clamp_min(NO_TAIL)
