"""The embedded tokenizer against a slow one that reads nothing but the GGUF file's vocabulary and merges."""

import random
import re
import unicodedata

import pytest
from transformers import AutoTokenizer

TEXTS = [
    "", " ", "a", "The capital of France is Paris.", "It's 2024; I've 1,000,000.50 reasons, they're  ours.",
    "def f(x, y=10):\n    if x > 3:\n\treturn x ** 2 + 0x1F  # done\r\n\r\n\n\n        pass\n",
    "12345678901234567890 3.14159e-26 ½ ² Ⅷ ٣ ১২ 第3章", "   leading and trailing   ",
    "a\u00a0b\u2003c\u200bd\ufeffe", "naïve café Größe Ærø Łódź İstanbul e\u0301",
    "你好,世界!こんにちは 한국어 שלום مرحبا नमस्ते", "🙂👩‍👩‍👧‍👦🏳️‍🌈 👍🏽 emoji2go",
    "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n", "a<|endoftext|>b <|im_end|> c<file_sep>12",
    "<|im_start|", "<|im_start|><|im_start|>", "\t\t \t\n \n  \n", "'s 'S 't ' re''ll I'D",
    "x" * 300, " " * 70, "\n" * 40, "9" * 50,
    "\x00\x01\x02\x7f", "https://example.org/?q=a%20b&c=1#frag", "$\\frac{1}{2}$ ∑∫≠ §¶ “quotes” – — …"]
ALPHABET = ["a", "b", "Z", "e", "th", "ing", " ", "  ", "\n", "\t", "\r", "0", "7", "42", ".", ",", "'", "'s", "-", "_",
            "(", "{", "é", "ß", "e\u0301", "中", "日本", "ก", "🙂", "👍🏽", "½", "٣", "\u00a0", "\u200d",
            "<|im_end|>", "<|", "|>", "http", "def "]


class SlowTokenizer:
    """Byte-level BPE as its papers tell it, one merge at a time."""

    def __init__(self, reader):
        field = {name: reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type")}
        self.ids = {token: i for i, token in enumerate(field["tokens"])}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(field["merges"])}
        self.special = [token for token, kind in zip(field["tokens"], field["token_type"]) if kind == 3]
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self.letter = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}

    def encode(self, text):
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, self.special)) + ")", text):
            if part in self.special:
                ids.append(self.ids[part])
            else:
                for word in (word for run in split_numbers(part) for word in split_words(run)):
                    ids += self.merge(word)
        return ids

    def merge(self, word):
        parts = [self.letter[byte] for byte in word.encode()]
        parts = [part for part in parts if part in self.ids]  # the bytes this vocabulary does not have
        while len(parts) > 1:
            rank, at = min((self.ranks.get(pair, len(self.ranks)), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == len(self.ranks):
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]


def split_numbers(text):
    """Every number character on its own, what lies between in one piece."""
    runs = [""]
    for character in text:
        if unicodedata.category(character)[0] == "N":
            runs += [character, ""]
        else:
            runs[-1] += character
    return [run for run in runs if run]


def kind(character):
    """letter, number, space or other: what GPT-2's expression tells apart."""
    if character.isspace() and not "\x1c" <= character <= "\x1f":  # those four are spaces to Python alone
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def split_words(text):
    """GPT-2's words: 's 't 're 've 'm 'll 'd; one kind of character, after a space or not; spaces but the last."""
    words, at = [], 0
    while at < len(text):
        if short := re.match(r"'(?:s|t|re|ve|m|ll|d)", text[at:]):
            words.append(short[0])
        else:
            start = at + 1 if text[at] == " " and at + 1 < len(text) and kind(text[at + 1]) != "space" else at
            end = start + 1
            while end < len(text) and kind(text[end]) == kind(text[start]):
                end += 1
            if kind(text[start]) == "space" and end < len(text) and end - start > 1:
                end -= 1  # the last space belongs to the word behind it
            words.append(text[at:end])
        at += len(words[-1])
    return words


@pytest.fixture(scope="module")
def slow(reader):
    return SlowTokenizer(reader)


@pytest.fixture(scope="module")
def tokenizer(embedded):
    return AutoTokenizer.from_pretrained(embedded)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_the_slow_tokenizers_and_decode_to_the_text(tokenizer, slow, text):
    ids = tokenizer.encode(text)
    assert ids == slow.encode(text)
    assert tokenizer.decode(ids) == text


def test_random_texts(tokenizer, slow):
    draw = random.Random(0)
    for _ in range(600):
        text = "".join(draw.choice(ALPHABET) for _ in range(draw.randrange(1, 30)))
        ids = tokenizer.encode(text)
        assert ids == slow.encode(text), repr(text)
        assert tokenizer.decode(ids) == text


def test_random_characters_of_every_script(tokenizer, slow):
    draw, old = random.Random(1), unicodedata.ucd_3_2_0  # what every later Unicode knows, whichever each library has
    for _ in range(300):
        points = (draw.choice([draw.randrange(32, 127), draw.randrange(160, 0xD800), draw.randrange(0x1F300, 0x1F600)])
                  for _ in range(12))
        text = "".join(chr(point) for point in points if point >= 0x1F300 or old.category(chr(point)) != "Cn")
        ids = tokenizer.encode(text)
        assert ids == slow.encode(text), repr(text)
        assert tokenizer.decode(ids) == text


def test_every_id_has_the_files_own_token(tokenizer, slow):
    assert tokenizer.get_vocab() == slow.ids and len(tokenizer) == 49_152


def test_digits_stand_alone(tokenizer):
    assert tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]


def test_the_bytes_that_the_vocabulary_lacks_are_dropped(tokenizer, slow):
    lacking = [byte for byte in range(256) if slow.letter[byte] not in slow.ids]
    valid = [byte for byte in lacking if byte < 0x80 or byte in (0xF1, 0xF2)]  # the others never occur in UTF-8
    assert valid == [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2]
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"


def test_special_tokens(tokenizer):
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 1)
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<|im_end|>", 2, 2)
    assert tokenizer.encode("Hi") == tokenizer.encode("Hi", add_special_tokens=False)
    assert tokenizer.decode([1, *tokenizer.encode("Hi ."), 2], skip_special_tokens=True) == "Hi ."
    assert tokenizer.model_max_length == 8192
