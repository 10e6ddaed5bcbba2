"""Notebook 04: prompts that say the same, the bytes of a label, the scorer, and the tail outside the stored tokens."""

import numpy as np
import torch

from lessonlib.kernels.topk_lse import topk_lse
from lessonlib.labels import scorer
from lessonlib.traffic import duplicates
from lessonlib.workbook.checks.common import ToyModel, tensor
from lessonlib.workbook.exercise import Exercise, Mistake, Property, array


def similarity(one, other):
    """The Jaccard similarity, 0 to 1, of two prompts: runs of three words that they share, over all that occur in either."""
    return duplicates.jaccard(duplicates.shingles(one), duplicates.shingles(other))


WORDS = "write a short poem about the first rain after long dry summer in python please".split()


def _two_prompts(rng):
    """Two prompts of three to nine words, the second made from the first by small changes."""
    first = [str(word) for word in rng.choice(WORDS, int(rng.integers(4, 10)))]
    second = list(first)
    for _ in range(int(rng.integers(1, 3))):
        second[int(rng.integers(len(second)))] = str(rng.choice(WORDS))
    return " ".join(first).capitalize() + "?", " ".join(second) + "."


def sets(make, compare=lambda a, b: len(a & b) / len(a | b)):
    """A wrong answer that compares `make(one)` with `make(other)` by `compare`."""
    return lambda one, other: compare(make(one), make(other))


def _as_typed(text):
    words = text.split()
    return {" ".join(words[i:i + 3]) for i in range(max(1, len(words) - 2))}


def _words(text):
    return set(duplicates.normalise(text).split())


def _pairs(text):
    words = duplicates.normalise(text).split()
    return {" ".join(words[i:i + 2]) for i in range(max(1, len(words) - 1))}


def _last_missing(text):
    words = duplicates.normalise(text).split()
    return {" ".join(words[i:i + 3]) for i in range(len(words) - 3)} or {" ".join(words[:3])}


def _letters(text):
    text = duplicates.normalise(text)
    return {text[i:i + 3] for i in range(max(1, len(text) - 2))}


def _short_lost(text):
    words = duplicates.normalise(text).split()
    return {" ".join(words[i:i + 3]) for i in range(len(words) - 2)}


def _chunks(text):
    words = duplicates.normalise(text).split()
    return {" ".join(words[i:i + 3]) for i in range(0, max(1, len(words) - 2), 3)}


ex_4_1 = Exercise(
    "4.1",
    similarity,
    returns="one number between 0 and 1",
    look="'Split without a leak' above: the sets of all runs of three words; how many they share over how many are in either.",
    edges=[
        ("only case and signs differ", ("Write a poem about rain!", "write a poem, about rain")),
        ("one word differs", ("Write a short poem about the first rain", "Write a short song about the first rain")),
        ("the same words in another order", ("rain after the dry summer", "summer the dry after rain")),
        ("the other holds the one", ("write a poem about rain", "write a poem about rain in the dry summer")),
        ("the one holds the other", ("write a poem about rain in the dry summer", "write a poem about rain")),
        ("a run that comes twice", ("a dry summer and a dry summer and a dry rain", "a dry summer and a long poem")),
        ("fewer than three words: the whole is one run", ("Hello there", "hello, there!")),
        ("nothing in common", ("write a poem about rain", "what is the capital of France")),
    ],
    draw=_two_prompts,
    mistakes=[
        Mistake("case and signs counted", sets(_as_typed), "capitals and punctuation count as differences: put both through `normalise` first"),
        Mistake("single words", sets(_words), "single words are compared: two requests with the same little words would look alike; take runs of three"),
        Mistake("runs of two", sets(_pairs), "these are runs of two words: a run has three"),
        Mistake("letters", sets(_letters), "these are runs of three letters: split the text into words first"),
        Mistake("last run missing", sets(_last_missing), "the last run is missing: n words have n - 2 runs of three"),
        Mistake("every third run", sets(_chunks), "the text is cut into pieces of three: the runs overlap, one begins at every word"),
        Mistake("short texts have no runs", sets(_short_lost),
                "a text of fewer than three words has no run here, and 0 / 0 follows: count the whole text as one run"),
        Mistake("share of the first", sets(duplicates.shingles, lambda a, b: len(a & b) / len(a)),
                "divided by the runs of the first prompt only: divide by all runs that occur in either, the union"),
        Mistake("share of the smaller",
                sets(duplicates.shingles, lambda a, b: len(a & b) / min(len(a), len(b))),
                "divided by the smaller set: a prompt inside a long one would count as the same; divide by the union"),
        Mistake("shared counted twice", sets(duplicates.shingles, lambda a, b: len(a & b) / (len(a) + len(b))),
                "what both share is counted twice below the line: the union has it once"),
        Mistake("Dice", sets(duplicates.shingles, lambda a, b: 2 * len(a & b) / (len(a) + len(b))),
                "this is Dice's coefficient: twice the shared over both sizes; Jaccard's is shared over the union"),
        Mistake("only the count", sets(duplicates.shingles, lambda a, b: len(a & b)), "this is how many runs they share: divide by the union"),
        Mistake("distance", sets(duplicates.shingles, lambda a, b: 1 - len(a & b) / len(a | b)),
                "this is the distance: 1 for prompts with nothing in common; the similarity is 1 minus it"),
    ],
    properties=[
        Property(
            "both orders give the same, and a prompt is as like as can be to itself",
            lambda fn, rng: all(fn(a, b) == fn(b, a) and fn(a, a) == 1 for a, b in (_two_prompts(rng) for _ in range(20))),
            "the two prompts are not treated alike",
        )
    ],
)


def label_bytes(tokens, k, vocabulary):
    """(stored, full): bytes of k ids (int32), k values (fp16) and one fp32 a token, and of a whole row of fp16 logits a token."""
    return tokens * (k * (4 + 2) + 4), tokens * vocabulary * 2


def _sizes(rng):
    return int(rng.integers(2, 50)), int(rng.integers(1, 200)), int(rng.integers(300, 2000))


ex_4_2 = Exercise(
    "4.2",
    label_bytes,
    returns="two whole numbers: the bytes of the stored labels, then the bytes of the full rows",
    look="'Multiply it out first' above: k ids of 4 bytes, k values of 2 bytes and one number of 4 bytes for each token.",
    edges=[
        ("one position of the Llama pair", (1, 64, 128_256)),
        ("one position of the tiny pair", (1, 64, 49_152)),
        ("a whole data set", (2_000_000, 64, 128_256)),
        ("nothing yet", (0, 64, 49_152)),
    ],
    draw=_sizes,
    mistakes=[
        Mistake("normaliser forgotten", lambda n, k, V: (n * k * 6, n * V * 2),
                "the one fp32 of each position is missing: without it the k values cannot be turned into probabilities"),
        Mistake("ids forgotten", lambda n, k, V: (n * (k * 2 + 4), n * V * 2),
                "the ids are missing: a full row needs none, but of k values nobody knows whose they are"),
        Mistake("normaliser k times", lambda n, k, V: (n * k * 10, n * V * 2),
                "the fp32 number is counted k times: one position has one of them"),
        Mistake("normaliser once", lambda n, k, V: (n * k * 6 + 4, n * V * 2),
                "the fp32 number is counted once for the whole data set: every position has its own"),
        Mistake("16-bit ids", lambda n, k, V: (n * (k * 4 + 4), n * V * 2),
                "ids of 2 bytes reach 65,535 at most, and Llama has 128,256 tokens: an int32 has 4 bytes"),
        Mistake("values in fp32", lambda n, k, V: (n * (k * 8 + 4), n * V * 2),
                "the values are counted with 4 bytes: they are stored in fp16, 2 bytes each"),
        Mistake("full rows in fp32", lambda n, k, V: (n * (k * 6 + 4), n * V * 4),
                "the full row is counted in fp32: it is compared in fp16 as well, 2 bytes for each token of the vocabulary"),
        Mistake("full row with ids", lambda n, k, V: (n * (k * 6 + 4), n * (V * 6 + 4)),
                "a full row needs neither ids nor a normaliser: the place in the row is the id"),
        Mistake("order swapped", lambda n, k, V: label_bytes(n, k, V)[::-1],
                "the two results are swapped: first the stored labels, then the full rows"),
    ],
    properties=[
        Property(
            "twice the tokens, twice the bytes",
            lambda fn, rng: all(list(fn(2 * n, 64, 5000)) == [2 * size for size in fn(n, 64, 5000)] for n in (1, 7, 100)),
            "something is counted once that belongs to every token",
        )
    ],
)


V = 12  # tokens of the toy model that a scorer is tried with


def score_one(target, prompt_ids, resp_ids, k=64):
    """(ids int32 [R, k], logits fp16 [R, k], lse fp32 [R]): row j is the target's odds for response token j, given all before it."""
    if not isinstance(target, ToyModel):
        return scorer.score_one(target, prompt_ids, resp_ids, k)
    return _scored(target, prompt_ids, resp_ids, k)


def _rows(target, ids, start, stop):
    return target(torch.tensor([ids])).logits[0, start:stop]


def _kept(rows, k):
    values, ids = rows.topk(k)
    return ids.int(), values.half(), rows.logsumexp(-1)


def _scored(target, prompt, resp, k=64):
    return _kept(_rows(target, [*prompt, *resp], len(prompt) - 1, -1), k)


def _after(change):
    """A wrong answer that changes the right rows before it keeps the k largest."""
    return lambda target, prompt, resp, k=64: _kept(change(_rows(target, [*prompt, *resp], len(prompt) - 1, -1)), k)


def _top_k_lse(target, prompt, resp, k=64):
    ids, values, _ = _scored(target, prompt, resp, k)
    return ids, values, values.float().logsumexp(-1)


def _probabilities(target, prompt, resp, k=64):
    ids, _, lse = _scored(target, prompt, resp, k)
    rows = _rows(target, [*prompt, *resp], len(prompt) - 1, -1)
    return ids, rows.softmax(-1).topk(k)[0].half(), lse


def _log_probabilities(target, prompt, resp, k=64):
    ids, values, lse = _scored(target, prompt, resp, k)
    return ids, (values.float() - lse[:, None]).half(), lse


def _sequence(rng):
    prompt, resp = ([int(x) for x in rng.integers(0, V, int(rng.integers(low, 6)))] for low in (1, 2))
    return ToyModel(int(rng.integers(1, 9)), V), prompt, resp, int(rng.integers(1, 4))


def _has_its_bytes(fn, rng):
    parts = fn(*_sequence(rng))
    return [part.dtype for part in parts] == [torch.int32, torch.float16, torch.float32]


ex_4_3 = Exercise(
    "4.3",
    score_one,
    returns="three tensors: ids [R, k], logits [R, k] and the logsumexp [R], R the length of the response",
    look="'The target reads its answers again' above: the row that speaks of a token stands one position before that token.",
    edges=[
        ("two tokens answered", (ToyModel(1, V), [3, 1, 4], [1, 5], 2)),
        ("one token answered", (ToyModel(1, V), [3, 1, 4], [1], 2)),
        ("a prompt of one token", (ToyModel(2, V), [7], [2, 6, 5], 3)),
        ("k is the whole vocabulary", (ToyModel(2, V), [3, 1, 4], [1, 5], V)),
    ],
    draw=_sequence,
    tolerance=1e-5,  # fp32, summed in any order
    mistakes=[
        Mistake("one row late",
                lambda target, prompt, resp, k=64: _kept(_rows(target, [*prompt, *resp], len(prompt), None), k),
                "the rows are one position late: the row at a token's own position speaks of the token after it; start at len(prompt_ids) - 1"),
        Mistake(
            "one row early",
            lambda target, prompt, resp, k=64: _kept(
                target(torch.tensor([[*prompt, *resp]])).logits[0].roll(2, 0)[len(prompt):][:len(resp)], k
            ),
            "the rows are one position early: row j has to speak of response token j; start at len(prompt_ids) - 1",
        ),
        Mistake("last row too many",
                lambda target, prompt, resp, k=64: _kept(_rows(target, [*prompt, *resp], len(prompt) - 1, None), k),
                "one row too many: the last row speaks of a token that was never written; leave it out"),
        Mistake("rows of the prompt too",
                lambda target, prompt, resp, k=64: _kept(_rows(target, [*prompt, *resp], 0, -1), k),
                "the rows that speak of the prompt's tokens are there as well: only the response is the target's own text"),
        Mistake("answer read without its prompt",
                lambda target, prompt, resp, k=64: _kept(_rows(target, list(resp), 0, None), k),
                "the target was given the response alone: it has to read prompt and response in one pass"),
        Mistake("prompt read without its answer",
                lambda target, prompt, resp, k=64: _kept(_rows(target, list(prompt), -1, None).expand(len(resp), -1), k),
                "every row is the one after the prompt: each has to be given the response tokens before it as well"),
        Mistake("lse over the k only", _top_k_lse,
                "the logsumexp runs over the k kept logits: over the whole vocabulary it tells what the tail is worth, over the k it says there is none"),
        Mistake("smallest for largest", _after(lambda rows: -rows), "these are not the k largest logits: topk of the logits themselves"),
        Mistake("probabilities for logits", _probabilities,
                "the values went through a softmax: keep the logits; with the logsumexp they become probabilities later"),
        Mistake("log-probabilities for logits", _log_probabilities,
                "the logsumexp is taken off the values already, and whoever reads them will take it off again"),
        Mistake("batch left on",
                lambda target, prompt, resp, k=64: tuple(part[None] for part in _scored(target, prompt, resp, k)),
                "the batch dimension of one is still there: take logits[0]"),
        Mistake("values first",
                lambda target, prompt, resp, k=64: tuple(_scored(target, prompt, resp, k)[i] for i in (1, 0, 2)),
                "topk gives values and then ids; asked are the ids first"),
    ],
    properties=[
        Property(
            "ids int32, logits fp16, lse fp32: 388 bytes a position at k = 64",
            _has_its_bytes,
            "cast at the end: ids.int(), values.half(), lse.float(); with int64 ids alone a position would have 644 bytes",
        )
    ],
)


def log_tail(logits, k):
    """The log of the probability outside the k largest logits of each row: logits [R, V], k below V, returns [R]."""
    return topk_lse(logits, k)[3]


def _row_logits(rng):
    V = int(rng.integers(3, 7))
    return torch.from_numpy(rng.standard_normal((2, V))) * float(rng.choice([0.5, 2.0, 6.0])), int(rng.integers(1, V))


def _sorted_log_p(logits):
    return logits.log_softmax(-1).sort(-1, descending=True)[0]


def _one_minus(logits, k):
    return (1 - logits.softmax(-1).topk(k)[0].sum(-1)).log()


def _never_underflows(fn, rng):
    rows = torch.zeros(5, 50, dtype=torch.float64)
    rows[:, 0] = torch.tensor([10.0, 100, 500, 700, 5000])
    return np.allclose(array(fn(rows, 1)), array(topk_lse(rows, 1)[3]), rtol=1e-5)


ex_4_4 = Exercise(
    "4.4",
    log_tail,
    returns="one number for each row",
    look="'What the sixty-four leave out' above: the logsumexp of the logits outside the k largest, minus the logsumexp of all.",
    edges=[
        ("half of it is outside", (tensor([0, 0, 0, 0]), 2)),
        ("two rows", (tensor([2, 1, 0], [0, 3, 1]), 1)),
        ("one token is all but sure", (tensor([200, 0, 0]), 1)),
        ("surer than float64 can say", (tensor([0, 2000, 0]), 1)),
        ("almost all is outside", (tensor([0, -40, -40, -40]) * -1, 1)),
    ],
    draw=_row_logits,
    tolerance=1e-5,  # fp32 is good enough
    mistakes=[
        Mistake("one minus the sum", _one_minus,
                "1 minus the stored probabilities loses every digit when they sum to nearly 1, and log 0 follows: sum the rest itself"),
        Mistake("clamped", lambda z, k: (1 - z.softmax(-1).topk(k)[0].sum(-1)).clamp_min(1e-12).log(),
                "a floor under 1 - sum hides the lost digits: every small tail comes out the same; sum the rest itself"),
        Mistake("not a logarithm", lambda z, k: topk_lse(z, k)[3].exp(),
                "this is the tail's probability: asked is its logarithm, in which a tail of 1e-80 is still a number of its own"),
        Mistake("mass for tail", lambda z, k: _sorted_log_p(z)[..., :k].logsumexp(-1),
                "this is the log of what the k hold: the tail is what they do not hold"),
        Mistake("not normalised", lambda z, k: z.sort(-1, descending=True)[0][..., k:].logsumexp(-1),
                "the logsumexp of all is still to be taken off: as it stands it moves when a constant is added to the logits"),
        Mistake("against the k",
                lambda z, k: (s := z.sort(-1, descending=True)[0])[..., k:].logsumexp(-1) - s[..., :k].logsumexp(-1),
                "this compares the rest with the k: these are odds; for a probability compare it with everything"),
        Mistake("logits summed", lambda z, k: _sorted_log_p(z)[..., k:].sum(-1),
                "log-probabilities were added up: that multiplies the probabilities; logsumexp adds them"),
        Mistake("smallest k dropped", lambda z, k: _sorted_log_p(z).flip(-1)[..., k:].logsumexp(-1),
                "the k smallest were left out instead of the k largest: sort in falling order"),
        Mistake("not sorted", lambda z, k: z.log_softmax(-1)[..., k:].logsumexp(-1),
                "the first k of the row were left out, not the k largest: sort first"),
    ],
    properties=[
        Property(
            "a token 5,000 nats ahead leaves a log tail of about -4,996, not -inf",
            _never_underflows,
            "somewhere a probability is formed before the logarithm",
        )
    ],
)
