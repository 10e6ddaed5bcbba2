"""Layers compiled for a while, and themselves again afterwards."""

import pytest
import torch
from support import tiny

from lessonlib.kernels import compiled
from lessonlib.kernels.compiled import compiled_layers


def test_on_a_cpu_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: pytest.fail("compiled"))
    with compiled_layers(tiny()):
        pass


def test_every_layer_runs_compiled_and_is_itself_again_after_an_error(monkeypatch):
    model, calls, ids = tiny(), [], torch.tensor([[1, 2, 3]])
    before = model(ids).logits
    monkeypatch.setattr(compiled, "why_torch", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda function: lambda *args, **kwargs: calls.append(1) or function(*args, **kwargs))
    with pytest.raises(KeyboardInterrupt), compiled_layers(model):
        assert torch.equal(model(ids).logits, before)
        raise KeyboardInterrupt
    assert len(calls) == len(model.model.layers)
    assert torch.equal(model(ids).logits, before) and len(calls) == len(model.model.layers)
    assert all("forward" not in vars(layer) for layer in model.model.layers)
