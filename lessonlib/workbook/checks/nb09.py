"""Notebook 09: which token a row of labels speaks of, an honest gap, and how much of an answer was seen in training."""

import numpy as np
import torch

from lessonlib.workbook.checks.common import redrawn_means
from lessonlib.workbook.exercise import Exercise, Mistake, Property

SHIFTS = (-1, 0, 1)


def shift_shares(favourites, written):
    """Shares for the shifts -1, 0, +1: at how many rows j is the favourite [R] the written token [R] number j + shift, where there is one."""
    R = len(written)
    return tuple(_share(favourites[max(0, -shift):R - max(0, shift)] == written[max(0, shift):R - max(0, -shift)]) for shift in SHIFTS)


def _share(same):
    return float(same.double().mean())


def _text(rng):
    """Favourites and written tokens, three kinds of token so that chance agrees often."""
    R = int(rng.integers(4, 9))
    written = torch.from_numpy(rng.integers(0, 3, R))
    return torch.where(torch.from_numpy(rng.random(R) < 0.6), written, torch.from_numpy(rng.integers(0, 3, R))), written


def _rolled(favourites, written):
    return tuple(_share(favourites == written.roll(-shift)) for shift in SHIFTS)


def _of_all_rows(favourites, written):
    R = len(written)
    return tuple(share * (R - abs(shift)) / R for shift, share in zip(SHIFTS, shift_shares(favourites, written)))


def _counted(favourites, written):
    R = len(written)
    return tuple(round(share * (R - abs(shift))) for shift, share in zip(SHIFTS, shift_shares(favourites, written)))


def _any_row(favourites, written):
    """Whether the written token is among the favourites anywhere."""
    return tuple(_share(torch.isin(written[max(0, shift):len(written) - max(0, -shift)], favourites)) for shift in SHIFTS)


def _late_is_seen(fn, rng):
    """Labels cut one row late have their favourites one place early in the text: the share 1 must stand at +1."""
    for _ in range(20):
        text = torch.from_numpy(rng.integers(0, 3, 9))
        if fn(text[1:], text[:-1])[2] != 1 or fn(text[:-1], text[1:])[0] != 1:
            return False
    return True


ABC = torch.tensor([4, 5, 6, 7])
ex_9_1 = Exercise(
    "9.1",
    shift_shares,
    returns="three shares, for the shifts -1, 0 and +1",
    look="'Find it without the target' above: row j against token j + shift, and only rows for which that token exists.",
    edges=[
        ("labels that are right and sure", (ABC, ABC)),
        ("labels one row late", (torch.tensor([5, 6, 7, 7]), ABC)),
        ("labels one row early", (torch.tensor([4, 4, 5, 6]), ABC)),
        ("one word again and again", (torch.tensor([3, 3, 3]), torch.tensor([3, 3, 3]))),
        ("two rows", (torch.tensor([8, 2]), torch.tensor([2, 8]))),
    ],
    draw=_text,
    mistakes=[
        Mistake("the other way round", lambda favourites, written: shift_shares(favourites, written)[::-1],
                "the shift moves the wrong side: row j is compared with token j + shift, so at +1 the first row meets the second token"),
        Mistake("wrapped around", _rolled,
                "the ends wrap around: `roll` brings the first token behind the last; leave out the row whose token does not exist"),
        Mistake("divided by all rows", _of_all_rows,
                "divided by all rows, though at -1 and +1 one of them has no token to be compared with: take the mean of those compared"),
        Mistake("counts", _counted, "these are counts: divide by the number of rows that were compared"),
        Mistake("any place", _any_row, "the token is looked for among the favourites of all rows: compare it with one row only"),
        Mistake("differences", lambda favourites, written: tuple(1 - share for share in shift_shares(favourites, written)),
                "these are the shares that differ: count the rows that agree"),
        Mistake("shift ignored", lambda favourites, written: (shift_shares(favourites, written)[1],) * 3,
                "all three are the share at shift 0: the shift is not used"),
        Mistake("best shift only", lambda favourites, written: SHIFTS[int(np.argmax(shift_shares(favourites, written)))],
                "this is which shift fits best: hand back all three shares, so that one sees by how much it does"),
    ],
    properties=[Property("of labels cut one row late every favourite is the token at +1, one row early at -1", _late_is_seen,
                         "the shift moves the wrong side")],
)


def gap_interval(leaked, fresh, leaked_chosen, fresh_chosen):
    """(gap, low, high): how much more is kept on the leaked prompts, with the 95 % interval over the prompts that were chosen.

    leaked, fresh: (kept [n], tested [n]) guesses of each prompt; leaked_chosen, fresh_chosen: numbers of prompts [B, n], drawn with replacement.
    """
    gaps = redrawn_means(*leaked, leaked_chosen) - redrawn_means(*fresh, fresh_chosen)
    return _ratio(leaked) - _ratio(fresh), *np.quantile(gaps, [0.025, 0.975])


def _ratio(pair):
    return pair[0].sum() / pair[1].sum()


def _two_sets(rng, B=40):
    n = int(rng.integers(3, 7))
    sets = []
    for share in (0.8, 0.4):
        tested = rng.integers(2, 12, n)
        sets.append((rng.binomial(tested, share), tested))
    return *sets, rng.integers(0, n, (B, n)), rng.integers(0, n, (B, n))


def slip(gaps=lambda leaked, fresh, a, b: redrawn_means(*leaked, a) - redrawn_means(*fresh, b), ends=(0.025, 0.975)):
    """A wrong answer whose gap is right, and whose interval is the `ends` of `gaps(leaked, fresh, leaked_chosen, fresh_chosen)`."""
    return lambda leaked, fresh, a, b: (_ratio(leaked) - _ratio(fresh), *np.quantile(gaps(leaked, fresh, a, b), list(ends)))


def _by_prompt(leaked, fresh, a, b):
    one, other = (kept / tested for kept, tested in (leaked, fresh))
    return one.mean() - other.mean(), *np.quantile(one[a].mean(1) - other[b].mean(1), [0.025, 0.975])


def _ends_apart(leaked, fresh, a, b):
    (low, high), (other_low, other_high) = (np.quantile(redrawn_means(*pair, rows), [0.025, 0.975]) for pair, rows in ((leaked, a), (fresh, b)))
    return _ratio(leaked) - _ratio(fresh), low - other_high, high - other_low


def _ends_alike(leaked, fresh, a, b):
    ends, others = (np.quantile(redrawn_means(*pair, rows), [0.025, 0.975]) for pair, rows in ((leaked, a), (fresh, b)))
    return _ratio(leaked) - _ratio(fresh), *(ends - others)


EVEN = (np.array([9, 4, 8]), np.array([10, 5, 9])), (np.array([2, 6, 3]), np.array([8, 9, 9]))
FEW = np.array([[0, 1, 2], [0, 0, 1], [2, 2, 2], [1, 1, 0]])
ex_9_2 = Exercise(
    "9.2",
    gap_interval,
    returns="three numbers: the gap, then the low and the high end of its interval",
    look="'An honest report' above: for every draw of prompts the share kept of either side, their difference, then two quantiles.",
    edges=[
        ("three prompts each, four draws", (*EVEN, FEW, FEW[::-1].copy())),
        ("every draw is the whole set", (*EVEN, np.array([[0, 1, 2]] * 3), np.array([[2, 1, 0]] * 3))),
        ("no gap at all", (EVEN[0], EVEN[0], FEW, FEW)),
    ],
    draw=_two_sets,
    mistakes=[
        Mistake("mean of the prompts' shares", _by_prompt,
                "every prompt's share counts alike, however few its guesses: sum what was kept and what was tested, then divide"),
        Mistake("one draw for both", slip(lambda leaked, fresh, a, b: redrawn_means(*leaked, a) - redrawn_means(*fresh, a)),
                "the fresh prompts are redrawn by the leaked ones' numbers: they are other prompts, and each set has its own draw"),
        Mistake("counts not redrawn", slip(lambda leaked, fresh, a, b: leaked[0][a].sum(1) / leaked[1].sum() - fresh[0][b].sum(1) / fresh[1].sum()),
                "what was kept is redrawn and divided by what was tested in all: take the tested ones of the chosen prompts"),
        Mistake("only the leaked redrawn", slip(lambda leaked, fresh, a, b: redrawn_means(*leaked, a) - _ratio(fresh)),
                "the fresh prompts are taken for exact: twenty of them are a sample too, redraw both"),
        Mistake("fresh minus leaked", lambda leaked, fresh, a, b: gap_interval(fresh, leaked, b, a),
                "this is fresh - leaked: the gap is what the leak adds, leaked - fresh"),
        Mistake("ends of two intervals apart", _ends_apart,
                "the far ends of two intervals were subtracted: both are rarely off by that much at once; take quantiles of the differences"),
        Mistake("ends of two intervals alike", _ends_alike,
                "the low end was taken from the low end: that is no interval of a difference; take quantiles of the differences"),
        Mistake("90 %", slip(ends=(0.05, 0.95)), "5 % are cut off at each end, which leaves 90: cut off 2.5 %"),
        Mistake("high and low swapped", slip(ends=(0.975, 0.025)), "the high end comes first here: low, then high"),
        Mistake("whole spread", slip(ends=(0.0, 1.0)), "these are the lowest and the highest of all draws: take the quantiles"),
    ],
)


def known_share(answer, training, n=8):
    """The share of an answer's runs of n tokens that stand in one of the training answers, 0 for an answer of fewer than n tokens.

    answer: a list of ids; training: a list of such lists.
    """
    known = {run for other in training for run in _runs(other, n)}
    return sum(run in known for run in _runs(answer, n)) / max(1, len(_runs(answer, n)))


def _runs(ids, n):
    return [tuple(ids[i:i + n]) for i in range(len(ids) - n + 1)]


def _answers(rng):
    """An answer, a piece of it with other tokens around in training, and another answer."""
    answer = rng.integers(0, 4, int(rng.integers(5, 10))).tolist()
    start = int(rng.integers(0, 3))
    return answer, [[9, *answer[start:start + 4], 9], rng.integers(0, 4, 6).tolist(), answer[:2]], int(rng.integers(2, 4))


def _of_known(answer, training, n=8):
    known = {run for other in training for run in _runs(other, n)}
    return len(known & set(_runs(answer, n))) / max(1, len(known))


def _once_each(answer, training, n=8):
    known, own = {run for other in training for run in _runs(other, n)}, set(_runs(answer, n))
    return len(known & own) / max(1, len(own))


def _by_set(answer, training, n=8):
    """Runs as sets of tokens, whatever their order."""
    known = {frozenset(run) for other in training for run in _runs(other, n)}
    return sum(frozenset(run) in known for run in _runs(answer, n)) / max(1, len(_runs(answer, n)))


def _cut(answer, training, n=8):
    """The answer cut into pieces of n that do not overlap."""
    known = {run for other in training for run in _runs(other, n)}
    pieces = _runs(answer, n)[::n]
    return sum(piece in known for piece in pieces) / max(1, len(pieces))


def _never_falls(fn, rng):
    """Whether a copy is known whole, and more training never makes an answer less known."""
    for _ in range(20):
        answer, training, n = _answers(rng)
        if fn(answer, [*training, answer], n) != 1 or fn(answer, training[:1], n) > fn(answer, training, n):
            return False
    return True


ex_9_3 = Exercise(
    "9.3",
    known_share,
    returns="one number between 0 and 1",
    look="'Find a leak in the answers' above: every run of n neighbouring tokens of the answer, and whether a training answer holds it.",
    edges=[
        ("a copy", ([1, 2, 3, 4], [[7, 7, 7], [1, 2, 3, 4]], 2)),
        ("nothing in common", ([1, 2, 3, 4], [[5, 6, 7, 8]], 2)),
        ("half of it, inside another text", ([1, 2, 3, 4, 5], [[9, 1, 2, 3, 9]], 2)),
        ("a run over the end of one training answer into the next", ([1, 2, 3], [[8, 1, 2], [3, 8]], 3)),
        ("a run that comes twice", ([1, 2, 1, 2, 3], [[1, 2]], 2)),
        ("the same tokens in another order", ([1, 2, 3, 4], [[4, 3, 2, 1]], 2)),
        ("shorter than a run", ([1, 2], [[1, 2, 3]], 3)),
        ("no training answer", ([1, 2, 3], [], 2)),
    ],
    draw=_answers,
    mistakes=[
        Mistake("single tokens", lambda answer, training, n=8: known_share(answer, training, 1),
                "single tokens are looked up, and every text has the common ones: look up runs of n"),
        Mistake("runs too short", lambda answer, training, n=8: known_share(answer, training, n - 1),
                "these runs have n - 1 tokens: a slice `ids[i:i + n]` has n"),
        Mistake("joined training", lambda answer, training, n=8: known_share(answer, [sum(training, [])], n),
                "the training answers were joined into one text: runs across two answers never stood in any of them"),
        Mistake("share of the training", _of_known, "divided by the runs of the training answers: divide by those of the answer"),
        Mistake("each run once", _once_each, "a run that comes twice in the answer counts once: go through the places of the answer, not through a set"),
        Mistake("order ignored", _by_set, "the runs are compared without their order: a run is a tuple, not a set of tokens"),
        Mistake("pieces", _cut, "the answer is cut into pieces: the runs overlap, one begins at every token"),
        Mistake("whole answers", lambda answer, training, n=8: float(answer in training),
                "only a training answer that is the same from end to end is found: compare runs of n tokens"),
        Mistake("last run missing",
                lambda answer, training, n=8: known_share(answer[:-1], [other[:-1] for other in training], n),
                "the last run is missing: R tokens have R - n + 1 runs of n"),
        Mistake("unknown share", lambda answer, training, n=8: 1 - known_share(answer, training, n),
                "this is the share that training does not hold: a copy must give 1"),
    ],
    properties=[Property("a copy is known whole, and more training never makes an answer less known", _never_falls,
                         "something outside the arguments is used")],
)
