"""Files of answers: ids as they were drawn, every row once whatever interrupts, and nobody else's file touched."""

import builtins
import errno
import gzip
import json
import math
import os

import pytest
from support import tiny, word_tokenizer
from transformers import GenerationConfig

from lessonlib.errors import LessonError
from lessonlib.pair.chat import chat_ids
from lessonlib.traffic import answers as module
from lessonlib.traffic.answers import Answers, check_written_by, generate, read_answers, read_shipped, write_shipped
from lessonlib.traffic.engine import TransformersEngine

COLOURS, NUMBERS = ("red", "green", "blue"), ("one", "two", "three", "four", "five")
PROMPTS = [f"{colour} {number} {colour}" for colour in COLOURS for number in NUMBERS]
TOKENIZER = word_tokenizer()
END = TOKENIZER.eos_token_id
SETTINGS = dict(temperature=1.0, max_new_tokens=10, seed=3, show=False)


@pytest.fixture(scope="module")
def target():
    model = tiny(sharp=2).double()
    model.lm_head.weight[END] *= 2  # so that some answers end and some do not
    return model


def draw(target, out, prompts=PROMPTS, batch_size=4, tokenizer=TOKENIZER, **changes):
    return generate(target, tokenizer, prompts, out, engine=TransformersEngine(target, batch_size), **SETTINGS | changes)


def lines(path):
    return sorted(path.read_text().splitlines())


class Stopping(TransformersEngine):
    """An engine that is interrupted after some answers."""

    stop = 0

    def answer(self, prompts, *settings):
        for done, row in enumerate(super().answer(prompts, *settings)):
            if done == self.stop:
                raise KeyboardInterrupt
            yield row


def interrupted(target, out, stop):
    engine = Stopping(target, 4)
    engine.stop = stop
    with pytest.raises(KeyboardInterrupt):
        generate(target, TOKENIZER, PROMPTS, out, engine=engine, **SETTINGS)


def test_every_prompt_is_answered_in_ids(target, tmp_path):
    found = draw(target, tmp_path / "a.jsonl")
    assert [row["row"] for row in found.rows] == list(range(15)) and len(found) == 15
    assert [row["prompt_ids"] for row in found.rows] == [chat_ids(TOKENIZER, prompt) for prompt in PROMPTS]
    expected = dict(TransformersEngine(target, 1).answer([(row["row"], row["prompt_ids"]) for row in found.rows], 1.0, 10, 3, (END,)))
    assert {row["row"]: row["resp_ids"] for row in found.rows} == expected
    stopped = [row["resp_ids"] for row in found.rows if len(row["resp_ids"]) == 10 and row["resp_ids"][-1] != END]
    ended = [row["resp_ids"] for row in found.rows if row["resp_ids"][-1] == END]
    assert stopped and ended and len(stopped) + len(ended) == 15
    assert all(ids.count(END) == 1 for ids in ended) and all(END not in ids for ids in stopped)
    again = read_answers(tmp_path / "a.jsonl")
    assert again == found and again.sequences() == [(row["prompt_ids"], row["resp_ids"]) for row in found.rows]
    assert found.header["engine"] == "transformers" and found.header["eos_token_ids"] == [END]


def test_ids_go_back_and_forth_without_text(target, tmp_path, monkeypatch):
    wide = word_tokenizer()
    monkeypatch.setattr(type(wide), "decode", lambda *args, **kwargs: pytest.fail("an answer was turned into text"))
    encoded = []
    real = module.chat_ids
    monkeypatch.setattr(module, "chat_ids", lambda tokenizer, prompt: encoded.append(prompt) or real(tokenizer, prompt))
    draw(target, tmp_path / "a.jsonl", tokenizer=wide)
    assert encoded == PROMPTS  # tokenised once, and only the prompts


def test_the_engine_that_is_not_given_is_transformers(target, tmp_path):
    found = generate(target, TOKENIZER, PROMPTS, tmp_path / "a.jsonl", **SETTINGS)
    assert found.rows == draw(target, tmp_path / "b.jsonl").rows


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_models_generation_settings_give_an_end_of_turn_and_nothing_else(target, tmp_path, temperature):
    free = draw(target, tmp_path / "a.jsonl", temperature=temperature)
    target_settings, target.generation_config = target.generation_config, GenerationConfig(
        repetition_penalty=1.1, top_k=50, top_p=.3, temperature=.1, do_sample=True, max_new_tokens=3)
    try:
        assert draw(target, tmp_path / "b.jsonl", temperature=temperature).rows == free.rows
        target.generation_config.eos_token_id = [free.rows[0]["resp_ids"][0]]
        first = draw(target, tmp_path / "c.jsonl", temperature=temperature)
    finally:
        target.generation_config = target_settings
    assert len(first.rows[0]["resp_ids"]) == 1 and first.header["eos_token_ids"] == sorted({END, free.rows[0]["resp_ids"][0]})


# --- going on -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stop", [0, 1, 7, 14])
@pytest.mark.parametrize("batch_size", [4, 32])
def test_an_interrupted_file_is_gone_on_with_and_ends_with_the_same_lines(target, tmp_path, stop, batch_size):
    draw(target, tmp_path / "whole.jsonl")
    interrupted(target, tmp_path / "cut.jsonl", stop)
    assert len(read_answers(tmp_path / "cut.jsonl")) == stop
    found = draw(target, tmp_path / "cut.jsonl", batch_size=batch_size)
    assert lines(tmp_path / "cut.jsonl") == lines(tmp_path / "whole.jsonl") and len(found) == 15
    before = (tmp_path / "cut.jsonl").read_bytes()
    draw(target, tmp_path / "cut.jsonl", batch_size=batch_size)  # nothing left to do
    assert (tmp_path / "cut.jsonl").read_bytes() == before


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_a_last_line_that_was_cut_short_is_drawn_again(target, tmp_path, cut):
    draw(target, tmp_path / "whole.jsonl")
    interrupted(target, tmp_path / "cut.jsonl", 6)
    os.truncate(tmp_path / "cut.jsonl", (tmp_path / "cut.jsonl").stat().st_size - cut)
    draw(target, tmp_path / "cut.jsonl")
    assert lines(tmp_path / "cut.jsonl") == lines(tmp_path / "whole.jsonl")


def test_an_empty_file_is_begun(target, tmp_path):
    (tmp_path / "a.jsonl").touch()
    assert len(draw(target, tmp_path / "a.jsonl")) == 15 and len(draw(target, tmp_path / "new" / "folder" / "a.jsonl")) == 15


@pytest.mark.parametrize("changes, named", [
    (dict(seed=4), "seed"), (dict(temperature=.9), "temperature"), (dict(temperature=0.0), "temperature"), (dict(max_new_tokens=9), "max_new_tokens"),
    (dict(prompts=PROMPTS[:-1]), "prompts"), (dict(prompts=[*PROMPTS[1:], PROMPTS[0]]), "prompts"),
    (dict(tokenizer=word_tokenizer(("red", "green", "blue", "one", "two", "three", "five", "four"))), "prompts, tokenizer"),
    (dict(tokenizer=word_tokenizer(template="{{ messages[0]['content'] }}")), "prompts, template"), (dict(target=tiny(seed=9).double()), "target")])
def test_a_file_drawn_in_another_way_is_refused_and_left_as_it_is(target, tmp_path, changes, named):
    interrupted(target, tmp_path / "a.jsonl", 6)
    os.truncate(tmp_path / "a.jsonl", (tmp_path / "a.jsonl").stat().st_size - 9)
    before = (tmp_path / "a.jsonl").read_bytes()
    with pytest.raises(LessonError, match=rf"drawn in another way \({named} differ\)"):
        draw(out=tmp_path / "a.jsonl", **{"target": target} | changes)
    assert (tmp_path / "a.jsonl").read_bytes() == before


@pytest.mark.parametrize("text, said", [("Dear diary,\ntoday", "line 1 is not JSON"), ('{"prompt": "x"}\n{"prompt": "y"}', "another way"),
                                        ('[1, 2]\n', "not a JSON object")])
def test_somebody_elses_file_is_refused_and_left_as_it_is(target, tmp_path, text, said):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(LessonError, match=said):
        draw(target, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == text


@pytest.mark.parametrize("kept", [1, 60, -1])
def test_a_file_cut_inside_its_header_starts_over(target, tmp_path, kept):
    draw(target, tmp_path / "whole.jsonl")
    header = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)[0]
    (tmp_path / "cut.jsonl").write_text(header[:kept])
    draw(target, tmp_path / "cut.jsonl")
    assert lines(tmp_path / "cut.jsonl") == lines(tmp_path / "whole.jsonl")


@pytest.mark.parametrize("change", [{"prompt_ids": [5]}, {"row": 15}])
def test_rows_of_other_prompts_are_not_gone_on_with(target, tmp_path, change):
    interrupted(target, tmp_path / "a.jsonl", 6)
    header, first, *rest = (tmp_path / "a.jsonl").read_text().splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join([header, json.dumps(json.loads(first) | change), *rest, ""]))
    before = (tmp_path / "a.jsonl").read_bytes()
    with pytest.raises(LessonError, match=r"another way \(prompt_ids differ\)"):
        draw(target, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == before


# --- a full disk ----------------------------------------------------------------------------------------------------------

def test_a_full_disk_in_the_middle_keeps_the_answers_there_are(target, tmp_path, monkeypatch):
    draw(target, tmp_path / "whole.jsonl")
    room = [(tmp_path / "whole.jsonl").stat().st_size * 2 // 3]

    class Full:
        """A file on a disk with `room` characters left: what fits is written, cut anywhere, and the rest refused."""

        def __init__(self, file):
            self.file = file

        def write(self, text):
            self.file.write(text[:room[0]])
            self.file.flush()
            room[0] -= len(text)
            if room[0] < 0:
                room[0] = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def flush(self):
            self.file.flush()

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

    def open_full(path, mode="r", **more):
        file = builtins.open(path, mode, **more)
        return Full(file) if mode == "a" else file

    with monkeypatch.context() as patch:
        patch.setattr(module, "open", open_full, raising=False)
        with pytest.raises(LessonError, match="disk is full"):
            draw(target, tmp_path / "cut.jsonl")
    assert not (tmp_path / "cut.jsonl").read_text().endswith("\n")  # a line was cut
    assert len(draw(target, tmp_path / "cut.jsonl")) == 15
    assert lines(tmp_path / "cut.jsonl") == lines(tmp_path / "whole.jsonl")


def test_a_full_disk_at_the_start_leaves_nothing(target, tmp_path):
    (tmp_path / f".a.jsonl.{os.getpid()}.tmp").symlink_to("/dev/full")  # a device on which every write finds no space left
    with pytest.raises(LessonError, match="disk is full"):
        draw(target, tmp_path / "a.jsonl")
    assert list(tmp_path.iterdir()) == []


# --- what cannot be answered or read -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes, said", [
    (dict(temperature=-.1), "temperature cannot be -0.1"), (dict(temperature=math.nan), "temperature"), (dict(temperature=math.inf), "temperature"),
    (dict(temperature=1e-45), "give 0 for greedy"), (dict(temperature=1e-300), "give 0 for greedy"), (dict(temperature=9e-5), "give 0 for greedy"),
    (dict(seed=-1), "seed cannot be -1"), (dict(seed=2**63), "seed"), (dict(seed=1.5), "seed"), (dict(temperature=0.0, seed=2**64), "seed"),
    (dict(prompts=["red", " "]), "prompt 2: the prompt is empty"), (dict(prompts=["red", [{"role": "user", "content": 5}]]), "prompt 2: a message"),
    (dict(max_new_tokens=0), "max_new_tokens"), (dict(prompts=[]), "no prompts"), (dict(prompts=["red", "red " * 130]), "prompt 2: .*128 positions"),
    (dict(max_new_tokens=125), "prompt 1: .*128 positions"), (dict(tokenizer=word_tokenizer(size=90), prompts=["w80"]), "token id 80")])
def test_settings_that_cannot_work_are_refused_before_any_work(target, tmp_path, changes, said):
    with pytest.raises(LessonError, match=said) as caught:
        draw(target, tmp_path / "a.jsonl", **changes)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_answers_are_the_targets_that_wrote_them_alone(target, tmp_path):
    found = draw(target, tmp_path / "a.jsonl")
    check_written_by(found, target)
    for answers, other in ((found, tiny(seed=9).double()), (Answers({"answers": 1}, []), target)):
        with pytest.raises(LessonError, match="written by another model"):
            check_written_by(answers, other)


HEADER = '{"answers": 1, "target": "a", "tokenizer": "b", "template": "c", "temperature": 1.0, "seed": 0}\n'
GOOD = HEADER + '{"row": 0, "prompt_ids": [1], "resp_ids": [2]}\n'


@pytest.mark.parametrize("text, said", [
    ("", "empty"), ('{"prompt": "x"}\n', "not a file of answers"), ('{"answers": 2}\n', "not a file of answers"),
    (GOOD + '{"row": 1, "prompt_ids": [1]}\n', "line 3 is not an answer"), (GOOD + '{"row": "1", "prompt_ids": [1], "resp_ids": []}\n', "line 3"),
    ('{"answers": 1, "target": "a", "seed": 0}\n', r"\(tokenizer, template, temperature missing\)"),
    *((GOOD + '{"row": 1, "prompt_ids": [1], "resp_ids": [2, %s]}\n' % bad, "line 3 is not an answer")
      for bad in ("true", "7.5", "NaN", '"a"', "[1]", "null", "-1")),
    *((GOOD + '{"row": %s, "prompt_ids": [1], "resp_ids": [2]}\n' % bad, "line 3 is not an answer") for bad in ("-5", "true", "1.0")),
    (GOOD + '{"row": 1, "prompt_ids": [[1]], "resp_ids": [2]}\n', "line 3 is not an answer"),
    (GOOD + "{", "line 3 is not JSON")])
def test_what_is_no_file_of_answers_is_refused_by_its_line(tmp_path, text, said):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(LessonError, match=said):
        read_answers(tmp_path / "a.jsonl")
    with pytest.raises(LessonError, match="missing"):
        read_answers(tmp_path / "b.jsonl")


def test_rows_come_in_the_order_of_the_prompts_and_empty_answers_are_no_sequences(tmp_path):
    (tmp_path / "a.jsonl").write_text(HEADER + '{"row": 2, "prompt_ids": [1], "resp_ids": [2]}\n{"row": 0, "prompt_ids": [3], "resp_ids": []}\n')
    found = read_answers(tmp_path / "a.jsonl")
    assert [row["row"] for row in found.rows] == [0, 2] and found.sequences() == [([1], [2])]


# --- shipped -----------------------------------------------------------------------------------------------------------------

def test_shipped_answers_come_back_whole(target, tmp_path):
    found = draw(target, tmp_path / "a.jsonl")
    for name in ("one.jsonl.gz", "two.jsonl.gz"):
        write_shipped(found, tmp_path / name)
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()  # no clock and no name in it
    text = gzip.decompress((tmp_path / "one.jsonl.gz").read_bytes()).decode()
    assert "prompt_ids" not in text and len(text.splitlines()) == 16
    assert read_shipped(tmp_path / "one.jsonl.gz", TOKENIZER, PROMPTS) == found
    assert read_shipped(tmp_path / "one.jsonl.gz", TOKENIZER, [*PROMPTS, "red one red two"]) == found


@pytest.mark.parametrize("prompts, tokenizer", [
    (PROMPTS[:-1], TOKENIZER), ([*PROMPTS[1:], PROMPTS[0]], TOKENIZER), (["blue", *PROMPTS[1:]], TOKENIZER),
    (PROMPTS, word_tokenizer(("green", "red", "blue", *NUMBERS))), (PROMPTS, word_tokenizer(template="{{ messages[0]['content'] }}"))])
def test_shipped_answers_to_other_prompts_are_refused(target, tmp_path, prompts, tokenizer):
    write_shipped(draw(target, tmp_path / "a.jsonl"), tmp_path / "s.jsonl.gz")
    with pytest.raises(LessonError, match="belong to other prompts"):
        read_shipped(tmp_path / "s.jsonl.gz", tokenizer, prompts)


def test_a_torn_shipped_file_is_refused(target, tmp_path):
    write_shipped(draw(target, tmp_path / "a.jsonl"), tmp_path / "s.jsonl.gz")
    os.truncate(tmp_path / "s.jsonl.gz", 150)
    with pytest.raises(LessonError, match="whole copy"):
        read_shipped(tmp_path / "s.jsonl.gz", TOKENIZER, PROMPTS)


def test_the_header_says_how_answers_were_drawn(target, tmp_path):
    draw(target, tmp_path / "a.jsonl")
    header = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert (header["temperature"], header["max_new_tokens"], header["seed"], header["answers"]) == (1.0, 10, 3, 1)
    assert all(len(header[name]) == 16 for name in ("target", "tokenizer", "template", "prompts"))
