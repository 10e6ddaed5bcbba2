"""Two tokenizers are one, or the pair is refused and the ids are named."""

import json

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lessonlib.errors import LessonError
from lessonlib.pair.tokenizer_check import check_same_tokenizer, tokenizer_fingerprint


@pytest.fixture(scope="module")
def tokenizer(embedded):
    return AutoTokenizer.from_pretrained(embedded)


def changed(tokenizer, change):
    """The tokenizer with `change` made to the JSON that describes it."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    change(description)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(description)), eos_token="<|im_end|>")


def swap_ids(description, first=30_000, second=30_001):
    vocabulary = description["model"]["vocab"]
    one, other = (next(token for token, i in vocabulary.items() if i == wanted) for wanted in (first, second))
    vocabulary[one], vocabulary[other] = second, first


def swap_merges(description):
    merges = description["model"]["merges"]
    merges[40_000], merges[40_001] = merges[40_001], merges[40_000]


def rename_many(description):
    vocabulary = description["model"]["vocab"]
    for token in [token for token, i in vocabulary.items() if 40_000 <= i < 40_009]:
        i = vocabulary.pop(token)
        vocabulary["new" + str(i)] = i
    description["model"]["merges"] = []


def grow(description):
    description["model"]["vocab"]["onemore"] = 49_152


def forget_special(description):
    description["added_tokens"].pop()


def keep_digits_together(description):
    description["pre_tokenizer"] = description["pre_tokenizer"]["pretokenizers"][1]


def test_a_copy_is_the_same(tokenizer, embedded):
    copy = changed(tokenizer, lambda description: None)
    check_same_tokenizer(tokenizer, copy)
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(copy)
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(AutoTokenizer.from_pretrained(embedded))


@pytest.mark.parametrize("change, said", [
    (swap_ids, ["id 30000 is", "30001 is"]), (rename_many, ["40000 is", "'new40004'", "and 4 more"]),
    (grow, ["sizes 49,152 and 49,153", "49152 is None for the target, 'onemore' for the draft"]),
    (swap_merges, ["merges differ"]), (forget_special, ["special tokens", "<empty_output>"]),
    (keep_digits_together, ["split text differently"])])
def test_a_difference_is_named(tokenizer, change, said):
    other = changed(tokenizer, change)
    with pytest.raises(LessonError) as caught:
        check_same_tokenizer(tokenizer, other)
    assert all(words in str(caught.value) for words in said), str(caught.value)
    assert "\n" not in str(caught.value)
    assert tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(other)


def test_swapped_ids_are_shown_with_both_strings(tokenizer):
    with pytest.raises(LessonError) as caught:
        check_same_tokenizer(tokenizer, changed(tokenizer, swap_ids))
    one, other = tokenizer.convert_ids_to_tokens([30_000, 30_001])
    assert f"30000 is {one!r} for the target, {other!r} for the draft" in str(caught.value)
