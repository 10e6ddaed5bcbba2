"""The one-number draft of notebook 02: it is fitted, and the picture shows what it gives."""

import torch

from lessonlib.distil.divergences import forward_kl
from lessonlib.workbook.explorables.nb02 import STEEPNESS, TOP, Served, alpha_served, fitted, log_probs

LOGITS = torch.sort(4 * torch.randn(TOP, generator=torch.Generator().manual_seed(1), dtype=torch.float64), descending=True)[0]
WORDS = ["a", "b", "c", "d", "e"]


def test_the_fit_is_the_least_divergence_of_the_grid():
    for T in (0.5, 1.0, 4.0):
        log_p = (LOGITS / T).log_softmax(-1)
        values = [float(forward_kl(log_p, log_probs(a, T))) for a in STEEPNESS.tolist()]
        assert fitted(LOGITS, T) == float(STEEPNESS[values.index(min(values))])


def test_a_draft_that_is_in_the_family_is_found_at_every_temperature_and_keeps_all():
    mine = -2.0 * torch.arange(1, TOP + 1, dtype=torch.float64).log()
    for T in (0.5, 1.0, 4.0):
        assert abs(fitted(mine, T) - 2.0) < 1e-9
        assert abs(float(alpha_served(mine, 2.0, T)) - 1) < 1e-12


def test_the_picture_says_the_alpha_of_the_draft_it_shows():
    picture = Served({"the place": (LOGITS, WORDS), "another place": (LOGITS / 3, WORDS)})
    for T, serving in ((1.0, 1.0), (4.0, 0.5)):
        picture.controls["T"].value, picture.controls["serving"].value = T, serving
        alpha = float(alpha_served(LOGITS, fitted(LOGITS, T), serving))
        assert f"this draft has alpha {alpha:.2f};" in picture.sentence.value
        assert [text.get_text() for text in picture.words] == [*WORDS, "others"]
        heights = [bar.get_height() for bar, _, _ in picture.bars["target"]]
        assert abs(sum(heights) - 1) < 1e-9 and abs(picture.dot.get_ydata()[0] - alpha) < 1e-9
    assert picture.try_the_ends() is None
