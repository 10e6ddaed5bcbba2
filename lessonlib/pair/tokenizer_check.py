"""Are these two the same? Tokenizers and models recognised by what they hold, and a wrong pair refused before any work."""

import hashlib
import json

import torch

from lessonlib.errors import LessonError
from lessonlib.files import fingerprint

PROBE = ("The year 2024, 3.14159 and 1,000,000.\n\tdef f(x):\n        return  x ** 2  # größer 你好 🙂\r\n\n\n"
         "don't WON'T naïve café e\u0301 x² ½ ¾ ٣ ٤ Ⅷ \u00a0 <b>&amp;</b> https://example.org/?a=1&b=2 ")
SHOWN = 5
# The settings that change what a model computes; their names are the same in every transformers 5 release.
CONFIG_KEYS = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
               "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_parameters", "tie_word_embeddings",
               "sliding_window", "layer_types")


def check_same_tokenizer(target_tokenizer, draft_tokenizer):
    """Refuse two tokenizers that could give one text different ids; the LessonError names up to five ids that differ."""
    target, draft = vocabulary(target_tokenizer), vocabulary(draft_tokenizer)
    differing = [i for i in sorted(target.keys() | draft.keys()) if target.get(i) != draft.get(i)]
    if differing:
        listed = "; ".join(f"{i} is {target.get(i)!r} for the target, {draft.get(i)!r} for the draft"
                           for i in differing[:SHOWN])
        more = f" and {len(differing) - SHOWN:,} more" if len(differing) > SHOWN else ""
        sizes = f" (sizes {len(target):,} and {len(draft):,})" if len(target) != len(draft) else ""
        raise LessonError(f"Target and draft do not share a tokenizer{sizes}: id {listed}{more}; "
                          "take a draft of the target's family.")
    if added(target_tokenizer) != added(draft_tokenizer):
        odd = sorted(set(added(target_tokenizer)) ^ set(added(draft_tokenizer)))[:SHOWN]
        raise LessonError(f"Target and draft find different special tokens in a text (such as {', '.join(map(repr, odd))}); "
                          "take a draft of the target's family.")
    target_rules, draft_rules = rules(target_tokenizer), rules(draft_tokenizer)
    if target_rules != draft_rules:
        why = " (their merges differ)" if target_rules["merges"] != draft_rules["merges"] else ""
        raise LessonError(f"Target and draft have the same vocabulary but split text differently{why}; "
                          "take a draft of the target's family.")


def vocabulary(tokenizer):
    """{id: token} of a tokenizer, added tokens included."""
    return {i: token for token, i in tokenizer.get_vocab().items()}


def added(tokenizer):
    """The tokens that are found whole inside a text, by id: [(id, text), ...]."""
    return sorted((i, token.content) for i, token in tokenizer.added_tokens_decoder.items())


def rules(tokenizer):
    """How a tokenizer splits: its merges in order (None where it shows none) and the ids of a text full of odd cases."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    merges = json.loads(backend.to_str())["model"].get("merges") if backend is not None else None
    probe = PROBE + "".join(token for _, token in added(tokenizer)) + PROBE
    return {"merges": merges, "probe": tokenizer(probe, add_special_tokens=False)["input_ids"]}


def tokenizer_fingerprint(tokenizer):
    """A short hash of vocabulary, added tokens, merges and splitting: equal just where `check_same_tokenizer` is content."""
    return fingerprint([sorted(vocabulary(tokenizer).items()), added(tokenizer), rules(tokenizer)])


def check_pair(target, draft):
    """Refuse (LessonError) two models whose logits cannot be compared because their vocabularies differ in size."""
    sizes = [model.config.get_text_config().vocab_size for model in (target, draft)]
    if sizes[0] != sizes[1]:
        raise LessonError(f"The target scores {sizes[0]:,} tokens and the draft {sizes[1]:,}; "
                          "take a draft with the target's vocabulary.")


def model_fingerprint(model):
    """A short hash of a causal LM: its settings and a sample of its weights.

    The sample is the first 64 numbers of four rows of each weight, rounded to bf16: so the fp32 and the bf16 load of one
    checkpoint are the same model, wherever it lies, and a fine-tuned one is another. Quick: nothing is read whole.
    """
    settings = {key: getattr(model.config, key, None) for key in CONFIG_KEYS}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, parameter in sorted(model.named_parameters()):  # tied weights come once
        digest.update(name.encode() + sample(parameter))
    return digest.hexdigest()[:16]


def sample(tensor):
    """The first 64 numbers of four rows spread over a tensor (of a vector: four numbers), as bf16 bytes."""
    picked = [tensor[row:row + 1].reshape(-1)[:64] for row in sorted({len(tensor) * i // 4 for i in range(4)})]
    return torch.cat(picked).detach().to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes()
