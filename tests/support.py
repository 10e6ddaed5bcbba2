"""What many tests need: tiny random models, sequences and tokenizers, and label stores made of them."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config
from transformers import Qwen2ForCausalLM

from lessonlib.labels.score_answers import score_answers
from lessonlib.pair.tokenizer_check import model_fingerprint
from lessonlib.traffic.answers import Answers

SIZES = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
TEMPLATE = ("{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' <end> ' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant{% endif %}")


def tiny(kind="llama", seed=0, vocab=61, layers=2, sharp=1.0, **changes):
    """A random causal LM, frozen, fp32: llama (tied), qwen2 or gpt2 (learned positions); `sharp` scales its logits."""
    torch.manual_seed(seed)
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_embd=32, n_layer=layers, n_head=4, n_positions=128,
                                           bos_token_id=0, eos_token_id=0, tie_word_embeddings=False, **changes))
    else:
        model, config = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config)}[kind]
        settings = SIZES | {"vocab_size": vocab, "num_hidden_layers": layers, "tie_word_embeddings": kind == "llama",
                            "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
        model = model(config(**settings | changes))
    model.eval().requires_grad_(False)
    for parameter in model.parameters():  # biases start at zero and norms at one, which would hide that they were left out
        parameter.add_(torch.randn_like(parameter), alpha=0.2)
    norm = model.transformer.ln_f if kind == "gpt2" else model.model.norm
    norm.weight.mul_(sharp)
    return model


def sequences(count, vocab=61, seed=0, prompt=(1, 9), response=(1, 12)):
    """`count` random (prompt_ids, resp_ids), lengths within the given bounds (the upper one included)."""
    generator = torch.Generator().manual_seed(seed)

    def ids(low, high):
        length = int(torch.randint(low, high + 1, (), generator=generator))
        return torch.randint(vocab, (length,), generator=generator).tolist()

    return [(ids(*prompt), ids(*response)) for _ in range(count)]


def answers_of(target, seqs, **header):
    """Answers that `target` might have written: the header that a store looks at, and rows."""
    header = {"answers": 1, "target": model_fingerprint(target), "tokenizer": "t" * 16, "template": "c" * 16,
              "temperature": 1.0, "seed": 0} | header
    return Answers(header, [{"row": i, "prompt_ids": prompt, "resp_ids": resp} for i, (prompt, resp) in enumerate(seqs)])


def store_of(target, seqs, folder, k=8, **options):
    """The label store of sequences, scored by `target`."""
    return score_answers(target, answers_of(target, seqs), folder, k, show=False, **options)


def naive_logits(model, prompt_ids, resp_ids):
    """The model's logits [R, V] before each response token: one sequence, read whole, nothing shared with the library."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + resp_ids]), use_cache=False).logits[0]
    return torch.stack([logits[len(prompt_ids) + j - 1] for j in range(len(resp_ids))])


def word_tokenizer(words=("red", "green", "blue", "one", "two", "three", "four", "five"), size=61, template=TEMPLATE):
    """A tokenizer of one id a word, `size` ids in all, with a chat template and an end of turn (id 1)."""
    known = ["<unk>", "<end>", "user", "system", "assistant", *words]
    known += [f"w{i}" for i in range(len(known), size)]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", unk_token="<unk>", chat_template=template)


def moved(heads):
    """`heads` with every weight moved at random, away from what they begin with."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return heads


def ways_of(shares):
    """The ways, (share, ranks) pairs, of guesses that are right independently of each other: shares[d][r] of the favourite of rank r at depth d + 1."""
    ways, level = [], [(1.0, ())]
    for row in shares:
        level = [(share * more, (*way, rank)) for share, way in level for rank, more in enumerate(row)]
        ways += level
    return sorted(ways, key=lambda each: (-each[0], len(each[1]), each[1]))
