"""Notebook 04's checks: slips written as a reader would write them get the diagnosis of their name."""

import re

import numpy as np
import pytest
import torch
from support import tiny

from lessonlib.labels.scorer import score_one
from lessonlib.workbook.checks.nb04 import ex_4_1, ex_4_2, ex_4_3, ex_4_4


def four_bytes_of_normaliser_for_all(tokens, k, vocabulary):
    stored = 4
    for _ in range(tokens):
        stored += k * 4 + k * 2
    return stored, 2 * tokens * vocabulary


def long_ids(tokens, k, vocabulary):
    return tokens * k * 2 + tokens * k * 2 + tokens * 4, tokens * vocabulary * 2


def words_of(text):
    return re.findall(r"[a-z0-9]+", text.lower())


def runs(words):
    return set(zip(words, words[1:], words[2:])) or {tuple(words)}


def overlap_of_words(one, other):
    a, b = set(words_of(one)), set(words_of(other))
    return len(a.intersection(b)) / len(a.union(b))


def raw_runs(one, other):
    a, b = runs(one.split()), runs(other.split())
    return len(a & b) / len(a | b)


def sum_below(one, other):
    a, b = runs(words_of(one)), runs(words_of(other))
    return len(a & b) / (len(a) + len(b))


def shifted(target, prompt_ids, resp_ids, k=64):
    logits = target(torch.tensor([prompt_ids + resp_ids])).logits.squeeze(0)
    rows = logits[len(prompt_ids):len(prompt_ids) + len(resp_ids)]
    top = torch.topk(rows, k, dim=-1)
    return top.indices.to(torch.int32), top.values.to(torch.float16), torch.logsumexp(rows, -1)


def normalised_by_the_kept(target, prompt_ids, resp_ids, k=64):
    logits = target(torch.tensor([prompt_ids + resp_ids])).logits[0]
    top = logits[len(prompt_ids) - 1:-1].topk(k)
    return top.indices.int(), top.values.half(), top.values.exp().sum(-1).log()


def as_log_softmax(target, prompt_ids, resp_ids, k=64):
    rows = target(torch.tensor([prompt_ids + resp_ids])).logits[0, len(prompt_ids) - 1:-1]
    top = rows.log_softmax(-1).topk(k)
    return top.indices.int(), top.values.half(), rows.logsumexp(-1)


def in_odds(logits, k):
    p, _ = torch.softmax(logits, -1).sort(descending=True)
    return torch.log(1 - p[:, :k].sum(1)) if logits.ndim == 2 else torch.log(1 - p[:k].sum())


def kept_part(logits, k):
    return logits.topk(k).values.logsumexp(-1) - logits.logsumexp(-1)


def kept_by_place(logits, k):
    return logits[..., k:].logsumexp(-1) - logits.logsumexp(-1)


@pytest.mark.parametrize(
    "exercise, answer, mistake",
    [
        (ex_4_2, four_bytes_of_normaliser_for_all, "normaliser once"),
        (ex_4_2, long_ids, "16-bit ids"),
        (ex_4_2, lambda n, k, V: (2 * n * V, n * (6 * k + 4)), "order swapped"),
        (ex_4_1, overlap_of_words, "single words"),
        (ex_4_1, raw_runs, "case and signs counted"),
        (ex_4_1, sum_below, "shared counted twice"),
        (ex_4_3, shifted, "one row late"),
        (ex_4_3, normalised_by_the_kept, "lse over the k only"),
        (ex_4_3, as_log_softmax, "log-probabilities for logits"),
        (ex_4_4, in_odds, "one minus the sum"),
        (ex_4_4, kept_part, "mass for tail"),
        (ex_4_4, kept_by_place, "not sorted"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", None),
)
def test_a_slip_in_a_readers_own_words_gets_its_diagnosis(exercise, answer, mistake):
    verdict = exercise.judge(answer)
    assert (verdict.state, verdict.mistake) == ("wrong", mistake), verdict.text


def without_the_casts(target, prompt_ids, resp_ids, k=64):
    rows = target(torch.tensor([prompt_ids + resp_ids])).logits[0, len(prompt_ids) - 1:-1]
    values, ids = rows.topk(k)
    return ids, values, rows.logsumexp(-1)


def test_a_scorer_that_keeps_too_many_bytes_is_told_how_many():
    verdict = ex_4_3.judge(without_the_casts)
    assert verdict.state == "wrong" and "388 bytes" in verdict.text and "ids.int()" in verdict.text


def one_by_one(one, other):
    a, b = runs(words_of(one)), runs(words_of(other))
    shared = sum(run in b for run in a)
    return shared / (len(a) + len(b) - shared)


def row_by_row(target, prompt_ids, resp_ids, k=64):
    kept = []
    for j in range(len(resp_ids)):
        row = target(torch.tensor([prompt_ids + resp_ids[:j]])).logits[0, -1]
        values, ids = row.topk(k)
        kept.append((ids.int(), values.half(), row.logsumexp(-1)))
    return [torch.stack(column) for column in zip(*kept)]


def only_the_rows_wanted(target, prompt_ids, resp_ids, k=64):
    ids = torch.tensor([prompt_ids + resp_ids])
    rows = target(input_ids=ids, logits_to_keep=len(resp_ids) + 1, use_cache=False).logits[0, :-1]
    values, ids = rows.sort(descending=True)
    return ids[:, :k].int(), values[:, :k].half(), rows.logsumexp(-1)


def by_argsort(target, prompt_ids, resp_ids, k=64):
    rows = target(torch.tensor([prompt_ids + resp_ids])).logits[0, len(prompt_ids) - 1:-1]
    ids = rows.argsort().flip(-1)[:, :k]
    return ids.int(), rows.gather(-1, ids).half(), rows.logsumexp(-1)


def masked(logits, k):
    rest = logits.scatter(-1, logits.topk(k).indices, -torch.inf)
    return rest.logsumexp(-1) - logits.logsumexp(-1)


def with_numpy(logits, k):
    ordered = -np.sort(-logits.numpy(), -1)
    return torch.from_numpy(np.logaddexp.reduce(ordered[..., k:], -1) - np.logaddexp.reduce(ordered, -1))


@pytest.mark.parametrize(
    "exercise, answer",
    [
        (ex_4_1, one_by_one),
        (ex_4_2, lambda tokens, k, vocabulary: [tokens * (6 * k + 4), 2 * tokens * vocabulary]),
        (ex_4_3, row_by_row),
        (ex_4_3, only_the_rows_wanted),
        (ex_4_3, by_argsort),
        (ex_4_4, masked),
        (ex_4_4, with_numpy),
        (ex_4_4, lambda logits, k: masked(logits.float(), k)),
        (ex_4_4, lambda logits, k: masked(logits.float(), k).double()),
    ],
    ids=["4.1", "4.2 list", "4.3", "4.3 keep and sort", "4.3 argsort", "4.4", "4.4 numpy", "4.4 fp32", "4.4 fp32 and back"],
)
def test_another_right_way_passes(exercise, answer):
    verdict = exercise.judge(answer)
    assert verdict.state == "right", verdict.text


@pytest.mark.parametrize("never", [lambda tail: tail.clamp_min(-3000), lambda tail: tail.where(tail > -3000, -torch.inf)], ids=["clamped", "-inf"])
def test_a_log_tail_that_ends_somewhere_is_found_by_the_property(never):
    assert "(property)" in ex_4_4.judge(lambda logits, k: never(masked(logits, k))).text


def test_the_scorer_that_takes_over_from_a_stub_is_the_courses_own():
    tiny_target = tiny()
    prompt, resp = [5, 6, 7], [8, 9]
    for mine, theirs in zip(ex_4_3.library(tiny_target, prompt, resp, 8), score_one(tiny_target, prompt, resp, 8)):
        assert torch.equal(mine, theirs)
