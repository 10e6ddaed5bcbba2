"""Generic text from tiny made-up files; the tools that download are stood in for by small scripts."""

import io
import os
import tarfile

import pytest

from lessonlib.errors import LessonError
from lessonlib.files import read_jsonl
from lessonlib.traffic import generic_text
from lessonlib.traffic.generic_text import fetch_generic_text, read_generic_text, write_generic_text
from lessonlib.traffic.rst import rst_blocks

RST = """\
.. _target:

:mod:`lamps` --- Lamps and their light
======================================

.. module:: lamps
   :synopsis: Lamps.

A *lamp* is a ``Lamp()`` object, see :meth:`~Lamp.on` and
:pep:`8` or `the shop <https://example.org>`_ [#f1]_.  (Contributed by Ann Other in :issue:`12`.)

.. index:: single: lamp

.. function:: light(level)
              light()
   :noindex:

   Turn on the light.  For example::

      light(3)
      light()

   .. versionadded:: 3.4

   .. note::

      It may be bright.

+-----+-----+
| a   | b   |
+-----+-----+

* the first
  item
* the second

   >>> light(1)
   1
"""

WORDNET = """\
  1 The licence at the top | is not an entry
00003938 03 n 02 oak_tree 0 oak 0 002 @ 00001740 n 0000 | a tree that bears acorns; "an old oak"
00003939 00 a 01 lit(p) 0 000 | giving light
"""


def test_rst_becomes_running_text():
    assert list(rst_blocks(RST)) == [
        "## `lamps` - Lamps and their light",
        "A lamp is a `Lamp()` object, see `on` and PEP 8 or the shop.",
        "`light(level)`\n`light()`",
        "Turn on the light. For example:",
        "```\nlight(3)\nlight()\n```",
        "New in version 3.4.",
        "Note: It may be bright.",
        "- the first item",
        "- the second",
        "```\n>>> light(1)\n1\n```",
    ]


def test_wordnet_lines_keep_words_gloss_and_example():
    lines = list(generic_text.wordnet_lines(WORDNET))
    assert lines == ['oak tree, oak: a tree that bears acorns; "an old oak"', "lit: giving light"]


def speech(start, sentences=60):
    return " ".join(f"Sentence {start + i} speaks of the state of things." for i in range(sentences))


def write_speeches(folder, n=30):
    folder.mkdir(parents=True)
    for i in range(n):
        (folder / f"{1800 + i}.txt").write_text(speech(1000 * i), encoding="utf-8")
    return folder


def test_a_long_line_is_cut_at_sentence_ends_into_documents_and_nothing_is_lost(tmp_path):
    write_speeches(tmp_path / "speeches", 1)
    rows = read_generic_text(tmp_path)
    assert len(rows) > 1 and {source for source, _ in rows} == {"speeches"}
    for _, text in rows:
        assert generic_text.SMALLEST <= len(text) <= generic_text.DOCUMENT
        assert all(paragraph.endswith("things.") for paragraph in text.split("\n\n"))
    words = sorted(word for _, text in rows for word in text.split())
    assert words == sorted(speech(0).split())


def test_repeats_are_dropped_and_the_order_hangs_on_the_seed_only(tmp_path):
    folder = write_speeches(tmp_path / "a")
    once = read_generic_text(folder, seed=3)
    (folder / "again.txt").write_text(speech(0), encoding="utf-8")
    assert read_generic_text(folder, seed=3) == once == read_generic_text(sorted(folder.iterdir(), reverse=True), seed=3)
    other = read_generic_text(folder, seed=4)
    assert other != once and sorted(other) == sorted(once)


def test_write_splits_into_train_and_heldout(tmp_path):
    counts = write_generic_text(tmp_path / "out", write_speeches(tmp_path / "in"), heldout=0.1)
    parts = {name: list(read_jsonl(tmp_path / "out" / f"{name}.jsonl")) for name in counts}
    total = sum(map(len, parts.values()))
    assert len(parts["heldout"]) == round(total * 0.1)
    assert not {row["text"] for row in parts["train"]} & {row["text"] for row in parts["heldout"]}
    assert counts["train"]["in"] == sum(len(row["text"]) for row in parts["train"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["heldout.jsonl", "train.jsonl"]


@pytest.mark.parametrize("content, sentence", [
    (None, "is not a folder"), (b"", "No text of at least"), (b"\xff\xfe\x00broken", "not UTF-8"),
    (speech(0, 12).encode(), "one document only")])
def test_bad_folders_are_one_sentence(tmp_path, content, sentence):
    folder = tmp_path / "in"
    if content is not None:
        folder.mkdir()
        (folder / "a.txt").write_bytes(content)
    with pytest.raises(LessonError, match=sentence):
        write_generic_text(tmp_path / "out", folder)
    assert not (tmp_path / "out").exists()


def tar_bytes(members, mode):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return file.getvalue()


def stand_in(folder, name, script):
    path = folder / name
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Stand-ins for npm, apt-get and dpkg-deb that hand out tiny archives and count their calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sotu").write_bytes(tar_bytes({"package/data/1790_a.txt": speech(0), "package/README.md": "no"}, "w:gz"))
    docs = {"./usr/html/_sources/library/lamps.rst.txt": RST * 3, "./usr/other.txt": "no"}
    (folder / "python3.11-doc").write_bytes(tar_bytes(docs, "w"))
    words = {"./usr/share/wordnet/data.noun": WORDNET * 9, "./usr/share/wordnet/index.noun": "no"}
    (folder / "wordnet-base").write_bytes(tar_bytes(words, "w"))
    stand_in(folder, "npm", f"echo npm >> {folder}/calls; cp {folder}/sotu sotu.tgz")
    stand_in(folder, "apt-get", f"echo apt >> {folder}/calls; cp {folder}/$2 $2.deb")
    stand_in(folder, "dpkg-deb", "cat $2")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_fetch_unpacks_what_is_wanted_once(tmp_path, tools):
    folders = fetch_generic_text(tmp_path / "raw")
    found = sorted(str(path.relative_to(tmp_path / "raw")) for path in (tmp_path / "raw").rglob("*") if path.is_file())
    assert found == ["python-docs/_sources__library__lamps.rst.txt", "sotu/package__data__1790_a.txt",
                     "wordnet/share__wordnet__data.noun"]
    assert fetch_generic_text(tmp_path / "raw") == folders
    assert (tools / "calls").read_text().split() == ["npm", "apt", "apt"]
    assert {source for source, _ in read_generic_text(tmp_path / "raw")} == {"sotu", "python-docs", "wordnet"}


def test_a_failed_fetch_is_one_sentence_and_leaves_nothing(tmp_path, tools, monkeypatch):
    stand_in(tools, "apt-get", "echo 'E: Unable to locate package' >&2; exit 100")
    with pytest.raises(LessonError, match=r"apt-get download .* failed \(E: Unable to locate package\); use Debian 12"):
        fetch_generic_text(tmp_path / "raw")
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["sotu"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LessonError, match="npm is not on this machine"):
        fetch_generic_text(tmp_path / "elsewhere")
