"""A tiny notebook source that uses every part of the machine, built once for all the tests here."""

import textwrap

import pytest

from lessonlib.workbook import build

SOURCE = textwrap.dedent('''\
    # %% [markdown]
    r"""
    # Try the machine

    See [the front page](../README.md), [the solved page](solutions/90_try_the_machine.ipynb) and $\\alpha = 1 - TV$.
    """

    # %%
    from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # start with: make lab
    from lessonlib.workbook import Explorable, Slider

    # %%
    guess = predict("Of every 10 guesses, how many are kept?", 5, unit="of 10")

    # %% tags=["exercise"]
    def p_keep(target_probs, draft_probs):
        """The chance that a guess is kept."""
        # <solution>
        overlap = target_probs.minimum(draft_probs)
        return overlap.sum()
        # </solution>
        # <stub>
        # overlap = ...  # token by token
        # return ...  # and summed
        # </stub>

    # %%
    p_keep = checks.ex_0_1(p_keep)

    # %% tags=["exercise"]
    def kept_prefix(proposed, wanted):
        # <solution>
        kept = 0
        while kept < len(proposed) and proposed[kept] == wanted[kept]:
            kept += 1
        return kept, wanted[kept]
        # </solution>

    # %%
    kept_prefix = checks.ex_0_2(kept_prefix)

    # %%
    from time import perf_counter
    from lessonlib.progress import Progress
    explain(guess, 6 + perf_counter() % 1, reference=6.5, band=(6, 7), must_hold=True)
    print(f"a step took {measured(perf_counter() % 1000, unit='ms')} on {here(perf_counter())}")
    progress = Progress("counting", 500, "tokens")
    progress.add(500)
    seconds = progress.finish()

    # %%
    figure, ax = style.figure()
    style.lines(ax, range(9), {f"K = {K}": [1 + K * x / 9 for x in range(9)] for K in (1, 3)})
    style.finding(ax, "Longer rounds gain more")
    show(figure, "Two rising lines: with K = 3 the gain is three times the gain with K = 1.")

    # %%
    class Speed(Explorable):
        sliders = (Slider("alpha", "chance of a keep", .7, 0.0, .99, .01), Slider("K", "guesses a round", 3, 1, 12))

        def setup(self, ax):
            self.curve, = style.lines(ax, range(13), {"speed-up": [1.0] * 13})
            self.dot, = ax.plot([0], [1], "o", color=style.INK)
            ax.set(ylim=(0, 13), xlabel="K, guesses a round", ylabel="tokens a round")

        def draw(self, alpha, K):
            gains = [sum(alpha**i for i in range(k + 1)) for k in range(13)]
            self.curve.set_ydata(gains)
            self.dot.set_data([K], [gains[K]])
            return f"At alpha {alpha:.2f} and {K} guesses a round, a round writes {gains[K]:.2f} tokens."

    # %%
    Speed()
    ''')


def write_source(folder, text, name="90_try_the_machine"):
    """Write a notebook source into `folder`/src; returns its path."""
    path = folder / "src" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def example_text():
    """The source of the example."""
    return SOURCE


@pytest.fixture(scope="session")
def source_writer():
    """The function that writes a source."""
    return write_source


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """The example's folder, built; not to be changed."""
    folder = tmp_path_factory.mktemp("notebooks")
    build.build(write_source(folder, SOURCE))
    return folder
