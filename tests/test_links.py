"""Every link of README and notebooks leads somewhere, and to what it says; no network is used."""

import re
from itertools import count
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from pages import ROOT, blocks, markdown_page, notebook_page, pages

NUMBERED = re.compile(r"(\d\d)_(\w+)\.ipynb")
IN_REPOSITORY = re.compile(r"(?:lessonlib|notebooks|data|tests|checkpoints/off-the-shelf)(?:/[\w.-]+)*/?")


def anchors(path):
    """The anchors of a page's headings: made as GitHub does in Markdown, as JupyterLab does in a notebook; else none."""
    if path.suffix == ".ipynb":
        notebook = nbformat.read(path, as_version=4)
        return {text.replace(" ", "-") for text in headings(notebook_page(path, notebook))}
    found = set()
    for text in headings(markdown_page(path)) if path.suffix == ".md" else ():
        slug = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
        numbered = (f"{slug}-{n}" if n else slug for n in count())  # what comes again has a number
        found.add(next(name for name in numbered if name not in found))
    return found


def headings(page):
    """The words of a page's headings."""
    return [block.text for block in page.blocks if block.heading]


def link_problem(target, folder):
    """What is wrong with a link on a page in `folder`, or None."""
    parts = urlsplit(target)
    if parts.scheme == "https":
        host = re.fullmatch(r"(?:[a-z0-9-]+\.)+[a-z]{2,}", parts.netloc)
        return None if host and not re.search(r"\s|%20", target) else f"{target} is no address"
    if parts.scheme or parts.netloc:
        return f"{target} is neither https nor a path"
    return path_problem(target, folder, unquote(parts.path), unquote(parts.fragment))


def path_problem(target, folder, path, anchor):
    """What is wrong with a relative link, or None; a link without a path is to the page itself, which the caller puts in."""
    if path.startswith("/"):
        return f"{target} is an absolute path"
    if not (folder / path).exists():
        return f"{target} is not there"
    if anchor and anchor not in anchors(folder / path):
        return f"{target} has no such heading"
    return None


def named_problem(page, target, words):
    """What is wrong with a link to a notebook, or None: it must be the one that its words say; its solutions are its own."""
    match = NUMBERED.fullmatch(Path(target).name)
    if not match:
        return None
    if re.match(r"\d\d\b", words):
        return None if words.startswith(match[1]) else f"[{words}] leads to {Path(target).name}"
    if target.startswith("solutions/") and match[0] != page.path.name:
        return f"[{words}] leads to the solutions of another notebook, {target}"
    return None


def page_problems(page, notebooks):
    """Every fault of a page's links, file names and notebook numbers; `notebooks` are the names of those that exist."""
    number = {name[:2]: name for name in notebooks}
    linked = {Path(target).name for block in page.blocks for target, _ in block.links}
    for block in page.blocks:
        bare = re.findall(r"\bhttps?:\S*[^\s.,;:)]", block.prose)
        for target, words in [*block.links, *((address, "") for address in bare)]:
            whole = page.path.name + target if target.startswith("#") else target
            if problem := link_problem(whole, page.path.parent) or named_problem(page, target, words):
                yield f"{page.name}, {block.where}: {problem}"
        for name in (word for code in block.codes for word in code.split()):
            if IN_REPOSITORY.fullmatch(name) and not (ROOT / name).exists():
                yield f"{page.name}, {block.where}: `{name}` is not there"
        for said in re.findall(r"\b[Nn]otebooks?\s+(\d\d)\b", block.prose):
            if said in number and number[said] not in {page.path.name, *linked}:
                yield f"{page.name}, {block.where}: notebook {said} is named, and the page has no link to it"
    yield from next_problems(page, number)


def next_problems(page, number):
    """A notebook ends with a line that begins with Next and leads to the one after it, if that exists."""
    after = number.get(f"{int(page.path.name[:2]) + 1:02d}") if NUMBERED.fullmatch(page.path.name) else None
    ways = [Path(target).name for block in page.blocks if block.text.startswith("Next") for target, _ in block.links]
    if after and after not in ways:
        yield f"{page.name}: its line Next does not lead to {after}"


def test_every_link_leads_to_what_it_says():
    found = pages()
    notebooks = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(notebooks) >= 2 and sum(len(block.links) for page in found for block in page.blocks) > 20
    problems = [problem for page in found for problem in page_problems(page, notebooks)]
    assert not problems, "\n" + "\n".join(problems)


def test_the_readme_links_every_notebook():
    linked = {target for block in markdown_page(ROOT / "README.md").blocks for target, _ in block.links}
    assert {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")} - linked == set()


@pytest.fixture
def folder(tmp_path):
    """Two notebooks and a Markdown page with headings."""
    for name in ("01_one_thing.ipynb", "02_other_thing.ipynb", "solutions/01_one_thing.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cells = [nbformat.v4.new_markdown_cell("# One thing\n\n## What it *is*, in `code`")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / name)
    (tmp_path / "front.md").write_text("# Front page\n\n## What it is, in `code`!\n\n## Twice\n\n## Twice\n")
    return tmp_path


NEXT = "**Next**: [02 Other thing](02_other_thing.ipynb)."


def problems_of(folder, markdown, name="01_one_thing.ipynb"):
    cells = [nbformat.v4.new_markdown_cell(markdown)]
    page = notebook_page(folder / name, nbformat.v4.new_notebook(cells=cells))
    return list(page_problems(page, {"01_one_thing.ipynb", "02_other_thing.ipynb"}))


@pytest.mark.parametrize("markdown", [
    "[front](front.md), [front](front.md#twice-1), ![map](front.md) and <a href='front.md'>HTML</a>",
    "[here](front.md#what-it-is-in-code), [there](02_other_thing.ipynb#What-it-is,-in-code), [self](#One-thing)",
    "[All solutions](solutions/01_one_thing.ipynb), [01 One\nthing](01_one_thing.ipynb)",
    "<https://example.org/x>, [a](https://example.org/a#b?c=d) and https://example.org.",
    "`lessonlib/files.py`, `lessonlib/`, `python -m pytest tests/test_links.py`, `other/thing.py`, `data/NN_*.json`",
    "Notebook 02 and notebook 77, `[no](link.md)`, $p[x] (q)$\n\n    [no](link.md)\n\n```\n[no](http:link.md)\n```",
])
def test_what_is_right_is_left_alone(folder, markdown):
    assert problems_of(folder, f"# One thing\n\n{markdown}\n\n{NEXT}") == []


@pytest.mark.parametrize("markdown, said", [
    ("[front](frnt.md)", "frnt.md is not there"),
    ("![map](map.png)", "map.png is not there"),
    ("<img src='map.png' alt='map'>", "map.png is not there"),
    ("<details><summary><a href=\"x.md\">x</a></summary>\n\ny</details>", "x.md is not there"),
    ("[x][far]\n\n[far]: gone.md", "gone.md is not there"),
    ("| a |\n| --- |\n| [x](gone.md) |", "gone.md is not there"),
    ("[top](/front.md)", "/front.md is an absolute path"),
    ("[x](front.md#Twice)", "front.md#Twice has no such heading"),
    ("[x](front.md#twice-2)", "front.md#twice-2 has no such heading"),
    ("[x](#one-thing)", "01_one_thing.ipynb#one-thing has no such heading"),
    ("[x](02_other_thing.ipynb#what-it-is)", "02_other_thing.ipynb#what-it-is has no such heading"),
    ("[x](http://example.org)", "http://example.org is neither https nor a path"),
    ("see http://example.org", "http://example.org is neither https nor a path"),
    ("[x](https:/example.org)", "https:/example.org is no address"),
    ("[x](https://example)", "https://example is no address"),
    ("[x](<https://example.org/a b>)", "https://example.org/a%20b is no address"),
    ("[x](//example.org/a)", "//example.org/a is neither https nor a path"),
    ("`lessonlib/no_such.py`", "`lessonlib/no_such.py` is not there"),
    ("run `cat data/no_such.json`", "`data/no_such.json` is not there"),
    ("[02 One thing](01_one_thing.ipynb)", "[02 One thing] leads to 01_one_thing.ipynb"),
    ("[01](02_other_thing.ipynb)", "[01] leads to 02_other_thing.ipynb"),
])
def test_a_broken_link_is_found_and_nothing_else(folder, markdown, said):
    assert problems_of(folder, f"# One thing\n\n{markdown}\n\n{NEXT}") == [f"01_one_thing.ipynb, cell 1: {said}"]


def test_what_a_notebook_owes_its_neighbours(folder):
    (folder / "solutions/02_other_thing.ipynb").touch()
    assert problems_of(folder, "[All solutions](solutions/02_other_thing.ipynb)\n\n" + NEXT) == [
        "01_one_thing.ipynb, cell 1: [All solutions] leads to the solutions of another notebook, "
        "solutions/02_other_thing.ipynb"]
    assert problems_of(folder, "as in notebook\n01", "02_other_thing.ipynb") == [
        "02_other_thing.ipynb, cell 1: notebook 01 is named, and the page has no link to it"]
    assert problems_of(folder, "[02 Other thing](02_other_thing.ipynb)\n\n**Next**: the end.") == [
        "01_one_thing.ipynb: its line Next does not lead to 02_other_thing.ipynb"]


def test_a_block_of_markdown_says_where_it_stands():
    found = blocks("# A\n\nb\n\n| c |\n| --- |\n| d |", lambda line: f"line {line}")
    assert [(block.where, block.text) for block in found] == [
        ("line 1", "A"), ("line 3", "b"), ("line 5", "c"), ("line 7", "d")]
