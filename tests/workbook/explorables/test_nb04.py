"""Notebook 04's picture: bars that add up, the mean it names, and the bytes of the store."""

import numpy as np
import pytest
import torch

from lessonlib.workbook.explorables.nb04 import KS, StoredTop

ODDS = (3 * torch.randn(300, 3000, generator=torch.Generator().manual_seed(4), dtype=torch.float64)).softmax(-1)
MASSES = ODDS.sort(-1, descending=True)[0].cumsum(-1)[:, [k - 1 for k in KS]]


@pytest.mark.parametrize("k, size", [("1", 10), ("64", 388), ("128", 772), ("1024", 6148)])
def test_it_says_the_bytes_and_the_mass_of_this_k(k, size):
    picture = StoredTop(MASSES)
    picture.controls["k"].value = k
    column = MASSES[:, KS.index(int(k))]
    said = picture.sentence.value
    assert f"takes {size:,} bytes" in said and f"{size * 2 / 1e3:.2f} GB" in said
    assert f"hold {column.mean():.3f}" in said and f"at {float((column < 0.5).double().mean()):.1%}" in said


def test_the_bars_hold_every_position_once_whatever_k():
    picture = StoredTop(np.concatenate([MASSES, np.ones((3, len(KS))) + 1e-7]))  # a sum of probabilities may round past 1
    for k in KS:
        picture.controls["k"].value = str(k)
        assert sum(bar.get_height() for bar in picture.bars) == pytest.approx(1)
        assert picture.dot.get_ydata()[0] == pytest.approx(picture.masses[:, KS.index(k)].mean())
    assert picture.bars[-1].get_height() > 0


def test_the_data_set_grows_with_its_slider_and_it_draws_at_every_end():
    picture = StoredTop(MASSES)
    before = picture.picture.value
    assert "2.0 M of them 0.78 GB" in picture.redraw()
    picture.controls["millions"].value = 10.0
    assert "10.0 M of them 3.88 GB" in picture.sentence.value
    picture.controls["k"].value = "4"
    assert picture.picture.value != before
    assert picture.try_the_ends() is None
