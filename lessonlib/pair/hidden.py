"""A causal LM as its two halves: the body, which ends in hidden states, and the head, which turns some of them into logits.

Splitting them is what lets a scorer or a loss ask for logits at the rows it needs, a chunk at a time, and never hold them all.
"""

import torch

from lessonlib.errors import LessonError
from lessonlib.kernels.copies import to_device
from lessonlib.kernels.packed import flat_ids, packed_body
from lessonlib.kernels.products import linear
from lessonlib.pair.llama import hooked, read_texts, why_not


def body_and_head(model):
    """(body, head) of a causal LM: body(ids [B, S], packing=None) -> hidden [B, S, width] after the final norm; the head's module.

    A Packing says that ids are one packed row [1, N]. `logits_of(head, hidden)` are the model's logits: raises LessonError where they are
    not (a model that scales or caps them afterwards), which is tried out once on three tokens, and remembered.
    """
    head = model.get_output_embeddings()

    def body(ids, packing=None):
        # on a GPU a training has the model's own layers compiled, and lower precision is chosen operation by operation in them
        if not (ids.is_cuda and torch.is_grad_enabled()) and not torch.is_autocast_enabled(ids.device.type) and why_not(model) is None:
            return read_texts(model, ids, packing)
        return model.base_model(ids, use_cache=False).last_hidden_state if packing is None else packed_body(model, ids, packing)[None]

    if not getattr(model, "_lesson_head_checked", False):
        _check_head(model, head)
        model._lesson_head_checked = True
    return body, head


def logits_of(head, hidden):
    """The logits [..., V] that a head's module gives for hidden states [..., width]."""
    return linear(hidden, head.weight, head.bias) if type(head) is torch.nn.Linear and not hooked(head) else head(hidden)


@torch.no_grad()
def _check_head(model, head):
    training = model.training
    model.eval()
    probe = torch.arange(3, device=head.weight.device)[None]
    expected, found = model(probe, use_cache=False).logits, head(model.base_model(probe, use_cache=False).last_hidden_state)
    model.train(training)
    if not torch.allclose(expected.float(), found.float(), rtol=1e-2, atol=1e-2, equal_nan=True):
        raise LessonError(f"{type(model).__name__} changes its logits after the head, which this course's scorer and losses do not support; "
                          "use a Llama- or Qwen-style model.")


def padded_responses(sequences, device, multiple=1):
    """(ids [B, S], rows [R]), int64, of B (prompt_ids, resp_ids): padded with 0 on the right; the rows of [B * S] that predict the R response tokens.

    multiple: S is 1 more than a multiple of it, so that few different S occur, where kernels are prepared anew for each.

    In a causal model nothing sees what comes after it, so with the padding on the right neither an attention mask nor position ids are needed.
    Response token j of a prompt of s tokens stands at position s + j and is predicted at s + j - 1: the first from the last prompt token.
    """
    lengths = torch.tensor([[len(prompt), len(resp)] for prompt, resp in sequences])
    totals = lengths.sum(1)
    place, first = torch.arange(1 + -(-(int(totals.max()) - 1) // multiple) * multiple), lengths[:, :1] - 1  # the row that predicts the first response token
    ids = torch.zeros(len(totals), len(place), dtype=torch.long)
    ids[place < totals[:, None]] = flat_ids(sequences)
    rows = ((place >= first) & (place < first + lengths[:, 1:])).flatten().nonzero()[:, 0]
    return to_device(ids, device), to_device(rows, device)


def response_hidden(body, sequences, device):
    """The hidden states [R, width] that predict the R response tokens of (prompt_ids, resp_ids) sequences, sequence after sequence."""
    ids, rows = padded_responses(sequences, device)
    return body(ids).flatten(0, 1)[rows]
