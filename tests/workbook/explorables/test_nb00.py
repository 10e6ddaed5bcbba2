"""The round-by-round text of notebook 00: it shows what the rounds hold, whatever they hold, with a kernel and without."""

import fnmatch
import io
import json
import re
import tomllib
from pathlib import Path

import pytest
from PIL import Image
from support import sequences, tiny

from lessonlib.errors import LessonError
from lessonlib.files import ROOT
from lessonlib.measure.rejections import Round, record_rounds
from lessonlib.workbook import explorable, style
from lessonlib.workbook.explorables import nb00
from lessonlib.workbook.explorables.nb00 import BETS, COLUMNS, KEPT, OWN, Rounds, laid_out, shown, still

SCRIPT, LOOKS = (Path(nb00.__file__).with_name(name) for name in ("rounds.js", "rounds.css"))


class Letters:
    """A tokenizer of 61 tokens: words, a space before some, line ends among them, and some that look like markup."""

    words = {7: "\n", 8: "\n\n", 9: "\n    ", 10: " ", 14: "<img src=x onerror=alert(1)>", 22: "$a$"}

    def decode(self, ids):
        return "".join(self.words.get(token, f" w{token}" if token % 2 else f"w{token}") for token in ids)


def bets(*pairs):
    return [*pairs, *((50 + i, 0.01) for i in range(BETS - len(pairs)))]


REFUSED = Round([1, 2], [11, 12, 14], 1, [11, 13], bets((13, 0.8), (12, 0.1)), bets((12, 0.6), (13, 0.2)))
ALL_KEPT = Round([1, 2, 11, 13], [15, 16, 17], 3, [15, 16, 17, 18], bets((18, 0.9)), bets((19, 0.5)))
NONE_KEPT = Round([1, 2], [11, 12], 0, [13], bets((13, 0.8), (11, 0.1)), bets((11, 0.6), (13, 0.2)))
CUT = Round([1, 2, 11, 13, 15, 16, 17, 18], [20, 21, 22], 2, [20, 21], bets((21, 0.7)), bets((21, 0.6)))


@pytest.fixture
def outputs(monkeypatch):
    """What was displayed, as (data, metadata) pairs."""
    seen = []
    monkeypatch.setattr(nb00, "publish_display_data", lambda data, metadata=None: seen.append((data, metadata)))
    return seen


def drawn(figure):
    """Every text of a still with its text colour and its box's colour, if it has a box."""
    boxes = ((text, text.get_bbox_patch()) for text in figure.axes[0].texts)
    return [(text.get_text(), text.get_color(), box and style.matplotlib.colors.to_hex(box.get_facecolor())) for text, box in boxes]


def test_the_browser_gets_all_that_a_round_holds():
    told = Rounds([REFUSED, ALL_KEPT, CUT], Letters()).get_state()["rounds"]
    assert [(found["proposed"], found["kept"], found["written"]) for found in told] == [
        (["·w11", "w12", "<img·src=x·onerror=alert(1)>"], 1, ["·w11", "·w13"]),
        (["·w15", "w16", "·w17"], 3, ["·w15", "w16", "·w17", "w18"]),
        (["w20", "·w21", "$a$"], 2, ["w20", "·w21"]),
    ]
    for sent, found in zip(told, (REFUSED, ALL_KEPT, CUT)):
        for name, own in (("target", found.target_bets), ("draft", found.draft_bets)):
            assert sent[name] == [[shown(Letters().decode([token])), odds] for token, odds in own]
    assert told == json.loads(json.dumps(told))
    assert [found["heading"] for found in told] == [
        "Round 1: the draft proposes 3 tokens, the target keeps 1 and writes one of its own.",
        "Round 2: the draft proposes 3 tokens, the target keeps 3 and writes one of its own.",
        "Round 3: the draft proposes 3 tokens, the target keeps 2; the text ends among them.",
    ]


@pytest.mark.parametrize("found, said", [
    (REFUSED, "keeps 1 and refuses the next. The last token written is “·w13”: the target bets 0.80 on it, the draft 0.20."),
    (NONE_KEPT, "keeps none and refuses the first. The last token written is “·w13”: the target bets 0.80 on it, the draft 0.20."),
    (ALL_KEPT, "keeps all that is still text. The last token written is “w18”: the target bets 0.90 on it, the draft less than 0.01."),
    (CUT, "keeps all that is still text. The last token written is “·w21”: the target bets 0.70 on it, the draft 0.60.")])
def test_the_sentence_tells_the_round(found, said):
    sentence = Rounds([found], Letters()).rounds[0]["sentence"]
    assert sentence.startswith("Round 1 of 1: the draft proposes “") and said in sentence


def test_a_round_that_keeps_nothing_says_so_in_words():
    heading = Rounds([NONE_KEPT], Letters()).rounds[0]["heading"]
    assert heading == "Round 1: the draft proposes 2 tokens, the target keeps none and writes one of its own."


@pytest.mark.parametrize("last, said", [(0.0001, "less than 0.01."), (0.034, "less than 0.04.")])
def test_what_the_draft_bets_on_an_unlisted_token_is_less_than_is_said(last, said):
    found = Round([1], [11], 0, [13], bets((13, 0.8)), [(20 + i, last) for i in range(BETS)])
    assert Rounds([found], Letters()).rounds[0]["sentence"].endswith(said)


def test_python_reads_and_sets_the_round_and_only_one_that_is_there():
    text = Rounds([REFUSED, ALL_KEPT, CUT], Letters(), start=2)
    assert text.get_state()["number"] == text.number == 2
    text.number = 3
    for outside in (0, 4):
        with pytest.raises(LessonError, match=f"There is no round {outside}; choose one from 1 to 3."):
            text.number = outside
        assert text.number == 3
        with pytest.raises(LessonError, match=f"There is no round {outside}; choose one from 1 to 3."):
            Rounds([REFUSED, ALL_KEPT, CUT], Letters(), start=outside)


def test_no_rounds_are_refused():
    with pytest.raises(LessonError, match="There is no round to show; record at least one"):
        Rounds([], Letters())


def test_where_no_kernel_runs_the_still_and_its_caption_are_left(outputs):
    text = Rounds([REFUSED, ALL_KEPT, CUT], Letters(), start=2)
    text._ipython_display_()
    (living, about), (below, _) = outputs
    caption = text.rounds[1]["sentence"]
    assert living[explorable.VIEW]["model_id"] == text.model_id != below[explorable.VIEW]["model_id"]
    assert living["text/plain"] == below["text/plain"] == about["image/png"]["alt"] == caption
    assert below["text/markdown"] == f"*{caption}*"
    size = about["image/png"]["width"], about["image/png"]["height"]
    assert size[0] == 760 and Image.open(io.BytesIO(living["image/png"])).size == (2 * size[0], 2 * size[1])
    text._ipython_display_()
    assert outputs[2][0]["image/png"] == living["image/png"]
    text.number = 1
    text._ipython_display_()
    assert outputs[4][0]["image/png"] != living["image/png"] and outputs[5][0]["text/plain"].startswith("Round 1 of 3")


def test_the_still_tells_kept_refused_and_own_tokens_apart():
    rounds = Rounds([REFUSED, CUT], Letters()).rounds
    figure = still(rounds[:1])
    boxed = [token for token in drawn(figure) if token[2]]
    written = [("·w11", style.INK, KEPT), ("·w13", style.TARGET, OWN)]
    refused = [(word, style.DRAFT, "#ffffff") for word in ("w12", "<img·src=x·onerror=alert(1)>")]
    assert boxed == [*written, written[0], *refused, written[1]]
    assert len(figure.axes[0].lines) == len(refused)
    assert [bar.get_width() / nb00.BAR for bar in figure.axes[0].patches] == pytest.approx(
        [odds for own in (REFUSED.target_bets, REFUSED.draft_bets) for _, odds in own]
    )
    figure = still(rounds)
    assert [token for token in drawn(figure) if token[2]][:4] == [*written, ("w20", style.INK, KEPT), ("·w21", style.INK, KEPT)]
    assert not any(text.get_parse_math() for text in figure.axes[0].texts if text.get_text() == "$a$")


def test_a_text_stays_on_the_stills_page_and_breaks_where_its_line_ends_are():
    lines = Round([1], [11, 9, 8], 3, [11, 9, 8, 13], bets((13, 0.8)), bets((13, 0.8)))
    assert laid_out(Rounds([lines], Letters()).rounds) == [
        (1, 0, "·w11", True), (1, 4, "⏎", True), (2, 0, "····", True), (2, 4, "⏎", True), (3, 0, "⏎", True), (4, 0, "·w13", False)
    ]
    target, draft = tiny(seed=1, sharp=4.0), tiny(seed=1, sharp=3.0)
    reached = set()
    for prompt, _ in sequences(4, seed=3):
        rounds = Rounds(record_rounds(target, draft, prompt, 3, 24)[1], Letters()).rounds
        page, (low, high) = laid_out(rounds), sorted(still(rounds).axes[0].get_ylim())
        assert "".join(piece for _, _, piece, _ in page) == "".join(word for told in rounds for word in told["written"])
        assert all(0 <= column <= COLUMNS - len(piece) and low < line < high for line, column, piece, _ in page)
        reached |= {line for line, *_ in page}
    assert len(reached) > 1


def test_what_a_model_wrote_is_never_read_as_html(outputs):
    Rounds([REFUSED], Letters())._ipython_display_()
    assert "\\<img·src=x·onerror=alert(1)\\>" in outputs[1][0]["text/markdown"]
    doors = r"(inner|outer)HTML|insertAdjacentHTML|srcdoc|document\.write|createContextualFragment|DOMParser|setHTML|eval|Function\("
    assert re.findall(doors, SCRIPT.read_text(encoding="utf-8")) == []


def test_the_browsers_part_opens_no_connection_and_looks_like_the_course():
    script, looks = SCRIPT.read_text(encoding="utf-8"), LOOKS.read_text(encoding="utf-8")
    assert re.findall(r"//\w|\bimport\b|fetch|XMLHttp|WebSocket|url\(|@import", script + looks) == []
    assert [colour for colour in (style.INK, style.QUIET, style.TARGET, style.DRAFT, style.SHARED, KEPT, OWN) if colour.lower() not in looks] == []
    text = Rounds([REFUSED], Letters())
    assert (text.get_state()["_esm"], text.get_state()["_css"]) == (script, looks)


def test_an_installed_package_has_every_file_that_is_not_python():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    named = [f"{package.replace('.', '/')}/{pattern}" for package, patterns in data.items() for pattern in patterns]
    others = [path.relative_to(ROOT).as_posix() for path in (ROOT / "lessonlib").rglob("*.*")
              if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert len(others) >= 2 and [path for path in others if not any(fnmatch.fnmatch(path, pattern) for pattern in named)] == []
