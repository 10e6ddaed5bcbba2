"""The embedded target's tokenizer, rebuilt from the vocabulary and merges inside its GGUF file.

transformers can read a tokenizer out of a GGUF file too, but it loses the digit splitting ("2024" must be four tokens).
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CONTROL = 3  # token type of a special token in GGUF files


def gguf_tokenizer(reader):
    """The transformers tokenizer of a `gguf.GGUFReader`: byte-level BPE that splits every digit off first.

    That is what llama.cpp's pre-tokenizer of the name "smollm" does: the expression \\p{N}, then GPT-2's. Special tokens are
    found inside text; none is ever added of itself. The vocabulary has no token for eight bytes that UTF-8 text may hold
    (0x04 0x06 0x13 0x14 0x16 0x1D, and 0xF1 0xF2, which lead characters from U+40000 to U+BFFFF): BPE drops them.
    """
    field = {name.removeprefix("tokenizer."): value.contents() for name, value in reader.fields.items()
             if name.startswith("tokenizer.")}
    if (field["ggml.model"], field["ggml.pre"]) != ("gpt2", "smollm"):
        raise ValueError(f"this builds gpt2/smollm tokenizers, the file holds {field['ggml.model']}/{field['ggml.pre']}")
    tokens = field["ggml.tokens"]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)},
                                   merges=[tuple(merge.split(" ")) for merge in field["ggml.merges"]]))
    backend.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                for token, kind in zip(tokens, field["ggml.token_type"]) if kind == CONTROL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, chat_template=field["chat_template"],
        model_max_length=reader.fields["llama.context_length"].contents(),
        **{f"{role}_token": tokens[field[f"ggml.{name}_token_id"]]
           for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))})
