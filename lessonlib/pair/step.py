"""One forward step of a causal language model with its cache, and rolling that cache back: the same on every transformers 5 release."""

import inspect
from operator import index

import torch
from transformers import DynamicCache

from lessonlib.errors import LessonError
from lessonlib.pair.graph_step import GraphStep, why_no_graph
from lessonlib.pair.llama import why_not
from lessonlib.pair.llama_step import LlamaStep


def cache_argument(model):
    """The name under which this model's forward takes its cache: `cache`, or `past_key_values` as older transformers call it."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def rollback(cache, length):
    """Shorten a transformers cache to its first `length` tokens; a cache that is no longer than that stays as it is.

    `crop` counted tokens to keep in some releases and tokens to remove in others, and removing more than there is went wrong
    differently in each; so the count is worked out here and only ever handed on as a removal that is possible.
    """
    surplus = cache.get_seq_length() - max(length, 0)
    if surplus > 0:
        cache.crop(-surplus)


def context_length(model):
    """The most tokens the model's positions reach, or None where its configuration does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_fits(model, prompt_ids, new_tokens):
    """Refuse an empty prompt, ids outside the vocabulary, or a prompt that leaves no room for new_tokens (LessonError)."""
    if len(prompt_ids) == 0:
        raise LessonError("the prompt is empty; give at least one token for the model to continue.")
    vocabulary = model.config.get_text_config().vocab_size
    try:
        ids = list(map(index, prompt_ids))
    except TypeError:
        raise LessonError("the prompt is not a flat list of token ids; encode one text with the model's own tokenizer.") from None
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocabulary:
        raise LessonError(f"token id {low if low < 0 else high} is not in this model's vocabulary of {vocabulary:,}; "
                          "encode the text with this model's own tokenizer.")
    check_length(len(prompt_ids), new_tokens, context_length(model), "model")


def check_length(prompt_tokens, new_tokens, longest, whose):
    """Refuse a prompt that leaves no room for new_tokens in `longest` positions (LessonError); None is no limit."""
    if longest is not None and prompt_tokens + new_tokens > longest:
        raise LessonError(f"a prompt of {prompt_tokens:,} tokens and {new_tokens:,} new ones do not fit the {whose}'s {longest:,} positions; "
                          "shorten the prompt or ask for fewer tokens.")


def synchronize(device):
    """Wait until a device has done what it was given, so that a clock read afterwards means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_of(model):
    """The quickest step that this model has: a GraphStep, a LlamaStep or a CachedModel; its `why` says what keeps a quicker one from running it.

    Raises LessonError as CachedModel does, and for a model in training mode, whose dropout would have a say in every token.
    """
    if model.training:
        raise LessonError(f"this {type(model).__name__} is in training mode, in which a model may drop parts of itself at random; call its eval() first.")
    why = why_not(model)
    if why:
        return CachedModel(model, why)
    why = why_no_graph(model)
    return LlamaStep(model, why) if why else GraphStep(model)


def path(step):
    """How a step runs its model, and why no quicker way does, in a few words."""
    return f"{step.name} ({step.why})" if step.why else step.name


class CachedModel:
    """A causal LM that reads a text piece by piece, one text at a time, and can take back its last tokens: transformers' own forward.

    Raises LessonError for a model whose layers hold a running state in place of the text's keys and values.
    """

    name = "transformers' forward"

    def __init__(self, model, why=None):
        self.why = why
        odd = sorted({*(getattr(model.config.get_text_config(), "layer_types", None) or ())} - {"full_attention", "sliding_attention"})
        if odd:
            raise LessonError(f"{type(model).__name__} has layers ({', '.join(odd)}) that cannot take tokens back; "
                              "take a model with attention in every layer, such as Llama, Qwen3 or Gemma.")
        self.model, self.argument = model, cache_argument(model)
        self.device = next(model.parameters()).device
        self.reset()

    def reset(self):
        """Forget the text."""
        # Told nothing of the model's windows, the cache keeps every token in every layer, and the masks alone say who sees whom: caches that
        # drop what left the window could not be rolled back exactly on every release.
        self.cache = DynamicCache()

    @property
    def length(self):
        """How many tokens are in the cache."""
        return self.cache.get_seq_length()

    def rollback(self, length):
        """Keep the first `length` tokens of the text."""
        if length <= 0:
            self.reset()
        else:
            rollback(self.cache, length)

    def tap(self, layers):
        """Refuses (LessonError) to leave hidden states of any layer; with none there is nothing to do."""
        if layers:
            raise LessonError(f"the target's hidden states cannot be had from {path(self)}; take a drafter that needs none, or a Llama- or Qwen-style target.")

    def keep(self, rows):
        """Keep as many tokens of the last pass as there are rows: those at its beginning."""
        self.rollback(self.before + len(rows))

    def read(self, tokens):
        """Read tokens (a list, which may be empty) into the cache only."""
        if tokens:
            self.run(tokens, last=1)

    @torch.inference_mode()
    def run(self, tokens, last=None, tree=None):
        """Read more tokens (a list or a 1-D tensor); returns logits [n, V], one row a token, or [last, V] of the last ones only. Refuses a tree (LessonError)."""
        if tree is not None:
            raise LessonError(f"a tree of proposals cannot be verified by {path(self)}; take a drafter that proposes one text, or a Llama- or Qwen-style target.")
        self.before = self.length
        ids = torch.as_tensor(tokens, dtype=torch.long, device=self.device)[None]
        keep = {} if last is None else {"logits_to_keep": last}
        return self.model(ids, use_cache=True, **{self.argument: self.cache}, **keep).logits[0]
