"""How fast a slider answers: `make bench`, for every slider of the notebooks the time from a key to the painted picture."""

import sys
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from lessonlib.errors import LessonError
from workbook.browser.lab import chromium, jupyterlab
from workbook.browser.visit import BUDGET, readers_notebooks, visit

PRESSES = 40


def row(label, times):
    """(line of the table, whether the budget is kept) of one slider's presses in ms."""
    p95 = sorted(times)[ceil(0.95 * len(times)) - 1]
    verdict = "kept" if p95 <= BUDGET else "missed"
    return f"  {label:<52} {len(times):>7} {median(times):>6.0f} {p95:>6.0f} {max(times):>6.0f}   {verdict}", p95 <= BUDGET


def main():
    """Measure and print; returns the exit code: 1 where a slider misses the budget or does not work, 2 without a browser."""
    paths, good = readers_notebooks(), True
    print(f"From key to painted picture in ms, {PRESSES} presses a slider; the budget is {BUDGET} ms for 95 of 100 presses.")
    print(f"  {'slider':<52} {'presses':>7} {'median':>6} {'p95':>6} {'max':>6}   budget", flush=True)
    try:
        with TemporaryDirectory() as folder, jupyterlab(paths, Path(folder)) as lab, chromium() as browser:
            for path in paths:
                (found,) = visit(lab, browser, [path.name], PRESSES)
                rows = [row(label, times) for label, times in found.presses.items() if times]
                print(path.stem, *(line for line, _ in rows), *(f"  ! {said}" for said in found.problems), sep="\n", flush=True)
                good = good and not found.problems and all(kept for _, kept in rows)
    except LessonError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
