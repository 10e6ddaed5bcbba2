"""The body and the head of a model, and the hidden states that predict responses, against each sequence read alone."""

import pytest
import torch
from support import naive_logits, sequences, tiny

from lessonlib.errors import LessonError
from lessonlib.pair.hidden import body_and_head, padded_responses, response_hidden


def test_the_rows_are_those_before_each_response_token():
    for multiple, length in ((1, 5), (2, 5), (3, 7), (8, 9)):
        more, same = padded_responses([([5, 6], [7, 8, 9]), ([1], [2]), ([3], [])], "cpu", multiple)
        assert more.shape == (3, length) and same.tolist() == [1, 2, 3, length]
    ids, rows = padded_responses([([5, 6], [7, 8, 9]), ([1], [2]), ([3], [])], "cpu")
    assert ids.tolist() == [[5, 6, 7, 8, 9], [1, 2, 0, 0, 0], [3, 0, 0, 0, 0]]
    assert rows.tolist() == [1, 2, 3, 5]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_the_head_of_the_response_states_is_the_models_logits(kind):
    model, seqs = tiny(kind), sequences(9)
    body, head = body_and_head(model)
    with torch.no_grad():
        found = head(response_hidden(body, seqs, "cpu"))
    torch.testing.assert_close(found, torch.cat([naive_logits(model, *seq) for seq in seqs]), rtol=0, atol=1e-4)


def test_a_model_that_changes_its_logits_after_the_head_is_refused():
    model = tiny()
    real = model.forward

    def scaled(*args, **kwargs):
        found = real(*args, **kwargs)
        found.logits = found.logits * 0.5
        return found

    model.forward = scaled
    with pytest.raises(LessonError, match="after the head"):
        body_and_head(model)
