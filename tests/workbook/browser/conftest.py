"""One JupyterLab and one Chromium for all the tests here, and each notebook visited once."""

import nbformat
import pytest

from lessonlib.workbook import build
from workbook.browser.lab import chromium, jupyterlab
from workbook.browser.visit import readers_notebooks, visit

PRESSES, ROUNDS = 7, 3
BAD = ["""
import sys
from time import sleep
from lessonlib.workbook import Explorable, Slider, style

class Bad(Explorable):
    sliders = (Slider("slow", "slow", 3, 0, 9), Slider("idle", "idle", 3, 0, 9))

    def setup(self, ax):
        self.line, = ax.plot([0, 9], [0, 9])

    def draw(self, slow, idle):
        sleep(0.15)
        self.line.set_ydata([slow, 9])
        return f"The line starts at {slow}, whatever else is moved."

    def reset(self, button=None):
        self.controls["slow"].value = 3

Bad()
""", """
from IPython.display import Javascript
print("a warning", file=sys.stderr)
Javascript("console.error('something is wrong'); fetch('http://other.localhost:9/').catch(() => {})")
""", "1 / 0", "print('never reached')"]


@pytest.fixture(scope="session")
def visited(tmp_path_factory, bad_notebook):
    """The function that gives the Visit of a notebook by name; it visits two at a time, each with one thread."""
    paths, visits = readers_notebooks(), {}
    names = [path.name for path in paths]
    groups = [*(names[i:i + 2] for i in range(0, len(names), 2)), [bad_notebook.name]]
    with jupyterlab([*paths, bad_notebook], tmp_path_factory.mktemp("lab")) as lab, chromium() as browser:

        def of(name):
            if name not in visits:
                group = next(group for group in groups if name in group)
                visits.update({found.name: found for found in visit(lab, browser, group, PRESSES, ROUNDS)})
            return visits[name]

        yield of


@pytest.fixture(scope="session")
def bad_notebook(tmp_path_factory):
    """A notebook in which nearly everything is wrong that a visit can see."""
    path = tmp_path_factory.mktemp("bad") / "99_nearly_everything_is_wrong.ipynb"
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in BAD]
    nbformat.write(nbformat.v4.new_notebook(metadata=build.KERNEL, cells=cells), path)
    return path
