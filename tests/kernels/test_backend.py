"""Which code computes the kernels, and why."""

import sys

import pytest
import torch
from support import tiny

from lessonlib.errors import LessonError
from lessonlib.kernels import backend, packed


@pytest.fixture(autouse=True)
def ask_again():
    backend._why_not_on.cache_clear()
    yield
    backend._why_not_on.cache_clear()


def machine(monkeypatch, capability=(9, 0), triton="3.6.0", cuda="13.0"):
    """A machine with this GPU and this Triton."""
    monkeypatch.setitem(sys.modules, "triton", None if triton is None else type(sys)("triton"))
    if triton:
        sys.modules["triton"].__version__ = triton
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA GB10")
    monkeypatch.setattr(torch.version, "cuda", cuda)


def test_a_cpu_runs_the_definitions():
    assert backend.reason("cpu") == "plain PyTorch (there is no Triton for cpu tensors)"


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 1)])
def test_a_gpu_with_bf16_matrix_units_runs_the_kernels(monkeypatch, capability):
    machine(monkeypatch, capability)
    assert backend.why_torch("cuda") is None and backend.reason("cuda:0") == "Triton kernels (NVIDIA GB10)"


@pytest.mark.parametrize("lacks, said", [
    (dict(capability=(7, 5)), "compute capability 7.5, and the kernels need 8.0"), (dict(triton=None), "triton is not installed"),
    (dict(triton="3.2.0"), "triton 3.2.0 is older than 3.4"), (dict(cuda=None), "not one of CUDA's")])
def test_what_is_missing_is_said(monkeypatch, lacks, said):
    machine(monkeypatch, **lacks)
    assert said in backend.reason(torch.device("cuda"))


def test_the_definitions_can_be_asked_for(monkeypatch):
    machine(monkeypatch)
    monkeypatch.setenv("LESSON_KERNELS", "plain")
    assert backend.reason("cuda") == "plain PyTorch (LESSON_KERNELS=plain asks for it)"
    assert packed.why_padded(tiny()) == backend.why_plain()
    monkeypatch.setenv("LESSON_KERNELS", "fast")
    with pytest.raises(LessonError, match='"fast": set it to plain'):
        backend.why_torch("cuda")
