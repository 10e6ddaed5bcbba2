"""How every figure looks and how it is shown: a finding as title, labels on the lines, one sentence as caption."""

import io
import re
import struct
import zlib

import matplotlib
import numpy as np
from IPython.display import publish_display_data
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

INK, QUIET, GRID = "#222222", "#5f5f5f", "#e4e4e4"
# Okabe and Ito's colours, which colour-blind readers tell apart; the line styles and hatches do it again without any colour.
TARGET, DRAFT, SHARED, FOURTH, FIFTH = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#8A6D00"
COLOURS = (TARGET, DRAFT, SHARED, FOURTH, FIFTH)
LINES = ("-", (0, (5, 1.6)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)), (0, (8, 2, 1, 2, 1, 2)))
HATCHES = ("", "////", "....", "xxxx", "----")
CSS_PIXELS = 100  # an inch of a figure on the page
LOOK = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.9,
    "figure.facecolor": "white",
}


def look():
    """A context in which matplotlib draws in the course's look."""
    return matplotlib.rc_context(LOOK)


def figure(width=7.6, height=3.2, columns=1, **options):
    """A figure of the course's look and its axes (one, or an array of `columns`); in inches of 100 pixels."""
    with look():
        fig = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(fig)
        return fig, fig.subplots(1, columns, **options)


def finding(where, text):
    """Write what the figure shows, as a sentence, over the axes or the whole figure."""
    looks = {"fontsize": 11.5, "fontweight": "bold", "color": INK}
    if isinstance(where, Figure):
        where.suptitle(text, x=0.01, ha="left", **looks)
    else:
        where.set_title(text, loc="left", pad=10, **looks)


def lines(ax, x, series):
    """Draw `series` (name -> y values) over `x`, each in its colour and line style, named at its end; returns the lines."""
    drawn = [ax.plot(x, y, color=COLOURS[i], linestyle=LINES[i], linewidth=2.2)[0] for i, y in enumerate(series.values())]
    ax.end_labels = [
        (
            line,
            ax.annotate(
                name,
                (1.0, 0.0),
                xycoords=ax.get_yaxis_transform(),
                xytext=(6, 0),
                annotation_clip=False,
                textcoords="offset points",
                va="center",
                color=line.get_color(),
                fontweight="bold",
            ),
        )
        for name, line in zip(series, drawn)
    ]
    ax.margins(x=0)
    place_labels(ax)
    return drawn


def place_labels(ax):
    """Move each label of `lines` to where its line ends now, from the bottom up, at least a line of text apart."""
    low, high = ax.get_ylim()
    gap = 0.19 / ax.figure.get_figheight() * 1.4 * (high - low)
    height = -float("inf")
    for end, label in sorted(((line.get_ydata()[-1], label) for line, label in ax.end_labels), key=lambda pair: pair[0]):
        height = max(end, height + gap)
        label.xy = (1.0, height)
        label.stale = True  # setting xy does not tell matplotlib


def short(value, form):
    """A number for a narrow place: without the zero before its point."""
    return re.sub(r"^(-?)0\.", r"\1.", format(float(value), form))


def bars(ax, names, series, form=".2f"):
    """Draw grouped bars of `series` (name -> one value for each of `names`) with hatches, each bar with its value on top.

    Returns what `move_bars` takes. Set the axes' upper limit yourself where the bars are going to move.
    """
    width, drawn = 0.8 / len(series), {}
    for i, (label, values) in enumerate(series.items()):
        places = [j + (i - (len(series) - 1) / 2) * width for j in range(len(names))]
        group = ax.bar(
            places, values, width * 0.94, color=COLOURS[i], hatch=HATCHES[i], label=label, edgecolor="white", linewidth=0
        )
        texts = [
            ax.annotate(
                short(value, form),
                (x, value),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                color=COLOURS[i],
                fontsize=9,
            )
            for x, value in zip(places, values)
        ]
        drawn[label] = [(bar, text, form) for bar, text in zip(group, texts)]
    ax.set_xticks(range(len(names)), names)
    ax.tick_params(axis="x", length=0)
    if len(series) > 1:
        ax.legend(frameon=False, ncols=len(series), loc="best", handlelength=1.6)
    return drawn


def move_bars(drawn, series):
    """Move the bars of `bars`, and the values on top of them, to other values."""
    for label, values in series.items():
        for (bar, text, form), value in zip(drawn[label], values):
            bar.set_height(value)
            text.xy = (text.xy[0], value)
            text.set_text(short(value, form))
            text.stale = True


def arrange(fig, scale):
    """Put the labels where the lines end and set `scale` pixels a page pixel; the layout settles once and stays."""
    for ax in fig.axes:
        if hasattr(ax, "end_labels"):
            place_labels(ax)
    if isinstance(fig.get_layout_engine(), ConstrainedLayoutEngine):
        fig.set_dpi(2 * CSS_PIXELS)
        fig.draw_without_rendering()
        fig.set_layout_engine("none")
    if fig.dpi != CSS_PIXELS * scale:
        fig.set_dpi(CSS_PIXELS * scale)


def encoded(fig, colours=None):
    """What is on the figure's canvas as PNG bytes, fast; or in at most `colours` colours, in a third of the space."""
    size, canvas = fig.canvas.get_width_height(), fig.canvas.buffer_rgba()
    picture = Image.frombuffer("RGBA", size, canvas, "raw", "RGBA", 0, 1).convert("RGB")
    if colours is None:
        return unfiltered_png(np.asarray(picture))
    file = io.BytesIO()
    picture.quantize(colours, dither=Image.Dither.NONE).save(file, "PNG", compress_level=9)
    return file.getvalue()


def unfiltered_png(pixels):
    """RGB pixels, uint8 [height, width, 3], as PNG bytes; PIL tries five filters on every row, which takes twice as long."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with the number of its filter; 0 is none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB, not interlaced
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    packed = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def png(fig):
    """The figure as PNG bytes for the page, twice as fine as it is shown; the same figure gives the same bytes."""
    with look():
        arrange(fig, scale=2.0)
        fig.canvas.draw()
    return encoded(fig, colours=96)


def checked_caption(caption):
    """The caption on one line; ValueError unless it is a sentence, since whoever cannot see the picture has nothing else."""
    caption = " ".join(caption.split())
    if len(caption) < 20 or caption[-1] not in ".!?":
        raise ValueError(f"A caption is a whole sentence that says what the picture shows, this is not one: {caption!r}")
    return caption


def caption_bundle(caption):
    """The caption to display: in italics, with everything escaped that Markdown would read as its own, and as plain text."""
    return {"text/markdown": "*" + re.sub(r"([\\`*_\[\]<>$|~])", r"\\\1", caption) + "*", "text/plain": caption}


def still_bundle(fig, caption):
    """(data, metadata) of the picture: PNG, its size on the page, and the caption as text and as alt text."""
    width, height = (round(inches * CSS_PIXELS) for inches in fig.get_size_inches())
    return (
        {"image/png": png(fig), "text/plain": caption},
        {"image/png": {"width": width, "height": height, "alt": caption}},
    )


def show(fig, caption):
    """Display the figure with its caption printed below and stored as alt text; ValueError unless that is a sentence."""
    caption = checked_caption(caption)
    data, metadata = still_bundle(fig, caption)
    publish_display_data(data, metadata)
    publish_display_data(caption_bundle(caption))
