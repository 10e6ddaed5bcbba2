"""The notebook lane: every committed notebook runs again, cell by cell, and prints what it printed (nbval, strict)."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor

import nbformat
from nbval.plugin import get_sanitize_patterns

from lessonlib.progress import Progress
from lessonlib.workbook import build, here, measured

SANITIZE = build.NOTEBOOKS / "sanitize.cfg"
NAME = "90_try_the_machine.ipynb"
IGNORED = re.compile("nbval-ignore-output|nbval-skip")


def run_lane(notebooks, folder):
    """(exit code, cells that ran and passed, what was printed) of nbval over `notebooks`; working files go to `folder`."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(SANITIZE), "-p", "no:cacheprovider", "-q",
               f"--junitxml={report}", *map(str, notebooks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LESSON_PRESET": "tiny"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    cases = ElementTree.parse(report).findall(".//testcase")
    return done.returncode, sum(len(case) == 0 for case in cases), done.stdout[-6000:]


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def patterns():
    """The (regular expression, replacement) pairs of the sanitize file, as nbval reads them."""
    return get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8"))


def sanitized(text):
    for pattern, replacement in patterns():
        text = re.sub(pattern, replacement, text)
    return text


def is_uncompared(cell):
    """Whether nbval does not compare every word of this cell's output."""
    if IGNORED.search(" ".join(cell.metadata.get("tags", [])) + cell.source.lower().replace("_", "-")):
        return True
    texts = [output.get("text", "") for output in cell.outputs]
    texts += [text for output in cell.outputs for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    return any(re.search(pattern, text) for text in texts for pattern, _ in patterns())


def committed():
    return [build.target(source, solved) for source in build.sources() for solved in (False, True)]


def test_a_built_notebook_passes_twice_running(example, tmp_path):
    for notebooks in ([example / NAME, example / "solutions" / NAME], [example / NAME]):
        code, ran, printed = run_lane(notebooks, tmp_path)
        assert (code, ran) == (0, sum(len(code_cells(path)) for path in notebooks)), printed


def test_cells_that_print_something_else_fail_and_no_others(example, tmp_path):
    text = (example / NAME).read_text(encoding="utf-8")
    for old, new in (
        ("Your prediction: 5 of 10", "Your prediction: 6 of 10"),
        ("inside the band", "not here"),
        ("a round writes 2.53 tokens", "a round writes 2.54 tokens"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / NAME).write_text(text, encoding="utf-8")
    code, ran, printed = run_lane([tmp_path / NAME], tmp_path)
    failed = sorted(int(number) for number in re.findall(r"^FAILED .*::Cell (\d+)", printed, re.M))
    assert (code, ran, failed) == (1, len(code_cells(tmp_path / NAME)) - 3, [1, 6, 9]), printed


def test_numbers_that_differ_between_machines_go_uncompared_and_no_others(capsys):
    for one, other in ((0.4531, 0.4529), (9.7, 10.12), (1e-9, 123456.0), (-0.01, 0.01), (0.3, float("inf"))):
        assert sanitized(f"alpha {measured(one)}, c") == sanitized(f"alpha {measured(other)}, c")
        assert sanitized(f"|{measured(one, '.1f', 'ms'):>14}|") == sanitized(f"|{measured(other, '.1f', 'ms'):>14}|")
    assert sanitized(measured(0.5, "+.3f")) == sanitized(measured(-0.07, "+.1f"))
    assert sanitized(measured(0.5, ".0%")) == sanitized(measured(0.07, ".1%"))
    assert sanitized(f"on {here('cpu, fp32')}.") == sanitized(f"on {here('NVIDIA H200, bf16')}.")
    for kept in ("alpha 0.453", "took 3.2 s", "in 3 s", "5 of 10 guesses", "~0.4", "<cpu>"):
        assert sanitized(kept) == kept
    assert sanitized(f"a {measured(1)}") != sanitized(f"b {measured(1)}")
    assert sanitized(measured(1, unit="s")) != sanitized(measured(1, unit="ms"))


def test_progress_lines_go_uncompared_but_for_what_was_done(capsys):
    for every, seconds in ((10.0, 2), (0.0, 4000)):
        progress = Progress("scoring", 300, "positions", every=every)
        progress.start -= seconds
        for _ in range(3):
            progress.add(100)
        progress.finish("done")
    quick, *slow = capsys.readouterr().out.splitlines(keepends=True)
    assert len(slow) == 3
    assert sanitized("".join(slow)) == sanitized(quick) == "  scoring: 300 positions in ≈  done\n"


def test_a_cell_that_is_not_fully_compared_is_counted(example):
    cells = code_cells(example / NAME)
    assert [is_uncompared(cell) for cell in cells] == [False] * 6 + [True] + [False] * 3
    cells[0].metadata["tags"], cells[1].source = ["nbval-ignore-output"], "# NBVAL_IGNORE_OUTPUT\nprint(1)"
    assert is_uncompared(cells[0]) and is_uncompared(cells[1])


def test_at_most_15_percent_of_the_committed_cells_go_uncompared():
    cells = [cell for path in committed() for cell in code_cells(path)]
    assert sum(map(is_uncompared, cells)) <= 0.15 * len(cells)


def test_every_committed_notebook_runs_and_prints_what_it_printed(tmp_path):
    def run(path):
        folder = tmp_path / path.parent.name / path.stem
        folder.mkdir(parents=True)
        return run_lane([path], folder)

    # One process each: a failure then names its notebook. Two at a time with one thread each finish sooner than one after the other with two.
    with ThreadPoolExecutor(2) as pool:
        for path, (code, ran, printed) in zip(committed(), pool.map(run, committed())):
            assert (code, ran) == (0, len(code_cells(path))), printed
    assert sorted(committed()) == sorted(path for path in build.NOTEBOOKS.rglob("*.ipynb") if "checkpoint" not in path.name)
