"""Temperature, top-k, top-p: transformers' own processors, in the order in which it applies them."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lessonlib.decode.warp import check_sampling, probabilities
from lessonlib.errors import LessonError

SETTINGS = [(1.0, None, None), (0.7, None, None), (2.5, None, None), (1.0, 1, None), (1.0, 5, None), (1.0, 500, None),
            (1.0, None, 0.9), (1.0, None, 0.3), (1.0, None, 1e-9), (1.0, None, 1.0), (0.6, 20, 0.95),
            (1.5, 7, 0.5), (0.1, 3, 0.2)]


def transformers_probabilities(logits, temperature, top_k, top_p):
    logits = TemperatureLogitsWarper(float(temperature))(None, logits)
    if top_k is not None:
        logits = TopKLogitsWarper(top_k)(None, logits)
    if top_p is not None:
        logits = TopPLogitsWarper(top_p)(None, logits)
    return logits.softmax(-1)


@pytest.mark.parametrize("temperature, top_k, top_p", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_processors_of_transformers_agree(temperature, top_k, top_p, dtype):
    logits = 3 * torch.randn(200, 100, generator=torch.Generator().manual_seed(0), dtype=dtype)
    ours = probabilities(logits, temperature, top_k, top_p)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, transformers_probabilities(logits, temperature, top_k, top_p), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(ours.sum(-1), torch.ones(200, dtype=dtype))


def test_the_order_is_temperature_then_top_k_then_top_p():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    # at T = 1/2 the odds are 16 : 9 : 4 : 1; the top three weigh 29, of which the first two hold 25/29 = 0.862
    expected = torch.tensor([16 / 25, 9 / 25, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(probabilities(logits, 0.5, 3, 0.85), expected)
    # other orders: top-p before top-k would see 25/30 = 0.833 and keep three; before the temperature, 0.7/0.9 and keep three
    assert (probabilities(logits, 0.5, None, 0.85) > 0).sum() == 3
    assert (probabilities(logits, 1.0, 3, 0.85) > 0).sum() == 3


@pytest.mark.parametrize("top_k", [1, 2, 3, 4])
def test_ties_at_the_last_place_of_top_k_are_all_kept_as_in_transformers(top_k):
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 1.0, 1.0]])
    ours = probabilities(logits, 1.0, top_k)
    torch.testing.assert_close(ours, transformers_probabilities(logits, 1.0, top_k, None))
    assert (ours > 0).sum() == {1: 2, 2: 2, 3: 5, 4: 5}[top_k]


def test_among_ties_top_p_keeps_just_as_many_as_transformers():
    logits = torch.zeros(1, 10, dtype=torch.float64)
    for top_p in (0.05, 0.15, 0.25, 0.75, 0.95):
        ours, theirs = probabilities(logits, 1.0, None, top_p), transformers_probabilities(logits, 1.0, None, top_p)
        torch.testing.assert_close(ours.sort(-1).values, theirs.sort(-1).values)


def test_masked_tokens_stay_masked():
    logits = torch.tensor([0.0, -torch.inf, 1.0, -torch.inf])
    for setting in SETTINGS:
        assert (probabilities(logits, *setting)[[1, 3]] == 0).all()


def test_half_precision_is_worked_out_in_fp32():
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(probabilities(logits, 0.7, 9, 0.8), probabilities(logits.float(), 0.7, 9, 0.8))


@pytest.mark.parametrize("settings, named", [
    ((-1.0,), "temperature"), ((float("nan"),), "temperature"), ((float("inf"),), "temperature"),
    ((1.0, 0), "top_k"), ((1.0, -3), "top_k"), ((1.0, 2.5), "top_k"), ((1.0, 2.0), "top_k"), ((1.0, True), "top_k"),
    ((1.0, None, 0.0), "top_p"), ((1.0, None, 1.1), "top_p"), ((1.0, None, float("nan")), "top_p")])
def test_settings_that_mean_nothing_are_refused_in_one_sentence(settings, named):
    with pytest.raises(LessonError, match=f"^{named} cannot be .*; give .*[.]$") as caught:
        check_sampling(*settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [(0.0,), (0,), (1e-3,), (1.0, 1, 1.0), (2, 50_000, 1e-6)])
def test_settings_that_mean_something_pass(settings):
    check_sampling(*settings)


def test_the_likeliest_token_always_stays():
    assert probabilities(torch.tensor([1.0, 3.0, 2.0]), top_p=1e-300).tolist() == [0, 1, 0]
