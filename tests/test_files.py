"""Files and folders that take the place of others, whatever happens on the way."""

import os

import pytest

from lessonlib import files
from lessonlib.errors import LessonError
from lessonlib.files import atomic_path


def folder_of(path, text):
    path.mkdir()
    (path / "text").write_text(text)


def test_a_folder_takes_the_place_of_another(tmp_path):
    for text in ("first", "second"):
        with atomic_path(tmp_path / "draft") as temporary:
            folder_of(temporary, text)
        assert (tmp_path / "draft/text").read_text() == text
        assert os.listdir(tmp_path) == ["draft"]


@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("what", [KeyboardInterrupt, OSError])
def test_what_was_there_survives_an_interruption_at_any_renaming(tmp_path, monkeypatch, when, what):
    folder_of(tmp_path / "draft", "first")
    rename, calls = os.replace, []

    def broken(source, place):
        calls.append(place)
        if len(calls) == when:
            raise what
        rename(source, place)

    monkeypatch.setattr(files.os, "replace", broken)
    with pytest.raises(what), atomic_path(tmp_path / "draft") as temporary:
        folder_of(temporary, "second")
    assert (tmp_path / "draft/text").read_text() == "first" and os.listdir(tmp_path) == ["draft"]


def test_a_folder_takes_the_place_of_a_link_to_one_and_leaves_what_it_led_to(tmp_path):
    folder_of(tmp_path / "elsewhere", "first")
    (tmp_path / "draft").symlink_to(tmp_path / "elsewhere")
    with atomic_path(tmp_path / "draft") as temporary:
        folder_of(temporary, "second")
    assert (tmp_path / "draft/text").read_text() == "second" and (tmp_path / "elsewhere/text").read_text() == "first" and len(os.listdir(tmp_path)) == 2


def test_a_file_never_takes_the_place_of_a_folder_nor_a_folder_that_of_a_file(tmp_path):
    folder_of(tmp_path / "draft", "first")
    with pytest.raises(LessonError, match="is a directory"), atomic_path(tmp_path / "draft") as temporary:
        temporary.write_text("second")
    with pytest.raises(LessonError, match="not a directory"), atomic_path(tmp_path / "draft/text") as temporary:
        folder_of(temporary, "second")
    assert (tmp_path / "draft/text").read_text() == "first" and os.listdir(tmp_path) == ["draft"]
