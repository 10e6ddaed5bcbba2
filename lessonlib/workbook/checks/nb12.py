"""Notebook 12: what an EAGLE head pairs, what it may see when it goes on by itself, and what is left of the odds once a candidate is refused."""

import torch

from lessonlib.drafts.eagle import seen_in_pass
from lessonlib.workbook.checks.common import odds, tensor
from lessonlib.workbook.exercise import Exercise, Mistake, Property


def pairs_of(features, ids):
    """(features [S - 2, F], tokens [S - 2], labels [S - 2]) of a text: the feature of token t with token t + 1, which is to guess token t + 2."""
    return features[:-2], ids[1:-1], ids[2:]


def _text(rng):
    S = int(rng.integers(4, 9))
    return torch.from_numpy(rng.standard_normal((S, 3))).float(), torch.from_numpy(rng.permutation(50)[:S])


ex_12_1 = Exercise(
    "12.1",
    pairs_of,
    returns="three rows of the same length: features, the tokens that follow them, the tokens to be guessed",
    look="'What it reads' above: a feature knows everything but which token was drawn from it; the pair tells both.",
    edges=[
        ("three tokens: one pair", (torch.eye(3), torch.tensor([7, 8, 9]))),
        ("two tokens: no pair yet", (torch.eye(2), torch.tensor([7, 8]))),
    ],
    draw=_text,
    mistakes=[
        Mistake("token of the feature itself", lambda features, ids: (features[:-2], ids[:-2], ids[2:]), "the feature stands beside its own token, which it knows already: pair it with the token that came after"),
        Mistake("guesses the token it holds", lambda features, ids: (features[:-1], ids[1:], ids[1:]), "the label is the token in the pair: it would only have to copy; the label is the one after it"),
        Mistake("feature of the token itself", lambda features, ids: (features[1:-1], ids[1:-1], ids[2:]), "this is the feature of token t + 1: while drafting, the target has not read that token yet"),
        Mistake("label one too far", lambda features, ids: (features[:-3], ids[1:-2], ids[3:]), "the labels are one too far: the pair of t and t + 1 guesses t + 2"),
        Mistake("wrapped around", lambda features, ids: (features, ids.roll(-1), ids.roll(-2)), "the ends wrap around: the last two features have no pair with a label"),
        Mistake("order of the three", lambda features, ids: (features[:-2], ids[2:], ids[1:-1]), "tokens and labels are swapped: first what is read, then what is guessed"),
    ],
)


def sees(s, n):
    """bool [n, s * n]: of n pairs, which pairs of the passes 1 to s (n columns each) a pair of pass s sees.

    Pair t sees, of the first pass, the pairs that hold the target's own features still, up to t - (s - 1); of each later pass j its chain's own, t - (s - j).
    """
    return seen_in_pass(s, n, torch.device("cpu"))


def _by_rule(first, later):
    """A wrong answer from two rules (t, place, s, j) -> bool, for the first pass and for the later ones."""
    def answer(s, n):
        place = torch.arange(n)
        t, at = place[:, None], place[None]
        return torch.cat([first(t, at, s), *(later(t, at, s, j) for j in range(2, s + 1))], 1)
    return answer


def _right_first(t, at, s):
    return at <= t - (s - 1)


def _right_later(t, at, s, j):
    return at == t - (s - j)


def _one_at_each_place(fn, rng):
    """Whether each pair sees every place up to its own exactly once, whichever pass it is from (a place before the first is not there)."""
    for s in range(1, 5):
        seen = fn(s, 6).reshape(6, s, 6).sum(1)
        if not torch.equal(seen, torch.ones(6, 6, dtype=torch.long).tril()):
            return False
    return True


ex_12_2 = Exercise(
    "12.2",
    sees,
    returns="a boolean tensor of shape [n, s n]: the first n columns are the first pass's pairs, the next n the second's, and so on",
    look="'On its own states' above: a chain that was begun s - 1 pairs ago has replaced the last s - 1 features by its own.",
    edges=[("the first pass", (1, 4)), ("the second pass", (2, 4)), ("the third pass", (3, 5))],
    draw=lambda rng: (int(rng.integers(1, 5)), int(rng.integers(4, 8))),
    mistakes=[
        Mistake("sees the replaced ones too", _by_rule(lambda t, at, s: at <= t, _right_later), "the first pass's pairs are seen up to t: the last s - 1 of them have been replaced by the chain's own, which drafting has in their place"),
        Mistake("one too few of the first pass", _by_rule(lambda t, at, s: at < t - (s - 1), _right_later), "the pair at t - (s - 1) is missing: it is the last one with the target's own feature"),
        Mistake("all of the later passes", _by_rule(_right_first, lambda t, at, s, j: at <= t - (s - j)), "a later pass holds other chains too: of each, a pair sees only the one of its own chain"),
        Mistake("same place in every pass", _by_rule(_right_first, lambda t, at, s, j: at == t), "each pass is one place further on: pass j of this chain stands at t - (s - j)"),
        Mistake("not itself", lambda s, n: sees(s, n) & ~torch.eye(n, dtype=torch.bool).repeat(1, s), "a pair does not see itself: its own key is among those it attends to"),
        Mistake("the other way round", lambda s, n: ~sees(s, n), "this is what is hidden: True is for what is seen"),
    ],
    properties=[Property("a pair sees every place up to its own exactly once", _one_at_each_place, "count the places: some are seen twice or not at all")],
)


def after_refusal(p, q, x):
    """(p', q') once candidate x, drawn from q, was refused at odds p [V]: what p has left over q, and q without x, each summing to 1."""
    left, rest = (p - q).clamp_min(0), q.clone()
    rest[x] = 0
    return left / left.sum(), rest / rest.sum()


def _candidate(rng):
    V = int(rng.integers(3, 6))
    p, q = odds(rng, V), odds(rng, V)
    return p, q, int(rng.choice(torch.nonzero(q > p)[:, 0]))  # only such a one can be refused


def _exact(fn, rng):
    """Whether two candidates, drawn from q without replacement and judged one after the other, come out with exactly the odds p."""
    for _ in range(20):
        p, q, _ = _candidate(rng)
        out = torch.minimum(p, q).clone()
        for x in range(len(p)):
            refused = q[x] * (1 - torch.clamp(p[x] / q[x], max=1))
            if refused < 1e-12:
                continue
            p2, q2 = (torch.as_tensor(each) for each in fn(p, q, x))
            out += refused * torch.minimum(p2, q2)
            left = (p2 - q2).clamp_min(0)
            if left.sum() > 1e-12:
                out += refused * (1 - torch.minimum(p2, q2).sum()) * left / left.sum()
        if not torch.allclose(out, p, atol=1e-6):
            return False
    return True


P, Q = tensor(0.5, 0.3, 0.2), tensor(0.1, 0.6, 0.3)
ex_12_3 = Exercise(
    "12.3",
    after_refusal,
    returns="two rows of odds that each sum to 1: the target's after the refusal, the draft's after it",
    look="'Several candidates, and still exact' above: the target's odds become the residual, and the draft cannot draw x again.",
    edges=[
        ("the worked example of notebook 00", (P, Q, 1)),
        ("the draft is sure of a token the target does not want", (tensor(0.0, 0.5, 0.5), tensor(0.8, 0.1, 0.1), 0)),
    ],
    draw=_candidate,
    mistakes=[
        Mistake("p as it was", lambda p, q, x: (p, after_refusal(p, q, x)[1]), "the target's odds are as before: what was kept in other worlds is counted twice; go on with max(p - q, 0)"),
        Mistake("q as it was", lambda p, q, x: (after_refusal(p, q, x)[0], q), "the draft's odds are as before: the next candidate is drawn without x, so q loses it"),
        Mistake("only x taken from p", lambda p, q, x: (_without(p, x), after_refusal(p, q, x)[1]), "only x is taken from the target's odds: the refusal also says that the others came too seldom, so go on with max(p - q, 0)"),
        Mistake("not scaled", lambda p, q, x: ((p - q).clamp_min(0), q * (torch.arange(len(q)) != x)), "they do not sum to 1: divide each by its sum"),
        Mistake("q minus p", lambda p, q, x: (after_refusal(q, p, x)[0], after_refusal(p, q, x)[1]), "this is what the draft has too much of: it is max(p - q, 0)"),
        Mistake("absolute difference", lambda p, q, x: ((p - q).abs() / (p - q).abs().sum(), after_refusal(p, q, x)[1]), "differences of both signs are counted: below 0 they are 0"),
        Mistake("residual for both", lambda p, q, x: (after_refusal(p, q, x)[0],) * 2, "the draft's odds became the target's: they are q without x"),
        Mistake("swapped", lambda p, q, x: after_refusal(p, q, x)[::-1], "the two are swapped: first the target's, then the draft's"),
    ],
    properties=[Property("two candidates without replacement give exactly the odds p", _exact, "the next candidate is judged by these odds: with others the text is no longer the target's")],
)


def _without(p, x):
    rest = p * (torch.arange(len(p)) != x)
    return rest / rest.sum()


