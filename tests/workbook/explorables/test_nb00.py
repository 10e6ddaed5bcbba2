"""The round-by-round picture of notebook 00: it shows what the rounds hold, whatever they hold."""

import pytest
from support import sequences, tiny

from lessonlib.measure.rejections import Round, record_rounds
from lessonlib.workbook.explorables.nb00 import BETS, COLUMNS, LINES, Rounds, shown


class Letters:
    """A tokenizer of 61 tokens: words, a space before some, line ends among them."""

    words = {7: "\n", 8: "\n\n", 9: "\n    ", 10: " "}

    def decode(self, ids):
        return "".join(self.words.get(token, f" w{token}" if token % 2 else f"w{token}") for token in ids)


def bets(*pairs):
    return [*pairs, *((50 + i, 0.01) for i in range(BETS - len(pairs)))]


REFUSED = Round([1, 2], [11, 12, 14], 1, [11, 13], bets((13, 0.8), (12, 0.1)), bets((12, 0.6), (13, 0.2)))
ALL_KEPT = Round([1, 2, 11, 13], [15, 16, 17], 3, [15, 16, 17, 18], bets((18, 0.9)), bets((19, 0.5)))
CUT = Round([1, 2, 11, 13, 15, 16, 17, 18], [20, 21, 22], 2, [20, 21], bets((21, 0.7)), bets((21, 0.6)))


def visible(page):
    return [text for text in page if text.get_visible()]


def test_a_round_shows_what_was_kept_what_was_struck_and_what_the_target_wrote():
    picture = Rounds([REFUSED, ALL_KEPT, CUT], Letters())
    assert picture.sentence.value.count("Round 1 of 3") == 1
    assert [text.get_text() for text in visible(picture.proposal)] == ["·w11", "w12", "w14", "·w13"]
    assert [len(line.get_xdata()) for line in picture.strikes] == [0, 2, 2]
    assert [len(visible(texts)) for texts in picture.written] == [2, 0, 0]
    for number, proposal, struck, texts in ((2, ["·w15", "w16", "·w17", "w18"], 0, [2, 4, 0]),
                                            (3, ["w20", "·w21", "w22"], 1, [2, 4, 2])):
        picture.controls["number"].value = number
        assert [text.get_text() for text in visible(picture.proposal)] == proposal
        assert sum(len(line.get_xdata()) > 0 for line in picture.strikes) == struck
        assert [len(visible(column)) for column in picture.written] == texts
    picture.controls["number"].value = 1
    assert [len(visible(texts)) for texts in picture.written] == [2, 0, 0]


@pytest.mark.parametrize("found, said", [
    (REFUSED, "keeps 1 and refuses the next. The last token written is “·w13”: the target bets 0.80 on it, the draft 0.20."),
    (ALL_KEPT, "keeps all that is still text. The last token written is “w18”: the target bets 0.90 on it, the draft less than 0.01."),
    (CUT, "keeps all that is still text. The last token written is “·w21”: the target bets 0.70 on it, the draft 0.60.")])
def test_the_sentence_tells_the_round(found, said):
    assert said in Rounds([found], Letters()).redraw()


def test_the_bars_are_the_bets_of_the_round():
    picture = Rounds([REFUSED, ALL_KEPT], Letters())
    for name, own in (("target", REFUSED.target_bets), ("draft", REFUSED.draft_bets)):
        labels, bars, values = picture.bars[name]
        assert [bar.get_width() for bar in bars] == [odds for _, odds in own]
        assert [label.get_text() for label in labels] == [shown(Letters().decode([token])) for token, _ in own]
        assert values[0].get_text() == f" {own[0][1]:.2f}"


def test_a_real_text_stays_on_its_page():
    target, draft = tiny(seed=1, sharp=4.0), tiny(seed=1, sharp=3.0)
    lines = set()
    for prompt, _ in sequences(4, seed=3):
        picture = Rounds(record_rounds(target, draft, prompt, 3, 24)[1], Letters(), start=99)
        assert picture.controls["number"].value == len(picture.rounds)
        for text in (text for texts in picture.written for text in texts):
            column, line = text.get_position()
            assert 0 <= column and column + len(text.get_text()) <= COLUMNS and 1 <= line < LINES
            lines.add(line)
        assert picture.try_the_ends() is None
    assert len(lines) > 1
