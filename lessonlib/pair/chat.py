"""From a prompt to the ids that the target sees: the same whoever answers, with one BOS at most and no text made twice."""

from lessonlib.errors import LessonError
from lessonlib.files import fingerprint

# What templates may ask for beside the messages. Some print today's date or open a think block unless told otherwise:
# the ids of a prompt must not change with the day, and the course distils plain answers. Other templates ignore both.
TEMPLATE_OPTIONS = {"date_string": "26 Jul 2024", "enable_thinking": False}


def chat_ids(tokenizer, prompt, system=None):
    """The ids up to where the answer begins, as a list: `prompt` (a text, or a list of messages) in the chat template.

    A tokenizer without a template (a base model's) gets the text as it is. Raises LessonError where that cannot be done.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    check_messages(messages)
    if tokenizer.chat_template is None:
        if system is not None or not isinstance(prompt, str):
            raise LessonError("This tokenizer has no chat template, so it takes no system text and no list of messages; "
                              "give the prompt as one text, or take a chat model.")
        return one_bos(tokenizer, tokenizer(prompt)["input_ids"])
    # transformers 5 returns a mapping here unless asked not to, transformers 4 a list: asked for a mapping, both give one.
    encoded = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=True,
                                            **TEMPLATE_OPTIONS)
    return one_bos(tokenizer, encoded["input_ids"])


def check_messages(messages):
    """Refuse (LessonError) what is no list of messages {"role": text, "content": text}, and text that UTF-8 has no bytes for."""
    if not (isinstance(messages, (list, tuple)) and messages):
        raise LessonError("a prompt must be a text or a list of messages with a role and a content; give one of the two.")
    for message in messages:
        parts = [message.get("role"), message.get("content")] if isinstance(message, dict) else [None]
        if not all(isinstance(part, str) for part in parts):
            raise LessonError("a message needs a role and a content that are both texts; write them so.")
        try:
            "".join(parts).encode()
        except UnicodeEncodeError:
            raise LessonError("a text holds half a character (a lone surrogate, \\ud800 to \\udfff), "
                              "which no tokenizer can read; remove it.") from None


def one_bos(tokenizer, ids):
    """`ids` as a list that begins with exactly one BOS if this tokenizer puts one before a text, and never with two."""
    ids, bos = list(ids), tokenizer.bos_token_id
    if bos is None:
        return ids
    while ids[:2] == [bos, bos]:
        ids = ids[1:]
    if tokenizer("x")["input_ids"][0] == bos and ids[:1] != [bos]:
        ids = [bos, *ids]
    return ids


def template_hash(tokenizer):
    """A short hash of the chat template and of what is passed to it: two equal ones turn a prompt into the same text."""
    return fingerprint([tokenizer.chat_template, TEMPLATE_OPTIONS])


def end_of_turn_ids(tokenizer, *configs):
    """Every id that ends an answer, ascending: the tokenizer's end of text and what the given (generation) configs name."""
    found = {tokenizer.eos_token_id}
    for config in configs:
        ids = getattr(config, "eos_token_id", None)
        found.update(ids if isinstance(ids, (list, tuple)) else [ids])
    return tuple(sorted(found - {None}))
