"""Explorables: sliders beside one reused figure, with a still picture and a sentence where no kernel runs.

Built on `observe` and an Image widget: a key is answered in tens of milliseconds and nothing random stays in the outputs.
"""

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape

import ipywidgets as widgets
import torch
from IPython.display import publish_display_data

from lessonlib.workbook import style

VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Slider:
    """One number the reader moves with the mouse or the arrow keys; whole steps make it an integer."""

    name: str
    label: str
    start: float
    low: float
    high: float
    step: float = 1
    unit: str = ""

    def ends(self):
        """Its lowest and highest value."""
        return self.low, self.high

    def widget(self):
        """The ipywidgets slider."""
        kind = (
            widgets.IntSlider
            if all(isinstance(x, int) for x in (self.start, self.low, self.high, self.step))
            else widgets.FloatSlider
        )
        decimals = len(f"{self.step:.10f}".rstrip("0").partition(".")[2])
        return kind(
            value=self.start,
            min=self.low,
            max=self.high,
            step=self.step,
            description=self.label,
            readout_format="d" if kind is widgets.IntSlider else f".{decimals}f",
            style={"description_width": "16em"},
            layout={"width": "36em"},
        )


@dataclass(frozen=True)
class Choice:
    """One of a few named options, moved with the arrow keys like a slider."""

    name: str
    label: str
    start: str
    options: tuple
    unit: str = ""

    def ends(self):
        """Its first and last option."""
        return self.options[0], self.options[-1]

    def widget(self):
        """The ipywidgets selection slider."""
        return widgets.SelectionSlider(
            options=list(self.options),
            value=self.start,
            description=self.label,
            style={"description_width": "16em"},
            layout={"width": "36em"},
        )


@contextmanager
def no_forward():
    """Refuse a model's forward pass inside the block: a slider must answer at once, so what it shows is computed before.

    On this thread only: JupyterLab answers sliders on a second one, while a cell may run a model on the first.
    """
    thread = threading.get_ident()

    def refuse(module, inputs):
        if threading.get_ident() == thread:
            raise RuntimeError(
                f"{type(module).__name__} was called while a slider moved: compute it before the explorable is made."
            )

    handle = torch.nn.modules.module.register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


class Explorable:
    """A picture with sliders. A subclass names its `sliders`, makes its artists once in `setup`, and moves them in `draw`.

    `setup(axes)` gets the axes (one, or an array of `columns`); `draw(**values)` gets the sliders' values and returns the
    sentence that says what the picture now shows: it is the caption, and the alt text of the still.
    """

    sliders = ()
    width, height, columns = 7.6, 3.4, 1  # inches of 100 pixels on the page

    def __init__(self):
        self.figure, axes = style.figure(self.width, self.height, self.columns)
        with style.look():
            self.setup(axes)
        self.controls = {slider.name: slider.widget() for slider in self.sliders}
        self.picture = widgets.Image(
            format="png", layout={"width": f"{round(self.width * style.CSS_PIXELS)}px", "max_width": "100%"}
        )
        self.sentence = widgets.HTML(layout={"width": f"{round(self.width * style.CSS_PIXELS)}px", "max_width": "100%"})
        reset = widgets.Button(
            description="Reset", tooltip="Put every slider back where it started", layout={"width": "6em"}
        )
        reset.on_click(self.reset)
        rows = [
            widgets.HBox([self.controls[s.name], widgets.Label(s.unit)]) if s.unit else self.controls[s.name]
            for s in self.sliders
        ]
        self.panel = widgets.VBox([*rows, reset, self.picture])
        self.moving, self.background = set(), None
        self.drawing = threading.RLock()  # a slider's answer and a cell may come on two threads
        self.redraw()
        for control in self.controls.values():
            control.observe(self.redraw, names="value")

    def setup(self, axes):
        """Make everything that does not move, and the artists that `draw` will move."""
        raise NotImplementedError

    def draw(self, **values):
        """Move the artists to `values`; returns the sentence that says what is now seen."""
        raise NotImplementedError

    def values(self):
        """The sliders' present values by name."""
        return {name: control.value for name, control in self.controls.items()}

    def redraw(self, change=None):
        """Draw the present values into the picture and its sentence; returns the sentence."""
        with self.drawing:
            with no_forward(), style.look():
                sentence = style.checked_caption(self.draw(**self.values()))
                style.arrange(self.figure, scale=1.5)
                self.paint()
            self.picture.value = style.encoded(self.figure)
            self.sentence.value = f'<p role="status" aria-live="polite"><i>{escape(sentence)}</i></p>'
            return sentence

    def paint(self):
        """Paint only what moved over a kept background: a whole figure takes 25 ms or more, mostly for ticks and labels.

        What moved is what matplotlib marks as stale. An artist that moves for the first time joins the moving ones for good.
        """
        canvas = self.figure.canvas
        parts = [
            part
            for owner in (self.figure, *self.figure.axes)
            for part in owner.get_children()
            if part not in self.figure.axes
        ]
        moved = {part for part in parts if part.stale} if self.background else set()
        if self.background is None or not moved <= self.moving:
            self.moving |= moved
            for part in self.moving:
                part.set_animated(True)
            canvas.draw()
            for part in parts:
                part.stale = False  # a label, and a text without letters, stay marked after they are drawn
            self.background = canvas.copy_from_bbox(self.figure.bbox)
        canvas.restore_region(self.background)
        for part in sorted(self.moving, key=lambda part: (part.zorder, parts.index(part))):
            self.figure.draw_artist(part)

    def forget_background(self):
        """Make every part an ordinary one again, so that the whole figure can be drawn at another size."""
        for part in self.moving:
            part.set_animated(False)
        self.moving, self.background = set(), None

    def reset(self, button=None):
        """Put every slider back where it started, and draw once."""
        with self.drawing:
            for control in self.controls.values():
                control.unobserve(self.redraw, names="value")
            for slider in self.sliders:
                self.controls[slider.name].value = slider.start
            for control in self.controls.values():
                control.observe(self.redraw, names="value")
            self.redraw()

    def try_the_ends(self):
        """Draw every slider at both ends: what fails there fails now, and all that moves is known before the first key."""
        start = self.values()
        for slider in self.sliders:
            for end in slider.ends():
                with no_forward(), style.look():
                    style.checked_caption(self.draw(**{**start, slider.name: end}))
                    self.paint()

    def _ipython_display_(self):
        """Two outputs: sliders and picture (else the still), and the living sentence (else the caption)."""
        with self.drawing:
            caption = self.redraw()
            self.forget_background()
            outputs = (
                (self.panel, *style.still_bundle(self.figure, caption)),
                (self.sentence, style.caption_bundle(caption), {}),
            )
            self.redraw()
            self.try_the_ends()
            self.redraw()
        for widget, data, metadata in outputs:
            view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
            publish_display_data({VIEW: view, **data}, metadata)
