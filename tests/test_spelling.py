"""Words are spelt right, and in the British way: README, notebooks, docstrings, comments and printed sentences.

codespell's lists say what is wrong; a list of mistakes knows no false alarm over a name or a term of the field.
"""

import ast
import io
import re
import tokenize
from importlib.resources import files

import jupytext
import pytest
from pages import ROOT, blocks, pages

from lessonlib.workbook import build

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
NAME = re.compile(r"\w[(=/\\]|\w\.\w|_|\d")  # a call, an argument, a path, an attribute: whoever wrote the library spelt it
IZE = re.compile(r"(\w{2,}[^\Ws])iz(e[ds]?|ing|ations?)")  # the lists lack vectorize; resize and prize are right
OURS = {
    "math": "the token that notebooks 00 to 02 look at, and a module of Python",
    "optimizer": "the field's word, as in torch.optim",
    "practice": "the British noun; only its verb has an s",
    "program": "British too, where a computer runs it",
}


def listed(name):
    """The pairs (wrong, right) of one of codespell's lists."""
    lines = (files("codespell_lib") / "data" / name).read_text(encoding="utf-8").splitlines()
    return [line.split("->") for line in lines if "->" in line]


def corrections():
    """What to write for each wrong word: misspellings, and the British-to-American list read backwards."""
    wrong = {word: right for name in ("dictionary.txt", "dictionary_rare.txt") for word, right in listed(name)}
    american = listed("dictionary_en-GB_to_en-US.txt")
    wrong |= {word.strip(): british for british, words in american for word in words.split(",")}
    return {word.lower(): right.strip(" ,") for word, right in wrong.items() if word}


WRONG = corrections()


def misspelt(text):
    """The (word, what to write) of every misspelling in a text."""
    found = []
    for word in (word for chunk in text.split() if not NAME.search(chunk) for word in WORD.findall(chunk)):
        plain = word.lower().replace("’", "'")
        right = WRONG.get(plain) or WRONG.get(plain.removesuffix("'s"))
        right = right or (IZE.sub(r"\1is\2", plain) if IZE.fullmatch(plain) else None)
        found += [(word, right)] if right and plain not in OURS else []
    return found


def python_prose(source):
    """The (line, text) of every comment, docstring and string with a space, without what stands in backticks."""
    found = [(token.start[0], token.string) for token in tokenize.generate_tokens(io.StringIO(source).readline)
             if token.type == tokenize.COMMENT]
    found += [(node.lineno, node.value) for node in ast.walk(ast.parse(source))
              if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\s", node.value)]
    return sorted((line, re.sub(r"`[^`]*`", " ", text)) for line, text in found)


def texts():
    """The (place, text) of everything that is read."""
    for page in pages():
        if page.path.parent.name != "solutions":  # its words are those of the reader's
            yield from ((f"{page.name}, {block.where}", block.prose) for block in page.blocks)
    for source in build.sources():
        for place, cell in enumerate(jupytext.read(source, fmt="py:percent").cells, 1):
            if cell.cell_type == "code":
                yield from ((f"notebooks/src/{source.name}, cell {place}", text) for _, text in python_prose(cell.source))
    for path in sorted((ROOT / "lessonlib").rglob("*.py")):
        found = python_prose(path.read_text(encoding="utf-8"))
        yield from ((f"{path.relative_to(ROOT)}:{line}", text) for line, text in found)


def test_every_word_is_spelt_right():
    read = list(texts())
    problems = [f"{place}: {word}, write {right}" for place, text in read for word, right in misspelt(text)]
    assert not problems, "\n" + "\n".join(problems)
    said = {word.lower() for _, text in read for word in WORD.findall(text)}
    assert OURS.keys() <= said & WRONG.keys(), "a word is let through that nobody writes, or that no list calls wrong"


@pytest.mark.parametrize("text, found", [
    ("The goverment’s teh colour-blind center.", [("goverment’s", "government"), ("teh", "the"), ("center", "centre")]),
    ("It is definately\nrecieved, doesnt it?", [
        ("definately", "definitely"), ("recieved", "received"), ("doesnt", "doesn't, does not")]),
    ("Normalize a colour and the color: normalisation", [("Normalize", "normalise"), ("color", "colour")]),
    ("Vectorized, tokenizing, quantization", [
        ("Vectorized", "vectorised"), ("tokenizing", "tokenising"), ("quantization", "quantisation")]),
    ("the (behavior), behavior-like", [("behavior", "behaviour"), ("behavior", "behaviour")]),
    ("size, sized, resizing, prize, tokenizer, a denominator of the program, in practice", []),
    ("torch.optimize ax.color color=INK normalize(x) center_of a/color/b color\\b", []),
])
def test_a_misspelling_is_found_and_nothing_else(text, found):
    assert misspelt(text) == found


def test_markdown_is_read_without_code_mathematics_links_and_tags():
    markdown = (
        "# Teh head\n\nA [definately](recieve.md) `teh` $teh_x$ <b class='teh'>color</b>\n\n"
        "    teh\n\n```\nteh\n```\n\n$$\nteh\n$$"
    )
    words = [pair for block in blocks(markdown, str) for pair in misspelt(block.prose)]
    assert words == [("Teh", "the"), ("definately", "definitely"), ("color", "colour")]


def test_python_is_read_by_its_comments_docstrings_and_sentences():
    source = """
def center(color="center"):
    '''Recieve `teh` it.'''
    teh = f"teh {color} of"  # definately
    return teh, "a teh"
"""
    words = [(line, word) for line, text in python_prose(source) for word, _ in misspelt(text)]
    assert words == [(3, "Recieve"), (4, "definately"), (4, "teh"), (5, "teh")]
