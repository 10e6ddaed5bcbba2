"""The ids of a prompt: a plain list, one BOS, the same every day."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from lessonlib.errors import LessonError
from lessonlib.pair.chat import chat_ids, end_of_turn_ids, template_hash

PLAIN = ("{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
         "{% if add_generation_prompt %}answer{% endif %}")
WORDS = ["<s>", "</s>", "user", "system", "answer", "hello", "there", "today", "thinking"]


def word_tokenizer(template, adds_bos):
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="</s>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template)


def words(ids):
    return [WORDS[i] for i in ids]


def test_the_embedded_targets_prompt(embedded):
    tokenizer = AutoTokenizer.from_pretrained(embedded)
    ids = chat_ids(tokenizer, "What is 12 x 12?")
    assert type(ids) is list and {type(i) for i in ids} == {int}
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 12 x 12?<|im_end|>\n<|im_start|>assistant\n")
    assert ids[:2] == [1, tokenizer.encode("system")[0]]
    talk = [{"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Hello."), ("user", "Bye"))]
    assert tokenizer.decode(chat_ids(tokenizer, talk, system="Be brief.")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n")
    assert end_of_turn_ids(tokenizer, GenerationConfig.from_pretrained(embedded)) == (2,)


@pytest.mark.parametrize("adds_bos, template, expected", [
    (True, PLAIN, ["<s>", "user", "hello", "there", "answer"]),
    (True, "<s> " + PLAIN, ["<s>", "user", "hello", "there", "answer"]),
    (True, "<s> <s> " + PLAIN, ["<s>", "user", "hello", "there", "answer"]),
    (False, "<s> " + PLAIN, ["<s>", "user", "hello", "there", "answer"]),
    (False, PLAIN, ["user", "hello", "there", "answer"]),
    (True, None, ["<s>", "hello", "there"]),
    (False, None, ["hello", "there"])])
def test_one_bos_whoever_puts_it_there(adds_bos, template, expected):
    assert words(chat_ids(word_tokenizer(template, adds_bos), "hello there")) == expected


def test_neither_the_day_nor_a_think_block_gets_in():
    template = ("{% if date_string is not defined %}today {% endif %}"
                "{% if enable_thinking is not defined or enable_thinking %}thinking {% endif %}" + PLAIN)
    assert words(chat_ids(word_tokenizer(template, False), "hello")) == ["user", "hello", "answer"]


def test_without_a_template_only_a_text_will_do():
    for prompt, system in (("hello", "there"), ([{"role": "user", "content": "hello"}], None)):
        with pytest.raises(LessonError, match="no chat template"):
            chat_ids(word_tokenizer(None, False), prompt, system)


@pytest.mark.parametrize("prompt, said", [
    ([{"role": 5, "content": None}], "both texts"), ([{"role": "user", "content": None}], "both texts"), ([{"content": "hello"}], "both texts"),
    ([{"role": "user", "content": {"a": 1}}], "both texts"), (["hello"], "both texts"), ([], "list of messages"), (None, "list of messages"),
    ("\ud800 hello", "lone surrogate"), ([{"role": "user", "content": "\udfff"}], "lone surrogate")])
def test_what_is_no_prompt_is_one_sentence(prompt, said):
    for template in (PLAIN, None):
        if template or isinstance(prompt, str):
            with pytest.raises(LessonError, match=said):
                chat_ids(word_tokenizer(template, True), prompt)


def test_the_hash_is_the_templates():
    assert template_hash(word_tokenizer(PLAIN, True)) == template_hash(word_tokenizer(PLAIN, False))
    assert template_hash(word_tokenizer(PLAIN, True)) != template_hash(word_tokenizer(PLAIN + " ", True))


def test_every_end_of_turn_is_known():
    tokenizer = word_tokenizer(PLAIN, True)
    assert end_of_turn_ids(tokenizer) == (1,)
    configs = [GenerationConfig(eos_token_id=ids) for ids in ([7, 5], None, 3)]
    assert end_of_turn_ids(tokenizer, *configs) == (1, 3, 5, 7)
