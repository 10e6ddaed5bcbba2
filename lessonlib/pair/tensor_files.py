"""Safetensors files whose every failure is one sentence, a full disk included."""

import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from lessonlib.errors import LessonError
from lessonlib.files import shown


def write_tensors(path, tensors):
    """Write a dict of tensors (no two sharing memory) as safetensors; what the system refuses is an OSError, as elsewhere.

    The file is written in place: use it inside `atomic_path`.
    """
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    except SafetensorError as error:
        # safetensors hides the error number of the system in its text; `explained_write` needs it to know a full disk.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error
    Path(path).chmod(0o644)  # safetensors makes files that nobody else may read


def read_tensors(path):
    """Read a safetensors file as a dict of CPU tensors; a missing or torn one is a LessonError."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise LessonError(f"{shown(path)} is missing; check the path, or run the command that makes it.") from None
    except (SafetensorError, OSError) as error:
        raise LessonError(f"{shown(path)} is torn or no safetensors file ({error}); make it again.") from None
