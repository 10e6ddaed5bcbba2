"""The graph step gives the model's own logits, piece by piece and after taking back, for every shape: on a GPU as a graph, elsewhere its kernels interpreted."""

from types import SimpleNamespace

import pytest
import torch
from pair.llama_shapes import SHAPES, TEXT, random_model, whole

from lessonlib.pair import graph_step
from lessonlib.pair.graph_step import GraphStep, why_no_graph
from lessonlib.pair.step import LlamaStep, path, step_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning:triton")
GPU = torch.cuda.is_available()


class Interpreted(GraphStep):
    """A GraphStep whose graphs are their launches."""

    def _graph(self, made):
        return SimpleNamespace(replay=lambda: self._launch(made))


def made(shape, dtype=torch.float32):
    """(model, its GraphStep)"""
    model = random_model(shape, dtype)
    return (model.cuda(), GraphStep(model.cuda())) if GPU else (model, Interpreted(model))


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_give_the_logits_of_the_whole(shape):
    model, step = made(shape)
    expected, place = whole(model, TEXT), 0
    for piece in (1, 3, 17, 1, 7, 1, 5):
        torch.testing.assert_close(step.run(TEXT[place:place + piece]), expected[place:place + piece], rtol=1e-4, atol=5e-5)
        place += piece
    step.rollback(20)
    text = TEXT[:20] + [1, 2, 3, 4]
    torch.testing.assert_close(step.run(text[20:23], last=1), whole(model, text)[22:23], rtol=1e-4, atol=5e-5)
    torch.testing.assert_close(step.run(torch.tensor(text[23:])), whole(model, text)[23:], rtol=1e-4, atol=5e-5)
    assert step.length == 24


def test_a_text_longer_than_the_cache_is_read_on(monkeypatch):
    model, step = made("llama, scaled positions")
    step.room = 32
    expected = whole(model, TEXT * 2)
    step.read((TEXT * 2)[:30])
    for place in range(30, 70, 5):
        torch.testing.assert_close(step.run((TEXT * 2)[place:place + 5]), expected[place:place + 5], rtol=1e-4, atol=5e-5)


def test_what_it_gave_stays_as_it_was():
    model, step = made("llama")
    first = step.run(TEXT[:3])
    kept = first.clone()
    step.run(TEXT[3:6])
    assert torch.equal(first, kept)


def test_an_interruption_inside_a_step_does_not_reach_the_next_text(monkeypatch):
    model, step = made("llama")
    step.run(TEXT[:1])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(step.passes[16].graph, "replay", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        step.run(TEXT[1:6])
    step.reset()
    expected = whole(model, TEXT[10:20])
    for place in range(0, 10, 2):
        torch.testing.assert_close(step.run(TEXT[10 + place:12 + place]), expected[place:place + 2], rtol=1e-4, atol=5e-5)


def test_no_tokens_are_no_rows():
    model, step = made("llama")
    assert step.run([]).shape == (0, 64) and step.length == 0
    assert step.run(TEXT[:2], last=5).shape == (2, 64)


def test_weights_that_were_replaced_are_read():
    model, step = made("llama")
    step.run(TEXT[:3])
    model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight, requires_grad=False)
    step.reset()
    torch.testing.assert_close(step.run(TEXT[:3]), whole(model, TEXT[:3]), rtol=1e-4, atol=5e-5)


def test_in_half_precision_it_strays_no_further_from_fp32_than_transformers_does():
    half = torch.bfloat16 if GPU else torch.float16  # the interpreter multiplies bf16's bits
    exact = whole(random_model("llama"), TEXT[:12])
    model, step = made("llama", half)
    ours = torch.cat([step.run(TEXT[:5]), step.run(TEXT[5:12])])
    theirs = whole(model, TEXT[:12])
    assert ours.dtype == half
    assert (ours.cpu() - exact).abs().mean() < 1.3 * (theirs.cpu() - exact).abs().mean()


def test_models_that_it_cannot_run_are_named(monkeypatch):
    if not GPU:
        assert why_no_graph(random_model("llama")) == "there is no Triton for cpu tensors"
    monkeypatch.setattr(graph_step, "why_torch", lambda device: None)
    assert why_no_graph(random_model("llama", torch.float32)) is None
    for dtype in (torch.float64, torch.float16):
        assert why_no_graph(random_model("llama", dtype)) == f"its weights are {str(dtype)[6:]}"
    lying = random_model("llama", torch.float32)
    lying.lm_head.weight.data = lying.lm_head.weight.data.T.contiguous().T
    assert "in one piece" in why_no_graph(lying)
    step = step_of(lying)
    assert type(step) is LlamaStep and path(step) == f"lean PyTorch ({why_no_graph(lying)})"
