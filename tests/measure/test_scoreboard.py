"""SCOREBOARD.md: one row a run, never a torn table, never somebody else's file."""

import os
import re
from datetime import date

import pytest
import torch
import transformers

from lessonlib.errors import LessonError
from lessonlib.measure.scoreboard import BOARD, COLUMNS, add_row, check_board, machine, provenance, versions

FILLED = ("date", "machine", "versions")
ROW = {column: f"<{column}>" for column in COLUMNS if column not in FILLED}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_rows_are_added_one_by_one(tmp_path):
    path = tmp_path / "SCOREBOARD.md"
    add_row(ROW | {"alpha [95 %]": 0.5, "pair": "a|b"}, path)
    first = path.read_text()
    add_row(ROW, path)
    assert path.read_text().startswith(first)
    table = [line for line in path.read_text().splitlines() if line.startswith("|")]
    assert cells(table[0]) == list(COLUMNS) and set(cells(table[1])) == {"---"} and len(table) == 4
    assert all(len(cells(line)) == len(COLUMNS) for line in table)
    row = dict(zip(COLUMNS, cells(table[2])))
    assert row["date"] == date.today().isoformat() and row["alpha [95 %]"] == "0.5" and row["pair"] == "a/b" and row["K"] == "<K>"
    assert row["machine"] == machine() and row["versions"] == versions()
    assert path.read_text().startswith("# Scoreboard\n") and path.read_text().endswith("|\n") and list(tmp_path.iterdir()) == [path]


def test_what_a_run_says_of_itself_is_kept(tmp_path):
    add_row(ROW | {"date": "1999-12-31", "machine": "abacus"}, tmp_path / "board.md")
    assert "| 1999-12-31 |" in (tmp_path / "board.md").read_text() and "| abacus |" in (tmp_path / "board.md").read_text()


@pytest.mark.parametrize("values, named", [({"K": 1}, "alpha"), (ROW | {"speed": 3}, "speed")])
def test_a_row_with_other_columns_is_refused(tmp_path, values, named):
    with pytest.raises(LessonError, match=f"wrong or missing: .*{named}"):
        add_row(values, tmp_path / "board.md")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["notes of mine\n", "# Scoreboard\n\n| date | pair |\n| --- | --- |\n"])
def test_a_file_that_is_no_scoreboard_is_left_as_it_is(tmp_path, text):
    (tmp_path / "board.md").write_text(text)
    for work in (lambda path: add_row(ROW, path), check_board):
        with pytest.raises(LessonError, match="not a scoreboard"):
            work(tmp_path / "board.md")
    assert (tmp_path / "board.md").read_text() == text


def test_a_place_where_no_scoreboard_can_be_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "wide.md").write_text("# Scoreboard", encoding="utf-16")
    for path, said in ((tmp_path, "is a folder"), (tmp_path / "file" / "x.md", "file is a file"), (tmp_path / "wide.md", "cannot be read")):
        for work in (lambda path: add_row(ROW, path), check_board):
            with pytest.raises(LessonError, match=said) as caught:
                work(path)
            assert "\n" not in str(caught.value)
    check_board(tmp_path / "new" / "board.md")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "wide.md"] and (tmp_path / "file").read_text() == "mine"


def test_an_empty_file_is_begun(tmp_path):
    (tmp_path / "a.md").write_text("\n")
    add_row(ROW, tmp_path / "a.md")
    add_row(ROW, tmp_path / "b.md")
    assert (tmp_path / "a.md").read_text() == (tmp_path / "b.md").read_text()


def test_a_row_goes_right_below_the_table_and_stays_one_line(tmp_path):
    path = tmp_path / "board.md"
    add_row(ROW, path)
    path.write_text(path.read_text() + "\nnotes of mine\n| odd |\n")
    add_row(ROW | {"pair": "a\nb\r\nc"}, path)
    found = path.read_text().splitlines()
    assert cells(found[-4])[1] == "a b c" and cells(found[-5])[1] == "<pair>" and found[-3:] == ["", "notes of mine", "| odd |"]


def test_a_full_disk_keeps_the_rows_there_are(tmp_path):
    path = tmp_path / "board.md"
    add_row(ROW, path)
    before = path.read_text()
    (tmp_path / f".board.md.{os.getpid()}.tmp").symlink_to("/dev/full")  # a device on which every write finds no space left
    with pytest.raises(LessonError, match="disk is full"):
        add_row(ROW, path)
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


def test_machine_and_versions_name_what_results_depend_on():
    assert re.search(r"\d+ threads$", machine()) or torch.cuda.is_available()
    assert torch.__version__ in versions() and transformers.__version__ in versions()
    assert BOARD.name == "SCOREBOARD.md" and (BOARD.parent / "pyproject.toml").exists()


def test_provenance_names_the_command_without_this_machines_folders(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["lessonlib", "reference", "trainings", "--folder", str(tmp_path / "kept")])
    assert provenance()["command"] == "python -m lessonlib reference trainings --folder kept"
