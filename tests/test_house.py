"""The house rules: who imports whom, how large files may grow, what must never stand in them."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lessonlib"
ROOMS = ("kernels", "pair", "traffic", "labels", "drafts", "distil", "decode", "measure")  # each may import those before it
GROUND = ("errors", "files", "progress", "environment")  # all may import these
ROOF = ("workbook", "cli", "commands", "lesson", "reference", "reference_decoding", "reference_trainings", "reference_heads", "reference_board", "__main__", "__init__")  # these may import all, and only they may import one of these
SOURCES = sorted(PACKAGE.rglob("*.py"))


def shown(path):
    return str(path.relative_to(ROOT))


def tracked():
    """The files that git knows and that are here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def owner(parts):
    """The room or root module that a path inside lessonlib belongs to; the package itself is its __init__."""
    return parts[0] if parts else "__init__"


def allowed(place):
    """The rooms and root modules that `place` may import."""
    if place in ROOF:
        return {*ROOF, *ROOMS, *GROUND}
    if place in GROUND:
        return set(GROUND)
    return {*GROUND, *ROOMS[:ROOMS.index(place) + 1]}


def imports(source, module):
    """The (line, room or root module) of every import of lessonlib, at any depth, in `source`, the text of `module`."""
    package = module if module.endswith(".__init__") else module.rpartition(".")[0]
    package = package.removesuffix(".__init__").split(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "lessonlib" else [base]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            names = [ast.literal_eval(node.args[0])] if isinstance(node.args[0], ast.Constant) else []
        else:
            continue
        for parts in (name.split(".") for name in names):
            if parts[0] == "lessonlib":
                known = parts[1:2] if parts[1:] and parts[1] in (*ROOMS, *GROUND, *ROOF) else []
                yield node.lineno, owner(known)


def forbidden(source, module):
    """Every import in `source` that the rooms rule forbids, as `line imports`."""
    place = owner([part for part in module.split(".")[1:] if part != "__init__"])
    return [f"{module} line {line} imports {name}" for line, name in imports(source, module) if name not in allowed(place)]


def test_every_room_imports_only_rooms_on_its_left():
    assert {owner(path.relative_to(PACKAGE).with_suffix("").parts) for path in SOURCES} <= {*ROOMS, *GROUND, *ROOF}
    modules = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SOURCES}
    assert [fault for path, module in modules.items() for fault in forbidden(path.read_text(encoding="utf-8"), module)] == []


@pytest.mark.parametrize("module, source, right", [
    ("lessonlib.pair.load", "from lessonlib.traffic import answers", False),
    ("lessonlib.pair.load", "from lessonlib.kernels.draw import draw", True),
    ("lessonlib.traffic.answers", "import lessonlib.pair.step", True),
    ("lessonlib.traffic.answers", "def f():\n    import lessonlib.labels.store", False),
    ("lessonlib.distil.train", "from lessonlib import measure", False),
    ("lessonlib.distil.train", "from lessonlib import offline_alpha", False),
    ("lessonlib.distil.train", "import lessonlib", False),
    ("lessonlib.distil.train", "from ..decode import rule", False),
    ("lessonlib.distil.train", "from .. import decode", False),
    ("lessonlib.distil.train", "from . import losses", True),
    ("lessonlib.distil.__init__", "from .losses import ce_loss", True),
    ("lessonlib.distil.__init__", "from ..measure import alpha", False),
    ("lessonlib.measure.sweep", "import importlib\nimportlib.import_module('lessonlib.workbook.style')", False),
    ("lessonlib.measure.sweep", "from lessonlib.cli import main", False),
    ("lessonlib.files", "from lessonlib.kernels import draw", False),
    ("lessonlib.files", "from lessonlib.errors import LessonError", True),
    ("lessonlib.cli", "from lessonlib.workbook.build import build", True),
    ("lessonlib.workbook.checks.nb00", "from lessonlib.decode.rule import accept", True),
    ("lessonlib.__init__", "from .measure import sweep", True),
])
def test_the_rooms_rule_sees_every_way_to_import(module, source, right):
    assert (forbidden(source, module) == []) is right


def test_the_package_imports_its_rooms_only_when_a_name_is_asked_for():
    top = [node for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
           if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [found for node in top for found in imports(ast.unparse(node), "lessonlib.__init__")] == []


def test_no_source_file_outgrows_one_sitting():
    assert [shown(path) for path in SOURCES if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []


def test_every_public_function_and_class_has_a_docstring():
    bare = [f"{shown(path)}: {node.name}" for path in SOURCES for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and not node.name.startswith("_") and not ast.get_docstring(node)]
    assert bare == []


def test_the_tracked_tree_stays_small():
    size = sum(path.stat().st_size for path in tracked())
    assert size <= 30 * 2**20, f"{size / 2**20:.1f} MiB are tracked, 30 at most"


def texts():
    """The (name, text) of every tracked text file, except prompts and answers: a model may write what it likes."""
    for path in tracked():
        raw = path.read_bytes()
        written_by_a_model = path.suffix == ".jsonl" and shown(path).startswith("data/")
        if b"\0" not in raw[:8192] and path.suffix != ".gz" and not written_by_a_model:
            yield shown(path), raw.decode("utf-8")


MACHINE_PATH = re.compile(r"(?<![\w.~/*-])/(home|root|work|Users|mnt|scratch)/\w")
REGISTRY = re.compile(r"(pypi|pythonhosted|npmjs|download[.]pytorch|debian|ubuntu|anaconda)[.](org|com)\b")


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine path", "package registry"])
def test_no_tracked_text_names(pattern):
    assert [f"{name}: {match.group()}" for name, text in texts() for match in pattern.finditer(text)] == []


@pytest.mark.parametrize("text, names_one", [
    ("open('/" + "home/ada/x')", True), ("/" + "work/main", True), ("see https://example.org/home/page", False),
    ("notebooks/work/x", False), ("~/home/x", False), ("/etc/pip/constraint.txt", False)])
def test_a_machine_path_is_recognised(text, names_one):
    assert bool(MACHINE_PATH.search(text)) is names_one


def test_make_alone_names_every_command():
    said = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for command in ("lesson", "test", "lab", "notebooks"):
        assert re.search(rf"^make {command} ", said, re.M), said
