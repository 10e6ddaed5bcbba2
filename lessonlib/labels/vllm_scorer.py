"""Labels from vLLM's prompt log-probabilities, in the form that the scorer gives them."""

import torch

from lessonlib.errors import LessonError
from lessonlib.kernels.topk_lse import NO_TAIL
from lessonlib.labels.scorer import Scored


def vllm_score(engine, sequences, k=64):
    """Yield a Scored for each (prompt_ids, resp_ids) of `sequences`, in order, as read by a VllmEngine.

    Log-probabilities are logits whose logsumexp is 0. They come in fp32 and the tail is 1 minus their sum, so a tail below some 1e-7 cannot
    be told from none: `score`, which sums the tail itself, can.
    """
    early, wanted = {}, 0
    for place, positions in engine.labels(sequences, k):
        early[place] = positions
        while wanted in early:
            ids, values = top_of(early.pop(wanted), k)
            tail = 1 - values.double().exp().sum(-1)
            yield Scored(ids, values, torch.zeros(len(ids)), tail.clamp_min(0).log().clamp_min(NO_TAIL).float(), {})
            wanted += 1


def top_of(positions, k):
    """(ids int64 [R, k], log-probabilities fp32 [R, k]), in falling order, of R positions as vLLM gives them.

    Each is a list of [id, log-probability]: the token that stands there first, then the k largest; k + 1 in all where that token is not
    among them. Raises LessonError where there are fewer than k.
    """
    if any(len(position) < k for position in positions):
        raise LessonError(f"vLLM gave fewer than {k} log-probabilities at a position; use the vLLM that `make vllm` installs.")
    kept = [sorted(position, key=lambda entry: entry[1], reverse=True)[:k] for position in positions]
    ids, values = ([[entry[part] for entry in position] for position in kept] for part in (0, 1))
    return torch.tensor(ids, dtype=torch.long), torch.tensor(values, dtype=torch.float32)
