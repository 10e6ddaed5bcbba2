"""The rules every committed notebook is held to, and proof on bad notebooks that each rule bites."""

import base64
import copy

import nbformat
import pytest

from lessonlib.workbook import build, rules

SENTENCE = "A falling line: the more it learns, the less it errs."


def good_notebook():
    """A notebook that keeps every rule."""
    notebook = nbformat.v4.new_notebook(metadata=build.KERNEL)
    output = nbformat.v4.new_output
    picture = output(
        "display_data",
        data={"image/png": base64.b64encode(b"png").decode(), "text/plain": SENTENCE},
        metadata={"image/png": {"alt": SENTENCE}},
    )
    notebook.cells = [
        nbformat.v4.new_markdown_cell("# Title\n\n![a map of the house](map.png)", id="cell-01"),
        nbformat.v4.new_code_cell("print(1)", id="cell-02", execution_count=1, outputs=[output("stream", text="1\n")]),
        nbformat.v4.new_code_cell(
            "def f(x):\n    ...  # your turn", id="cell-03", execution_count=2, metadata={"tags": ["exercise"]}
        ),
        nbformat.v4.new_code_cell("show()", id="cell-04", execution_count=3, outputs=[picture]),
    ]
    return notebook


def change(notebook, cell=1, **values):
    for name, value in values.items():
        setattr(notebook.cells[cell], name, value)


def add_output(notebook, **values):
    kind = values.pop("kind")
    notebook.cells[1].outputs.append(nbformat.v4.new_output(kind, **values))


def relabel(notebook, data=None, alt=None):
    output = notebook.cells[3].outputs[0]
    output.data.update(data or {})
    if alt is not None:
        output.metadata = {"image/png": {"alt": alt}}


BAD = {
    "counts with a gap": (lambda n: change(n, 2, execution_count=5), "execution counts"),
    "never run": (lambda n: change(n, 1, execution_count=None), "execution counts"),
    "no title": (lambda n: change(n, 0, source="Title"), "begin with its title"),
    "long first cell": (lambda n: change(n, 1, source="a = 1\n" * 4), "code cell 1 has 4 lines, 3 at most"),
    "long cell": (lambda n: change(n, 2, source="a = 1\n" * 26), "code cell 2 has 26 lines, 25 at most"),
    "long cells": (lambda n: [change(n, i, source="a = 1\n" * 9) for i in (2, 3)], "longer than 9 lines, 8 at most"),
    "large": (lambda n: relabel(n, {"image/png": "A" * 310_000}), "under 300 KB"),
    "widget state": (lambda n: n.metadata.update(widgets={}), "metadata that no reader needs: widgets"),
    "timestamps": (lambda n: n.cells[1].metadata.update(execution={}), "metadata that no reader needs: execution"),
    "path in a cell": (lambda n: change(n, 1, source="open('/" + "home/ada/x.txt')"), "cell 2 names an absolute path"),
    "path in an output": (
        lambda n: add_output(n, kind="stream", text="saved to /" + "tmp/x\n"),
        "different on every machine",
    ),
    "Windows path": (lambda n: change(n, 1, source="open('C:\\data')"), "cell 2 names an absolute path"),
    "checkout's path": (lambda n: add_output(n, kind="stream", text=str(rules.ROOT)), "different on every machine"),
    "address": (lambda n: add_output(n, kind="stream", text="<Curve at 0x7f12ab34cd56>"), "different on every machine"),
    "mark": (lambda n: change(n, 2, source="# <solution>\nx = 1"), "mark of the source"),
    "empty alt in Markdown": (lambda n: change(n, 0, source="# T\n\n![](x.png)"), "picture without words"),
    "no alt in HTML": (lambda n: change(n, 0, source='# T\n\n<img src="x.png" alt="">'), "picture without words"),
    "stderr": (lambda n: add_output(n, kind="stream", name="stderr", text="a warning"), "writes to stderr: a warning"),
    "error": (lambda n: add_output(n, kind="error", ename="KeyError", evalue="x", traceback=[]), "ends in KeyError"),
    "widget view": (lambda n: relabel(n, {rules.VIEW: {"model_id": "1"}}), "keeps a widget view"),
    "picture without alt": (lambda n: relabel(n, alt=""), "without a caption as its alt text"),
    "alt is not the caption": (
        lambda n: relabel(n, alt="Something else is said here."),
        "without a caption as its alt text",
    ),
    "no outputs": (lambda n: [change(n, i, outputs=[]) for i in (1, 3)], "no outputs"),
}


def test_a_good_notebook_has_no_problems():
    assert rules.problems(good_notebook(), solved=False, solutions=["return 2 * x + 1"]) == []


@pytest.mark.parametrize("name", BAD)
def test_every_rule_bites(name):
    damage, said = BAD[name]
    notebook = good_notebook()
    damage(notebook)
    found = rules.problems(notebook, solved=False)
    assert len(found) == 1 and said in found[0], found


def test_a_solution_in_the_readers_notebook_is_found_however_it_is_indented():
    notebook = good_notebook()
    change(notebook, 2, source="def f(x):\n        y = 2 * x\n\n        return y + 1\n")
    assert rules.problems(notebook, False, solutions=["y = 2 * x\n    return y + 1"]) == [
        "cell 3 shows the solution in the reader's notebook"
    ]
    assert rules.problems(notebook, True, solutions=["y = 2 * x\n    return y + 1"]) == []


@pytest.mark.parametrize("left", ["def f(x):\n    ...  # your turn", "x = 1  # TODO say more"])
def test_nothing_is_left_to_do_in_a_solved_notebook(left):
    notebook = good_notebook()
    change(notebook, 2, source=left)
    assert rules.problems(notebook, solved=True) == ["cell 3 leaves something to do in the solved notebook"]


def test_what_is_no_path_is_not_taken_for_one():
    notebook = good_notebook()
    change(notebook, 0, source="# T\n\nsee https://example.org/home/x, ../work/y, ~/tmp/z and p/home/q")
    assert rules.problems(notebook, solved=False) == []


def test_the_rules_leave_the_notebook_alone():
    notebook = good_notebook()
    before = copy.deepcopy(notebook)
    rules.problems(notebook, solved=False)
    assert notebook == before


def test_every_committed_notebook_keeps_the_rules():
    found = {}
    for source in build.sources():
        for solved in (False, True):
            path = build.target(source, solved)
            broken = rules.problems(nbformat.read(path, as_version=4), solved, build.solutions(source))
            if broken:
                found[path.name if not solved else f"solutions/{path.name}"] = broken
    assert found == {}
