# %% [markdown]
r"""
# Truncate the target

Need a draft be another model at all? Take the target, keep its embedding, its first few layers, its final norm and its
output layer, and throw the rest away. What is left takes the same tokens, speaks the same vocabulary, costs no memory for
what it shares, and is no use to anybody until it is trained.

**You will** count the bytes that a draft's step reads; cut a draft out of the target without copying what it need not
own; see it fail, train it for a minute and see it improve; compare which layers to keep; find out why a few wide layers
beat many narrow ones; and compute which of the cuts is the fastest draft.

**You need** [05 Measure without decoding](05_measure_without_decoding.ipynb) (offline alpha, and why a difference is measured
on the same text) and [06 Train the draft](06_train_the_draft.ipynb) (training on stored odds). The speed-up formula is that
of [01 Measure overlap](01_measure_overlap.ipynb); its $\alpha$ is here the offline one at $T = 1$. In formulas $p$ is the
target and $q$ the draft.

**Time**: it runs in about a minute on two cores with the tiny pair. On a DGX Spark the training is the whole
one, with the answers and labels of [04 Build the data set](04_build_the_dataset.ipynb): a few hours the first time, by our
estimate (not measured). Reading and three exercises: an hour. [All solutions](solutions/07_truncate_the_target.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # no module lessonlib? Run: make lab
import lessonlib, torch
import copy

# %%
from lessonlib.lesson import Lesson
from lessonlib.workbook.explorables.nb07 import BytesAStep, four_shapes

lesson = Lesson(lessonlib.preset())
tiny = lesson.preset.name == "tiny"
SCORED, HELD = (32, 12) if tiny else (None, 100)  # answers to train on (None: all of the preset's) and to measure on
target, tokenizer = lesson.target, lesson.tokenizer
print(here(lesson.preset))

# %% [markdown]
r"""
## Four shapes

A draft is whatever can guess a few tokens for less than the target takes. Four shapes are in use. A is what the earlier
notebooks trained, C and D come later; this one is about B.
"""

# %%
show(four_shapes(), "Four drafts beside the target: A is a narrower model with an embedding, layers and head of its own; B is "
     "the target's first layers, trained, between its embedding and its norm and head; C hangs heads on the target's last "
     "state; D is one layer that reads the target's state and a token and uses its head.")

# %% [markdown]
r"""
## What a step reads

With a single text to continue, a step takes each weight out of memory and uses it once. So its time is at least the bytes
read over the bytes a second that the memory gives. If draft and target came equally near that limit, $c$ would be the ratio
of their bytes: *c by bytes*. Count them.

A layer of a Llama has seven matrices. With $d$ = `hidden_size`:

- attention: queries, $d$ rows into `num_attention_heads` times `head_dim` columns; keys and values, each with as many
  columns as `num_key_value_heads` times `head_dim`, since several query heads share one of theirs; and the output
  projection, as large as that of the queries;
- the MLP: *gate* and *up* from $d$ to `intermediate_size`, *down* from there back to $d$.

After the last layer comes the **output layer** (head), $d$ times `vocab_size`, read whole at every step. The embedding is
as large, but a step looks up one row of it. Norms and that row are vectors: leave them out.

These two are the course's big pair, as in the `config.json` that is published with each of the models. The tiny pair's
numbers are in its own config.
"""

# %%
NAMES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
llama_8b = dict(zip(NAMES, (4096, 14336, 32, 8, 128, 128256)))  # meta-llama/Llama-3.1-8B-Instruct, 32 layers
llama_1b = dict(zip(NAMES, (2048, 8192, 32, 8, 64, 128256)))  # meta-llama/Llama-3.2-1B-Instruct, 16 layers
ours = {name: getattr(target.config, name) for name in NAMES}
print(f"{'':<24}" + "".join(f"{name:>14}" for name in ("Llama 3.1 8B", "Llama 3.2 1B", "this target")))
for name in NAMES:
    print(f"{name:<24}" + "".join(f"{config[name]:>14,}" for config in (llama_8b, llama_1b, ours)))

# %% [markdown]
r"""
**Exercise 7.1** (easy, 10 minutes). Write the bytes that a draft with so many `layers` of such a shape reads at a step.

<details><summary>Hint</summary>

`d * (2 * wide + 2 * narrow + 3 * config["intermediate_size"])` is a layer's number of weights, if `wide` and `narrow` are
the columns of queries and of keys. Add the output layer once, and multiply by `bytes_per_weight`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/07_truncate_the_target.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def bytes_a_step(config, layers, bytes_per_weight=2):
    """The bytes of weights read in a step by a draft of so many layers of this shape, output layer included."""
    # <solution>
    d, head_dim = config["hidden_size"], config["head_dim"]
    wide, narrow = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    layer = d * (2 * wide + 2 * narrow + 3 * config["intermediate_size"])
    return bytes_per_weight * (layers * layer + d * config["vocab_size"])
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
bytes_a_step = checks.ex_7_1(bytes_a_step)

# %% [markdown]
r"""
Does the formula count what is really there? lessonlib has no formula for it: the model itself knows.
"""

# %%
first, head = target.model.layers[0], target.lm_head.weight
matrices = sum(weight.numel() for weight in first.parameters() if weight.dim() == 2)
yours = bytes_a_step(ours, 1, 1) - bytes_a_step(ours, 0, 1)
print(f"a layer of this target: {matrices:,} weights in matrices; your formula differs by {abs(yours - matrices)}")
print(f"its output layer: {head.numel():,}; your formula differs by {abs(bytes_a_step(ours, 0, 1) - head.numel())}")
vectors = sum(weight.numel() for weight in first.parameters() if weight.dim() == 1)
print(f"left out, the layer's norms: {vectors:,} weights, {vectors / matrices:.2%} of it")

# %% [markdown]
r"""
Now the 8B's first four layers of 32, in 16 bits. As a draft they compete with the 1B.
"""

# %%
one_b = bytes_a_step(llama_1b, 16)
four = predict(f"A step of the 1B reads {one_b / 1e9:.2f} GB. And one of the 8B's first four layers?", 1.9, unit="GB")

# %%
explain(four, bytes_a_step(llama_8b, 4) / 1e9, reference=2.8, band=0.01, form=".2f", exact=True, must_hold=True)
layer, output = ((bytes_a_step(llama_8b, 1, 1) - bytes_a_step(llama_8b, 0, 1)), bytes_a_step(llama_8b, 0, 1))
print(f"a layer of the 8B: {layer / 1e6:.0f} M weights, four of them {4 * layer / 1e9:.2f} B")
print(f"its output layer: {output / 1e6:.0f} M weights, {2 * output / 1e9:.2f} GB in 16 bits, read at every step")
whole = bytes_a_step(llama_8b, 32)
print(f"the 8B reads {whole / 1e9:.1f} GB, so by bytes c is {bytes_a_step(llama_8b, 4) / whole:.3f} for its first four layers "
      f"and {one_b / whole:.3f} for the 1B")

# %% [markdown]
r"""
The head, half a billion weights, comes on top of the layers: an eighth of the layers costs more than an eighth. The same
for this target, in the bytes that it has here:
"""

# %%
each, total_layers = target.dtype.itemsize, target.config.num_hidden_layers
bytes_of = lambda layers: bytes_a_step(ours, layers, each)
by_bytes = {N: bytes_of(N) / bytes_of(total_layers) for N in (1, 2, 4, 8)}
print(f"this target, {total_layers} layers: {bytes_of(total_layers) / 1e6:,.0f} MB a step")
print("first   MB a step   the output layer's share   c by bytes   c by layers alone")
for N, c in by_bytes.items():
    print(f"{N:>5}   {bytes_of(N) / 1e6:>9,.0f}   {bytes_of(0) / bytes_of(N):>24.0%}   {c:>10.3f}   {N / total_layers:>17.3f}")

# %% [markdown]
r"""
Three levers lower the bytes: fewer layers, a smaller vocabulary for the draft to guess from, fewer bits a weight. Try them
on the 8B. If verifying costs one step ($v = 1$), a single guess a round earns $1 + \alpha$ tokens for $1 + c$ steps, so it
pays from $\alpha = c$ on.
"""

# %%
BytesAStep(bytes_a_step, llama_8b, 32, ("Llama 3.2 1B", one_b))

# %% [markdown]
r"""
The last lever is quantisation, and it multiplies with what training does. The same draft in 4 bits reads a quarter, and
the lower $c$ makes every point of $\alpha$ worth more:
"""

# %%
for name, per_weight in {"16 bits": 2, "4 bits": 0.5}.items():
    c = bytes_a_step(llama_8b, 4, per_weight) / whole
    low, high = (lessonlib.speedup(alpha, lessonlib.best_k(alpha, c), c) for alpha in (0.7, 0.8))
    print(f"first four layers in {name:<8} c by bytes {c:.3f}; alpha 0.7 -> 0.8: {low:.2f} -> {high:.2f} times, {high - low:+.2f}")

# %% [markdown]
r"""
## Cut it out

What should the cut *own*? Embedding, final norm and head stay as they are, so they need not be copied: in the same process
the draft can point at the target's tensors, and then they cost no memory at all. The layers are going to be trained, and
training them must not touch the target's, so of them it needs copies.

Three traps. A copy of a frozen target is frozen too. A tensor that is shared must *stay* frozen, or the target learns along.
And a layer finds its keys and values in the cache by its number, `self_attn.layer_idx`, which counts from 0; the first
layers have the right ones.

**Exercise 7.2** (medium, 20 minutes). Write it. `target` is a causal LM of transformers in the shape of a Llama:
`target.model.embed_tokens`, `.layers` and `.norm`, and `target.lm_head`.

<details><summary>Hint</summary>

`copy.deepcopy(target)` gives a whole second target to start from. Slice its `model.layers`, tell `config.num_hidden_layers`,
thaw the layers with `requires_grad_(True)`, and put `target.lm_head.weight` and the two others in the places of the copies.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/07_truncate_the_target.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def truncated_draft(target, n_layers):
    """The target's first n_layers layers, copied, to be trained; embedding, norm and head the target's own tensors, frozen."""
    # <solution>
    draft = copy.deepcopy(target)
    draft.model.layers = draft.model.layers[:n_layers]
    draft.config.num_hidden_layers = n_layers
    draft.requires_grad_(False)
    draft.model.layers.requires_grad_(True)
    draft.model.embed_tokens.weight = target.model.embed_tokens.weight
    draft.model.norm.weight = target.model.norm.weight
    draft.lm_head.weight = target.lm_head.weight
    return draft
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
truncated_draft = checks.ex_7_2(truncated_draft)

# %% [markdown]
r"""
For a moment your version holds a whole second target. lessonlib's never does: it makes an empty model and hangs copies of
the kept layers into it (in fp32, which is what training wants). The two against each other, and what each shares:
"""

# %%
from lessonlib.pair.layers_draft import cast_parameters, layers_draft

slow, fast = truncated_draft(target, 4), lesson.fresh("B", target.dtype)
fast = fast if lesson.preset.truncated_layers == 4 else cast_parameters(lessonlib.truncated_draft(target, 4), target.dtype)
longest = 48 if tiny else 10_000  # tokens of a prompt: short ones are sooner read
rows = [row for row in lesson.answers("heldout").rows if row["resp_ids"] and len(row["prompt_ids"]) <= longest]
held = [(row["prompt_ids"], row["resp_ids"]) for row in rows[:HELD]]
text = torch.tensor([held[0][0] + held[0][1]], device=target.device)
with torch.inference_mode():
    difference = (slow(text).logits - fast(text).logits).abs().max().item()
print(f"yours and lessonlib's: logits differ by at most {difference:g}")

# %%
theirs = {weight.data_ptr() for weight in target.parameters()}
shared = [target.model.embed_tokens, target.model.norm, target.lm_head]
for name, draft in {"yours": slow, "lessonlib's": fast}.items():
    parts = [draft.model.embed_tokens, draft.model.norm, draft.lm_head]
    assert [part.weight.data_ptr() for part in parts] == [part.weight.data_ptr() for part in shared]  # the same storage
    assert all(weight.data_ptr() not in theirs for weight in draft.model.layers.parameters())
    own = {weight.data_ptr(): weight.numel() * weight.itemsize for weight in draft.parameters()}
    more = sum(size for place, size in own.items() if place not in theirs)
    print(f"{name:<12} embedding, norm and head lie in the target's memory; of its own it has {more / 1e6:,.0f} MB "
          f"instead of {sum(own.values()) / 1e6:,.0f}")
trained = sum(weight.numel() for weight in fast.model.layers.parameters())
print(f"{trained / 1e6:,.1f} M weights train, which takes {16 * trained / 1e6:,.0f} MB at 16 bytes each; "
      f"the 8B's first four layers {16 * 4 * layer / 1e9:.0f} GB, the whole 1B {16 * one_b / 2 / 1e9:.0f} GB")

# %% [markdown]
r"""
## Useless before

Its first layers *are* the target's, and so is its head. How good a draft is that, untrained? (The reference is the tiny
pair's, from the record of long runs that also serves below.)

What would be bad? A draft that knows nothing gives each of the $V$ tokens $1/V$. Its alpha is the mean of
$\sum_x \min(p(x), 1/V)$, and its KL from any target is at most $\log V$. Here it is one layer under a head of zeros.
"""

# %%
raw_alpha = predict("Alpha of the target's first four layers under its own head, untrained?", 0.3)

# %%
from lessonlib.measure.offline import alpha_gain, offline_alphas
from lessonlib.reference import recorded_gain, recorded_trainings

records, last = recorded_trainings(), total_layers - 1
record = records[0]
KEPT = {"first 1": (0,), "first 2": (0, 1), "first 4": (0, 1, 2, 3), "first 8": tuple(range(8)),
        "first 3 and the last": (0, 1, 2, last), "first 6 and the last 2": (*range(6), last - 1, last)}
drafts = {name: cast_parameters(layers_draft(target, kept), target.dtype) for name, kept in KEPT.items()}
blank = cast_parameters(layers_draft(target, (0,)), target.dtype)
blank.lm_head.weight = torch.nn.Parameter(torch.zeros_like(head), requires_grad=False)
*found, clueless = offline_alphas([*drafts.values(), blank], target, held)
raw, positions = dict(zip(drafts, found)), sum(clueless.lengths)
on_record = record["untrained"]["B"]["heldout"]["alpha"]["value"]
explain(raw_alpha, raw["first 4"].alpha, reference=on_record, band=0.03, form=".3f", exact=True)

# %% [markdown]
r"""
The later layers do the writing. After four, the state is nothing that the head was made to read. All six cuts and the draft
that knows nothing, here and on record (500 answers):
"""

# %%
B = lambda name: "B" if name == "first 4" else name  # the record's name for the course's own cut
told = lambda value, form=".3f": f"{value['value']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"
print(f"untrained                 alpha here, {positions} positions  KL, nats   alpha on record        KL on record, nats")
for name, result in {**raw, "knows nothing": clueless}.items():
    found = record["untrained"].get(B(name), {}).get("heldout")
    alpha, *rest = result.alpha, *((told(found["alpha"]), told(found["kl"], ".1f")) if found else ("-", "-"))
    print(f"{name:<24}  {alpha:.3f} {alpha.interval('.3f'):<20}  {result.kl:>8.1f}   {rest[0]:<21}  {rest[1]}")

# %%
most = torch.tensor(49152.0).log().item()  # nats; the vocabulary of the pair on record
surer = [name for name in raw if record["untrained"][B(name)]["heldout"]["kl"]["low"] > most]
print(f"by KL, knowing nothing costs at most log V = {most:.1f} nats; on record {len(surer)} of {len(raw)} cuts are worse")
for worse, word in ((False, "above"), (True, "below")):
    names = [name for name, result in raw.items() if (result.alpha < clueless.alpha) == worse]
    print(f"by alpha, {word} knowing nothing here: {', '.join(names) or 'none'}")

# %% [markdown]
r"""
KL is the harder judge, since a cut is *sure* of what is wrong: it can cost far more nats than knowing nothing, and still
overlap with the target a little more. Two cuts fall short even there. They keep the target's *last* layers in place of some
of the early ones. The head was made to read what the last layer writes, and yet untrained their alpha is the lowest of all.
Before you go on: would you throw them away?

## Useful after

Training goes as for any draft and costs a little less, since the head's weights need no gradient. With the tiny pair it is
a very short one here, on a handful of short answers, with the course's recipe for this draft except for length, batch and
warm-up. The gain is measured on the same positions before and after.
"""

# %%
from dataclasses import replace
from tempfile import TemporaryDirectory
from lessonlib.lesson import recipe_of
from lessonlib.progress import Progress
from lessonlib.traffic.answers import Answers

scratch, train = TemporaryDirectory(), lesson.answers("train")  # the folder is gone when the kernel ends
brief = [row for row in train.rows if row["resp_ids"] and len(row["prompt_ids"]) <= longest]
recipe = recipe_of(lesson.preset, "B")
if tiny:
    recipe = replace(recipe, steps=24, batch_size=4, warmup=0.2)
    few = Answers(train.header, brief[:SCORED])
    store = lessonlib.score_answers(target, few, scratch.name + "/labels", lesson.preset.k)
else:
    store = lesson.labels()
print(f"{len(store):,} answers, {store.rows:,} labels; {recipe.steps:,} steps of {recipe.batch_size}, "
      f"learning rate {recipe.lr:g}, seed {recipe.seed}")

# %%
learned = predict("The gain in alpha from this training?", 0.2)

# %%
learner = lessonlib.truncated_draft(target, 4)
before = head.detach().clone()
progress = Progress("training", recipe.steps, "steps")
unfinished = None if tiny else lesson.folder / "B-kl.training"  # hours of work: gone on with if they were broken off
losses = lessonlib.train_draft(learner, store, recipe, "kl", unfinished, on_step=lambda step, loss: progress.add(), show=False)
progress.finish()
if not tiny:  # and kept, so that notebook 08 can load it
    lessonlib.save_draft(learner, lesson.folder / "B-kl", target, kind="shape B", training="kl")
assert torch.equal(head, before)  # what is shared did not move
start, end = (sum(part) / len(part) for part in (losses[:4], losses[-4:]))
print(f"loss, first and last four steps: {measured(start, '.1f')} and {measured(end, '.1f')} nats")
(taught,) = offline_alphas([cast_parameters(learner.eval(), target.dtype)], target, held)
gain = alpha_gain(taught, raw["first 4"])
for name, result in {"before": raw["first 4"], "after": taught}.items():
    alpha, top1, kl = (measured(value, form) for value, form in zip(result[:3], (".3f", ".3f", ".1f")))
    print(f"{name:<7} alpha {alpha}   top-1 {top1}   KL {kl} nats")
low, high = (measured(value, ".3f") for value in (gain.low, gain.high))
print(f"95 % interval of the gain [{low}, {high}]; it lies above 0: {here(gain.low > 0)}")
explain(learned, gain, band=(0.02, 0.15) if tiny else (0.1, 0.9), form=".3f", must_hold=tiny)

# %% [markdown]
r"""
With the tiny pair that was less than a minute's work. And with hundreds of times as much? This is the record: what it was
trained on, and the course's table for this draft, with the separate draft A beside it. (For your own pair and the whole
training the same cells above give the row.) Each draft was trained on answers of up to 256 tokens and is judged on the first
64 tokens of held-out ones. The table is of seed 0: its intervals say how sure the *measurement* is. The trained ones were
trained with four more seeds, on other answers in another order; the lines below count them.
"""

# %%
steps = record["runs"]["B, kl"]["recipe"]
print(f"on record: {record['answers']:,} answers, {record['tokens']:,} tokens, {steps['steps']} steps of {steps['batch_size']}, "
      f"seed {steps['seed']}; {record['machine']}, {record['versions'].split(',')[0]}; commit {record['commit'][:7]}")
seen, above = (run["steps"] * run["batch_size"] * rows / answers for run, rows, answers in
               ((steps, record["tokens"], record["answers"]), (vars(recipe), store.rows, len(store))))
print(f"labels seen in training: {seen:,.0f}, {seen / above:.0f} times as many as above")
print("draft                  trained    alpha, T = 1           top-1, greedy          KL(p || q), nats")
for shape, words in {"A": "A separate model", "B": "B first 4 layers"}.items():
    for training in ("untrained", "ce", "kl"):
        found = record["untrained"][shape] if training == "untrained" else record["runs"][f"{shape}, {training}"]
        sampled, greedy = found["heldout"], found["heldout-greedy"]
        cells = told(sampled["alpha"]), told(greedy["top1"]), told(sampled["kl"], ".2f")
        print(f"{words:<22} {training:<10} {cells[0]:<22} {cells[1]:<22} {cells[2]}")

# %%
untrained, by_ce = record["untrained"]["B"]["heldout"]["alpha"], record["runs"]["B, ce"]["heldout"]["alpha"]
print(f"B by CE above untrained, intervals apart: {by_ce['low'] > untrained['high']}")
for after, before in (("B, kl", "B, ce"), ("B, kl", "A, kl")):
    gains = [recorded_gain(each, after, before) for each in records]
    print(f"{after} above {before}: {gains[0]:+.3f} {gains[0].interval('+.3f')}, redrawn by answers; "
          f"in {sum(gain > 0 for gain in gains)} of {len(records)} seeds")
    assert all(gain > 0 for gain in gains) == (before == "B, ce")

# %%
trained_on = lambda name: record["runs"][f"{B(name)}, kl"]["heldout"]["alpha"]
curves = {"first 3 and the last": [], "first 4": [], "first 1": []}
for name in curves:
    run = record["runs"][f"{B(name)}, kl"]["alpha_by_step"]
    curves[name] = [value["value"] for value in run.values()]
marks = [int(step) for step in run]
fig, ax = style.figure(7.4, 3.0)
style.lines(ax, marks, curves)
ax.set(ylim=(0, 0.5), xlabel="steps of 32 answers", ylabel="alpha, 100 held-out answers")
rising = "and still rising" if all(curve[-1] > curve[-2] for curve in curves.values()) else "and no longer rising everywhere"
style.finding(ax, f"From {curves['first 4'][0]:.2f} to {curves['first 4'][-1]:.2f} with four layers, {rising}")
show(fig, f"Alpha of three cuts by training step, on record: the first four layers rise from {curves['first 4'][0]:.2f} to "
     f"{curves['first 4'][-1]:.2f} in {marks[-1]} steps, three and the last to {curves['first 3 and the last'][-1]:.2f}.")

# %% [markdown]
r"""
The course expects: near useless before, much better after, and better by the target's odds (KL) than by its text (CE). The
lines below the table say what of that is on record. Whether B passes A was left open. In the big pair it depends on how
much four wide layers can learn from so many tokens against sixteen narrow ones that write already. In the tiny pair both
have four layers of one width, and A starts from a long training on general text.

## Which layers to keep

Back to the two cuts that were so bad untrained. All of them had the same training. What did it make of the swap of the
fourth layer for the last one?
"""

# %%
swap = predict("After training: alpha with the first 3 and the last, minus alpha with the first 4?", 0.0)

# %%
swapped = trained_on("first 3 and the last")["value"] - trained_on("first 4")["value"]
explain(swap, swapped, band=(0.0, 0.1), form="+.3f", exact=True, must_hold=True)
print("kept                     layers   untrained   trained by KL")
for name, kept in KEPT.items():
    untrained = record["untrained"][B(name)]["heldout"]["alpha"]["value"]
    print(f"{name:<24} {len(kept):>6}   {untrained:>9.3f}   {told(trained_on(name))}")
for better, worse in (("first 3 and the last", "first 4"), ("first 6 and the last 2", "first 8")):
    more = recorded_gain(record, f"{B(better)}, kl", f"{B(worse)}, kl")
    print(f"{better} against {worse}: {more:+.3f} {more.interval('+.3f')}, redrawn by answers (seed 0)")

# %% [markdown]
r"""
The same number of layers, the same bytes, the same $c$, and several points more. Raw quality says nothing here: untrained,
the last layer reads a state that it never saw. An explanation that fits (the record does not prove it): the last layer knows
how to turn a good state into what the head reads, and three layers learn to make such a state sooner than a fourth one
learns the last one's work. Draft A of the tiny pair was begun with the same four layers.

In code this is lessonlib's `layers_draft(target, (0, 1, 2, last))`, and now the trap of the cache is real: the copy of the
last layer still believes that it is the last of all. lessonlib gives it its new number.
"""

# %%
mixed = drafts["first 3 and the last"]
numbers = [layer.self_attn.layer_idx for layer in mixed.model.layers]
print("numbers in the cache:", numbers, "for layers", list(mixed.kept_layers))

# %% [markdown]
r"""
## Shallow and wide

Bytes said that the 8B's first four layers cost a little more than the 1B. A clock may say otherwise. The course starts from
$c$ of about 0.3 for the 1B, twice what its bytes predict: its 16 layers run one after another, and each of them launches its
own small operations, which take their time however few bytes they move. Four layers have a quarter of the launches.

Test it here: beside the four wide layers a model of *half* the width with as many layers as make up the same bytes, random
weights (time does not mind). Each is timed twice: by transformers' own forward pass, and by lessonlib's step, which does
the same arithmetic with less Python around it.
"""

# %%
halved = ("hidden_size", "intermediate_size", "head_dim")
half = {name: size // 2 if name in halved else size for name, size in ours.items()}
narrow_layer = bytes_a_step(half, 1, each) - bytes_a_step(half, 0, each)
deep = round((bytes_of(4) - bytes_a_step(half, 0, each)) / narrow_layer)
config = copy.deepcopy(target.config)
for name in halved:
    setattr(config, name, half[name])
config.num_hidden_layers = deep
narrow = cast_parameters(type(target)(config), target.dtype).to(target.device).eval()
print(f"wide: 4 layers of width {ours['hidden_size']}, {bytes_of(4) / 1e6:,.1f} MB a step; "
      f"narrow: {deep} layers of width {half['hidden_size']}, {bytes_a_step(half, deep, each) / 1e6:,.1f} MB")

# %%
times = predict(f"Same bytes. How many times as long does a step of the {deep} narrow layers take?", 1.0, unit="times")

# %%
from statistics import median
from time import perf_counter
from lessonlib.pair.step import CachedModel, step_of, synchronize

def milliseconds(steps, turns=9):
    """Each step's median time for one token after 128; all take turns, so that a busy machine slows them alike."""
    found = {name: [] for name in steps}
    for step in steps.values():
        step.read(list(range(128)))
    for turn in range(turns + 2):  # the first two warm up
        for name, step in steps.items():
            start = perf_counter()
            step.run([1])
            synchronize(step.device)
            found[name].append(1e3 * (perf_counter() - start))
            step.rollback(128)
    return {name: median(times[2:]) for name, times in found.items()}

# %%
models = {"4 wide layers": fast, f"{deep} narrow layers": narrow, "the target": target}
sizes = dict(zip(models, (bytes_of(4), bytes_a_step(half, deep, each), bytes_of(total_layers))))
if not tiny:  # the separate draft itself, where it is another shape
    models["draft A"] = separate = lesson.load()
    shape = {name: getattr(separate.config, name) for name in NAMES}
    sizes["draft A"] = bytes_a_step(shape, separate.config.num_hidden_layers, each)
eager = milliseconds({name: CachedModel(model) for name, model in models.items()})
lean = milliseconds({name: step_of(model) for name, model in models.items()})
wide, deeper = list(models)[:2]
explain(times, eager[deeper] / eager[wide], band=(1, 10), form=".1f")
print(f"{'':<18} transformers, ms     c   lessonlib's step, ms     c   GB a second   c by bytes")
for name, size in sizes.items():
    cells = [measured(size / lean[name] / 1e6, ".1f")]
    for table in (eager, lean):
        cells += [measured(table[name], ".1f"), measured(table[name] / table["the target"], ".2f")]
    print(f"{name:<18} {cells[1]:>16} {cells[2]:>5}   {cells[3]:>20} {cells[4]:>5}   {cells[0]:>11}   {size / bytes_of(total_layers):>10.2f}")
ratios = (measured(table[deeper] / table[wide], ".2f") for table in (eager, lean))
print("narrow over wide, times:", *ratios, f"and by bytes {sizes[deeper] / sizes[wide]:.2f}")

# %% [markdown]
r"""
Where the wide and the narrow row differ, bytes are not the reason: they are equal. What differs is how many operations run
one after another, each with a cost of its own. Where lessonlib's step is the quicker one, a part of that cost was Python.
On a GPU the launches can be recorded once and replayed (CUDA graphs) or merged (fused kernels); the less is left of them,
the more nearly the bytes rule. So a truncated draft gains most from being shallow in plain eager PyTorch.

Now $c$ for 1, 2, 4 and 8 layers, measured by lessonlib, against the share of bytes; and $v(K)$, which does not depend on the
draft.
"""

# %%
from lessonlib.measure.costs import step_costs

timed = {N: step_costs(target, drafts[f"first {N}"], (1, 2, 3, 4) if N == 4 else ()) for N in by_bytes}
v = {K: cost for K, cost in timed[4].v.items() if K}
costs = {N: found.c for N, found in timed.items()}
print("first   c here   c by bytes   GB a second, draft   and target")
for N, c in costs.items():
    rates = [measured(size / 1e9 / each_step, ".1f") for size, each_step in
             ((bytes_of(N), timed[N].draft_seconds), (bytes_of(total_layers), timed[N].target_seconds))]
    print(f"{N:>5}   {measured(c, '.2f')}   {by_bytes[N]:>10.2f}   {rates[0]:>18}   {rates[1]:>10}")
print("v(K):", "  ".join(f"K = {K} {measured(cost, '.2f')}" for K, cost in v.items()))

# %% [markdown]
r"""
Where $c$ lies *below* its bytes, the target wastes more than the draft: it reads fewer bytes a second (the last two columns).
Its step is hundreds of small products in a row; most of a small draft's is one large product, the head. So bytes are
no limit for $c$. They limit each of the two times.

## Which one wins

More layers are kept more often and cost more. What counts is the speed-up, $(1 + \alpha + \dots + \alpha^K) / (Kc + v(K))$, at
each draft's own best $K$. And one candidate is no draft at all.

**Exercise 7.3** (easy, 10 minutes). Find the fastest.

<details><summary>Hint</summary>

Two loops, over `alphas.items()` and over `v.items()`. Start with `best = (0, 0, 1.0)`, plain decoding, and replace it by
whatever is faster.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/07_truncate_the_target.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def fastest(alphas, costs, v):
    """(N, K, speed-up) of the fastest; alphas {N: alpha}, costs {N: c}, v {K: v(K)}; (0, 0, 1.0) is plain decoding."""
    # <solution>
    best = (0, 0, 1.0)
    for N, alpha in alphas.items():
        for K, verify in v.items():
            speed = sum(alpha**i for i in range(K + 1)) / (K * costs[N] + verify)
            if speed > best[2]:
                best = (N, K, speed)
    return best
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
fastest = checks.ex_7_3(fastest)

# %% [markdown]
r"""
First a machine that only waits for memory: $c$ by bytes, $v = 1$, and the trained alphas on record. The more layers, the
more is kept. How many are best?
"""

# %%
winner = predict("Trained alphas on record, c by the tiny pair's bytes, v = 1: the best number of first layers?", 4)

# %%
alphas = {N: trained_on(f"first {N}")["value"] for N in by_bytes}
tiny_shape = dict(zip(NAMES, (576, 1536, 9, 3, 64, 49152)))  # SmolLM2-135M-Instruct, 30 layers: the pair on record
tiny_c = {N: bytes_a_step(tiny_shape, N) / bytes_a_step(tiny_shape, 30) for N in alphas}
free = dict.fromkeys(range(1, 9), 1.0)
best = fastest(alphas, tiny_c, free)
explain(winner, best[0], band=(2, 4), form=".0f", exact=True, must_hold=True)  # neither the fewest layers nor the most
gaps = []
for N, alpha in alphas.items():
    K = lessonlib.best_k(alpha, tiny_c[N], max_k=8)
    gaps.append(abs(fastest({N: alpha}, tiny_c, free)[2] - lessonlib.speedup(alpha, K, tiny_c[N])))
print(f"yours and lessonlib's best_k and speedup: the speed-ups differ by at most {max(gaps):g}")

# %%
def speeds(alphas, costs, v):
    """The predicted speed-up of each draft at its own best K; below 1 too, so K = 0 is left out."""
    return {N: max(lessonlib.speedup(alpha, K, costs[N], v) for K in v) for N, alpha in alphas.items()}

mixed_alphas = {4: trained_on("first 3 and the last")["value"], 8: trained_on("first 6 and the last 2")["value"]}
print("layers   alpha on record   c by bytes   predicted")
for alpha_of, words in ((alphas, "first {}"), (mixed_alphas, "{} with the last")):
    for N, speed in speeds(alpha_of, tiny_c, free).items():
        print(f"{words.format(N):<15} {alpha_of[N]:>9.3f} {tiny_c[N]:>12.3f} {speed:>11.2f}")
mixed_best = fastest(mixed_alphas, tiny_c, free)
assert mixed_best[2] > best[2]
print(f"best of the first N: {best[0]} layers, {best[2]:.3f} times; "
      f"with the last: {mixed_best[0]} layers, {mixed_best[2]:.3f} times")

# %% [markdown]
r"""
Neither the highest alpha nor the lowest $c$. The head is the reason why one layer is not best: it has to be paid whatever
the number of layers, so the second one is cheap for what it brings. And a cut that keeps the last layer beats them all.
These gains are small: such alphas are those of a draft that has learnt for 500 steps.

Then this machine, with the $c$ and $v(K)$ just measured. (With another pair than the tiny one the alphas are not yours: put
in your own, from a training of each.)
"""

# %%
N, K, speed = fastest(alphas, costs, v)
here_first, here_mixed = speeds(alphas, costs, v), speeds(mixed_alphas, costs, v)
print("layers   first N, predicted   with the last, predicted")
for layers in alphas:
    second = measured(here_mixed[layers], ".2f") if layers in here_mixed else "-"
    print(f"{layers:>6}   {measured(here_first[layers], '.2f'):>18}   {second:>24}")
print("fastest among the first N:", here(f"{N} layers with K = {K}, {speed:.2f} times" if N else "plain decoding, no draft"))
N, K, speed = fastest({**alphas, **mixed_alphas}, costs, v)
print("and with the better cuts: ", here(f"{N} layers with K = {K}, {speed:.2f} times" if N else "plain decoding, no draft"))
need = {N: lessonlib.break_even_alpha(1, c, v) for N, c in costs.items()}
print("break-even alpha, K = 1:  ", "  ".join(f"{N} layers {here(f'{alpha:.2f}' if alpha <= 1 else 'none')}" for N, alpha in need.items()))

# %% [markdown]
r"""
Each prediction is no better than its alpha: the recorded one belongs to sampling at $T = 1$ and to a training of that length.
Whether a draft earns its keep is for the clock to say, in the next notebook.

## Recap

- A draft cut out of the target shares embedding, norm and head for nothing, and owns only the layers that learn.
- Untrained it has next to no alpha, and its KL is worse than that of knowing nothing; trained it is a draft. Keeping the last
  layer looks hopeless before and is the better cut after.
- The output layer is read at every step: two thirds of the tiny truncated draft's bytes, three eighths of those of the 8B's
  first four layers. Equal bytes do not take equal time: few wide layers beat many narrow ones where each operation costs a
  launch.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Four of 32 layers are an eighth. Why is c by bytes not 0.125 for Llama 3.1 8B?</summary>

The output layer is read at every step, of the draft as of the target: 0.525 of the 1.40 billion weights that the draft
reads. That makes it 0.186.

</details>

<details><summary>Draft and target share a head. Why does training the draft not change the target?</summary>

The shared tensors are frozen: no gradient is kept for them and the optimiser does not know them. The gradient flows
*through* the head into the draft's own layers, which are copies.

</details>

<details><summary>Why is a cut that is worse untrained the better one after training?</summary>

Untrained alpha says how well the layers fit together by accident. Training mends the fit. What remains is what each layer
can do. That the last one already makes states which the head can read would explain it; the record does not prove it.

</details>

<details><summary>Your draft's c is 0.3 where the bytes say 0.16. Would fewer layers or fewer bytes help more?</summary>

If the target's own step is near the limit of its bytes, the draft's bytes explain about half of its time, so halving them
saves a quarter of it. The other half goes with the number of operations in a row: a quarter of the layers at the same bytes,
or CUDA graphs, may save most of that.

</details>

## Two things to change and rerun

1. Train `layers_draft(target, (0, 1, 2, last))` in place of the first four, with the same recipe. Is the order of the record
   there after so few steps already? (See in the picture of the record where the two curves cross.)
2. Give the draft a smaller vocabulary: set `vocab_size` in `tiny_shape` to 16,384 where the draft's bytes are counted, and
   leave the target's as it is. What is the best number of layers then, if alpha stayed the same, and why would it not?

**Next**: [08 Decode and score](08_decode_and_score.ipynb). Back to
[06 Train the draft](06_train_the_draft.ipynb).
"""
