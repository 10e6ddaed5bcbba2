"""The Triton kernels run compiled where there is a GPU and in Triton's interpreter elsewhere, so the same tests hold for both."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported, so tests/conftest.py sets it for a run of all tests


@pytest.fixture(scope="session")
def device():
    """Where the kernels can run here."""
    return DEVICE
