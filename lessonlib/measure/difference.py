"""Where two greedy texts of one prompt part, and how near the target was to a tie there: all that reduced precision may change."""

from dataclasses import dataclass

import torch

from lessonlib.pair.hidden import body_and_head, logits_of


@dataclass(frozen=True)
class Difference:
    """The first place at which two texts differ, their tokens there, and the target's logit of the first less that of the second.

    rounding: how far apart two logits may be that the number format leaves undecided.
    """

    place: int
    tokens: tuple
    gap: float
    rounding: float


@torch.inference_mode()
def first_difference(target, prompt_ids, text, other):
    """The Difference of two lists of new tokens after prompt_ids, `text` the target's own; None where they are the same as far as the shorter one goes.

    A verifying pass has more rows than a plain step, so that in bf16 its logits may round otherwise: where the best two are closer than that, either
    may be written. A large gap would be a fault of the decoder.
    """
    place = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), None)
    if place is None:
        return None
    body, head = body_and_head(target)
    hidden = body(torch.tensor([[*prompt_ids, *text[:place]]], device=head.weight.device))[0, -1:]
    logits = logits_of(head, hidden)[0].float()
    rounding = 8 * torch.finfo(hidden.dtype).eps * logits.abs().max().item()  # some units in the last place, of one pass and of the other
    return Difference(place, (text[place], other[place]), (logits[text[place]] - logits[other[place]]).item(), rounding)
