"""The pins stand in step; the plan never touches a torch that the machine brought along; what goes wrong is one sentence."""

import ast
import json
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from lessonlib import environment
from lessonlib.environment import Found, Step, Torch
from lessonlib.errors import LessonError
from lessonlib.pair import embedded
from lessonlib.traffic import sources

ROOT = Path(environment.__file__).resolve().parent.parent
CONTAINER = "2.11.0a0+eb65b36914.nv26.03"
PINS = {"": ["torch==2.13.0", "numpy==2.3.5", "wants_torch==1.0"], "data": ["model==1.0"]}


# The pins, three ways

def constraint_groups():
    groups, name = {"": []}, ""
    for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]:
        if line.startswith("# group "):
            name = re.match(r"# group (\w+)", line).group(1)
            groups[name] = []
        elif line:
            groups[name].append(line)
    return groups


def environment_yml_groups():
    groups, name = {"": []}, ""
    for line in (ROOT / "environment.yml").read_text().split("- pip:\n")[1].splitlines():
        if group := re.match(r" +# group (\w+)", line):
            name = group.group(1)
            groups[name] = []
        else:
            groups[name].append(re.fullmatch(r" +(?:# )?- (.+)", line).group(1))
    return groups


def test_the_three_files_hold_the_same_pins():
    pins = environment.read_pins(ROOT)
    assert all(re.fullmatch(r"[\w-]+==[\w.]+(; sys_platform == 'linux')?", pin) for group in pins.values() for pin in group)
    assert constraint_groups() == pins
    assert environment_yml_groups() == pins


def test_what_messages_tell_to_install_is_what_is_pinned():
    pins = environment.read_pins(ROOT)
    assert [embedded.PACKAGE, *(f"{name}=={version}" for name, version in sources.PINS.items())] == pins["data"]
    assert [sources.DATASETS] == pins["spark"]


def test_conda_installs_every_pin_that_make_installs_with_dependencies():
    pins = environment.read_pins(ROOT)
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert conda[-1]["pip"] == [pin for group in environment.GROUPS for pin in pins[group]]
    assert f"python>={environment.dotted(environment.OLDEST_PYTHON)}" in conda


# Small packages and a container to try it on

def make_wheel(folder, name, version, requires=()):
    """A wheel that holds one module, as pip needs it to install offline."""
    info = f"{name}-{version}.dist-info"
    needs = [f"Requires-Dist: {need}" for need in requires]
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *needs]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def add_installed(site, name, version, version_py=None):
    """A package as it lies in a site-packages folder."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("")
    (site / name).mkdir()
    (site / name / "__init__.py").write_text("raise ImportError('detection must not import')\n")
    if version_py:
        (site / name / "version.py").write_text(version_py)


@pytest.fixture
def container(tmp_path):
    """The site-packages folder of a container: a CUDA torch, its triton, a numpy, and the pip that runs these tests."""
    site = tmp_path / "container"
    version_py = f"__version__ = '{CONTAINER}'\ndebug = False\ncuda: Optional[str] = '13.0'\nhip = None\n"
    add_installed(site, "torch", CONTAINER, version_py)
    add_installed(site, "triton", "3.6.0")
    add_installed(site, "numpy", "2.1.0")
    pip = metadata.distribution("pip")
    for name in ("pip", f"pip-{pip.version}.dist-info"):
        (site / name).symlink_to(pip.locate_file(name))
    return site.resolve()


@pytest.fixture
def wheels(tmp_path):
    """A package index on disk: the newer wants_torch asks for a newer torch than the container's, which is on offer too."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    make_wheel(folder, "torch", "2.13.0", ["triton==3.9.0"])
    make_wheel(folder, "triton", "3.9.0")
    make_wheel(folder, "numpy", "2.3.5")
    make_wheel(folder, "wants_torch", "1.0", ["torch>=2", "triton"])
    make_wheel(folder, "wants_torch", "2.0", ["torch>=2.12", "triton>=3.8"])
    make_wheel(folder, "model", "1.0", ["torch>=2.13"])
    for pin in environment.OLDER:
        make_wheel(folder, *pin.split("=="))
    return folder


@pytest.fixture
def index(wheels, monkeypatch):
    """pip sees the small wheels and nothing else."""
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(wheels), "CONSTRAINT": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)


BACKEND = """
import zipfile

def build_editable(folder, settings=None, metadata=None):
    with zipfile.ZipFile(f"{folder}/project-1.0-py3-none-any.whl", "w") as wheel:
        info = "project-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: project\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return "project-1.0-py3-none-any.whl"
"""


@pytest.fixture
def checkout(tmp_path):
    """A small project with pins, set up like ours."""
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "backend.py").write_text(BACKEND)
    write_pins(root, PINS)
    return root.resolve()


def write_pins(root, pins):
    (root / "constraints.txt").write_text("\n".join(pin for group in pins.values() for pin in group) + "\n")
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "project"\nversion = "1.0"\ndependencies = {json.dumps(pins[""])}\n'
        f'[project.optional-dependencies]\ndata = {json.dumps(pins["data"])}\n')


# Finding

def test_a_cuda_torch_is_found_without_importing_it(container):
    assert environment.find_torch([str(container)]) == Torch(CONTAINER, "13.0", str(container))


@pytest.mark.parametrize("line, cuda", [
    ("cuda = None", None), ("cuda: Optional[str] = None", None), ("cuda = '12.8'", "12.8")])
def test_the_cuda_of_a_torch_is_read_out_of_its_version_file(tmp_path, line, cuda):
    add_installed(tmp_path, "torch", "2.13.0", f"__version__ = '2.13.0'\n{line}\n")
    assert environment.find_torch([str(tmp_path)]).cuda == cuda


def test_no_torch_is_no_torch(tmp_path):
    assert environment.find_torch([str(tmp_path)]) is None


def test_what_lies_in_our_own_venv_is_not_the_machines(tmp_path, container):
    ours = tmp_path / "checkout/.venv/lib/python3.11/site-packages"
    add_installed(ours, "torch", "2.13.0", "cuda = '13.0'\n")
    found = environment.find(tmp_path / "checkout", [str(ours), str(container)])
    assert found.torch.version == CONTAINER
    assert environment.find(tmp_path / "checkout", [str(ours)]).torch is None


def test_the_containers_constraint_files_are_read(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("numpy==2.1.0\n")
    (tmp_path / "b.txt").write_text("# a remark\nprotobuf==5.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", f"{tmp_path}/a.txt {tmp_path}/b.txt {tmp_path}/absent.txt")
    assert environment.find(tmp_path, []).constraints == ("numpy==2.1.0", "# a remark", "protobuf==5.0")


# The plan

def asked_for(plan):
    """Every requirement that any step names."""
    calls = [step.command[step.command.index("install") + 1:] for step in plan.steps if "install" in step.command]
    return [word for call in calls for word in call if not word.startswith("-")]


def test_a_plain_machine_gets_torch_in_a_call_of_its_own_before_all_else():
    pins = environment.read_pins(ROOT)
    plan = environment.plan(Found((3, 11), {}), pins, python="python3")
    venv_step, torch, rest, data, older, project = (step.command for step in plan.steps)
    assert venv_step == ("python3", "-m", "venv", ".venv")
    assert [word for word in torch if "==" in word] == ["torch==2.13.0"]
    assert rest[rest.index("-c") + 1] == "constraints.txt"
    assert {word for word in rest if "==" in word} | {"torch==2.13.0"} == {p for g in environment.GROUPS for p in pins[g]}
    assert "--no-deps" in data and {word for word in data if "==" in word} == set(pins["data"])
    assert {"--no-deps", "--target", environment.OLDER_FOLDER, *environment.OLDER} <= set(older)
    assert {"--no-deps", "-e", "."} <= set(project)
    assert plan.kept_torch is None and plan.files == {}


def test_a_torch_without_cuda_is_not_kept(tmp_path):
    plan = environment.plan(Found((3, 11), {"torch": "2.13.0"}, Torch("2.13.0", None, "/somewhere")), PINS)
    assert "torch==2.13.0" in asked_for(plan) and "--system-site-packages" not in plan.steps[0].command


def test_the_plan_for_a_container_names_no_torch_and_nails_down_what_it_is_made_of(tmp_path, container, monkeypatch):
    (tmp_path / "theirs.txt").write_text(f"numpy==2.1.0\ntorch=={CONTAINER}\nMatplotlib==3.9\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "theirs.txt"))
    pins = environment.read_pins(ROOT)
    found = environment.find(tmp_path, [str(container)])
    plan = environment.plan(found, pins)
    names = [environment.named(word) for word in asked_for(plan)]
    assert not [name for name in names if environment.TORCH_FAMILY.fullmatch(name)]
    assert {"transformers", "pytest", "jupyterlab"} <= set(names)
    assert "--system-site-packages" in plan.steps[0].command
    lines = plan.files["constraints.txt"].splitlines()
    assert {f"torch=={CONTAINER}", "triton==3.6.0", "numpy==2.1.0", "Matplotlib==3.9", "transformers==5.24.0"} <= set(lines)
    constrained = [environment.named(line) for line in lines if not line.startswith("#")]
    assert len(constrained) == len(set(constrained)), "their constraint and ours for the same package"
    assert plan.kept_torch == found.torch


@pytest.mark.parametrize("name", ["torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "nvidia-cublas",
                                  "flash-attn", "transformer-engine-torch", "nvidia-nccl-cu13"])
def test_the_family_of_torch_is_kept(name):
    found = Found((3, 12), {name: "9.9"}, Torch("2.11.0", "13.0", "/site"), (f"{name}==1.0",))
    assert f"{name}==9.9" in environment.merged_constraints({"": [f"{name}==1.0"]}, found).splitlines()


# pip itself, offline, on a fake container

def would_install(python, *arguments):
    """What pip says it would install or upgrade, as {canonical name: version}."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--dry-run", "--upgrade"]
    answer = subprocess.run([*pip, *arguments], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    line = re.search(r"^Would install (.*)$", answer.stdout, re.M)
    items = [item.rsplit("-", 1) for item in line.group(1).split()] if line else []
    return {environment.canonical(name): version for name, version in items}


def test_pip_leaves_the_containers_torch_alone_and_would_not_without_our_constraint(tmp_path, container, index):
    found = environment.find(tmp_path, [str(container)])
    plan = environment.plan(found, PINS)
    venv.create(tmp_path / "tried", with_pip=False, symlinks=True)
    python = tmp_path / "tried/bin/python"
    for name, text in plan.files.items():
        (tmp_path / "tried" / name).write_text(text)
    free = would_install(python, "wants_torch")
    assert free == {"wants-torch": "2.0", "torch": "2.13.0", "triton": "3.9.0"}
    merged = tmp_path / "merged.txt"
    merged.write_text(environment.merged_constraints({"": []}, found))
    assert would_install(python, "-c", str(merged), "wants_torch") == {"wants-torch": "1.0"}
    assert would_install(python, "-c", str(tmp_path / "tried/constraints.txt"), "wants_torch", "numpy") == {
        "wants-torch": "1.0", "numpy": "2.3.5"}


def test_a_container_is_set_up_and_its_torch_stays(checkout, container, index, capfd):
    before = sorted((path, path.stat().st_mtime_ns) for path in container.rglob("*"))
    environment.set_up(checkout, [str(container)])
    python = checkout / ".venv/bin/python"
    seen = subprocess.run([python, "-c", "import json, sys; print(json.dumps(sys.path))"], capture_output=True, check=True)
    assert environment.find_torch(json.loads(seen.stdout)) == Torch(CONTAINER, "13.0", str(container))
    own = next((checkout / ".venv/lib").glob("python*/site-packages"))
    have = {found.metadata["Name"]: found.version for found in metadata.distributions(path=[str(own)])}
    assert have == {"wants_torch": "1.0", "model": "1.0", "numpy": "2.3.5", "project": "1.0"}
    assert sorted((path, path.stat().st_mtime_ns) for path in container.rglob("*")) == before
    assert environment.ready(checkout)
    said = capfd.readouterr().out
    assert "CUDA 13.0" in said and "The environment is ready" in said

    log = (checkout / ".venv/setup.log").read_bytes()
    environment.set_up(checkout, [str(container)])
    assert (checkout / ".venv/setup.log").read_bytes() == log and capfd.readouterr().out == "", "it was made twice"
    write_pins(checkout, {**PINS, "data": ["model==1.1"]})
    assert not environment.ready(checkout), "changed pins must make it anew"


def test_a_set_up_that_would_shadow_the_torch_is_refused_and_not_ready(checkout, container, wheels, index):
    with zipfile.ZipFile(wheels / "torch-2.13.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("torch/version.py", "cuda = None\n")
    write_pins(checkout, {**PINS, "data": ["torch==2.13.0"]})  # without dependencies no constraint is asked
    with pytest.raises(LessonError, match=re.escape(f"put torch 2.13.0 (without CUDA) in {checkout}") + f".*{container}"):
        environment.set_up(checkout, [str(container)])
    assert not environment.ready(checkout)


def test_an_interrupted_set_up_is_not_ready_and_starts_over(checkout, container, index, wheels):
    (checkout / ".venv").mkdir()
    (checkout / ".venv/.ready").write_text("pins of before")
    (wheels / "model-1.0-py3-none-any.whl").rename(wheels / "model.away")
    with pytest.raises(LessonError, match="Set-up stopped at the model and the prompts.*setup.log"):
        environment.set_up(checkout, [str(container)])
    assert (checkout / ".venv/bin/python").exists() and not (checkout / ".venv/.ready").exists()
    (wheels / "model.away").rename(wheels / "model-1.0-py3-none-any.whl")
    environment.set_up(checkout, [str(container)])
    assert environment.ready(checkout)


def test_a_container_that_insists_on_what_does_not_fit_is_one_sentence(checkout, container, index):
    write_pins(checkout, {**PINS, "": ["torch==2.13.0", "wants_torch==2.0"]})
    with pytest.raises(LessonError, match="do not fit together"):
        environment.set_up(checkout, [str(container)])
    assert not environment.ready(checkout)


# What goes wrong

def test_no_network_is_one_sentence_exit_code_2_and_not_ready(tmp_path, monkeypatch):
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "lessonlib").mkdir()
    for file in (ROOT / "lessonlib").glob("*.py"):
        shutil.copy(file, tmp_path / "lessonlib")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    nobody = "http://127.0.0.1:9/simple"
    for name, value in {"CONFIG_FILE": "/dev/null", "INDEX_URL": nobody, "RETRIES": "1", "CONSTRAINT": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    answer = subprocess.run([sys.executable, tmp_path / "lessonlib/environment.py"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert re.fullmatch("No network: set-up needs it once.*run the same command again.\n", answer.stderr)
    assert not (tmp_path / ".venv/.ready").exists()
    assert nobody in (tmp_path / ".venv/setup.log").read_text()


def test_an_old_python_is_refused():
    with pytest.raises(LessonError, match="Python 3.10 is too old, the course needs 3.11 or newer"):
        environment.check_python((3, 10))
    environment.check_python((3, 11))


@pytest.mark.parametrize("name", ["environment.py", "errors.py", "progress.py", "__init__.py"])
def test_an_old_python_can_read_as_far_as_the_refusal(name):
    ast.parse((ROOT / "lessonlib" / name).read_text(), feature_version=(3, 8))


TORCH = Torch("2.11.0", "13.0", "/site")


@pytest.mark.parametrize("found, words", [
    (Found((3, 11), {}, missing=("venv",)), "python3-venv"),
    (Found((3, 11), {}, missing=("ensurepip",)), "python3-venv"),
    (Found((3, 11), {}, TORCH, missing=("ensurepip",)), "python3-venv"),
    (Found((3, 11), {}, inside=True), "deactivate"),
    (Found((3, 11), {}, Torch("2.5.1+cu124", "12.4", "/site")), "2.5.1.*too old.*2.6"),
])
def test_what_cannot_work_is_refused_before_anything_is_made(found, words):
    with pytest.raises(LessonError, match=words):
        environment.check(found)


def test_a_container_without_ensurepip_uses_the_pip_that_it_has():
    found = Found((3, 12), {"pip": "26.0"}, TORCH, missing=("ensurepip",))
    environment.check(found)
    assert "--without-pip" in environment.plan(found, PINS).steps[0].command


@pytest.mark.parametrize("output, words", [
    ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "The disk is full: torch"),
    ("WARNING: Retrying after connection broken by 'NewConnectionError'\nERROR: No matching distribution", "No network"),
    ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "No network"),
    ("The virtual environment was not created successfully because ensurepip is not available.", "python3-venv"),
    ("ERROR: ResolutionImpossible: for help visit", "do not fit together"),
    ("error: something else", "Set-up stopped at torch 2.13.0 .exit code 7.*setup.log"),
])
def test_what_a_failed_command_printed_becomes_one_sentence(output, words):
    assert re.match(".*" + words, environment.explain(Step("torch 2.13.0", ()), 7, output))
