"""Safetensors files whose every failure is one sentence, a full disk included."""

import gzip
import re
import zlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file

from lessonlib.errors import LessonError
from lessonlib.files import shown


def write_tensors(path, tensors):
    """Write a dict of tensors (no two sharing memory) as safetensors (gzip by name); what the system refuses is an OSError, as elsewhere.

    The file is written in place: use it inside `atomic_path`.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if str(path).endswith(".gz"):
        Path(path).write_bytes(gzip.compress(save(tensors, {"format": "pt"}), mtime=0))
        return
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        # safetensors hides the error number of the system in its text; `explained_write` needs it to know a full disk.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error
    Path(path).chmod(0o644)  # safetensors makes files that nobody else may read


def read_tensors(path):
    """Read a safetensors file (gzip by name) as a dict of CPU tensors; a missing or torn one is a LessonError."""
    try:
        return load(gzip.decompress(Path(path).read_bytes())) if str(path).endswith(".gz") else load_file(path)
    except FileNotFoundError:
        raise LessonError(f"{shown(path)} is missing; check the path, or run the command that makes it.") from None
    except (SafetensorError, OSError, EOFError, zlib.error) as error:
        raise LessonError(f"{shown(path)} is torn or no safetensors file ({error}); make it again.") from None
