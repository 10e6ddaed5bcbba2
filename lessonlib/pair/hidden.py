"""A causal LM as its two halves: the body, which ends in hidden states, and the head, which turns some of them into logits.

Splitting them is what lets a scorer or a loss ask for logits at the rows it needs, a chunk at a time, and never hold them all.
"""

import torch

from lessonlib.errors import LessonError


def body_and_head(model):
    """(body, head): body(input_ids [B, S]) -> hidden [B, S, width] after the final norm; head(hidden [..., width]) -> logits [..., V].

    Raises LessonError where the head of the hidden states is not the model's logits (a model that scales or caps them afterwards):
    that is tried out once on three tokens, and remembered.
    """
    body = lambda input_ids: model.base_model(input_ids, use_cache=False).last_hidden_state  # noqa: E731
    head = model.get_output_embeddings()
    if not getattr(model, "_lesson_head_checked", False):
        _check_head(model, body, head)
        model._lesson_head_checked = True
    return body, head


@torch.no_grad()
def _check_head(model, body, head):
    training = model.training
    model.eval()
    probe = torch.arange(3, device=head.weight.device)[None]
    expected, found = model(probe, use_cache=False).logits, head(body(probe))
    model.train(training)
    if not torch.allclose(expected.float(), found.float(), rtol=1e-2, atol=1e-2, equal_nan=True):
        raise LessonError(f"{type(model).__name__} changes its logits after the head, which this course's scorer and losses do not support; "
                          "use a Llama- or Qwen-style model.")


def padded_responses(sequences, device):
    """(ids [B, S], rows [R]), int64, of B (prompt_ids, resp_ids): padded with 0 on the right; the rows of [B * S] that predict the R response tokens.

    In a causal model nothing sees what comes after it, so with the padding on the right neither an attention mask nor position ids are needed.
    Response token j of a prompt of s tokens stands at position s + j and is predicted at s + j - 1: the first from the last prompt token.
    """
    longest = max(len(prompt) + len(resp) for prompt, resp in sequences)
    ids, rows = torch.zeros(len(sequences), longest, dtype=torch.long), []
    for b, (prompt, resp) in enumerate(sequences):
        ids[b, :len(prompt) + len(resp)] = torch.tensor([*prompt, *resp])
        rows.append(torch.arange(len(resp)) + b * longest + len(prompt) - 1)
    return ids.to(device), torch.cat(rows).to(device)


def response_hidden(body, sequences, device):
    """The hidden states [R, width] that predict the R response tokens of (prompt_ids, resp_ids) sequences, sequence after sequence."""
    ids, rows = padded_responses(sequences, device)
    return body(ids).flatten(0, 1)[rows]
