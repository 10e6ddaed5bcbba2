"""How near decoding comes to the time of reading the weights, and speculative decoding to its formula: `python tests/benchmarks/decoding.py [PART ...]`.

Shapes are those of Llama-3.1-8B, 3.2-1B and the first four layers of the 8B on a GPU, of the tiny preset on a CPU, with random weights: time does not
depend on them. What is kept is then decided by a coin, while every step of target and draft runs in full. --out FILE records the table.
"""

from statistics import median

import torch
from floors import DEVICE, DTYPE, GPU, asked, free, milliseconds, model, record, sequences
from transformers import LlamaConfig, LlamaForCausalLM

from lessonlib.decode import batch
from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import ModelDrafter, Sampling
from lessonlib.measure.costs import step_costs
from lessonlib.measure.scoreboard import machine, versions
from lessonlib.measure.speedup import speedup
from lessonlib.pair.graph_step import GraphStep
from lessonlib.pair.llama_step import LlamaStep
from lessonlib.pair.step import CachedModel, path, step_of

FILLED = 256  # tokens in the cache
ROWS = (1, 5, 9)  # of a pass: a plain step, and verifying 4 or 8 proposals
AIMS = {"8B": 4.5, "1B": 1.0, "first 4 layers": 0.9}  # ms, on an H200
KS, ALPHAS = (1, 2, 3, 4, 6, 8), (0.6, 0.8, 0.9)
TOKENS = 192  # of a text on a GPU, fewer on a CPU; a text's last round proposes more than can still be written, which counts for the less the longer it is


def bandwidth():
    """Bytes a second at which this device reads memory: a sum over far more than a cache holds."""
    x = torch.ones(2**30 if GPU else 2**27, dtype=torch.int32 if GPU else torch.float32, device=DEVICE)
    return x.numel() * x.element_size() / median(milliseconds(lambda: x.view(torch.int64 if GPU else torch.float32).sum()) for _ in range(7)) * 1e3


def bytes_read(model):
    """Bytes of weights that one step reads: all but the rows of the embedding that are not looked up."""
    unread = 0 if model.config.tie_word_embeddings else model.model.embed_tokens.weight.numel()
    return (sum(p.numel() for p in model.parameters()) - unread) * model.lm_head.weight.element_size()


def first_layers(target, count):
    """A model of the target's first layers, the weights shared."""
    config = LlamaConfig(**{**target.config.to_dict(), "num_hidden_layers": count})
    with torch.device("meta"):
        draft = LlamaForCausalLM(config)
    draft.model.embed_tokens, draft.lm_head, draft.model.norm, draft.model.rotary_emb = target.model.embed_tokens, target.lm_head, target.model.norm, target.model.rotary_emb
    draft.model.layers = target.model.layers[:count]
    return draft.eval()


def models():
    """{name: model}: the target first."""
    target = model("8B" if GPU else "tiny", DTYPE).eval().requires_grad_(False)
    if not GPU:
        return {"tiny": target, "draft A's shape": first_layers(target, 8), "draft B's shape": first_layers(target, 4)}
    return {"8B": target, "1B": model("1B", DTYPE).eval().requires_grad_(False), "first 4 layers": first_layers(target, 4)}


@torch.inference_mode()
def steps(found):
    """A step of each model by each path: transformers' forward, the lean one, and on a GPU the graph."""
    rate = bandwidth()
    text = [token for prompt, resp in sequences(1, FILLED + max(ROWS)) for token in (*prompt, *resp)]
    for name, each in found.items():
        floor = bytes_read(each) / rate * 1e3
        paths = {"transformers": CachedModel(each), "lean": LlamaStep(each)}
        if isinstance(quickest := step_of(each), GraphStep):
            paths["graph"] = quickest
        plain = {}
        times = {}
        for way, step in paths.items():
            step.read(text[:FILLED])
        jobs = [(way, n) for way in paths for n in (ROWS if way != "transformers" else ROWS[:1])]
        rows = {n: torch.tensor(text[FILLED:FILLED + n], device=DEVICE) for n in ROWS}
        for turn in range(12):
            for way, n in jobs:
                ms = milliseconds(lambda: paths[way].run(rows[n]))
                paths[way].rollback(FILLED)
                if turn >= 3:
                    times.setdefault((way, n), []).append(ms)
        queued = milliseconds(lambda: [paths["graph"].run(rows[1]) for _ in range(10)]) / 10 if "graph" in paths else None  # ten, one behind the other
        for way, n in jobs:
            ms = median(times[way, n])
            plain.setdefault(way, ms)
            aim = f"{AIMS[name]} ms" if (way, n) == ("graph", 1) else "1.15 x one row" if way == "graph" else "1.3 x floor" if (way, n, GPU) == ("lean", 1, False) else ""
            yield {"part": "steps", "work": f"{name}, {way}", "rows": n, "ms": ms, "low": min(times[way, n]), "high": max(times[way, n]), "floor_ms": floor,
                   "to_floor": ms / floor, "to_one_row": ms / plain[way], "aim": aim, **({"queued_ms": queued} if way == "graph" and n == 1 else {}),
                   **({"seconds_to_capture": paths[way].seconds_to_capture} if way == "graph" else {})}


class Scripted(Decoder):
    """A decoder whose proposals are kept by a coin; every pass and every comparison is made all the same."""

    def __init__(self, target, alpha, seed=0):
        super().__init__(target)
        self.alpha, self.chance = alpha, torch.Generator(DEVICE).manual_seed(seed)

    def _accept(self, logits, block, proposed, sampling):
        kept, token = super()._accept(logits, block, proposed, sampling)
        coins = torch.rand(len(proposed), generator=self.chance, device=DEVICE) < self.alpha
        return coins.long().cumprod(-1).sum(-1) + 0 * kept, token


@torch.inference_mode()
def rounds(found):
    """Measured speed-up against the formula's, at the measured alpha, c and v(K), greedy and sampled; both take turns with plain decoding."""
    target, draft = list(found.values())[:2]
    costs, drafter, prompt = step_costs(target, draft, KS, prefix=FILLED), ModelDrafter(draft), sequences(1, FILLED)[0]
    prompt = [*prompt[0], *prompt[1]]
    yield {"part": "rounds", "work": f"c {costs.c:.3f}; v " + ", ".join(f"{K}: {costs.v[K]:.3f}" for K in KS), "rows": 0, "c": costs.c, "v": costs.v}
    decoder = Scripted(target, 0.0)
    tokens = TOKENS if GPU else 48
    for alpha in ALPHAS:
        decoder.alpha = alpha
        for how in ("greedy", "sampled"):
            seconds = {}
            for turn in range(3):
                for K in (0, *KS):
                    sampling = Sampling() if how == "greedy" else Sampling(1.0, generator=torch.Generator(DEVICE).manual_seed(turn))
                    run = decoder.decode(prompt, K, tokens, drafter if K else None, sampling=sampling)
                    if turn:
                        seconds.setdefault(K, []).append(run)
            plain = median(run.seconds / len(run.tokens) for run in seconds[0])
            for K in KS:
                kept, tested = (sum(sum(getattr(run, what)) for run in seconds[K]) for what in ("accepted", "tested"))
                time = sum(run.seconds for run in seconds[K]) / sum(len(run.tokens) for run in seconds[K])
                formula = speedup(kept / tested, K, costs.c, costs.v)
                yield {"part": "rounds", "work": f"{how}, kept {alpha}, K = {K}", "rows": K, "alpha": kept / tested, "measured": plain / time, "formula": formula,
                       "share": plain / time / formula, "tokens_per_second": 1 / time, "plain_tokens_per_second": 1 / plain, "aim": "95 % of the formula"}


def assisted(found):
    """Transformers' own plain and assisted generation, K held fixed: milliseconds a pass of the target, beside ours; theirs read the prompt in that time."""
    target, draft = list(found.values())[:2]
    prompt, new, K = sequences(1, FILLED)[0], 32, 4
    prompt = [*prompt[0], *prompt[1]]
    ids = torch.tensor([prompt], device=DEVICE)
    draft.generation_config.num_assistant_tokens, draft.generation_config.num_assistant_tokens_schedule = K, "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    settings = dict(max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None)
    decoder, drafter = Decoder(target), ModelDrafter(draft)

    def ours(K):
        run = decoder.decode(prompt, K, new, drafter if K else None)
        return run.seconds * 1e3 / run.rounds

    def theirs(**more):
        passes = []
        hook = target.register_forward_hook(lambda *_: passes.append(1))
        try:
            return milliseconds(lambda: target.generate(ids, **settings, **more)) / len(passes)
        finally:
            hook.remove()

    works = {"transformers' generate, a token": theirs, "lessonlib, a token": lambda: ours(0),
             f"transformers' assisted generation, a round of K = {K}": lambda: theirs(assistant_model=draft),
             f"lessonlib, a round of K = {K}": lambda: ours(K)}
    times = {name: [] for name in works}
    for turn in range(4):
        for name, work in works.items():
            ms = work()
            if turn:
                times[name].append(ms)
    for name, each in times.items():
        yield {"part": "beside transformers", "work": name, "rows": K, "ms": median(each), "low": min(each), "high": max(each)}


def batches(found):
    """Tokens a second of 1, 4 and 16 texts at once, plainly and with proposals kept by a coin, each text at its own pace."""
    target, draft = list(found.values())[:2]
    new, chance = TOKENS // 2 if GPU else 24, torch.Generator(DEVICE).manual_seed(0)
    greedy = batch.accept_greedy

    def by_coin(target_tokens, draft_tokens):
        kept, token = greedy(target_tokens, draft_tokens)
        coins = torch.rand(draft_tokens.shape, generator=chance, device=DEVICE) < 0.8
        return coins.long().cumprod(-1).sum(-1) + 0 * kept, token

    batch.accept_greedy = by_coin
    try:
        for texts in (1, 4, 16):
            prompts = [[*prompt, *resp] for prompt, resp in sequences(texts, FILLED // 2)]
            rates = {}
            for turn in range(3):
                for K in (0, 1, 2, 4):
                    runs = batch.decode_batch(target, draft, prompts, K, new)
                    if turn:
                        rates.setdefault(K, []).append(sum(len(run.tokens) for run in runs) / max(run.seconds for run in runs))
            for K, each in rates.items():
                yield {"part": "batches", "work": f"{texts} texts at once, " + (f"K = {K}, kept 0.8" if K else "plain"), "rows": texts, "K": K,
                       "tokens_per_second": median(each), "to_plain": median(each) / median(rates[0])}
    finally:
        batch.accept_greedy = greedy


PARTS = {"steps": steps, "rounds": rounds, "assisted": assisted, "batches": batches}


def line(row):
    """A row of the table."""
    start = f"{row['part']:<20} {row['work']:<62} {row['rows']:>3}"
    if row["part"] == "steps":
        more = f"; {row['queued_ms']:.3f} ms queued" if "queued_ms" in row else ""
        more += f"  captured in {row['seconds_to_capture']:.1f} s" if row["rows"] == 1 and "seconds_to_capture" in row else ""
        return f"{start} {row['ms']:>8.3f} ms [{row['low']:.3f}, {row['high']:.3f}]  {row['to_floor']:.2f} x the {row['floor_ms']:.2f} ms of its bytes; {row['to_one_row']:.3f} x one row  {row['aim']}{more}"
    if "share" in row:
        return f"{start}  alpha {row['alpha']:.3f}  {row['measured']:.2f} x of formula's {row['formula']:.2f}: {row['share']:.1%}  ({row['tokens_per_second']:.0f} tok/s; plain {row['plain_tokens_per_second']:.0f})"
    if row["part"] == "batches":
        return f"{start}  {row['tokens_per_second']:.0f} tok/s, {row['to_plain']:.2f} x plain decoding of as many"
    return f"{start} {row['ms']:>8.2f} ms [{row['low']:.2f}, {row['high']:.2f}]" if "ms" in row else start


def main():
    """Run the parts asked for, or all, and record them."""
    options = asked(__doc__, PARTS)
    torch.manual_seed(0)
    found, rows = models(), []
    print(f"{machine()}; {versions()}; target: {path(step_of(next(iter(found.values()))))}", flush=True)
    for name in options.parts or PARTS:
        for row in PARTS[name](found):
            rows.append(row)
            print(line(row), flush=True)
        free()
    if options.out:
        record(options.out, rows, " ".join(["python tests/benchmarks/decoding.py", *options.parts]))


if __name__ == "__main__":
    main()
