"""Keep or resample: 400,000 draws have the target's distribution, and the same test catches what is slightly wrong."""

import pytest
import torch

from lessonlib.decode.rule import accept, accept_greedy, keep_probability
from lessonlib.kernels.draw import draw

N = 400_000
P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
BONUS = torch.tensor([0.25, 0.05, 0.7], dtype=torch.float64)
ARGMAX = torch.full((N, 1), Q.argmax().item())


def uniforms(*shape, seed=0):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def one_round(draft_probs, tokens, target=P, seed=1):
    """N rounds of one proposal each: (first token written, kept, token after it)."""
    target_probs = torch.stack([target, BONUS]).expand(N, 2, 3)
    kept, following = accept(target_probs, draft_probs, tokens, uniforms(N, 2, seed=seed))
    return torch.where(kept == 1, tokens[:, 0], following), kept, following


def sampled(q, seed=2):
    return draw(q.expand(N, 3), uniforms(N, seed=seed))[:, None]


def chi_square_p(tokens, probabilities):
    """p-value of the tokens' counts under the probabilities."""
    expected = probabilities * len(tokens)
    statistic = ((torch.bincount(tokens, minlength=len(expected)) - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2, dtype=torch.float64), statistic / 2).item()


def total_variation(tokens, probabilities):
    return (torch.bincount(tokens, minlength=len(probabilities)) / len(tokens) - probabilities).abs().sum().item() / 2


def test_sampled_proposals_give_the_targets_distribution_and_are_kept_as_often_as_alpha_says():
    written, kept, following = one_round(Q.expand(N, 1, 3), sampled(Q))
    assert chi_square_p(written, P) > 1e-4
    assert kept.double().mean().item() == pytest.approx(0.600, abs=0.003)
    assert keep_probability(P, Q).item() == pytest.approx(0.600, abs=1e-15)
    assert chi_square_p(following[kept == 1], BONUS) > 1e-4


def test_argmax_proposals_give_the_targets_distribution_and_are_kept_as_often_as_the_target_agrees():
    written, kept, following = one_round(None, ARGMAX)
    assert chi_square_p(written, P) > 1e-4
    assert kept.double().mean().item() == pytest.approx(0.3, abs=0.003)
    assert chi_square_p(following[kept == 1], BONUS) > 1e-4
    one_hot = torch.nn.functional.one_hot(ARGMAX, 3).double()
    assert torch.equal(written, one_round(one_hot, ARGMAX)[0])


def test_an_argmax_scored_with_its_softmax_is_caught():
    written, _, _ = one_round(Q.expand(N, 1, 3), ARGMAX)
    assert chi_square_p(written, P) < 1e-100
    assert total_variation(written, torch.tensor([0.5, 0.5, 0.0])) < 0.003


def test_top_two_draws_scored_with_the_whole_distribution_are_caught():
    top_two = torch.tensor([0.0, 2 / 3, 1 / 3], dtype=torch.float64)
    written, _, _ = one_round(Q.expand(N, 1, 3), sampled(top_two))
    assert chi_square_p(written, P) < 1e-100
    assert total_variation(written, P) == pytest.approx(0.055, abs=0.003)
    assert chi_square_p(one_round(top_two.expand(N, 1, 3), sampled(top_two))[0], P) > 1e-4


def test_resampling_from_the_target_instead_of_the_residual_is_caught():
    tokens = sampled(Q)
    written, kept, _ = one_round(Q.expand(N, 1, 3), tokens)
    wrong = torch.where(kept == 1, written, draw(P.expand(N, 3), uniforms(N, seed=3)))
    assert chi_square_p(wrong, P) < 1e-100
    assert total_variation(wrong, P) == pytest.approx(0.20, abs=0.003)


def test_an_inverted_ratio_is_caught():
    """Kept with probability q/p, residual q - p: the rule with its two distributions exchanged."""
    tokens = sampled(Q)
    kept, following = accept(torch.stack([Q, BONUS]).expand(N, 2, 3), P.expand(N, 1, 3), tokens, uniforms(N, 2, seed=1))
    assert chi_square_p(torch.where(kept == 1, tokens[:, 0], following), P) < 1e-100


@pytest.mark.parametrize("argmax", [False, True])
def test_a_block_of_three_has_the_targets_joint_distribution(argmax):
    generator = torch.Generator().manual_seed(5)
    p = torch.rand(4, 4, dtype=torch.float64, generator=generator).softmax(-1)
    q = (2 * torch.rand(3, 4, dtype=torch.float64, generator=generator)).softmax(-1)
    tokens = q.argmax(-1).expand(N, 3) if argmax else draw(q.expand(N, 3, 4), uniforms(N, 3))
    kept, following = accept(p.expand(N, 4, 4), None if argmax else q.expand(N, 3, 4), tokens, uniforms(N, 4, seed=1))
    # what a round leaves unwritten, later rounds write from the same rows
    later = draw(p.expand(N, 4, 4), uniforms(N, 4, seed=2))
    written = torch.where(torch.arange(4) < kept[:, None], torch.cat([tokens, tokens[:, :1]], 1), later)
    written.scatter_(1, kept[:, None], following[:, None])
    cells = (written * torch.tensor([64, 16, 4, 1])).sum(1)
    joint = torch.einsum("a,b,c,d->abcd", *p).flatten()
    assert chi_square_p(cells, joint) > 1e-4
    written.scatter_(1, kept[:, None], draw(p[kept], uniforms(N, seed=4))[:, None])
    assert chi_square_p((written * torch.tensor([64, 16, 4, 1])).sum(1), joint) < 1e-100
    share = torch.stack([p[i, t] for i, t in enumerate(q.argmax(-1))]) if argmax else keep_probability(p[:3], q)
    for i in range(3):
        assert (kept > i)[kept >= i].double().mean().item() == pytest.approx(share[i].item(), abs=0.005)


def test_leading_dimensions_are_rows_of_their_own():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(2, 5, 4, 6, generator=generator).softmax(-1)
    q = torch.rand(2, 5, 3, 6, generator=generator).softmax(-1)
    tokens, u = torch.randint(6, (2, 5, 3), generator=generator), uniforms(2, 5, 4)
    for draft_probs in (q, None):
        kept, following = accept(p, draft_probs, tokens, u)
        for row in ((i, j) for i in range(2) for j in range(5)):
            alone = accept(p[row], None if draft_probs is None else q[row], tokens[row], u[row])
            assert (kept[row], following[row]) == alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("coin", [0.0, 0.5, 1 - 2**-53])
def test_a_draft_equal_to_the_target_is_always_kept(dtype, coin):
    p = torch.tensor([[0.1, 0.7, 0.2]], dtype=dtype).softmax(-1)
    for token in range(3):
        kept, _ = accept(p.expand(2, 3), p, torch.tensor([token]), torch.tensor([coin, 0.5], dtype=torch.float64))
        assert kept == 1


def test_a_rejection_that_leaves_no_residual_falls_back_on_the_target():
    """Rounding can leave p below q everywhere by a last digit; what is drawn then is a token that the target may say."""
    q = torch.tensor([[0.0, 0.4, 0.6, 0.0]])
    p = torch.nextafter(q, -q).clamp_min(0).expand(2, 4)
    assert (p <= q).all() and (p < q).any()
    for u in (0.0, 0.5, 1 - 2**-53):
        kept, following = accept(p, q, torch.tensor([2]), torch.tensor([1 - 2**-53, u], dtype=torch.float64))
        assert kept == 0 and following in (1, 2)


@pytest.mark.parametrize("coin", [0.0, 0.3, 1 - 2**-53])
def test_what_the_target_never_says_is_never_kept_and_never_drawn(coin):
    p = torch.tensor([[0.0, 0.4, 0.6, 0.0], [0.25, 0.25, 0.25, 0.25]])
    q = torch.tensor([[0.5, 0.0, 0.0, 0.5]])
    for token in (0, 3):
        for draft_probs in (q, None):
            for u in (0.0, 0.39, 1 - 2**-53):
                kept, following = accept(p, draft_probs, torch.tensor([token]), torch.tensor([coin, u], dtype=torch.float64))
                assert kept == 0 and following in (1, 2)


def test_an_empty_block_is_a_plain_draw():
    kept, following = accept(P.expand(N, 1, 3), None, torch.empty(N, 0, dtype=torch.long), uniforms(N, 1))
    assert kept.sum() == 0 and chi_square_p(following, P) > 1e-4


def test_greedy_keeps_the_proposals_before_the_first_difference():
    target = torch.tensor([[5, 6, 7, 8]] * 5)
    draft = torch.tensor([[5, 6, 7], [5, 6, 0], [5, 0, 7], [0, 6, 7], [0, 0, 0]])
    kept, following = accept_greedy(target, draft)
    assert kept.tolist() == [3, 2, 1, 0, 0] and following.tolist() == [8, 7, 6, 5, 5]
    kept, following = accept_greedy(target[0, :1], draft[0, :0])
    assert (kept, following) == (0, 5)
