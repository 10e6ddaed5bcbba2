"""How near the kernels come to the hardware: `python tests/benchmarks/floors.py [PART ...]` prints one table; --out FILE records it.

Each part takes its floor (the matrix products it cannot do without) in the same run, so that a ratio means something on any machine. Shapes
are those of Llama-3.1-8B and 3.2-1B on a GPU, of the tiny preset on a CPU, with random weights: time does not depend on them. A record,
such as data/reference/kernels.json, holds the results of several machines beside each other, and can only be written from a clean commit.
"""

import argparse
import gc
import importlib.util
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lessonlib.distil import distil  # noqa: E402
from lessonlib.distil.distil import store_batch, train_draft  # noqa: E402
from lessonlib.distil.losses import Labels, Objective  # noqa: E402
from lessonlib.distil.train import Recipe  # noqa: E402
from lessonlib.files import read_json, write_json  # noqa: E402
from lessonlib.kernels.backend import reason, why_torch  # noqa: E402
from lessonlib.kernels.linear_loss import linear_loss  # noqa: E402
from lessonlib.kernels.packed import packed_responses, why_padded  # noqa: E402
from lessonlib.kernels.products import linear  # noqa: E402
from lessonlib.kernels.topk_lse import topk_lse  # noqa: E402
from lessonlib.labels.score_answers import score_answers  # noqa: E402
from lessonlib.labels.scorer import CHUNK, Scored, score  # noqa: E402
from lessonlib.labels.store import LabelStore, StoreWriter  # noqa: E402
from lessonlib.measure.scoreboard import machine, versions  # noqa: E402
from lessonlib.pair.hidden import body_and_head  # noqa: E402
from lessonlib.pair.tokenizer_check import model_fingerprint  # noqa: E402
from lessonlib.reference import recorded_by  # noqa: E402
from lessonlib.traffic.answers import Answers  # noqa: E402

PEAK = 790e12  # bf16 operations a second of an H200's matrix units, measured; the share of it is given for that GPU only
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
V, K = (128_256, 64) if GPU else (49_152, 64)
DTYPE = torch.bfloat16 if GPU else torch.float32
ROPE = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
SHAPES = {"8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False),
          "1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
                     tie_word_embeddings=True),
          "tiny": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)}
SHAPES["tiny draft"] = SHAPES["tiny"] | {"num_hidden_layers": 4}
NOT_RUN = ["a GPU of compute capability 8.0", "GB10 (compute capability 12.1)", "NVIDIA's PyTorch container"]


def measured(part, rows, works, times=9 if GPU else 5):
    """One row a work {name: (run, what else to record)}, the first being the floor; they take turns, so that a clock that drifts drifts for all.

    ms, low, high: median, least and most of `times` runs; gib: the most memory that one run took beside what was there.
    """
    found = {name: [] for name in works}
    memory = {name: taken(run) for name, (run, _) in works.items()}  # and the warm-up
    for _ in range(times):
        for name, (run, _) in works.items():
            found[name].append(milliseconds(run))
    floor = median(next(iter(found.values())))
    for name, (_, more) in works.items():
        yield {"part": part, "work": name, "rows": rows, "ms": median(found[name]), "low": min(found[name]), "high": max(found[name]),
               "gib": memory[name], "to_floor": median(found[name]) / floor, **more}


def milliseconds(run):
    """How long one run takes, by the device's own clock on a GPU."""
    if not GPU:
        start = perf_counter()
        run()
        return (perf_counter() - start) * 1e3
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop)


def taken(run):
    """The most GPU memory, in GiB, that a run takes beside what was there before it; None on a CPU."""
    run()
    free()
    before = torch.cuda.memory_allocated() if GPU else 0
    run()
    return (torch.cuda.max_memory_allocated() - before) / 2**30 if GPU else None


def median(values):
    """The middle one."""
    return sorted(values)[len(values) // 2]


def free():
    """Give back what nothing holds, and begin to watch the peak anew."""
    gc.collect()
    if GPU:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def model(shape, dtype):
    """A random causal LM of one of SHAPES."""
    config = LlamaConfig(vocab_size=V, max_position_embeddings=131_072, rope_theta=500_000.0, rope_scaling=ROPE, pad_token_id=None, bos_token_id=None,
                         eos_token_id=None, **SHAPES[shape])
    with torch.device(DEVICE):
        return LlamaForCausalLM(config).to(dtype)


def sequences(count, length, prompt=64):
    """Random (prompt_ids, resp_ids) of `length` tokens each."""
    generator = torch.Generator().manual_seed(0)
    return [(ids[:prompt], ids[prompt:]) for ids in torch.randint(V, (count, length), generator=generator).tolist()]


def random_labels(rows):
    """Odds of nobody: ids spread over the vocabulary, falling logits, and a tail of some percent."""
    ids = torch.randint(V - K, (rows, 1), device=DEVICE) + torch.arange(K, device=DEVICE)
    logits = torch.randn(rows, K, device=DEVICE).sort(-1, descending=True).values
    return Labels(ids[:, 0].clone(), ids, logits, logits.logsumexp(-1) + 0.05)


# --- the scorer's head ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def scorer_head():
    """From hidden states and head weights to the k largest logits and their normalisers."""
    width = 4096 if GPU else 576
    weight = torch.randn(V, width, device=DEVICE, dtype=DTYPE) * 0.02
    sizes, size = ((2048, 8192, 32_768), CHUNK["cuda"]) if GPU else ((32, 128, 512), CHUNK["cpu"])
    for rows in sizes:
        hidden = torch.randn(rows, width, device=DEVICE, dtype=DTYPE)

        def each(function, size=size, hidden=hidden, product=linear):
            for chunk in hidden.split(size):
                function(product(chunk, weight))

        def by_hand(logits):
            logits = logits.float()
            logits.topk(K), logits.logsumexp(-1)

        works = {"matrix product alone (floor)": (lambda: each(lambda logits: None), {}),
                 "lessonlib": (lambda: each(lambda logits: topk_lse(logits, K)), {"aim": "1.15, 0.6 GiB"} if GPU else {})}
        if rows == sizes[1]:
            works |= {"by hand": (lambda: each(by_hand, rows, product=F.linear), {}), "by hand, 1,024 rows at a time": (lambda: each(by_hand, 1024, product=F.linear), {})}
        yield from measured("scorer's head", rows, works)


# --- the scoring pass ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def scoring_pass():
    """Sequences through the whole target; then the `score` command's own work, answers in and labels on disk."""
    target = model("8B" if GPU else "tiny", DTYPE).eval()
    count, length, times = (16, 512, 32) if GPU else (4, 128, 4)
    batch, (body, head) = sequences(count, length), body_and_head(target)
    padded = torch.tensor([[*prompt, *resp] for prompt, resp in batch], device=DEVICE)
    rows = sum(len(resp) for _, resp in batch)

    def bare(ids):
        return target.base_model(ids, use_cache=False).last_hidden_state

    def floor():
        hidden = body(padded).flatten(0, 1)[:rows]
        for chunk in hidden.split(CHUNK[DEVICE.type]):
            linear(chunk, head.weight)

    def by_hand():
        logits = target.lm_head(bare(padded).flatten(0, 1)[:rows]).float()
        logits.topk(K), logits.logsumexp(-1)

    aim = {"aim": "a bare body + 1.15 x head"} if GPU else {"aim": "by hand / 1.3"}
    works = {"lessonlib's body and the head's product (floor)": (floor, {}), "transformers' body": (lambda: bare(padded), {}),
             "lessonlib, labels on the CPU": (lambda: list(score(target, batch, K)), aim), "by hand": (by_hand, {}), "lessonlib's body": (lambda: body(padded), {})}
    if not why_padded(target):
        ids, _, packing = packed_responses(batch, DEVICE)
        works["lessonlib's body, packed"] = (lambda: body(ids, packing), {})
    found = list(measured("scoring pass", count * length, works, 5))
    yield from found
    many = sequences(count * times, length)
    answers = Answers({"answers": 1, "target": model_fingerprint(target), "tokenizer": "-", "template": "-", "temperature": 1.0, "seed": 0},
                      [{"row": i, "prompt_ids": prompt, "resp_ids": resp} for i, (prompt, resp) in enumerate(many)])

    def command():
        with tempfile.TemporaryDirectory() as folder:
            score_answers(target, answers, Path(folder) / "labels", K, show=False)

    once = found[2]["ms"] * times
    start = perf_counter()
    command()
    ms = (perf_counter() - start) * 1e3
    yield {"part": "scoring pass", "work": f"`score` to disk, {times} such passes", "rows": len(many) * length, "ms": ms, "low": ms, "high": ms, "gib": None,
           "to_floor": ms / once, "aim": "1.053 x the passes' time"}


# --- a divergence on the head --------------------------------------------------------------------------------------------------


def divergence_on_the_head():
    """Forward and backward from hidden states and head weights, with labels of 64 tokens and a tail."""
    width, part = 2048 if GPU else 576, "divergence on the head"
    weight = torch.nn.Parameter((torch.randn(V, width, device=DEVICE) * 0.02).to(DTYPE))
    compiled = torch.compile(kl_by_hand)
    sizes = (1024, 4096, 16_384) if GPU else (32, 128, 512)
    for rows in sizes:
        hidden, labels = torch.randn(rows, width, device=DEVICE, dtype=DTYPE), random_labels(rows)
        log_p = labels.logits - labels.lse[:, None]

        def products():
            for h in hidden.split(4096):  # as many rows as the logits' gradient fits for
                logits = linear(h, weight.detach())
                linear(logits, weight.detach().T), linear(logits.T, h.T)

        def by_autograd(loss, size):
            for start in range(0, rows, size):
                some = slice(start, start + size)
                leaf = hidden[some].detach().requires_grad_(True)
                (loss(F.linear(leaf, weight), some).sum() / rows).backward()
            weight.grad = None

        def by_hand(loss, size=rows):
            by_autograd(lambda logits, some: loss(logits, labels.ids[some], log_p[some]), size)

        def ours(name="kl", head=weight):
            linear_loss(hidden.clone(), head, Objective(name).in_place(labels, V, 1 / rows))
            head.grad = None

        def defined():
            module = torch.nn.Linear(width, V, bias=False, device="meta")
            module.weight = weight
            distil.by_autograd(module, hidden.clone(), labels, 1 / rows, Objective("kl"), DTYPE)
            weight.grad = None

        works = {"three matrix products alone (floor)": (products, {})}
        if why_torch(DEVICE):
            works["lessonlib, kl"] = (defined, {"aim": "no slower than by hand"})
        else:
            works["lessonlib, kl"] = (ours, {"aim": "1.2, 0.5 GiB beside the weight's gradient"})
        if rows == sizes[1]:
            works |= {"by hand": (lambda: by_hand(kl_by_hand), {}), "by hand, 1,024 rows at a time": (lambda: by_hand(kl_by_hand, 1024), {})}
            if GPU:
                works["by hand, torch.compile"] = (lambda: by_hand(compiled), {})
                works |= {f"lessonlib, {name}": (lambda name=name: ours(name), {}) for name in ("ce", "reverse_kl", "jsd", "tv", "lk")}
                works["lessonlib, kl, frozen head"] = (lambda: ours(head=weight.detach()), {})
                works |= liger(hidden, weight)
        for row in measured(part, rows, works):
            if row["work"].startswith("lessonlib") and GPU:  # the hidden states become their gradient, so the copy that a run starts with is the benchmark's
                gradient = 0 if "frozen" in row["work"] else weight.numel() * weight.element_size()
                row["gib_beside_gradients"] = row["gib"] - (gradient + hidden.numel() * hidden.element_size()) / 2**30
            yield row
    if GPU and importlib.util.find_spec("liger_kernel") is None:
        yield {"part": part, "work": LIGER, "rows": sizes[1], "not_run": "liger-kernel is not installed"}


def kl_by_hand(logits, ids, log_p):
    """Forward KL with a tail, a value a row, as one would write it down."""
    log_q = logits.float().log_softmax(-1).gather(-1, ids)
    p_rest, q_rest = (1 - each.exp().sum(-1).clamp_max(1 - 1e-7) for each in (log_p, log_q))
    return (log_p.exp() * (log_p - log_q)).sum(-1) + p_rest * (p_rest / q_rest).log()


LIGER = "liger-kernel fused linear JSD, beta 0, dense labels"


def liger(hidden, weight):
    """liger-kernel's forward KL over the whole vocabulary; its labels are a teacher's hidden states and head, so it has one product more."""
    if importlib.util.find_spec("liger_kernel") is None:
        return {}
    from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD
    fused, teacher = LigerFusedLinearJSD(jsd_beta=0.0), torch.randn_like(hidden)

    def run():
        fused(hidden.detach().requires_grad_(True), weight, teacher, weight.detach(), None).backward()
        weight.grad = None

    return {LIGER: (run, {})}


# --- the training step ---------------------------------------------------------------------------------------------------------


def training_step():
    """A whole optimizer step of `train_draft` from a store on disk, all weights training, fp32 masters."""
    draft = model("1B" if GPU else "tiny draft", torch.float32)
    parameters, length = sum(p.numel() for p in draft.parameters()), 512 if GPU else 64
    with tempfile.TemporaryDirectory() as folder:
        store = random_store(Path(folder) / "labels", 64, length)
        for tokens in (4096, 16_384) if GPU else (512, 1024):
            times, marks = 14, []
            free()
            train_draft(draft, store, Recipe(steps=times, lr=1e-6, batch_size=tokens // length, save_every=1000), dtype=DTYPE if GPU else None,
                        on_step=lambda step, loss: marks.append(perf_counter()), show=False)
            ms = [(after - before) * 1e3 for before, after in zip(marks[4:], marks[5:])]
            start = perf_counter()
            store_batch(store, range(tokens // length), Objective("kl"), DEVICE, pack=GPU)
            row = {"part": "training step", "work": f"train_draft, {parameters / 1e9:.2f} B parameters", "rows": tokens, "ms": median(ms), "low": min(ms),
                   "high": max(ms), "gib": torch.cuda.max_memory_allocated() / 2**30 if GPU else None, "to_floor": None,
                   "ms_to_make_a_batch": (perf_counter() - start) * 1e3}
            if row["ms_to_make_a_batch"] >= row["ms"]:
                raise RuntimeError(f"making a batch takes {row['ms_to_make_a_batch']:.0f} ms, a step {row['ms']:.0f}: the data are the bottleneck.")
            if GPU:
                row |= {"share_of_790_TFLOPs": 6 * parameters * tokens / PEAK * 1e3 / row["ms"], "gib_of_16_bytes_a_parameter": 16 * parameters / 2**30,
                        "aim": "52 % of peak" if tokens == 4096 else "60 % of peak"}
            else:
                row["aim"] = "by hand / 1.3"
            yield row
            if not GPU or tokens == 4096:
                free()
                step = step_by_hand(draft, store_batch(store, range(tokens // length), Objective("kl"), DEVICE))
                yield from measured("training step", tokens, {"by hand": (step, {"to_floor": None})}, 7)


def step_by_hand(draft, batch):
    """A function that makes one optimizer step as one would write it down: padded texts, logits of all positions, autograd."""
    optimizer, labels = torch.optim.AdamW(draft.parameters(), lr=1e-6, fused=True), batch.labels
    log_p = labels.logits - labels.lse[:, None]

    def step():
        with torch.autocast(DEVICE.type, dtype=DTYPE, enabled=GPU):
            logits = draft(batch.ids, use_cache=False).logits.flatten(0, 1)[batch.positions]
        kl_by_hand(logits, labels.ids.long(), log_p).mean().backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def random_store(folder, count, length):
    """A store of `count` sequences of `length` tokens, one of them the prompt, with the odds of nobody."""
    writer = StoreWriter(folder, K, {"answers": "-", "target": "-"})
    for prompt, resp in sequences(count, length, prompt=1):
        labels = random_labels(len(resp)).to("cpu")
        writer.add(prompt, resp, Scored(labels.ids, labels.logits, labels.lse, torch.full((len(resp),), -3.0), {}))
    writer.close()
    return LabelStore(folder)


GROWTH = 1.05  # how much of its floor's multiple a work may gain from the fewest rows to the most


def growth(rows):
    """Lines: how each lessonlib work that was timed at several sizes grew beside its own floor, and its memory with it."""
    for work in dict.fromkeys(row["work"] for row in rows if row["work"].startswith("lessonlib") and row.get("to_floor")):
        some = [row for row in rows if row["work"] == work]
        if len(some) > 1:
            first, last = some[0], some[-1]
            grew = last["to_floor"] / first["to_floor"]
            memory = [row.get("gib_beside_gradients", row["gib"]) for row in (first, last)]
            held = "" if None in memory else f"; {memory[0]:.2f} -> {memory[1]:.2f} GiB"
            yield (f"{first['part']}, {work}: {last['rows'] // first['rows']} x the rows take {last['ms'] / first['ms']:.2f} x the time, "
                   f"{grew:.3f} x what the floor grew by ({'kept' if grew <= GROWTH else 'missed'}: at most {GROWTH}){held}")


PARTS = {"scorer": scorer_head, "divergence": divergence_on_the_head, "step": training_step, "pass": scoring_pass}


def line(row):
    """A row of the table."""
    start = f"{row['part']:<23} {row['work']:<52} {row['rows']:>7,}"
    if "not_run" in row:
        return f"{start}  not run: {row['not_run']}"
    memory = row.get("gib_beside_gradients", row["gib"])
    floor = "" if row["to_floor"] is None else f"{row['to_floor']:.3f}"
    more = f" ({row['share_of_790_TFLOPs']:.1%}; a batch is made in {row['ms_to_make_a_batch']:.0f} ms)" if "share_of_790_TFLOPs" in row else ""
    spread = f"[{row['low']:.2f}, {row['high']:.2f}]"
    return f"{start} {row['ms']:>10.2f} {spread:<20} {'' if memory is None else f'{memory:.2f}':>6} {floor:>6}  {row.get('aim', '')}{more}"


def asked(doc, parts):
    """What the command line asks for: `parts`, and the file to record in or None."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help=f"any of {', '.join(parts)}; all unless given")
    parser.add_argument("--out", type=Path, help="the record to add this machine's results to")
    options = parser.parse_args()
    if options.out:
        recorded_by()  # before the work: it refuses a checkout that nobody could make again
    return options


def main():
    """Run the parts asked for, or all, and record them."""
    options = asked(__doc__, PARTS)
    torch.manual_seed(0)
    print(f"{machine()}; {versions()}; {reason(DEVICE)}")
    print(f"{'part':<23} {'work':<52} {'rows':>7} {'ms':>10} {'[low, high]':<20} {'GiB':>6} {'/floor':>6}  aim", flush=True)
    rows = []
    for name in options.parts or PARTS:
        part = []
        for row in PARTS[name]():
            part.append(row)
            print(line(row), flush=True)
        print(*growth(part), sep="\n", flush=True)
        rows += part
        free()
    for what in NOT_RUN:
        print(f"not run: {what}")
    if options.out:
        record(options.out, rows, " ".join(["python tests/benchmarks/floors.py", *options.parts]))


def record(path, rows, command):
    """Put a machine's rows into a record, in place of what it had of these parts."""
    found = read_json(path) if path.exists() else {"machines": {}}
    mine = found["machines"].setdefault(machine(), {"parts": {}})
    mine |= {**recorded_by(), "command": command, "kernels": reason(DEVICE)}
    for row in rows:
        mine["parts"][row["part"]] = [other for other in rows if other["part"] == row["part"]]
    found["not_run"] = NOT_RUN
    write_json(path, found)


if __name__ == "__main__":
    main()
