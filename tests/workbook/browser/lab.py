"""JupyterLab on loopback over copies of notebooks, and the Chromium that opens them."""

import json
import os
import secrets
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep

from playwright.sync_api import sync_playwright

from lessonlib.errors import LessonError
from lessonlib.workbook import build

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = (
    "No Chromium was found, in which the notebooks are opened: install it (Debian: `apt-get install chromium`; elsewhere: "
    "`.venv/bin/python -m playwright install --with-deps chromium`) and run the same command again."
)
START_SECONDS = 120


class Lab:
    """A running JupyterLab: where it answers, its token, and the folder it serves."""

    def __init__(self, address, token, folder):
        self.address, self.token, self.folder = address, token, folder

    def page_of(self, name):
        """The address of a notebook, in a workspace of its own: another page's notebooks do not open beside it."""
        return f"{self.address}lab/workspaces/{Path(name).stem}/tree/{name}?token={self.token}"

    def sessions(self, requests, name):
        """What the server says of the kernel of a notebook, asked through a browser's `requests`: a list, of one at most."""
        told = requests.get(f"{self.address}api/sessions", headers={"Authorization": f"token {self.token}"}).json()
        return [session for session in told if session["path"] == name]

    def is_connected(self, requests, name):
        """Whether the kernel of a notebook has started and the page listens to it; what is run before that is lost."""
        kernels = [session["kernel"] for session in self.sessions(requests, name)]
        return any(kernel["execution_state"] == "idle" and kernel["connections"] for kernel in kernels)

    def end_kernel(self, requests, name):
        """Shut down the kernel of a notebook: the models of all notebooks at once do not fit in memory."""
        for session in self.sessions(requests, name):
            requests.delete(f"{self.address}api/sessions/{session['id']}", headers={"Authorization": f"token {self.token}"})


@contextmanager
def jupyterlab(notebooks, folder):
    """Serve copies of `notebooks` (paths) from `folder`; kernels run this Python, on the tiny preset, with one thread."""
    served, own = folder / "notebooks", {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    served.mkdir(parents=True)
    for path in notebooks:
        shutil.copy(path, served)
    token = secrets.token_hex(16)
    environment = {**os.environ, **own, "JUPYTER_TOKEN": token, "LESSON_PRESET": "tiny", "OMP_NUM_THREADS": "1"}
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": 0,
        "ServerApp.root_dir": served,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "ServerApp.kernel_spec_manager_class": f"{build.__name__}.{build.ThisPython.__name__}",
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    command = [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())]
    with open(folder / "lab.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield Lab(address_of(server, folder), token, served)
    finally:
        server.terminate()  # it shuts its kernels down first
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def address_of(server, folder):
    """The address of the server, once it says so; LessonError with its last words where it does not."""
    start, info = perf_counter(), folder / "RUNTIME" / f"jpserver-{server.pid}.json"
    while server.poll() is None and perf_counter() - start < START_SECONDS:
        if info.is_file() and (text := info.read_text(encoding="utf-8")).endswith("}"):
            return json.loads(text)["url"]
        sleep(0.1)
    raise LessonError(f"JupyterLab did not start:\n{(folder / 'lab.log').read_text(encoding='utf-8')[-2000:]}")


def find_browser(playwright):
    """The path of a Chromium: the machine's, or one that Playwright installed; LessonError where there is neither."""
    for path in (*map(shutil.which, BROWSERS), playwright.chromium.executable_path):
        if path and Path(path).is_file():
            return path
    raise LessonError(NO_BROWSER)


@contextmanager
def chromium():
    """A headless Chromium; one for each thread that asks."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(playwright))
        try:
            yield browser
        finally:
            browser.close()
