"""Notebook 05: the rows that predict an answer, offline alpha (t4), its interval over answers, and the bracket from stored odds."""

import numpy as np
import torch

from lessonlib.workbook.checks.common import ToyModel, odds, redrawn_means, tensor
from lessonlib.workbook.exercise import Exercise, Mistake, Property, array


def _logits(model, ids):
    """Every row [S, V] of one text."""
    return model(torch.tensor([ids], device=model.device)).logits[0]


@torch.inference_mode()
def response_logits(model, prompt_ids, resp_ids):
    """The logits [R, V] with which the model predicts each of the R tokens of an answer, given all that stands before it."""
    return _logits(model, [*prompt_ids, *resp_ids])[len(prompt_ids) - 1 : -1]


def _text(rng):
    return [[int(token) for token in rng.integers(0, 5, int(rng.integers(low, 6)))] for low in (1, 2)]


def rows(first, last):
    """A wrong answer that takes the rows from `first` to `last` places beside the right ones."""
    return lambda model, prompt, resp: _logits(model, prompt + resp)[len(prompt) - 1 + first : len(prompt) + len(resp) - 1 + last]


ex_5_1 = Exercise(
    "5.1",
    response_logits,
    returns="one row of logits for each token of the answer: shape [R, V]",
    look="'One pass for all places' above: the row at position i of a text predicts the token at position i + 1.",
    edges=[
        ("an answer of three tokens", (ToyModel(1), [1, 2], [3, 0, 4])),
        ("an answer of one token", (ToyModel(1), [1, 2, 3], [0])),
        ("a prompt of one token", (ToyModel(2), [4], [0, 1])),
    ],
    draw=lambda rng: (ToyModel(int(rng.integers(3, 9))), *_text(rng)),
    mistakes=[
        Mistake("one row late", rows(1, 1),
                "the rows are one late: row s of a prompt of s tokens has already read the answer's first token, start at s - 1"),
        Mistake("one row early", rows(-1, -1),
                "the rows are one early: the first one asked for is that of the prompt's last token, at position s - 1"),
        Mistake("last row too", rows(0, 1),
                "one row too many: the last row predicts what comes after the answer, and nothing was written there"),
        Mistake("prompt counted", lambda model, prompt, resp: _logits(model, prompt + resp)[:-1],
                "the prompt's own tokens are predicted too; only the rows for the answer's tokens are asked for"),
        Mistake("answer without its prompt", lambda model, prompt, resp: _logits(model, resp),
                "the answer was read without its prompt: put both into one text"),
        Mistake(
            "batch left over",
            lambda model, prompt, resp: _logits(model, prompt + resp)[None, len(prompt) - 1 : -1],
            "the batch dimension is still there: take text 0 of the batch, logits[0]",
        ),
        Mistake("probabilities", lambda model, prompt, resp: response_logits(model, prompt, resp).softmax(-1),
                "these are probabilities: hand back the logits, the softmax comes later and at a temperature"),
    ],
)


@torch.inference_mode()
def offline_alpha(draft, target, seqs, T=1.0):
    """Mean overlap, mean top-1 agreement, mean KL(p || q) in nats over all answer positions, and the overlap [N] at each of them.

    seqs: list of (prompt_ids, resp_ids); T: the temperature of both models' odds; whole vocabulary, fp32.
    """
    return _measured(_compared, draft, target, seqs, T)


def _compared(p_logits, q_logits, T, resp):
    log_p, log_q = (p_logits.float() / T).log_softmax(-1), (q_logits.float() / T).log_softmax(-1)
    overlap = torch.minimum(log_p.exp(), log_q.exp()).sum(-1)
    return overlap, (log_p.argmax(-1) == log_q.argmax(-1)).float(), (log_p.exp() * (log_p - log_q)).sum(-1)


def _measured(compare, draft, target, seqs, T, read=response_logits):
    columns = [compare(read(target, *pair), read(draft, *pair), T, torch.tensor(pair[1])) for pair in seqs]
    overlap, same, kl = (torch.cat(column) for column in zip(*columns))
    return overlap.mean().item(), same.mean().item(), kl.mean().item(), overlap


def slip(compare=_compared, read=response_logits):
    """A wrong answer that goes wrong at each place (`compare`) or in what it reads (`read`)."""
    return lambda draft, target, seqs, T=1.0: _measured(compare, draft, target, seqs, T, read)


def changed(place, value):
    """A comparison whose result number `place` is `value(log_p, log_q, resp)` instead."""

    def compare(p_logits, q_logits, T, resp):
        result = list(_compared(p_logits, q_logits, T, resp))
        result[place] = value((p_logits.float() / T).log_softmax(-1), (q_logits.float() / T).log_softmax(-1), resp)
        return result

    return compare


def _by_answer(draft, target, seqs, T=1.0):
    """Each answer's means first, then their mean."""
    each = [offline_alpha(draft, target, [pair], T) for pair in seqs]
    return *(float(np.mean([one[i] for one in each])) for i in range(3)), torch.cat([one[3] for one in each])


def _drawn_seqs(rng):
    return [tuple(_text(rng)) for _ in range(int(rng.integers(1, 4)))]


def _overlap_is_one_minus_tv(fn, rng):
    draft, target, seqs = ToyModel(21), ToyModel(22), _drawn_seqs(rng)
    p, q = (torch.cat([response_logits(model, *pair) for pair in seqs]).softmax(-1) for model in (target, draft))
    return np.allclose(array(fn(draft, target, seqs)[3]), array(1 - (p - q).abs().sum(-1) / 2), atol=1e-5)


UNEVEN = [([1, 2], [3]), ([0], [4, 1, 1, 2, 0])]
ex_5_2 = Exercise(
    "5.2",
    offline_alpha,
    returns="mean overlap, mean top-1 agreement, mean KL, and the overlap at every position as one vector",
    look="'Offline alpha' above: p and q from the same rows of both models, three numbers a position, mean over all positions.",
    edges=[
        ("one answer", (ToyModel(1), ToyModel(2), [([1, 2], [3, 0, 4])])),
        ("the same model twice", (ToyModel(1), ToyModel(1), [([1, 2], [3, 0, 4])])),
        ("a short and a long answer", (ToyModel(3), ToyModel(4), UNEVEN)),
        ("T = 2", (ToyModel(3), ToyModel(4), UNEVEN, 2.0)),
        ("models in 16 bits", (ToyModel(3, dtype=torch.bfloat16), ToyModel(4, dtype=torch.bfloat16), UNEVEN)),
    ],
    draw=lambda rng: (
        ToyModel(int(rng.integers(1, 9))),
        ToyModel(int(rng.integers(10, 20))),
        _drawn_seqs(rng),
        float(rng.choice([0.5, 1.0, 1.5])),
    ),
    mistakes=[
        Mistake("one row late", slip(read=rows(1, 1)),
                "both models are read one row too late: row j must be the odds for the answer's token j, from position s - 1 + j"),
        Mistake("prompt counted", slip(read=lambda model, prompt, resp: _logits(model, prompt + resp)[:-1]),
                "the prompt's positions are in the mean: the target did not write them and nobody will draft there"),
        Mistake(
            "mean of the answers' means",
            _by_answer,
            "each answer was averaged first, then the answers: a short one counts as much as a long one. "
            "Rounds are played at positions, so put all positions into one mean",
        ),
        Mistake(
            "temperature on one side",
            slip(lambda p_logits, q_logits, T, resp: _compared(p_logits, q_logits * T, T, resp)),
            "T divides the target's logits only: the served draft is warmed or cooled as the target is",
        ),
        Mistake(
            "temperature ignored",
            slip(lambda p_logits, q_logits, T, resp: _compared(p_logits, q_logits, 1.0, resp)),
            "T is not used: divide both models' logits by it before the softmax",
        ),
        Mistake("KL swapped", slip(changed(2, lambda log_p, log_q, resp: (log_q.exp() * (log_q - log_p)).sum(-1))),
                "this is KL(q || p), which draft and target in the other order give too: weigh log(p/q) by p, the target"),
        Mistake("cross-entropy for KL", slip(changed(2, lambda log_p, log_q, resp: -(log_p.exp() * log_q).sum(-1))),
                "this is the cross-entropy -sum p log q: the target's own entropy has to be taken away from it"),
        Mistake(
            "written token for the target's favourite",
            slip(changed(1, lambda log_p, log_q, resp: (log_q.argmax(-1) == resp).float())),
            "top-1 compares the draft's favourite with the token in the text; on sampled text the target's favourite is "
            "often another one: compare argmax with argmax",
        ),
        Mistake(
            "only the written token",
            slip(changed(0, lambda log_p, log_q, resp: torch.minimum(log_p, log_q).exp().gather(-1, resp[:, None])[:, 0])),
            "min(p, q) was taken at the token in the text only: sum it over the whole vocabulary",
        ),
        Mistake("chance of the same draw", slip(changed(0, lambda log_p, log_q, resp: (log_p + log_q).exp().sum(-1))),
                "sum p q is the chance that two separate draws agree; the overlap is sum min(p, q)"),
        Mistake(
            "softmax in 16 bits",
            slip(lambda p_logits, q_logits, T, resp: [column.float() for column in _in_own_format(p_logits, q_logits, T)]),
            "the odds are worked out in the models' 16 bits, three digits at best: turn the logits into fp32 first",
        ),
        Mistake("last answer only", lambda draft, target, seqs, T=1.0: offline_alpha(draft, target, seqs[-1:], T),
                "only the last answer is in the result: collect every answer's positions, then average"),
    ],
    properties=[
        Property("the overlap is 1 - TV(p, q) at every position", _overlap_is_one_minus_tv, "something outside the arguments is used")
    ],
    tolerance=1e-5,
)


def _in_own_format(p_logits, q_logits, T):
    log_p, log_q = (p_logits / T).log_softmax(-1), (q_logits / T).log_softmax(-1)
    overlap = torch.minimum(log_p.exp(), log_q.exp()).sum(-1)
    return overlap, log_p.argmax(-1) == log_q.argmax(-1), (log_p.exp() * (log_p - log_q)).sum(-1)


def interval(totals, counts, chosen):
    """The 95 % interval (low, high) of the mean over positions: totals [n] and counts [n] of each answer, chosen [B, n] answers drawn."""
    return tuple(np.quantile(redrawn_means(totals, counts, chosen), [0.025, 0.975]))


def _resampled(rng, n, B=40):
    counts = rng.integers(1, 9, n)
    return np.round(rng.uniform(0, 1, n) * counts, 2), counts, rng.integers(0, n, (B, n))


def quantiles(means, low=0.025, high=0.975):
    """A wrong answer that takes its quantiles of `means(totals, counts, chosen)`."""
    return lambda totals, counts, chosen: tuple(np.quantile(means(totals, counts, chosen), [low, high]))


ex_5_3 = Exercise(
    "5.3",
    interval,
    returns="two numbers: the low and the high end",
    look="'How sure is that?' above: for every row of chosen the sum of the totals over the sum of the counts, then two quantiles.",
    edges=[
        ("two answers, four draws", (np.array([1.0, 6.0]), np.array([2, 8]), np.array([[0, 0], [0, 1], [1, 0], [1, 1]]))),
        ("answers that are all alike", (np.array([1.0, 2.0]), np.array([2, 4]), np.array([[0, 1], [1, 1]]))),
        ("a single draw", (np.array([1.0, 3.0, 2.0]), np.array([4, 4, 4]), np.array([[0, 2, 2]]))),
    ],
    draw=lambda rng: _resampled(rng, int(rng.integers(3, 7))),
    mistakes=[
        Mistake(
            "mean of the answers' means",
            quantiles(lambda totals, counts, chosen: (totals / counts)[chosen].mean(1)),
            "every answer counts alike here, however short: the mean over positions is the sum of totals over the sum of counts",
        ),
        Mistake("counts not redrawn", quantiles(lambda totals, counts, chosen: totals[chosen].sum(1) / counts.sum()),
                "the totals are redrawn and divided by the count of all answers: take the counts of the chosen ones"),
        Mistake("90 %", quantiles(redrawn_means, 0.05, 0.95), "5 % are cut off at each end, which leaves 90: cut off 2.5 %"),
        Mistake(
            "one-sided", quantiles(redrawn_means, 0.0, 0.95), "all 5 % are cut off at one end: cut off 2.5 % at each"
        ),
        Mistake("whole spread", quantiles(redrawn_means, 0.0, 1.0),
                "these are the lowest and the highest of all draws, which grow with the number of draws: take the quantiles"),
        Mistake(
            "bell curve",
            lambda totals, counts, chosen: tuple(
                totals.sum() / counts.sum() + sign * 1.96 * redrawn_means(totals, counts, chosen).std() for sign in (-1, 1)
            ),
            "the mean plus and minus 1.96 standard deviations takes the spread for a bell curve; "
            "the quantiles of the draws need no such assumption",
        ),
        Mistake(
            "high and low swapped", quantiles(redrawn_means, 0.975, 0.025), "the high end comes first here: low, then high"
        ),
        Mistake("sums, not means", quantiles(lambda totals, counts, chosen: totals[chosen].sum(1)),
                "these are sums: divide by how many positions the chosen answers have"),
    ],
)


def bracket(p_top, q_top, q_rest):
    """(low, high) between which a position's overlap lies, from the target's k stored probabilities in falling order.

    p_top, q_top [k]: target's and draft's odds of the stored tokens; q_rest [V - k]: the draft's odds of all others.
    """
    stored = torch.minimum(p_top, q_top).sum()
    p_tail = (1 - p_top.sum()).clamp_min(0)
    return stored, stored + torch.minimum(p_tail, q_rest.clamp_max(p_top[-1]).sum())


def _stored(rng):
    V, k = int(rng.integers(4, 8)), int(rng.integers(1, 4))
    p, q = odds(rng, V, sharpness=1.0).sort(descending=True).values, odds(rng, V, sharpness=1.0)
    return p[:k], q[:k], q[k:]


def with_high(high):
    """A wrong answer whose low end is right: `high(stored, p_top, p_tail, q_rest)` gives the other."""

    def answer(p_top, q_top, q_rest):
        stored = torch.minimum(p_top, q_top).sum()
        return stored, high(stored, p_top, (1 - p_top.sum()).clamp_min(0), q_rest)

    return answer


def _holds_whatever_the_tail_is(fn, rng):
    """Whether the overlap lies inside for whole distributions, of which only the k largest were shown."""
    for _ in range(50):
        p, q = odds(rng, 9).sort(descending=True).values, odds(rng, 9)
        low, high = map(float, fn(p[:3], q[:3], q[3:]))
        if not low - 1e-9 <= float(torch.minimum(p, q).sum()) <= high + 1e-9:
            return False
    return True


ex_5_4 = Exercise(
    "5.4",
    bracket,
    returns="two numbers: the least and the most that the overlap can be",
    look="'A bracket from the store' above: S, and S plus the smaller of p_tail and the sum of min(p_k, q) over the other tokens.",
    edges=[
        ("what is left caps it", (tensor(0.6, 0.3), tensor(0.3, 0.2), tensor(0.2, 0.2, 0.1))),
        ("the smallest stored one caps it", (tensor(0.4, 0.1), tensor(0.2, 0.1), tensor(0.6, 0.05, 0.05))),
        ("the draft has nothing out there", (tensor(0.5, 0.3), tensor(0.6, 0.4), tensor(0.0, 0.0))),
        ("every token is stored", (tensor(0.5, 0.3, 0.2), tensor(0.2, 0.3, 0.5), tensor())),
    ],
    draw=_stored,
    mistakes=[
        Mistake("only what is stored", with_high(lambda stored, p_top, p_tail, q_rest: stored),
                "the tokens outside the store are left out of the high end: the two models may overlap there too"),
        Mistake(
            "smallest stored one not used",
            with_high(lambda stored, p_top, p_tail, q_rest: stored + torch.minimum(p_tail, q_rest.sum())),
            "true, and too loose: a token outside the store has at most p_k, so it adds at most min(p_k, q)",
        ),
        Mistake(
            "tail mass not used",
            with_high(lambda stored, p_top, p_tail, q_rest: stored + q_rest.clamp_max(p_top[-1]).sum()),
            "true, and too loose: all tokens outside the store together have p_tail, so they add at most that",
        ),
        Mistake(
            "largest for smallest",
            with_high(lambda stored, p_top, p_tail, q_rest: stored + torch.minimum(p_tail, q_rest.clamp_max(p_top[0]).sum())),
            "p_k is the smallest stored probability, the last one: the first is the largest",
        ),
        Mistake("whole tail", with_high(lambda stored, p_top, p_tail, q_rest: stored + p_tail),
                "the whole tail mass is added, as if the draft proposed all of it: it adds no more than the draft's own odds there"),
        Mistake(
            "tail alone",
            with_high(lambda stored, p_top, p_tail, q_rest: torch.minimum(p_tail, q_rest.clamp_max(p_top[-1]).sum())),
            "the high end is what the tail can add, without S in front of it",
        ),
        Mistake("stored mass for overlap", lambda p_top, q_top, q_rest: bracket(p_top, p_top, q_rest),
                "the low end is the target's stored mass, not the overlap: take min(p, q) of every stored token"),
        Mistake("scaled to sum to 1", lambda p_top, q_top, q_rest: bracket(p_top / p_top.sum(), q_top, q_rest),
                "the stored probabilities were scaled to sum to 1: they are exact as they are, what is missing is the tail"),
    ],
    properties=[
        Property(
            "the overlap of whole distributions over 9 tokens lies inside, whatever the unseen 6 are",
            _holds_whatever_the_tail_is,
            "something outside the arguments is used",
        )
    ],
)
