"""What every notebook must be: the builder writes no other, and the tests hold the committed ones to it."""

import re
from pathlib import Path
from statistics import median

import nbformat

from lessonlib.files import ROOT
from lessonlib.workbook.explorable import VIEW

CELL_LINES, MEDIAN_LINES, FIRST_CELL_LINES, KILOBYTES = 25, 8, 3, 300
ABSOLUTE = re.compile(
    r"(?<![\w.:/~-])/(?:home|root|tmp|Users|work|workspace|usr|opt|mnt|var|private)/|(?<!\w)[A-Z]:\\\w|"
    + "|".join(re.escape(str(path)) + r"\b" for path in {ROOT, Path.home()} if len(path.parts) > 1)
)
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
MARKS = re.compile(r"# </?(?:solution|stub)>")
STUB = "...  # your turn"


def problems(notebook, solved, solutions=()):
    """Every rule the notebook breaks, a sentence each; `solutions` are the lines that a reader's notebook must not show."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = [*shape_problems(notebook, code), *text_problems(notebook, solved, solutions)]
    for number, cell in enumerate(code, 1):
        found += [f"code cell {number} {problem}" for problem in output_problems(cell)]
    if not any(cell.outputs for cell in code):
        found.append("it has no outputs: it was never executed")
    return found


def shape_problems(notebook, code):
    """Rules about the whole: order of execution, lengths, size, metadata."""
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"the execution counts are {counts}, not 1 to {len(code)}: it was not run from top to bottom in a fresh kernel"
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown" or not first.source.startswith("# "):
        yield "it does not begin with its title"
    lengths = [len(cell.source.splitlines()) for cell in code]
    for number, length in enumerate(lengths, 1):
        limit = FIRST_CELL_LINES if number == 1 else CELL_LINES
        if length > limit:
            yield f"code cell {number} has {length} lines, {limit} at most"
    if lengths and median(lengths) > MEDIAN_LINES:
        yield f"half of the code cells are longer than {median(lengths):g} lines, {MEDIAN_LINES} at most"
    kilobytes = len(nbformat.writes(notebook).encode()) / 1024
    if kilobytes >= KILOBYTES:
        yield f"it is {kilobytes:.0f} KB, under {KILOBYTES} KB is the rule: show fewer or smaller pictures"
    extra = set(notebook.metadata) - {"kernelspec", "language_info"}
    extra |= {key for cell in notebook.cells for key in cell.metadata if key != "tags"}
    if extra:
        yield f"it carries metadata that no reader needs: {', '.join(sorted(extra))}"


def text_problems(notebook, solved, solutions):
    """Rules about what the cells say: paths, marks, leftovers, solutions, words for pictures."""
    bodies = [squeezed(body) for body in solutions]
    for place, cell in enumerate(notebook.cells, 1):
        where = f"cell {place}"
        if match := ABSOLUTE.search(cell.source):
            yield f"{where} names an absolute path ({match[0]})"
        if MARKS.search(cell.source):
            yield f"{where} shows a mark of the source"
        if solved and ("TODO" in cell.source or STUB in cell.source):
            yield f"{where} leaves something to do in the solved notebook"
        if not solved and cell.cell_type == "code" and any(body in squeezed(cell.source) for body in bodies):
            yield f"{where} shows the solution in the reader's notebook"
        if cell.cell_type == "markdown" and re.search(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"]+\")", cell.source):
            yield f"{where} has a picture without words for those who cannot see it"


def output_problems(cell):
    """Rules about one code cell's outputs."""
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"ends in {output.ename}"
        if output.output_type == "stream" and output.name == "stderr":
            yield f"writes to stderr: {' '.join(output.text.split())[:80]}"
        data = output.get("data", {})
        if VIEW in data:
            yield "keeps a widget view, which is nothing without its kernel"
        texts = [output.get("text", "")] + [
            text for kind, text in data.items() if isinstance(text, str) and not is_picture(kind)
        ]
        for text in texts:
            if match := ABSOLUTE.search(text) or ADDRESS.search(text):
                yield f"prints what is different on every machine ({match[0]})"
        for kind in filter(is_picture, data):
            alt = output.metadata.get(kind, {}).get("alt", "")
            if len(alt) < 20 or data.get("text/plain") != alt:
                yield "shows a picture without a caption as its alt text: use show(figure, caption)"


def is_picture(kind):
    """Whether a MIME type is a picture."""
    return kind.startswith("image/")


def squeezed(code):
    """Code without indentation and blank lines."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())
