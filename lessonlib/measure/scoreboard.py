"""SCOREBOARD.md: measured results, one row a run, written by the program and by nothing else."""

import platform
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

from lessonlib.errors import LessonError
from lessonlib.files import ROOT, atomic_path, file_in_the_way, shown

COLUMNS = ("date", "pair", "draft", "training", "alpha [95 %]", "top-1", "K", "c", "v(K)", "tokens/round", "predicted", "measured [95 %]",
           "tok/s plain", "tok/s", "machine", "versions", "seed")
HEADER = ("# Scoreboard\n\nOne row a run, written by `python -m lessonlib lesson`. alpha is offline, at T = 1 on held-out answers; "
          "the decoder runs greedily, in the same process as plain decoding beside it.\n\n")


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
    """{"commit", "command", "machine", "versions"} behind a result; the commit is None outside a git checkout.

    Of a path that only this machine has, the command keeps the last part.
    """
    found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True)
    return {"commit": found.stdout.strip() or None, "command": "python -m lessonlib " + " ".join(Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]),
            "machine": machine(), "versions": versions()}


BOARD = ROOT / "SCOREBOARD.md"


TITLE = "| " + " | ".join(COLUMNS) + " |"


def check_board(path=BOARD):
    """Raise, before a long run, the LessonError that `add_row` would end it with; writes nothing."""
    _board_lines(Path(path))


def add_row(values, path=BOARD):
    """Add a row, a mapping from the COLUMNS (date, machine and versions are filled in), to the scoreboard's table, made if it is not there.

    Raises LessonError for a file that is not a scoreboard, which is then left as it is.
    """
    path = Path(path)
    row = {"date": date.today().isoformat(), "machine": machine(), "versions": versions(), **values}
    unknown = set(row) ^ set(COLUMNS)
    if unknown:
        raise LessonError(f"a scoreboard row needs exactly its columns; wrong or missing: {', '.join(sorted(unknown))}.")
    lines = _board_lines(path)
    end = lines.index(TITLE)
    while end < len(lines) and lines[end].startswith("|"):  # whatever was written below the table stays below it
        end += 1
    cells = (" ".join(str(row[column]).replace("|", "/").splitlines()) for column in COLUMNS)
    lines.insert(end, "| " + " | ".join(cells) + " |")
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


def _board_lines(path):
    """The lines of the scoreboard `path`, or of a new one where there is none yet; LessonError where there can be none."""
    if path.is_dir():
        raise LessonError(f"{shown(path)} is a folder; give the path of a file for the scoreboard.")
    if place := file_in_the_way(path.parent):
        raise LessonError(f"{shown(place)} is a file, so no scoreboard can be written to {shown(path)}; give another path.")
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise LessonError(f"{shown(path)} cannot be read as a scoreboard ({error}); move it away and run again.") from None
    if not text.strip():
        text = HEADER + TITLE + "\n|" + " --- |" * len(COLUMNS) + "\n"
    lines = text.split("\n")
    if TITLE not in lines:
        raise LessonError(f"{shown(path)} is not a scoreboard with today's columns; move it away and run again.")
    return lines
