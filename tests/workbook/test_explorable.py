"""Explorables: what a moved slider does, what is left where no kernel runs, and that a step stays a step."""

import io
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image

from lessonlib.files import ROOT
from lessonlib.workbook import Choice, Explorable, Slider, explorable, style


class Wave(Explorable):
    """A line, a bar, a title and labels, all of which move."""

    sliders = (
        Slider("height", "height of the wave", 0.5, 0.0, 1.0, 0.25, unit="metres"),
        Slider("turns", "turns", 2, 1, 5),
        Choice("shape", "shape", "round", ("round", "square")),
    )
    columns = 2

    def setup(self, axes):
        self.x = np.linspace(0, 6.28, 80)
        self.curve, self.level = style.lines(axes[0], self.x, {"wave": 0 * self.x, "level": 0 * self.x})
        axes[0].set(ylim=(-1.2, 1.2), xlabel="time (s)", ylabel="height (m)")
        self.bars = style.bars(axes[1], ["mean", "top"], {"wave": [0, 1]})
        axes[1].set_ylim(0, 1.2)
        self.drawn = 0

    def draw(self, height, turns, shape):
        self.drawn += 1
        wave = np.sin(turns * self.x)
        wave = height * (np.sign(wave) if shape == "square" else wave)
        self.curve.set_ydata(wave)
        self.level.set_ydata(0 * self.x + height)
        style.move_bars(self.bars, {"wave": [abs(wave).mean(), wave.max()]})
        style.finding(self.figure.axes[0], f"A {shape} wave, {height} m high")
        return f"A {shape} wave of {turns} turns rises to {height:.2f} metres."


@pytest.fixture
def outputs(monkeypatch):
    """What was displayed, as (data, metadata) pairs."""
    shown = []
    monkeypatch.setattr(explorable, "publish_display_data", lambda data, metadata=None: shown.append((data, metadata)))
    return shown


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=int)


def test_a_moved_slider_changes_picture_and_sentence_and_reset_brings_them_back():
    wave = Wave()
    first, sentence = wave.picture.value, wave.sentence.value
    for name, value in (("height", 1.0), ("turns", 4), ("shape", "square")):
        before = wave.picture.value
        wave.controls[name].value = value
        assert wave.picture.value != before
    assert "A square wave of 4 turns rises to 1.00 metres." in wave.sentence.value
    drawn = wave.drawn
    wave.reset()
    assert wave.values() == {"height": 0.5, "turns": 2, "shape": "round"}
    assert wave.drawn == drawn + 1 and wave.sentence.value == sentence
    assert abs(pixels(wave.picture.value) - pixels(first)).mean() < 0.5


def test_the_quick_picture_is_the_picture_drawn_from_scratch(outputs):
    """Painting only what moved must show the same, wherever the sliders have been before."""
    moved, values = Wave(), {"height": 0.75, "turns": 3, "shape": "square"}
    moved._ipython_display_()
    for name, value in (("turns", 5), ("height", 0.0), *values.items()):
        moved.controls[name].value = value
    fresh = type(
        "Fresh",
        (Wave,),
        {"sliders": tuple(type(slider)(**{**vars(slider), "start": values[slider.name]}) for slider in Wave.sliders)},
    )()
    difference = abs(pixels(moved.picture.value) - pixels(fresh.picture.value))
    assert difference.shape[0] == 510 and (difference.max(-1) > 60).mean() < 0.002
    wrong = abs(pixels(moved.picture.value) - pixels(Wave().picture.value))
    assert (wrong.max(-1) > 60).mean() > 0.01


def test_what_is_displayed_works_with_a_kernel_and_without(outputs):
    wave = Wave()
    wave._ipython_display_()
    (panel, about), (sentence, _) = outputs
    caption = "A round wave of 2 turns rises to 0.50 metres."
    assert panel[explorable.VIEW]["model_id"] == wave.panel.model_id
    assert sentence[explorable.VIEW]["model_id"] == wave.sentence.model_id
    assert panel["image/png"].startswith(b"\x89PNG") and panel["text/plain"] == sentence["text/plain"] == caption
    assert about["image/png"]["alt"] == caption and sentence["text/markdown"] == f"*{caption}*"
    assert pixels(panel["image/png"]).shape == (680, 1520, 3)
    assert 'role="status"' in wave.sentence.value and caption in wave.sentence.value


def test_the_still_is_the_same_each_time(outputs):
    Wave()._ipython_display_()
    Wave()._ipython_display_()
    assert outputs[0][0]["image/png"] == outputs[2][0]["image/png"]


def test_after_display_a_step_paints_only_what_moves(outputs, monkeypatch):
    wave = Wave()
    wave._ipython_display_()
    whole = []
    monkeypatch.setattr(wave.figure.canvas, "draw", lambda: whole.append(1))
    for height in (0.75, 1.0, 0.25):
        before = wave.picture.value
        wave.controls["height"].value = height
        assert wave.picture.value != before
    assert whole == []


def test_a_second_thread_waits_while_the_figure_is_shown_or_put_back(outputs, monkeypatch):
    """JupyterLab answers a slider on a thread of its own, and both draw on one figure."""
    wave, free = Wave(), []

    def knock(*change):
        def enter():
            free.append(wave.drawing.acquire(blocking=False))
            if free[-1]:
                wave.drawing.release()

        thread = Thread(target=enter)
        thread.start()
        thread.join()

    def knocking(action):
        return lambda *args, **named: knock() or action(*args, **named)

    for owner, name in ((wave, "draw"), (wave, "paint"), (wave, "forget_background"), (style, "still_bundle")):
        monkeypatch.setattr(owner, name, knocking(getattr(owner, name)))
    wave._ipython_display_()
    wave.controls["height"].value = 1.0
    wave.controls["height"].observe(knock, names="value")
    wave.reset()
    assert len(free) > 15 and not any(free)


def test_both_ends_of_every_slider_are_tried_before_the_reader_can(outputs):
    class Fragile(Wave):
        def draw(self, height, turns, shape):
            return super().draw(1 / height, turns, shape)

    with pytest.raises(ZeroDivisionError):
        Fragile()._ipython_display_()
    assert outputs == []


def test_a_models_forward_in_a_callback_is_refused():
    model = torch.nn.Linear(1, 1)

    class Slow(Wave):
        def draw(self, **values):
            model(torch.zeros(1))
            return super().draw(**values)

    with pytest.raises(RuntimeError, match="Linear was called while a slider moved"):
        Slow()
    assert model(torch.zeros(1)).shape == (1,)


def test_a_picture_without_a_sentence_is_refused():
    class Mute(Wave):
        def draw(self, **values):
            super().draw(**values)
            return "a wave"

    with pytest.raises(ValueError, match="whole sentence"):
        Mute()


def test_sliders_carry_label_unit_steps_and_decimals():
    wave = Wave()
    height, turns, shape = wave.controls.values()
    assert (height.description, height.min, height.max, height.step, height.readout_format) == (
        "height of the wave",
        0,
        1,
        0.25,
        ".2f",
    )
    assert type(turns).__name__ == "IntSlider" and turns.readout_format == "d"
    assert shape.options == ("round", "square")
    assert "metres" in [child.value for child in wave.panel.children[0].children if hasattr(child, "value")]


def test_nothing_in_the_workbook_uses_what_the_notebook_test_cannot_compare():
    sources = [*(ROOT / "lessonlib" / "workbook").rglob("*.py"), *(ROOT / "notebooks" / "src").glob("*.py")]
    code = {path: path.read_text(encoding="utf-8") for path in sources}
    words = ("interact(", "interactive(", "interactive_output", "widgets.Output", "tqdm.notebook", "clear_output(")
    assert len(code) >= 8 and [(path.name, word) for path, text in code.items() for word in words if word in text] == []
