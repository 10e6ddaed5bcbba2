"""Every notebook with sliders, as a reader meets it: opened in JupyterLab, run, each slider moved with the arrow keys."""

import re
from types import SimpleNamespace

import pytest

from lessonlib.errors import LessonError
from workbook.browser import bench, lab
from workbook.browser.visit import readers_notebooks, too_slow

NAMES = [path.name for path in readers_notebooks()]
FOUND = [
    "the console says: something is wrong",
    "the page asks another machine: http://other.localhost:9/",
    "the console says: Failed to load resource: net::ERR_UNSAFE_PORT",
    r"after Run All the cells are numbered \[1\]: \[2\]: \[3\]: \[ \]:",
    "a cell fails or warns: a warning",
    "(?s)a cell fails or warns: .*ZeroDivisionError",
    "unexecuted, code cell 1 has 0 stills with words for 1 explorables",
    "code cell 1, idle: ArrowRight changes no picture within 5 s",
    "code cell 1, idle: Reset does not bring back the sliders",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_finds_stills_then_runs_all_moves_each_slider_and_resets_it(name, visited):
    problems = visited(name).problems
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", NAMES)
def test_a_slider_shows_its_picture_at_once(name, visited):
    slow = too_slow(visited(name).presses)
    assert not slow, "\n".join(slow)


def test_what_is_wrong_is_found_and_nothing_else(bad_notebook, visited):
    problems = visited(bad_notebook.name).problems
    assert [words for words in FOUND if not any(re.match(words, problem) for problem in problems)] == []
    others = [problem for problem in problems if not any(re.match(words, problem) for words in FOUND)]
    assert not others, "\n".join(others)


def test_a_slow_slider_is_found(bad_notebook, visited):
    (said,) = too_slow(visited(bad_notebook.name).presses)
    assert re.fullmatch(r"code cell 1, slow: the median is \d+ ms, 100 at most", said)


def test_without_a_browser_it_is_said_how_to_install_one(monkeypatch, tmp_path):
    playwright = SimpleNamespace(chromium=SimpleNamespace(executable_path=str(tmp_path / "chrome")))
    monkeypatch.setattr(lab.shutil, "which", lambda name: None)
    with pytest.raises(LessonError, match="No Chromium was found.*install it.*run the same command again"):
        lab.find_browser(playwright)
    (tmp_path / "chrome").touch()
    assert lab.find_browser(playwright) == str(tmp_path / "chrome")
