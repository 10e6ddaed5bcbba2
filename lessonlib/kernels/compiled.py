"""A body's layers compiled for the length of a training: their many small operations become few, each tensor read and written once."""

from contextlib import contextmanager

import torch

from lessonlib.kernels.backend import why_torch


@contextmanager
def compiled_layers(model):
    """Within it, on a GPU with Triton, each layer of `model` runs as one torch.compile region; afterwards they are as they were.

    All layers share one compilation (half a minute, once), since they are of one class; whatever the length of a row, as of the second.
    """
    layers = [] if why_torch(next(model.parameters()).device) else list(getattr(model.base_model, "layers", ()))
    for layer in layers:
        layer.forward = torch.compile(layer.forward)  # on the instance, over its class's
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
