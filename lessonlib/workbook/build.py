"""The notebook builder: `python -m lessonlib.workbook.build [NN ...] [--words | --check]`.

notebooks/src/NN_verb_phrase.py (py:percent) is the one place a notebook is edited. From it come the reader's notebook and
the solved one, each executed in a fresh kernel; with --words, where only text cells have changed, each keeps its outputs.
Nothing is written unless both run to their end and keep the rules.
"""

import argparse
import os
import re
import sys
from time import perf_counter

import jupytext
import nbformat
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from lessonlib.errors import LessonError
from lessonlib.files import ROOT, atomic_path, shown
from lessonlib.workbook.explorable import VIEW
from lessonlib.workbook.rules import MARKS, STUB, problems

NOTEBOOKS = ROOT / "notebooks"
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SECONDS_A_CELL = 1200
EXERCISE = re.compile(
    r"^(?P<indent>[ \t]*)# <solution>\n(?P<solution>.*?)^[ \t]*# </solution>"
    r"(?:\n[ \t]*# <stub>\n(?P<stub>.*?)^[ \t]*# </stub>)?$",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"""(\]\(|(?:href|src)=["'])(\.\./|solutions/)""")


class BuildError(Exception):
    """A notebook that cannot be built, as a block of text for its author."""


class ThisPython(KernelSpecManager):
    """Kernels always run the Python that builds, whatever kernels are installed on the machine."""

    def get_kernel_spec(self, kernel_name):
        """The kernel of this very interpreter."""
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


def sources(folder=None, numbers=()):
    """The sources in order, all or those whose names begin with one of `numbers`; LessonError where one is not there."""
    folder = folder or NOTEBOOKS
    paths = sorted((folder / "src").glob("[0-9][0-9]_*.py"))
    for number in numbers:
        if not any(path.name.startswith(f"{number}_") for path in paths):
            known = ", ".join(path.name[:2] for path in paths) or "none yet"
            raise LessonError(
                f"There is no notebook source {number}_*.py in {shown(folder / 'src')}; name one of these: {known}."
            )
    return [path for path in paths if not numbers or path.name[:2] in numbers]


def target(source, solved):
    """Where the notebook of a source lies."""
    folder = source.parent.parent
    return (folder / "solutions" if solved else folder) / source.with_suffix(".ipynb").name


def page(source, solved):
    """The notebook of a source, not executed: the reader's with stubs in place of the solutions, or the solved one."""
    notebook = nbformat.v4.new_notebook(metadata=KERNEL)
    for place, cell in enumerate(jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent").cells, 1):
        tags = cell.metadata.get("tags", [])
        text = cell.source
        if cell.cell_type == "code":
            text = exercise(text, solved, tags, f"{shown(source)}, cell {place}")
        elif solved:  # links are written as seen from notebooks/; the solved notebook lies one folder deeper
            text = LINK.sub(lambda match: match[1] + ("../../" if match[2] == "../" else ""), text)
        new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        notebook.cells.append(new(text, id=f"cell-{place:02d}", metadata={"tags": tags} if tags else {}))
    return notebook


def exercise(text, solved, tags, where):
    """A code cell with its solution, or with its stub; LessonError for marks without their pair or their tag."""

    def chosen(match):
        if solved:
            return match["solution"].rstrip("\n")
        if match["stub"] is None:
            return match["indent"] + STUB
        lines = match["stub"].splitlines()
        if not all(line.lstrip().startswith("#") for line in lines):
            raise LessonError(
                f"{where}: every line between the stub marks must be a comment, so that the source itself runs solved."
            )
        return "\n".join(re.sub(r"# ?", "", line, count=1) for line in lines)

    result, count = EXERCISE.subn(chosen, text)
    if MARKS.search(result):
        raise LessonError(
            f"{where}: a mark is left over; write # <solution>, # </solution> and right below # <stub>, # </stub>."
        )
    if bool(count) != ("exercise" in tags):
        raise LessonError(
            f'{where}: the tag "exercise" and the solution marks belong together; one is there without the other.'
        )
    return result


def solutions(source):
    """The solution lines of a source, a text for each pair of marks; those too short to give anything away are left out."""
    bodies = [match["solution"].strip() for match in EXERCISE.finditer(source.read_text(encoding="utf-8"))]
    return [body for body in bodies if len(body) > 20]


def execute(notebook, path, solved):
    """Run the notebook top to bottom in a fresh kernel in its own folder; BuildError with cell and error where it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "LESSON_PRESET": "tiny", "STRICT": "1" if solved else "0"}
    manager = AsyncKernelManager(kernel_spec_manager=ThisPython(), kernel_name="python3")
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=SECONDS_A_CELL,
        record_timing=False,
        store_widget_state=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(env=environment)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise BuildError(failure(notebook, path, error)) from None
    notebook.metadata = nbformat.from_dict(KERNEL)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [tidy(output) for output in joined(cell.outputs)]


def joined(outputs):
    """The outputs with pieces of one stream put together: how a kernel cuts it up is chance."""
    whole = []
    for output in outputs:
        if whole and output.output_type == "stream" == whole[-1].output_type and output.name == whole[-1].name:
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


def tidy(output):
    """The output without its widget view, whose still and caption stay."""
    if "data" in output:
        output.data.pop(VIEW, None)
    return output


def failure(notebook, path, error):
    """Notebook, cell and error in one block."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    failed = next((cell for cell in code if any(output.output_type == "error" for output in cell.outputs)), None)
    failed = failed or next((cell for cell in reversed(code) if cell.execution_count), code[0])
    listing = "\n".join(f"  {number:>3}  {line}" for number, line in enumerate(failed.source.splitlines(), 1))
    place = notebook.cells.index(failed) + 1
    trace = next((output.traceback for output in failed.outputs if output.output_type == "error"), [str(error)])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(trace)).strip().splitlines()
    told = "\n".join(f"  {line}" for line in plain[-30:])
    return (
        f"{shown(path)}: cell {place} (code cell {code.index(failed) + 1} of {len(code)}) failed.\n\n{listing}\n\n{told}\n"
    )


def keep_outputs(notebook, path):
    """Give the notebook the outputs of the one at `path`; BuildError where the code cells differ."""
    old = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"] if path.is_file() else []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.source for cell in old] != [cell.source for cell in code]:
        raise BuildError(f"{shown(path)} has other code than its source, so its outputs cannot be kept; build it without --words.")
    for cell, before in zip(code, old):
        cell.outputs, cell.execution_count = before.outputs, before.execution_count


def build(source, words=False):
    """Build both notebooks of a source; the old ones stay as they are unless both are right (BuildError).

    words: only text cells have changed, so nothing is run and the outputs are kept; the notebook test runs them all the same.
    """
    pages = {}
    for solved in (False, True):
        path, notebook, start = target(source, solved), page(source, solved), perf_counter()
        if words:
            keep_outputs(notebook, path)
        else:
            execute(notebook, path, solved)
        if broken := problems(notebook, solved, solutions(source)):
            raise BuildError(
                f"{shown(path)} ran, but breaks the rules:\n" + "".join(f"  - {problem}\n" for problem in broken)
            )
        pages[path] = nbformat.writes(notebook) + "\n"
        print(
            f"  {shown(path)}: {len(notebook.cells)} cells, {perf_counter() - start:.0f} s, "
            f"{len(pages[path].encode()) / 1024:.0f} KB",
            flush=True,
        )
    for path, text in pages.items():
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def stale(folder=None):
    """What is not as its source says, a sentence each: notebooks missing, without a source, or with other cells."""
    folder = folder or NOTEBOOKS
    wanted = {target(source, solved): (source, solved) for source in sources(folder) for solved in (False, True)}
    found = [
        f"{shown(path)} has no source"
        for path in sorted({*folder.glob("*.ipynb"), *folder.glob("solutions/*.ipynb")} - set(wanted))
    ]
    for path, (source, solved) in wanted.items():
        if not path.is_file():
            found.append(f"{shown(path)} was never built")
        elif inputs(nbformat.read(path, as_version=4)) != inputs(page(source, solved)):
            found.append(f"{shown(path)} differs from its source")
    return found


def inputs(notebook):
    """What a notebook holds before it runs."""
    return (
        dict(notebook.metadata),
        [(cell.id, cell.cell_type, cell.source, dict(cell.metadata)) for cell in notebook.cells],
    )


def main(arguments=None):
    """Build, or with --check compare; exit code 1 where a notebook fails or is stale, 2 where the command is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m lessonlib.workbook.build", description="Build the notebooks from notebooks/src."
    )
    parser.add_argument("numbers", nargs="*", metavar="NN", help="which notebooks, such as 00 08 (default: all)")
    parser.add_argument("--words", action="store_true", help="only words have changed: run nothing, keep the outputs there are")
    parser.add_argument("--check", action="store_true", help="only say which notebooks differ from their sources")
    options, failed = parser.parse_args(arguments), False
    try:
        if options.check:
            found = stale()
            print(
                "\n".join(found + ["Build them again: python -m lessonlib.workbook.build"])
                if found
                else "Every notebook is as its source says."
            )
            return 1 if found else 0
        chosen = sources(numbers=options.numbers)
        if not chosen:
            raise LessonError(f"There is no notebook source in {shown(NOTEBOOKS / 'src')}; write one as NN_verb_phrase.py.")
        for source in chosen:
            print(f"{source.stem} ({'only its words' if options.words else 'executed twice'}: the reader's and the solved one)", flush=True)
            try:
                build(source, options.words)
            except BuildError as error:
                failed = True
                print(f"\n{error}\nBoth notebooks were left as they were.", flush=True)
    except LessonError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
