"""The pages that a reader sees, taken apart into blocks: their words, links, headings and code spans."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

from lessonlib.workbook import build

ROOT = Path(__file__).resolve().parent.parent
PARSER = MarkdownIt("commonmark").enable("table")
MATH = re.compile(r"\$\$.*?\$\$|\$.*?\$", re.DOTALL)


@dataclass
class Block:
    """A heading, a paragraph, a table cell or a piece of HTML, and where it stands."""

    where: str
    heading: bool = False
    text: str = ""  # as it is shown, code too
    prose: str = ""  # without code and tags, and in the end without mathematics
    links: list = field(default_factory=list)  # (target, words)
    codes: list = field(default_factory=list)

    def say(self, words, code=False):
        """Add words, or code."""
        self.text += words
        self.prose += " " if code else words
        self.codes += [words] if code else []

    def html(self, source):
        """Add the words of HTML, and the targets of its attributes."""
        self.links += [(target, "") for target in re.findall(r"""\b(?:href|src)\s*=\s*["']([^"']*)["']""", source)]
        self.say(re.sub(r"<!--.*?-->|<[^>]*>", "", source, flags=re.DOTALL))

    def inline(self, tokens):
        """Add the inline tokens of a paragraph."""
        opened = []  # links whose words are still being read: (target, where in the text they begin)
        for token in tokens:
            if token.type == "link_open":
                opened.append((token.attrs["href"], len(self.text)))
            elif token.type == "link_close":
                target, begin = opened.pop()
                self.links.append((target, " ".join(self.text[begin:].split())))
            elif token.type == "html_inline":
                self.html(token.content)
            elif token.type.endswith("break"):
                self.say("\n")
            else:  # text, code, and marks of emphasis, which have no content; of a picture its alternative text
                self.links += [(token.attrs["src"], token.content)] if token.type == "image" else []
                self.say(token.content, code=token.type == "code_inline")


def blocks(markdown, where):
    """The blocks of a Markdown text; `where` makes a place of a line number."""
    found, heading, line = [], False, 1
    for token in PARSER.parse(markdown):
        line = token.map[0] + 1 if token.map else line
        if token.type in ("inline", "html_block"):
            block = Block(where(line), heading)
            if token.type == "inline":
                block.inline(token.children)
            else:
                block.html(token.content)
            block.prose = MATH.sub(" ", block.prose)
            found.append(block)
        heading = token.type == "heading_open"
    return found


@dataclass
class Page:
    """A page: where it lies (its links start there) and its blocks."""

    path: Path
    blocks: list

    @property
    def name(self):
        """The path as a reader says it."""
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else self.path.name


def markdown_page(path):
    """The page of a Markdown file."""
    return Page(path, blocks(path.read_text(encoding="utf-8"), lambda line: f"line {line}"))


def notebook_page(path, notebook):
    """The page of a notebook that lies, or will lie, at `path`."""
    found = []
    for place, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "markdown":
            found += blocks(cell.source, lambda line, place=place: f"cell {place}")
    return Page(path, found)


def pages():
    """README, SCOREBOARD and all notebooks, reader's and solved, as their sources say (test_build holds the files to that)."""
    notebooks = [(source, solved) for source in build.sources() for solved in (False, True)]
    return [markdown_page(ROOT / name) for name in ("README.md", "SCOREBOARD.md")] + [
        notebook_page(build.target(source, solved), build.page(source, solved)) for source, solved in notebooks]
