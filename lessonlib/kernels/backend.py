"""Which code computes a kernel: Triton's where there is a GPU that it compiles for, the PyTorch function that defines it elsewhere.

LESSON_KERNELS=plain asks for the definitions everywhere, to compare with or to find out where an error is.
"""

import os
from functools import cache

import torch

from lessonlib.errors import LessonError

OLDEST = (8, 0)  # compute capability: the first with bf16 in its matrix units
OLDEST_TRITON = (3, 4)  # the first with `topk` and `gather` inside a kernel


def why_torch(device):
    """None where the Triton kernels run for tensors on `device`; else a sentence that says why their defining PyTorch functions do."""
    device = torch.device(device)
    if plain := why_plain():
        return plain
    if device.type != "cuda":
        return f"there is no Triton for {device.type} tensors"
    return _why_not_on(device.index or 0)


def why_plain():
    """The sentence for LESSON_KERNELS=plain; None where it is not set. LessonError for another value."""
    asked = os.environ.get("LESSON_KERNELS", "")
    if asked not in ("", "plain"):
        raise LessonError(f'LESSON_KERNELS cannot be "{asked}": set it to plain, for the functions that define the kernels, or leave it unset.')
    return "LESSON_KERNELS=plain asks for it" if asked else None


def reason(device):
    """One line for a log: `Triton kernels (NVIDIA H200)`, or `plain PyTorch (why)`."""
    why = why_torch(device)
    return f"plain PyTorch ({why})" if why else f"Triton kernels ({torch.cuda.get_device_name(device)})"


@cache
def _why_not_on(index):
    try:
        import triton
    except ImportError:
        return "the package triton is not installed"
    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, OLDEST_TRITON))}"
    capability = torch.cuda.get_device_capability(index)
    if torch.version.cuda is None:
        return "this GPU is not one of CUDA's"
    if capability < OLDEST:
        return f"the GPU has compute capability {'.'.join(map(str, capability))}, and the kernels need {'.'.join(map(str, OLDEST))}"
    return None
