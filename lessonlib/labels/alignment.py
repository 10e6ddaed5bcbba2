"""The self-check that no shifted label survives: the target is asked again, in another way, and must agree row by row."""

from dataclasses import dataclass

import torch

from lessonlib.errors import LessonError

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}  # nats; fp16 gaps cost about 1e-7. A bf16 target re-read in another batch moves more:
LOW_PRECISION_TOLERANCE = 0.05


@dataclass(frozen=True)
class Alignment:
    """Mean KL(target || stored) in nats at shift 0 and with the labels one row late (+1) or early (-1), over `rows` positions."""

    rows: int
    kl: float
    kl_late: float
    kl_early: float


@torch.inference_mode()
def check_alignment(target, store, sequences=4):
    """Re-read a few stored sequences one at a time, whole logits and no batching, and compare with their labels; returns Alignment.

    Raises LessonError when the labels are not the target's at every one of these positions, naming a shift by one where that is what
    fits: labels shifted by one still make a loss fall, and a draft that is useless. Built in notebook 04.
    """
    kls = {shift: [] for shift in (0, 1, -1)}
    device = next(target.parameters()).device
    for i in torch.linspace(0, len(store) - 1, min(sequences, len(store))).round().int().unique().tolist():
        prompt_ids, resp_ids = store.sequence(i)
        logits = target(torch.tensor([[*prompt_ids, *resp_ids]], device=device), use_cache=False).logits[0].cpu()
        truth = logits[len(prompt_ids) - 1:-1].double().log_softmax(-1)
        ids, gaps, lse = store.kl_inputs(i)
        rows = len(truth)
        for shift in kls:  # label row j beside the target's row j + shift, where there is one
            there, here = slice(max(shift, 0), rows + min(shift, 0)), slice(max(-shift, 0), rows - max(shift, 0))
            kls[shift].append(_kl_rows(truth[there], ids[here], gaps[here], lse[here]))
    rows = {shift: torch.cat(values) for shift, values in kls.items()}
    mean = {shift: values.mean().item() for shift, values in rows.items()}
    worst, tolerance = rows[0].max().item(), TOLERANCE.get(target.dtype, LOW_PRECISION_TOLERANCE)
    if not worst <= tolerance:
        for shift, found, way in ((1, "j + 1", "early"), (-1, "j - 1", "late")):
            if mean[shift] <= tolerance:
                raise LessonError(f"the labels are shifted by one row, {way}: row j holds the odds of response token {found} (shifted back, their KL from "
                                  f"the target is {mean[shift]:.2g} instead of {mean[0]:.2g} nats); row j must come from position prompt length - 1 + j.")
        raise LessonError(f"the labels are not this target's odds (KL up to {worst:.2g} nats at a position); score the answers again with this target.")
    return Alignment(len(rows[0]), mean[0], mean[1], mean[-1])


def _kl_rows(truth, ids, gaps, lse):
    """KL(truth || label) at each row over the k stored tokens and the rest: truth [R, V] are log-probabilities."""
    log_p = truth.gather(-1, ids)
    log_q = gaps.double() - lse.double()[:, None]
    p_tail, q_tail = ((1 - log.exp().sum(-1)).clamp_min(1e-12) for log in (log_p, log_q))
    return (log_p.exp() * (log_p - log_q)).sum(-1) + p_tail * (p_tail / q_tail).log()
