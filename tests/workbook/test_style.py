"""Figures: the same picture each time, told apart without colour, and never without words."""

import io

import numpy as np
import pytest
from PIL import Image

from lessonlib.workbook import show, style

CAPTION = "Two lines that part: the dashed one rises three times as fast."


def two_lines():
    fig, ax = style.figure()
    lines = style.lines(ax, [0, 1, 2], {"slow": [0, 1, 2], "fast": [0, 3, 6]})
    style.finding(ax, "The fast one is three times as fast")
    return fig, ax, lines


@pytest.fixture
def outputs(monkeypatch):
    shown = []
    monkeypatch.setattr(style, "publish_display_data", lambda data, metadata=None: shown.append((data, metadata)))
    return shown


def test_show_gives_the_picture_its_caption_as_alt_text_and_prints_it_below(outputs):
    show(two_lines()[0], CAPTION.replace(" the", "\n   the"))
    (picture, about), (below, _) = outputs
    assert about == {"image/png": {"width": 760, "height": 320, "alt": CAPTION}}
    assert picture["text/plain"] == below["text/plain"] == CAPTION and below["text/markdown"] == f"*{CAPTION}*"


def test_a_caption_is_shown_letter_by_letter_whatever_it_holds(outputs):
    show(two_lines()[0], "At $5 the *best* K_max is |3| <here> [for] now.")
    assert outputs[1][0]["text/markdown"] == r"*At \$5 the \*best\* K\_max is \|3\| \<here\> \[for\] now.*"


@pytest.mark.parametrize("caption", ["", "speed-up", "speed-up against alpha for several K"])
def test_a_figure_is_not_shown_without_a_sentence(outputs, caption):
    with pytest.raises(ValueError, match="whole sentence"):
        show(two_lines()[0], caption)
    assert outputs == []


def test_the_same_figure_gives_the_same_bytes_without_a_date():
    fig = two_lines()[0]
    data = style.png(fig)
    assert data == style.png(fig) == style.png(two_lines()[0])
    assert Image.open(io.BytesIO(data)).info.keys() <= {"transparency"} and len(data) < 30_000


def test_the_picture_is_twice_as_fine_as_it_is_shown():
    assert Image.open(io.BytesIO(style.png(two_lines()[0]))).size == (1520, 640)


def test_the_fast_picture_is_the_canvas_to_the_last_pixel():
    fig = two_lines()[0]
    fig.canvas.draw()
    picture = Image.open(io.BytesIO(style.encoded(fig)))
    assert picture.mode == "RGB" and np.array_equal(np.asarray(picture), np.asarray(fig.canvas.buffer_rgba())[..., :3])


def luminance(colour):
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2


def test_series_differ_without_colour_and_every_colour_is_readable_on_white():
    lines = two_lines()[2]
    assert lines[0].get_linestyle() != lines[1].get_linestyle() and len(set(style.LINES)) == len(style.COLOURS)
    bars = style.bars(style.figure()[1], ["a", "b"], {"p": [1, 2], "q": [2, 1]})
    assert bars["p"][0][0].get_hatch() != bars["q"][0][0].get_hatch() and len(set(style.HATCHES)) == len(style.COLOURS)
    for colour in (*style.COLOURS, style.INK, style.QUIET):
        assert 1.05 / (luminance(colour) + 0.05) >= 3.3, colour


def test_labels_stand_where_their_lines_end_and_never_on_each_other():
    fig, ax = style.figure()
    drawn = style.lines(ax, [0, 1], {"a": [0, 1.00], "b": [0, 1.01], "c": [0, 0.2]})
    drawn[2].set_ydata([0, 0.99])
    style.png(fig)
    boxes = sorted((label.get_window_extent() for _, label in ax.end_labels), key=lambda box: box.y0)
    assert all(lower.y1 <= upper.y0 for lower, upper in zip(boxes, boxes[1:]))
    assert [label.get_text() for _, label in sorted(ax.end_labels, key=lambda pair: pair[1].xy[1])] == ["c", "a", "b"]
    assert ax.end_labels[2][1].xy[1] == 0.99


def test_bars_carry_their_values_and_move():
    ax = style.figure()[1]
    bars = style.bars(ax, ["x", "y"], {"p": [0.5, 0.25]})
    style.move_bars(bars, {"p": [0.125, 0.875]})
    assert [(bar.get_height(), text.get_text(), text.xy[1]) for bar, text, _ in bars["p"]] == [
        (0.125, ".12", 0.125),
        (0.875, ".88", 0.875),
    ]
    assert np.allclose([bar.get_x() + bar.get_width() / 2 for bar, _, _ in bars["p"]], [0, 1])


def test_a_finding_can_stand_over_a_whole_figure():
    fig, axes = style.figure(columns=2)
    style.finding(fig, "Both fall")
    style.finding(axes[0], "This one too")
    assert fig.get_suptitle() == "Both fall" and axes[0].get_title("left") == "This one too"
