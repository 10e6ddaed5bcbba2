"""Notebook 07: the bytes of a draft's step, the truncated draft (t6), and which number of layers pays here."""

import copy
from functools import cached_property

import torch

from lessonlib.drafts import truncated
from lessonlib.workbook.checks.common import written
from lessonlib.workbook.exercise import Exercise, Mistake, Property

LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "vocab_size": 128256}
SMALL = {"hidden_size": 8, "intermediate_size": 20, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 50}


def bytes_a_step(config, layers, bytes_per_weight=2):
    """The bytes of weights that a step of a draft reads: the matrices of so many layers of this shape, and the output layer."""
    return _bytes(config, layers, bytes_per_weight)


def _bytes(config, layers, per_weight, q_and_o=2, k_and_v=2, mlp=3, heads="num_key_value_heads", tables=1, heads_each=0):
    d, wide, narrow = config["hidden_size"], *(config["head_dim"] * config[name] for name in ("num_attention_heads", heads))
    head = d * config["vocab_size"]
    layer = d * (q_and_o * wide + k_and_v * narrow + mlp * config["intermediate_size"])
    return per_weight * (layers * (layer + heads_each * head) + tables * head)


def counted(**slip):
    """A wrong answer that counts otherwise in one place."""
    return lambda config, layers, bytes_per_weight=2: _bytes(config, layers, bytes_per_weight, **slip)


def _shape(rng):
    heads = int(rng.integers(2, 5)) * 2
    return {"hidden_size": int(rng.integers(3, 9)) * 8, "intermediate_size": int(rng.integers(5, 20)) * 8, "num_attention_heads": heads,
            "num_key_value_heads": heads // 2, "head_dim": int(rng.integers(2, 9)), "vocab_size": int(rng.integers(50, 500))}


ex_7_1 = Exercise(
    "7.1",
    bytes_a_step,
    returns="one number: bytes",
    look="'What a step reads' above: seven matrices a layer, one matrix for the output layer, one row of the embedding.",
    edges=[  # bytes a weight as floats throughout, so that a whole number of bytes may be one as well
        ("the first four layers of Llama 3.1 8B", (LLAMA_8B, 4, 2.0)),
        ("no layer, only the output layer", (SMALL, 0, 2.0)),
        ("4 bits a weight", (SMALL, 3, 0.5)),
    ],
    draw=lambda rng: (_shape(rng), int(rng.integers(1, 7)), float(rng.choice([1, 2, 4]))),
    mistakes=[
        Mistake("output layer left out", counted(tables=0),
                "the output layer is missing: every step multiplies its hidden state with all vocab_size rows of it"),
        Mistake("embedding read whole", counted(tables=2),
                "the embedding is counted whole, but a step looks up one row of it: count the output layer only"),
        Mistake("output layer in every layer", counted(tables=0, heads_each=1),
                "the output layer is counted once for every layer; it runs once, after the last one"),
        Mistake("keys and values as wide as queries", counted(heads="num_attention_heads"),
                "keys and values have only num_key_value_heads heads: several query heads share one"),
        Mistake("two matrices in the MLP", counted(mlp=2), "the MLP has three matrices: gate and up, which widen, and down, which narrows"),
        Mistake("attention's output left out", counted(q_and_o=1),
                "attention has four matrices: the output projection, as large as that of the queries, is missing"),
        Mistake("values left out", counted(k_and_v=1), "attention has four matrices: keys and values have one each"),
        Mistake("weights, not bytes", lambda config, layers, bytes_per_weight=2: bytes_a_step(config, layers, 1),
                "this counts weights: multiply by the bytes that each of them takes"),
        Mistake("16 bits whatever was asked", lambda config, layers, bytes_per_weight=2: bytes_a_step(config, layers, 2),
                "two bytes a weight are taken for granted: use bytes_per_weight"),
    ],
)


class SmallLlama:
    """A recipe for a small random Llama, frozen as a target is: a check copies what it hands out, and the copy is the model.

    So a check that nobody runs loads nothing.
    """

    def __init__(self, seed, layers, tied):
        self.seed, self.layers, self.tied = seed, layers, tied

    @cached_property
    def model(self):
        """The model; biases it has none, and its norms are not all one."""
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 23}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=self.layers, tie_word_embeddings=self.tied, pad_token_id=None,
                                                 bos_token_id=None, eos_token_id=None, max_position_embeddings=64))
            for parameter in model.requires_grad_(False).parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        return model.eval()

    def __deepcopy__(self, memo):
        return copy.deepcopy(self.model)

    def __repr__(self):
        return f"a Llama of {self.layers} layers whose embedding {'is' if self.tied else 'is not'} its output layer"


PARTS = {"embedding": lambda model: model.model.embed_tokens, "norm": lambda model: model.model.norm, "head": lambda model: model.lm_head}
TEXT = (3, 1, 4, 15, 9, 2, 6)


def facts(draft, target, before):
    """What the check looks at, in words: which layers, whose memory, what trains, reading with a cache, and the target beside `before`, its copy."""
    places = [next((str(i) for i, other in enumerate(before.model.layers) if _alike(layer, other)), "?") for layer in draft.model.layers]
    own = {p.data_ptr() for p in draft.model.layers.parameters()}.isdisjoint(p.data_ptr() for p in target.parameters())
    trained = [name for name, part in {"layers": lambda model: model.model.layers, **PARTS}.items()
               if any(p.requires_grad for p in part(draft).parameters())]
    shared = [f"{name}: {_kinship(part(draft), part(before), part(target))}" for name, part in PARTS.items()]
    return (f"layers {', '.join(places)} (the config says {draft.config.num_hidden_layers})",
            f"their weights: {'copies' if own else 'the very ones of the target'}", *shared,
            f"trains: {', '.join(trained) or 'nothing'}",
            f"read in pieces {'as' if _reads_in_pieces(draft) else 'not as'} at once",
            f"target {'as it was' if _alike(target, before) else 'changed'}")


def _alike(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _kinship(part, before, target):
    """Whether a part of the draft lies in the target's memory, holds the same numbers elsewhere, or is something else."""
    weight = getattr(part, "weight", None)
    if weight is None or weight.shape != before.weight.shape or not torch.equal(weight, before.weight):
        return "not the target's"
    return "shared" if weight.data_ptr() == target.weight.data_ptr() else "a copy"


@torch.no_grad()
def _reads_in_pieces(draft):
    """Whether a text read piece by piece, with a cache, gives the logits that it gives when read at once."""
    from lessonlib.pair.step import CachedModel

    step = CachedModel(draft)
    pieces = torch.cat([step.run(TEXT[:3]), step.run(TEXT[3:4]), step.run(TEXT[4:])])
    return torch.allclose(pieces, draft(torch.tensor([TEXT])).logits[0], atol=1e-4)


class Described:
    """A function that makes a draft, seen through the `facts` about what it makes."""

    def __init__(self, fn):
        self.fn = self.__wrapped__ = fn  # so that an error is shown with the reader's line

    def __call__(self, target, n_layers):
        before = copy.deepcopy(target)
        draft = self.fn(target, n_layers)
        return facts(draft, target, before) if isinstance(getattr(draft, "model", None), torch.nn.Module) else draft


class DraftExercise(Exercise):
    """An exercise whose function makes a model: what is compared are the facts about it."""

    def judge(self, fn):
        """The `Verdict` on `fn`."""
        seen = copy.copy(self)
        seen.library = Described(self.library)
        seen.mistakes = [Mistake(mistake.name, Described(mistake.answer), mistake.cause) for mistake in self.mistakes]
        return Exercise.judge(seen, Described(fn) if callable(fn) else fn)


def truncated_draft(target, n_layers):
    """A copy of the target with only its first n_layers layers; embedding, final norm and head are the target's own, frozen tensors."""
    return truncated.truncated_draft(target, n_layers)


def _slow(target, n_layers, first=0, share=("embed_tokens", "norm", "lm_head"), told=True):
    draft = copy.deepcopy(target)
    draft.model.layers = draft.model.layers[first : first + n_layers]
    if told:
        draft.config.num_hidden_layers = n_layers
    draft.model.layers.requires_grad_(True)
    for name in share:
        where = (draft, target) if name == "lm_head" else (draft.model, target.model)
        getattr(where[0], name).weight = getattr(where[1], name).weight
    return draft


def then(change, **options):
    """A wrong answer that does something more to a draft: `change(draft, target, n_layers)`."""

    def answer(target, n_layers):
        draft = _slow(target, n_layers, **options)
        change(draft, target, n_layers)
        return draft

    return answer


def _cut_the_target(target, n_layers):
    target.model.layers, target.config.num_hidden_layers = target.model.layers[:n_layers], n_layers
    target.model.layers.requires_grad_(True)
    return target


def _without_norm(draft, target, n_layers):
    draft.model.norm = torch.nn.Identity()


def _same_layers(draft, target, n_layers):
    draft.model.layers = target.model.layers[:n_layers].requires_grad_(True)


def _one_place_late(draft, target, n_layers):
    for place, layer in enumerate(draft.model.layers):
        layer.self_attn.layer_idx = place + 1


def _last_layers(target, n_layers):
    return _slow(target, n_layers, first=len(target.model.layers) - n_layers)


ex_7_2 = DraftExercise(
    "7.2",
    truncated_draft,
    returns="a causal LM; of it the check looks at the layers, whose memory each part is in, what trains, and whether a cache works",
    look="'Cut it out' above: copies of the first layers, which train; embedding, final norm and output layer of the target, which do not.",
    edges=[
        ("two of four", (SmallLlama(0, 4, True), 2)),
        ("one layer", (SmallLlama(1, 3, True), 1)),
        ("an output layer of its own", (SmallLlama(2, 4, False), 3)),
        ("every layer", (SmallLlama(3, 2, False), 2)),
    ],
    draw=lambda rng: (SmallLlama(int(rng.integers(10, 99)), 5, bool(rng.random() < 0.5)), int(rng.integers(1, 5))),
    mistakes=[
        Mistake("everything copied", lambda target, n_layers: _slow(target, n_layers, share=()),
                "embedding, norm and output layer are copies, which takes the memory again: put the target's own weight in their places"),
        Mistake("head copied", lambda target, n_layers: _slow(target, n_layers, share=("embed_tokens", "norm")),
                "the output layer is a copy: lm_head.weight has to be the target's own tensor"),
        Mistake("embedding copied", lambda target, n_layers: _slow(target, n_layers, share=("norm", "lm_head")),
                "the embedding is a copy: embed_tokens.weight has to be the target's own tensor"),
        Mistake("norm copied", lambda target, n_layers: _slow(target, n_layers, share=("embed_tokens", "lm_head")),
                "the final norm is a copy: small as it is, let norm.weight be the target's own tensor like the rest"),
        Mistake("norm left out", then(_without_norm),
                "the final norm is gone: the output layer expects what comes out of it, so keep it between the last layer and the head"),
        Mistake("layers not copied", then(_same_layers),
                "the layers are the target's own: training the draft would change the target. Copy them"),
        Mistake("target cut", _cut_the_target, "the target itself was cut down: make the draft from a deepcopy and leave the target alone"),
        Mistake("last layers", _last_layers,
                "these are the last layers: they expect what the ones before them make of a token, so take the first, [:n_layers]"),
        Mistake("one layer too many", lambda target, n_layers: _slow(target, n_layers + 1),
                "there is a layer too many: [:n_layers] is layers 0 to n_layers - 1"),
        Mistake("config not told", lambda target, n_layers: _slow(target, n_layers, told=False),
                "the config still has the target's number of layers: whatever saves the draft or makes its cache goes by that"),
        Mistake("places in the cache", then(_one_place_late),
                "each layer keeps its keys and values in the cache at self_attn.layer_idx, and these are not 0, 1, 2, ... in order"),
        Mistake("nothing trains", then(lambda draft, target, n: draft.requires_grad_(False)),
                "nothing would train: the target is frozen and so are copies of its layers, until requires_grad_(True) thaws them"),
        Mistake("everything trains", then(lambda draft, target, n: draft.requires_grad_(True)),
                "the shared tensors would train too, and with them the target: freeze them, only the layers learn"),
    ],
    trials=4,
)


def fastest(alphas, costs, v):
    """(N, K, speed-up) of the draft and the number of guesses a round that are fastest; (0, 0, 1.0) where plain decoding is.

    alphas {N: alpha} and costs {N: c} of the draft with N layers; v {K: time of a verifying pass / one step}.
    """
    return _search(alphas, costs, v)


def _search(alphas, costs, v, value=lambda alpha, K, c, v: written(alpha, K) / (K * c + v), least=1.0):
    best = (0, 0, least)
    for N, alpha in alphas.items():
        for K, cost in v.items():
            found = value(alpha, K, costs[N], cost)
            if found > best[2]:
                best = (N, K, found)
    return best


def only(choose):
    """A wrong answer that looks at the drafts `choose(alphas, costs)` only."""
    return lambda alphas, costs, v: _search({N: alphas[N] for N in choose(alphas, costs)}, costs, v)


def valued(value, **options):
    """A wrong answer with another formula."""
    return lambda alphas, costs, v: _search(alphas, costs, v, value, **options)


def _drafts(rng):
    layers = sorted(rng.choice([1, 2, 4, 8, 16], 3, replace=False).tolist())
    alphas = sorted(round(float(a), 2) for a in rng.uniform(0.25, 0.85, 3))
    costs = sorted(round(float(c), 2) for c in rng.uniform(0.05, 0.6, 3))
    slope = rng.choice([0.0, 0.1, 0.25])
    return dict(zip(layers, alphas)), dict(zip(layers, costs)), {K: round(1 + slope * K, 2) for K in (1, 2, 3, 4)}


def _faster_clock(fn, rng):
    """Whether halving every c and taking v as 1 never slows the best one down."""
    for _ in range(30):
        alphas, costs, v = _drafts(rng)
        cheap = fn(alphas, {N: c / 2 for N, c in costs.items()}, dict.fromkeys(v, 1.0))
        if cheap[2] < fn(alphas, costs, v)[2] - 1e-9:
            return False
    return True


ex_7_3 = Exercise(
    "7.3",
    fastest,
    returns="three values: layers, guesses a round, speed-up",
    look="'Which one wins' above: tokens a round over K c + v(K), for every N and every K, and 1 for plain decoding.",
    edges=[
        ("one draft, one K", ({4: 0.7}, {4: 0.3}, {1: 1.0})),
        ("no draft pays", ({1: 0.2, 4: 0.3}, {1: 0.2, 4: 0.4}, {1: 1.1, 2: 1.2})),
        ("the middle one", ({1: 0.5, 4: 0.75, 16: 0.8}, {1: 0.15, 4: 0.2, 16: 0.5}, {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0})),
    ],
    draw=_drafts,
    mistakes=[
        Mistake("highest alpha", only(lambda alphas, costs: [max(alphas, key=alphas.get)]),
                "only the draft with the highest alpha is tried: a smaller one may be so much cheaper that it is faster"),
        Mistake("lowest c", only(lambda alphas, costs: [min(costs, key=costs.get)]),
                "only the cheapest draft is tried: a dearer one may be kept so much more often that it is faster"),
        Mistake("one guess only", lambda alphas, costs, v: _search(alphas, costs, {1: v[1]}), "only K = 1 is tried: try every K in v"),
        Mistake("plain decoding forgotten", valued(lambda alpha, K, c, v: written(alpha, K) / (K * c + v), least=0.0),
                "a draft is named though none is faster than plain decoding: begin with (0, 0, 1.0) and replace it only by what is faster"),
        Mistake("v taken as 1", valued(lambda alpha, K, c, v: written(alpha, K) / (K * c + 1)),
                "a verifying pass is taken to cost one step: v[K] says what it costs here"),
        Mistake("c once a round", valued(lambda alpha, K, c, v: written(alpha, K) / (c + v)),
                "the draft's cost is counted once a round: K guesses take K steps of it"),
        Mistake("bonus token forgotten", valued(lambda alpha, K, c, v: written(alpha, K - 1) / (K * c + v)),
                "the token that the target adds is missing: a round writes 1 + alpha + ... + alpha^K"),
        Mistake("kept guesses for alpha to the K", valued(lambda alpha, K, c, v: (1 + K * alpha) / (K * c + v)),
                "K guesses are not each kept with alpha: the third counts only if the two before it were kept, alpha^3"),
    ],
    properties=[Property("cheaper drafts and cheaper passes never make the best one slower", _faster_clock, "something beside the arguments is used")],
)
