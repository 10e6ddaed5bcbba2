"""The builder: what it makes of a source, that it makes the same twice, and that it never leaves half a notebook."""

import re

import nbformat
import pytest

from lessonlib.errors import LessonError
from lessonlib.workbook import build, rules

NAME = "90_try_the_machine.ipynb"


@pytest.fixture(scope="module")
def reader(example):
    return nbformat.read(example / NAME, as_version=4)


@pytest.fixture(scope="module")
def solved(example):
    return nbformat.read(example / "solutions" / NAME, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def test_both_notebooks_keep_every_rule(example, reader, solved):
    bodies = build.solutions(example / "src" / "90_try_the_machine.py")
    assert len(bodies) == 2
    assert rules.problems(reader, solved=False, solutions=bodies) == []
    assert rules.problems(solved, solved=True) == []


def test_the_reader_sees_stubs_and_the_solved_notebook_the_solution(reader, solved):
    assert code(reader)[2].source.endswith('kept."""\n    overlap = ...  # token by token\n    return ...  # and summed')
    assert code(reader)[4].source == "def kept_prefix(proposed, wanted):\n    ...  # your turn"
    assert code(solved)[2].source.endswith("overlap = target_probs.minimum(draft_probs)\n    return overlap.sum()")


def test_an_unsolved_notebook_runs_to_its_end_on_the_library(reader, solved):
    for unsolved, right in ((code(reader)[3], code(solved)[3]), (code(reader)[5], code(solved)[5])):
        assert "not written yet" in printed(unsolved)
        assert "right on all" in printed(right)


def test_an_explorable_leaves_a_still_and_a_sentence_and_no_widget(reader):
    picture, caption = code(reader)[-1].outputs
    assert set(picture.data) == {"image/png", "text/plain"}
    assert picture.data["text/plain"] == "At alpha 0.70 and 3 guesses a round, a round writes 2.53 tokens."
    assert picture.metadata["image/png"] == {"alt": picture.data["text/plain"], "width": 760, "height": 340}
    assert caption.data["text/markdown"] == f"*{picture.data['text/plain']}*"


def test_links_lead_to_the_same_places_from_both_folders(reader, solved):
    assert "(../README.md)" in reader.cells[0].source and "(solutions/90_try" in reader.cells[0].source
    assert "(../../README.md)" in solved.cells[0].source and "(90_try" in solved.cells[0].source


def test_a_second_build_is_the_same_but_for_what_was_measured(example, tmp_path, source_writer, example_text):
    build.build(source_writer(tmp_path, example_text))

    def timeless(path):
        return re.sub(r" in \d+ s \([\d,]+/s\)", "", re.sub(r"≈[\d.,]+|⟨[^⟩]*⟩", "", path.read_text(encoding="utf-8")))

    for name in (NAME, f"solutions/{NAME}"):
        assert timeless(tmp_path / name) == timeless(example / name)
        assert (tmp_path / name).read_text(encoding="utf-8") != (example / name).read_text(encoding="utf-8")


@pytest.fixture
def built(tmp_path, source_writer):
    """A source that builds, and what its notebooks hold."""
    source = source_writer(tmp_path, '# %% [markdown]\n# # Title\n\n# %%\nprint("first")\n')
    build.build(source)
    return source, {path: path.read_bytes() for path in tmp_path.rglob("*.ipynb")}


def fails(built, text):
    """The error of building another text, after which nothing else may have changed."""
    source, before = built
    source.write_text(text, encoding="utf-8")
    with pytest.raises(build.BuildError) as error:
        build.build(source)
    assert len(before) == 2 and {path: path.read_bytes() for path in before} == before
    assert {path for path in source.parent.parent.rglob("*") if path.is_file()} == {source, *before}
    return str(error.value)


def test_a_failing_cell_is_shown_in_one_block_and_the_old_notebooks_stay(built):
    block = fails(built, '# %% [markdown]\n# # Title\n\n# %%\nprint("hello")\n\n# %%\nx = 1\ny = x / 0\n')
    assert "cell 3 (code cell 2 of 2) failed." in block.splitlines()[0]
    assert "    2  y = x / 0" in block and block.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "\x1b" not in block


def test_a_solved_notebook_must_pass_its_own_checks(built):
    wrong = "def p_keep(p, q):\n    # <solution>\n    return (p * q).sum()\n    # </solution>"
    block = fails(
        built,
        '# %% [markdown]\n# # Title\n\n# %%\nfrom lessonlib.workbook import checks\n\n# %% tags=["exercise"]\n'
        f"{wrong}\n\n# %%\np_keep = checks.ex_0_1(p_keep)\n",
    )
    assert "solutions" in block.splitlines()[0] and "two separate draws" in block


@pytest.mark.parametrize(
    "cell, said",
    [
        ("import sys\nprint('oh', file=sys.stderr)", "writes to stderr"),
        ("import os\nprint(os.getcwd())", "prints what is different on every machine"),
        ("print('x' * 310_000)", "under 300 KB is the rule"),
    ],
    ids=["stderr", "path", "size"],
)
def test_a_notebook_that_breaks_a_rule_is_not_written(built, cell, said):
    assert said in fails(built, f"# %% [markdown]\n# # Title\n\n# %%\n{cell}\n")


@pytest.mark.parametrize(
    "cell, tags, said",
    [
        ("def f():\n    # <solution>\n    return 1", '["exercise"]', "a mark is left over"),
        (
            "def f():\n    # <solution>\n    return 1\n    # </solution>\n    # <stub>\n    pass\n    # </stub>",
            '["exercise"]',
            "must be a comment",
        ),
        ("def f():\n    # <solution>\n    return 1\n    # </solution>", "[]", "belong together"),
        ("def f():\n    return 1", '["exercise"]', "belong together"),
    ],
)
def test_marks_that_do_not_fit_are_explained(tmp_path, source_writer, cell, tags, said):
    source = source_writer(tmp_path, f"# %% tags={tags}\n{cell}\n")
    with pytest.raises(LessonError, match=said):
        build.page(source, solved=False)


def test_stale_notebooks_are_named(built):
    source, notebooks = built
    folder = source.parent.parent
    assert build.stale(folder) == []
    source.write_text(source.read_text(encoding="utf-8").replace("first", "second"), encoding="utf-8")
    assert [line.split("/")[-1] for line in build.stale(folder)] == [f"{NAME} differs from its source"] * 2
    source.rename(source.with_name("91_other.py"))
    assert (
        sorted(line.split("/")[-1].split(" ", 1)[1] for line in build.stale(folder))
        == ["has no source"] * 2 + ["was never built"] * 2
    )


def test_where_only_words_have_changed_the_outputs_can_be_kept(built):
    source, before = built
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace("# # Title", "# # Title\n#\n# and a word"), encoding="utf-8")
    build.build(source, words=True)
    for path in before:
        code = nbformat.read(path, as_version=4).cells[1]
        assert (code.execution_count, code.outputs[0].text) == (1, "first\n") and "and a word" in path.read_text(encoding="utf-8")
    assert build.stale(source.parent.parent) == []
    source.write_text(text.replace("first", "second"), encoding="utf-8")
    with pytest.raises(build.BuildError, match="build it without --words"):
        build.build(source, words=True)


def test_the_command_says_what_failed_and_how_it_ended(tmp_path, source_writer, monkeypatch, capsys):
    monkeypatch.setattr(build, "NOTEBOOKS", tmp_path)
    assert build.main([]) == 2
    assert "no notebook source in" in capsys.readouterr().err
    assert build.main(["77"]) == 2
    assert "There is no notebook source 77_" in capsys.readouterr().err
    source_writer(tmp_path, "# %% [markdown]\n# # Title\n\n# %%\n1 / 0\n")
    assert build.main(["--check"]) == 1
    assert "was never built" in capsys.readouterr().out
    assert build.main(["90"]) == 1
    said = capsys.readouterr().out
    assert "code cell 1 of 1) failed" in said and "left as they were" in said


def test_the_committed_notebooks_are_as_their_sources_say():
    assert build.stale() == []
