"""SCOREBOARD.md: measured results, one row a run, written by the program and by nothing else."""

import platform
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

from lessonlib.errors import LessonError
from lessonlib.files import ROOT, atomic_path, shown

COLUMNS = ("date", "pair", "draft", "training", "alpha [95 %]", "top-1", "K", "c", "v(K)", "tokens/round", "predicted", "measured [95 %]",
           "tok/s plain", "tok/s", "machine", "versions", "seed")
HEADER = ("# Scoreboard\n\nOne row a run, written by `python -m lessonlib lesson`. alpha is offline, at T = 1 on held-out answers; the decoder runs greedily, "
          "in the same process as plain decoding beside it.\n\n")


def machine():
    """This machine in a few words: processor or GPU, cores."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    return f"{cpu}, {torch.get_num_threads()} threads"


def versions():
    """The versions that a result depends on."""
    return f"torch {torch.__version__}, transformers {version('transformers')}, Python {platform.python_version()}"


def provenance():
    """{"commit", "command", "machine", "versions"} behind a result; the commit is None outside a git checkout."""
    found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True)
    return {"commit": found.stdout.strip() or None, "command": "python -m lessonlib " + " ".join(sys.argv[1:]), "machine": machine(), "versions": versions()}


BOARD = ROOT / "SCOREBOARD.md"


def add_row(values, path=BOARD):
    """Append a row, a mapping from the COLUMNS (date, machine and versions are filled in), to the scoreboard, made if it is not there.

    Raises LessonError for a file that is not a scoreboard, which is then left as it is.
    """
    path = Path(path)
    row = {"date": date.today().isoformat(), "machine": machine(), "versions": versions(), **values}
    unknown = set(row) ^ set(COLUMNS)
    if unknown:
        raise LessonError(f"a scoreboard row needs exactly its columns; wrong or missing: {', '.join(sorted(unknown))}.")
    title = "| " + " | ".join(COLUMNS) + " |\n"
    text = path.read_text(encoding="utf-8") if path.exists() else HEADER + title + "|" + " --- |" * len(COLUMNS) + "\n"
    if title not in text:
        raise LessonError(f"{shown(path)} is not a scoreboard with today's columns; move it away and run again.")
    with atomic_path(path) as temporary:
        temporary.write_text(text.rstrip("\n") + "\n| " + " | ".join(str(row[column]).replace("|", "/") for column in COLUMNS) + " |\n", encoding="utf-8")
