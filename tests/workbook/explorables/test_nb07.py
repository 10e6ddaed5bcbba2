"""The two pictures of notebook 07: the four shapes, and the bytes of a step at every place of the sliders."""

import pytest

from lessonlib.workbook import style
from lessonlib.workbook.checks.nb07 import LLAMA_8B, bytes_a_step
from lessonlib.workbook.explorables.nb07 import SHAPES, BytesAStep, four_shapes


def picture():
    return BytesAStep(bytes_a_step, LLAMA_8B, 32, ("another", 2.5e9))


def ends(shown):
    """Where the bar of the layers and that of the head end, in bytes."""
    return tuple(1e9 * (bar.get_x() + bar.get_width()) for bar in (shown.layers, shown.head))


@pytest.mark.parametrize("moved, layers, total", [
    ({}, 8 * 218_103_808, 8 * 218_103_808 + 2 * 4096 * 128_256),
    ({"kept": 0}, 0, 2 * 4096 * 128_256),
    ({"kept": 16, "bits": "4 bits"}, 8 * 218_103_808, 8 * 218_103_808 + 4096 * 128_256 / 2),
    ({"vocabulary": 32, "bits": "8 bits"}, 4 * 218_103_808, 4 * 218_103_808 + 4096 * 32_000),
])
def test_the_bars_end_where_the_bytes_do_and_the_sentence_says_c(moved, layers, total):
    shown = picture()
    for name, value in moved.items():
        shown.controls[name].value = value
    assert ends(shown) == pytest.approx((layers, total))
    config_c = total / bytes_a_step(LLAMA_8B, 32)
    assert f"from alpha {config_c:.3f} on" in shown.sentence.value and f"{total / 1e9:.2f} GB a step" in shown.sentence.value
    assert f"c = {config_c:.3f} by bytes" in shown.ax.get_title(loc="left")


def test_the_sentence_names_the_best_k_and_its_speed():
    shown = picture()
    shown.controls["bits"].value = "4 bits"  # c = 0.047, where K = 6 writes 3.06 tokens in 1.28 steps
    assert "at alpha 0.7 the best K is 6: 2.39 times" in shown.sentence.value


def test_it_draws_at_the_ends_of_its_sliders_and_starts_with_the_whole_vocabulary():
    shown = picture()
    assert shown.try_the_ends() is None and "128,256 tokens" in shown.sentence.value


def test_the_four_shapes_are_drawn_and_the_drafts_own_parts_are_hatched():
    fig = four_shapes()
    assert [ax.get_title() for ax in fig.axes] == list(SHAPES)
    hatched = [sum(bool(patch.get_hatch()) for patch in ax.patches) for ax in fig.axes]
    assert hatched == [6, 2, 3, 1]  # embedding, four layers and head; two layers; three heads; one layer
    assert len(style.png(fig)) > 10_000
