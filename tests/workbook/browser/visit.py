"""A visit to a notebook in JupyterLab: open it, run all cells, move every slider by keyboard, put it back.

What is not as a reader should find it becomes a sentence in `problems`; the times from key to picture are kept by slider.
"""

import re
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

import nbformat
from playwright.sync_api import Error

from lessonlib.workbook import build

BUDGET = 100  # ms from a key to the painted picture
START_SECONDS, RUN_SECONDS, ANSWER_SECONDS = 60, 600, 5
OPPOSITE = {"ArrowLeft": "ArrowRight", "ArrowRight": "ArrowLeft"}
SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def readers_notebooks():
    """The reader's notebooks that have an explorable, in order."""
    paths = sorted(build.NOTEBOOKS.glob("*.ipynb"))
    return [path for path in paths if re.search(r"workbook\.explorables|\(Explorable\)", path.read_text(encoding="utf-8"))]


def visit(lab, browser, names, presses, rounds=1):
    """Visit notebooks that `lab` serves, `presses` keys on each slider; returns their Visits.

    Their cells run at the same time, one thread each; then, while nothing else runs, the sliders of one after the other move.
    A slider over the budget is moved again, in `rounds` at most, and its fastest round counts: other work only adds to it.
    """
    visits = [Visit(lab, browser, name) for name in names]
    try:
        for step in (Visit.open, Visit.run_all, Visit.see_the_end, lambda visit: visit.move_all(presses, rounds)):
            for visit in visits:
                visit.go(step)
    finally:
        for visit in visits:
            visit.close()
    return visits


class Visit:
    """One notebook in one page. `problems`: a sentence each; `presses`: for each slider the milliseconds of its fastest round."""

    def __init__(self, lab, browser, name):
        self.lab, self.name = lab, name
        self.problems, self.presses, self.given_up = [], {}, False
        self.count = sum(cell.cell_type == "code" for cell in nbformat.read(lab.folder / name, as_version=4).cells)
        self.context = browser.new_context(viewport={"width": 1400, "height": 1000})
        self.context.add_init_script(SCRIPT)
        self.page = self.context.new_page()
        self.page.on("console", self.hear)
        self.page.on("pageerror", lambda error: self.problems.append(f"the page fails: {str(error)[:300]}"))
        self.page.on("request", self.check_host)

    def hear(self, message):
        """Make a problem of an error on the console."""
        if message.type == "error":
            self.problems.append(f"the console says: {message.text[:300]}")

    def check_host(self, request):
        """Make a problem of whatever the page asks of another machine."""
        if urlsplit(request.url).hostname not in ("127.0.0.1", None):
            self.problems.append(f"the page asks another machine: {request.url[:200]}")

    def go(self, step):
        """Take the next step of the visit, unless one before it could not be taken."""
        try:
            if not self.given_up:
                step(self)
        except Error as error:
            self.given_up = True
            self.problems.append(f"the visit ends early: {str(error)[:600]}")

    def close(self):
        """Leave the page and end its kernel."""
        self.page.close()
        self.lab.end_kernel(self.context.request, self.name)
        self.context.close()

    def wait(self, holds, seconds):
        """Whether `holds()` comes true within so many seconds."""
        start = perf_counter()
        while not (true := holds()) and perf_counter() - start < seconds:
            self.page.wait_for_timeout(100)
        return true

    def open(self):
        """Open the notebook and count the stills that each code cell shows before anything has run."""
        self.page.goto(self.lab.page_of(self.name))
        self.wait(lambda: self.lab.is_connected(self.context.request, self.name), START_SECONDS)
        self.page.wait_for_function("lesson.idle", arg=self.count, timeout=1000 * START_SECONDS)
        self.stills = self.page.evaluate("lesson.stills()")

    def run_all(self):
        """Run > Run All Cells."""
        self.page.evaluate("lesson.watch()")
        self.page.locator(".lm-MenuBar-item", has_text=re.compile("^Run$")).click()
        self.page.locator("[data-command='runmenu:run-all']").click()

    def see_the_end(self):
        """Wait until no cell is left waiting; look at numbers, failures and what had a still before."""
        page = self.page
        page.wait_for_function("lesson.begun", polling=100)
        page.wait_for_function("lesson.idle", arg=self.count, timeout=1000 * RUN_SECONDS, polling=250)
        prompts, panels = page.evaluate("lesson.prompts()"), page.evaluate("lesson.panels()")
        if prompts != [f"[{number}]:" for number in range(1, self.count + 1)]:
            self.problems.append(f"after Run All the cells are numbered {' '.join(prompts)}")
        self.problems += [f"a cell fails or warns: {text[:300]}" for text in page.evaluate("lesson.failures()")]
        if not any(panels):
            self.problems.append("after Run All there is no slider")
        for number, (still, panel) in enumerate(zip(self.stills, panels), 1):
            if still < panel:
                self.problems.append(f"unexecuted, code cell {number} has {still} stills with words for {panel} explorables")

    def move_all(self, presses, rounds):
        """Move every slider of the page by keys, and put it back."""
        self.page.bring_to_front()
        for slider in self.page.locator(".jp-Notebook .jp-OutputArea").get_by_role("slider").all():
            label, tried = slider.evaluate("lesson.label"), []
            while not tried or (len(tried) < rounds and tried[-1] and median(tried[-1]) > BUDGET):
                tried.append(self.move(slider, label, presses))
            self.presses[label] = min(tried, key=lambda times: median(times) if times else 0)

    def move(self, slider, label, presses):
        """Press arrow keys on one slider; then Reset, or where there is none the same way back; returns each key's ms."""
        times, keys, key = [], [], "ArrowRight"
        slider.scroll_into_view_if_needed()
        slider.evaluate("lesson.remember")
        slider.focus()
        for _ in range(presses):
            key = {"high": "ArrowLeft", "low": "ArrowRight", "between": key}[slider.evaluate("lesson.place")]
            slider.evaluate("lesson.listen", 1000 * ANSWER_SECONDS)
            self.page.keyboard.press(key)
            keys.append(key)
            time = self.page.evaluate("lesson.answer")
            if time is None:
                self.problems.append(f"{label}: {key} changes no picture within {ANSWER_SECONDS} s")
                break
            times.append(time)
        sentence = slider.evaluate("lesson.sentence")
        if not re.fullmatch(r"(?s).{19,}[.!?]", sentence):
            self.problems.append(f"{label}: beside the picture stands no sentence, but {sentence!r}")
        for key in ["Enter"] if slider.evaluate("lesson.focusReset") else [OPPOSITE[key] for key in reversed(keys)]:
            self.page.keyboard.press(key)
        if not self.wait(lambda: not slider.evaluate("lesson.changed"), ANSWER_SECONDS):
            left = " and the ".join(slider.evaluate("lesson.changed"))
            self.problems.append(f"{label}: Reset does not bring back the {left}")
        return times


def too_slow(presses):
    """A sentence for each slider whose median press, of `presses` by slider in ms, takes longer than the budget."""
    medians = {label: median(times) for label, times in presses.items() if times}
    return [f"{label}: the median is {time:.0f} ms, {BUDGET} at most" for label, time in medians.items() if time > BUDGET]
