"""The workbook: what a notebook imports, and how a notebook is written.

Edit notebooks/src/NN_verb_phrase.py only, then `python -m lessonlib.workbook.build NN`. It writes the reader's notebook and,
in solutions/, the solved one, each executed in its own folder, LESSON_PRESET=tiny, on 2 threads. Where only
text cells have changed, --words runs nothing and keeps the outputs. --check says what is stale.

Cells (jupytext py:percent)
    # %% [markdown]                     the text as a raw triple-quoted string; the first begins with "# " and the title
    # %%                                code: 25 lines at most, the median 8 or less, the first one 3 or less
    # %% tags=["exercise"]              code with marks; its check is the next cell
    # %% tags=["nbval-ignore-output"]   rarely: with all that measured() and here() touch, at most 15 % of all cells
  Write links as seen from notebooks/ (../README.md, solutions/00_x.ipynb); the builder adapts those of the solved notebooks.
  End the first code line with the fix, since a failing import shows it:
    from lessonlib.workbook import checks, show  # no module lessonlib? Open the notebooks with: make lab
  No absolute paths, nothing on stderr, no object addresses, no `interact`, no Output widgets, no widget bars. Every picture
  goes through show() or an Explorable. Fold hints, answers: <details><summary>Hint</summary>, empty line, text, </details>.

Exercises
    def p_keep(target_probs, draft_probs):
        # <solution>
        return torch.minimum(target_probs, draft_probs).sum()
        # </solution>
        # <stub>
        # return ...  # your turn
        # </stub>
  The reader gets the stub, uncommented (without one: `...  # your turn`); it must run and return None or `...`. Below it
    p_keep = checks.ex_0_1(p_keep)
  gives back the reader's function if right, else the library's, so that later cells run; solved notebooks are built with
  STRICT=1, which raises. A new check is an `Exercise` in checks/nbNN.py, named in checks/__init__.py; the tests find it.

Predict, run, explain
    guess = predict("Of 10 guesses, how many are kept?", 5, unit="of 10")       the reader changes the 5
    explain(guess, kept, reference=4.4, band=(4.0, 4.9))     one line with a verdict, "inside the band" or "not here"
  `exact=True` where the number is the same everywhere, `must_hold=True` where a value outside its band is a fault.

Numbers
  The tests run every notebook again and compare what it prints. What is the same everywhere (greedy text, recorded results,
  float64) is printed plainly. What was trained, timed or sampled in fp32 goes through measured(): measured(alpha, ".3f") is
  ≈0.453, and the number alone goes uncompared. Words about this machine go through here(): ⟨cpu, fp32⟩.

Figures
    fig, ax = style.figure(7.6, 3.2)     in inches of 100 pixels; columns=2 gives two axes; style.TARGET, DRAFT, SHARED, ...
    style.lines(ax, x, {"K = 1": y1, "K = 3": y3})           each with its colour, its line style, its name at its end
    style.bars(ax, tokens, {"target": p, "draft": q})        grouped, hatched, values on top; move_bars moves them
    style.finding(ax, "Long rounds pay only near alpha = 1")     what is found, not what is plotted
    show(fig, "One sentence that says what the picture shows.")     the caption below, and the alt text

Explorables
    class Curve(Explorable):
        sliders = (Slider("alpha", "alpha, chance of a keep", 0.7, 0.0, 0.99, 0.01),)     Choice() for named options
        def setup(self, ax): (self.line,) = style.lines(ax, K, {"speed-up": K}); ax.set(ylim=(0, 4))
        def draw(self, alpha): self.line.set_ydata(...); return "At alpha 0.70 decoding is 1.33 times as fast."
    Curve()     the last line of its cell
  setup runs once and fixes the limits; draw only moves artists and returns the caption; a model forward in it is refused.
  One of more than 25 lines lives in lessonlib/workbook/explorables/nbNN.py; the notebook imports it.
"""

from lessonlib.workbook import checks, style
from lessonlib.workbook.explorable import Choice, Explorable, Slider
from lessonlib.workbook.predictions import explain, predict
from lessonlib.workbook.printing import here, measured
from lessonlib.workbook.style import show

__all__ = ["Choice", "Explorable", "Slider", "checks", "explain", "here", "measured", "predict", "show", "style"]
