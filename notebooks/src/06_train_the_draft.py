# %% [markdown]
r"""
# Train the draft

The data set is there, and alpha can be measured without decoding. Now the draft is trained: once on the target's text
alone, once on the target's stored odds, with everything else the same. Then the odds are handed to every other divergence.
Which one wins is not a matter of taste, and the values of the losses cannot tell you: they are on different scales.

**You will** write the loss that learns from 64 stored odds and a tail; write one training step that can be cut into pieces
without changing what it learns; count the bytes that training holds; train the separate draft A by cross-entropy (CE) and
by KL and judge both on the same held-out text; see whether it knows how sure it may be; find out what a little CE beside
the KL does; and choose one more divergence against your own prediction.

**You need** [04 Build the data set](04_build_the_dataset.ipynb) (stored odds, tail), [05 Measure without
decoding](05_measure_without_decoding.ipynb) (alpha, top-1 and paired intervals) and, for the divergences,
[03 Pick a divergence](03_pick_a_divergence.ipynb). Two formulas come from [01 Measure overlap](01_measure_overlap.ipynb) and
[02 Learn from soft labels](02_learn_from_soft_labels.ipynb). In formulas $p$ is the target and $q$ the draft.

**Time**: it runs in about two minutes on two cores with the tiny pair; its three short trainings stand beside the
course's long ones on record. On a DGX Spark the same cells do the whole training: several hours, by our estimate (not
measured). Reading and three exercises: an hour and a half. [All solutions](solutions/06_train_the_draft.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # no module lessonlib? Run: make lab
import lessonlib, torch
import torch.nn.functional as F

# %%
from dataclasses import replace
from lessonlib.lesson import Lesson, recipe_of

lesson = Lesson(lessonlib.preset())
tiny = lesson.preset.name == "tiny"
ANSWERS, STEPS, HELD = (60, 10, 16) if tiny else (None, lesson.preset.separate_steps, 500)  # None: all of the preset's
target, tokenizer, draft = lesson.target, lesson.tokenizer, lesson.load()
recipe = replace(recipe_of(lesson.preset, "A"), steps=STEPS, **({"batch_size": 6, "micro_batch": 3} if tiny else {}))
print(here(lesson.preset))
print(f"{recipe.steps:,} steps of {recipe.batch_size} answers, learning rate {recipe.lr:g}, seed {recipe.seed}")

# %% [markdown]
r"""
## What it learns from

The target's answers to training prompts, drawn at $T = 1$, and at every position of them its 64 favourite tokens with their
odds. Users also hold long conversations, and a draft is only to be trusted at lengths that it has seen. So with the tiny pair one of the
rows is long: a question at the end of two earlier turns, all of them from training prompts. (With your own prompts, put
conversations among them.)
"""

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from lessonlib.traffic.answers import Answers

scratch, train = TemporaryDirectory(), lesson.answers("train")  # the folder is gone when the kernel ends
if tiny:
    asked, said = (lambda i: lesson.prompts.train[i]["prompt"]), (lambda i: train.rows[i]["resp_ids"])
    turns = [turn for i in (ANSWERS, ANSWERS + 1) for turn in (
        {"role": "user", "content": asked(i)},
        {"role": "assistant", "content": tokenizer.decode(said(i), skip_special_tokens=True).strip()})]
    chat = [*turns, {"role": "user", "content": asked(ANSWERS + 2)}]
    long = lessonlib.generate(target, tokenizer, [chat], Path(scratch.name) / "long.jsonl", 1.0, 16, seed=0, show=False)
    answers = Answers(train.header, train.rows[:ANSWERS - 1] + long.rows)
    store = lessonlib.score_answers(target, answers, Path(scratch.name) / "labels", lesson.preset.k)
else:
    store = lesson.labels()

# %%
read = sorted(sum(map(len, store.sequence(i))) for i in range(len(store)))
print(f"{len(store):,} answers; with their prompts half are up to {read[len(read) // 2]} tokens long, "
      f"the longest prompt alone {max(len(store.sequence(i)[0]) for i in range(len(store)))}")
print(f"mass of the stored {store.k}: {store.top_mass().mean():.2f} on average")

# %% [markdown]
r"""
## Forward KL over what was stored

On the target's text alone the loss is the one you know. Row $j$ of the draft's logits predicts token $j$ of the answer, and
the loss is minus the logarithm of what the draft gave to it:
"""

# %%
def ce_loss(student_logits, resp_ids):
    """Cross-entropy on the text that the target wrote, in nats a token: student_logits [R, V], resp_ids [R]."""
    return F.cross_entropy(student_logits.float(), resp_ids)

# %% [markdown]
r"""
With odds, the sum of $\mathrm{KL}(p \,\|\, q) = \sum_x p(x) \log \frac{p(x)}{q(x)}$ has a term for each of the 64 stored
tokens, with $p(x) = \exp(\text{logit}(x) - \text{logsumexp})$, and nothing is known of the others but their mass
$p_\text{tail} = 1 - \sum_{x \le 64} p(x)$. Treat them as *one* event, for the draft as well:
$q_\text{tail} = 1 - \sum_{x \le 64} q(x)$. Then both sides sum to 1, and the loss is

$$\sum_{x \le 64} p(x) \log \frac{p(x)}{q(x)} \;+\; p_\text{tail} \log \frac{p_\text{tail}}{q_\text{tail}}.$$

Is that last term worth its line? Take $p = (.5, .3, .2)$ and $q = (.6, .35, .05)$, and store $k = 2$:
"""

# %%
p, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.6, 0.35, 0.05]).double()
stored = (p[:2] * (p[:2] / q[:2]).log()).sum()
tail = p[2] * (p[2] / q[2]).log()
explain(None, stored, reference=-0.1374, band=(-0.1375, -0.1373), form=".4f", exact=True, must_hold=True)
explain(None, stored + tail, reference=0.1399, band=(0.1398, 0.1400), form=".4f", exact=True, must_hold=True)

# %% [markdown]
r"""
Without the tail it is below zero, for a draft that is wrong: the loss *pays* the draft for taking odds from the rest of the
vocabulary, and training would take all of them. With the tail it is a divergence again.

At a temperature $T$ both models' logits are divided by $T$ and the loss is multiplied by $T^2$, as in notebook 02; the
logsumexp handed in is then that of the target's logits$/T$, since the tail at $T$ does not follow from the tail at 1.

**Exercise 6.1** (medium, 15 minutes). Write the loss. Stored numbers are rounded, and the 64 may sum to a hair more than
1: neither loss nor gradient may then be infinite.

<details><summary>Hint</summary>

`log_q = F.log_softmax(student_logits.float() / T, dim=-1).gather(-1, t_ids)` gives the draft's log-probabilities of the stored
tokens, `log_p = t_logits.float() / T - t_lse[:, None]` the target's. Each tail is `(1 - odds.sum(-1)).clamp_min(1e-12)`. Sum
over the tokens, add the tail, take the mean over rows.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/06_train_the_draft.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def kl_loss(student_logits, t_ids, t_logits, t_lse, T=1.0):
    """Forward KL(p || q) over the stored k tokens and one tail, mean over rows, times T squared.

    student_logits [R, V]; t_ids int64 [R, k]; t_logits [R, k] at T = 1; t_lse [R], the logsumexp of the target's logits / T.
    """
    # <solution>
    log_q = F.log_softmax(student_logits.float() / T, dim=-1).gather(-1, t_ids)
    log_p = t_logits.float() / T - t_lse[:, None]
    p, q = log_p.exp(), log_q.exp()
    p_tail, q_tail = ((1 - odds.sum(-1)).clamp_min(1e-12) for odds in (p, q))
    rows = (p * (log_p - log_q)).sum(-1) + p_tail * (p_tail / q_tail).log()
    return rows.mean() * T**2
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
kl_loss = checks.ex_6_1(kl_loss)

# %% [markdown]
r"""
On a real answer, against lessonlib's. Its gradient can be said in closed form: the draft's odds minus a *target* for them,
which is $p(x)$ at the stored tokens and elsewhere $p_\text{tail}$, spread as the draft spreads its own tail.
"""

# %%
prompt, answer = store.sequence(0)
t_ids, t_logits, t_lse = (part.to(target.device) for part in store.kl_inputs(0))
with torch.inference_mode():
    logits = draft(torch.tensor([prompt + answer], device=draft.device)).logits[0, len(prompt) - 1:-1].float()
leaf = logits.clone().requires_grad_()
mine, theirs = kl_loss(leaf, t_ids, t_logits, t_lse), lessonlib.kl_loss(logits, t_ids, t_logits, t_lse)
mine.backward()
q, p = logits.softmax(-1), (t_logits - t_lse[:, None]).exp().float()
rest = q.scatter(-1, t_ids, 0.0)
wanted = (rest * ((1 - p.sum(-1)) / rest.sum(-1))[:, None]).scatter(-1, t_ids, p)
off, slope = abs(mine.item() - theirs.item()), (leaf.grad - (q - wanted) / len(q)).abs().max().item()
print(f"KL of one answer: {measured(mine.item(), '.3f')} nats; CE on its text: "
      f"{measured(ce_loss(logits, torch.tensor(answer, device=logits.device)), '.3f')} nats")
print(f"yours and lessonlib's differ by {measured(off, '.0e')}, below 1e-4: {off < 1e-4}")
print(f"gradient against the closed form: at most {measured(slope, '.0e')}, below 1e-6: {slope < 1e-6}")

# %% [markdown]
r"""
lessonlib's has no clamp. It sums the draft's tail directly, so that a tail of $10^{-12}$ keeps its digits, and takes a stored
tail that is no more than a rounding as 0. The two values above are not on one scale: CE has the target's own uncertainty in
it, and KL has not.

## One step, cut into pieces

A step learns from a *batch* of answers. If the batch does not fit into memory at once, it is read in **micro-batches**: a forward
and a backward pass for each, the gradients add up in `.grad`, and the optimizer steps once at the end. How the batch is cut
is a matter of memory, so it must not change what is learnt. And that goes wrong easily: answers are of different lengths,
so one piece has 200 answer tokens and another has 60. If each piece's *mean* loss is sent backward, a token of the short
piece counts three times as much.

The rule: the loss of a step is the mean over all answer tokens of the *whole batch*. Prompt tokens do not count, and
neither does the padding that makes rows equally long.

**Exercise 6.2** (medium, 15 minutes). Write the step. `micro_batches` is a list of `(inputs, counted)`;
`losses_of(draft, inputs)` gives a loss at every place, $[B, S]$, garbage at prompt and padding; `counted`, bool
$[B, S]$, says where the answers' tokens are. Clip the gradient to norm 1 with `torch.nn.utils.clip_grad_norm_`, which hands
back the norm that it found.

<details><summary>Hint</summary>

`tokens = sum(counted.sum() for _, counted in micro_batches)` before anything else, and `optimizer.zero_grad()` once. For
each piece: `loss = losses_of(draft, inputs)[counted].sum() / tokens`, then `loss.backward()` at once, so that its
activations can go. Clip and step after the loop.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/06_train_the_draft.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def train_step(draft, optimizer, micro_batches, losses_of):
    """One optimizer step; returns (mean loss of an answer token, gradient norm before clipping), two numbers."""
    # <solution>
    tokens, total = sum(counted.sum() for _, counted in micro_batches), 0.0
    optimizer.zero_grad()
    for inputs, counted in micro_batches:
        loss = losses_of(draft, inputs)[counted].sum() / tokens
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
    optimizer.step()
    return total, norm.item()
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
train_step = checks.ex_6_2(train_step)

# %% [markdown]
r"""
Now with real weights against `lessonlib.train_draft`: four answers, two short and two long ones, for two steps. Yours reads
them in two padded pieces, lessonlib's in one. (Its loop also warms the learning rate up and lowers it again; yours takes the rate of each step from the
same recipe.)
"""

# %%
from torch.nn.utils.rnn import pad_sequence
from lessonlib.distil.losses import Labels, Objective

def padded(store, indices):
    """((ids, stored labels), counted), each padded to [B, S, ...]; a place predicts the token after it."""
    columns, counted = [], []
    for i in indices:
        prompt, answer = store.sequence(i)
        before = lambda part: torch.cat([part.new_zeros(len(prompt) - 1, *part.shape[1:]), part])
        columns.append([torch.tensor((prompt + answer)[:-1]), *map(before, store.kl_inputs(i))])
        counted.append(before(torch.ones(len(answer), dtype=torch.bool)))
    pad = lambda parts: pad_sequence(list(parts), batch_first=True).to(target.device)
    return tuple(map(pad, zip(*columns))), pad(counted)

def losses_of(draft, inputs):
    """The KL at every place [B, S]."""
    ids, *labels = inputs
    labels = Labels(None, *(part.flatten(0, 1) for part in labels))
    return Objective("kl")(draft(ids).logits.flatten(0, 1), labels).view(ids.shape)

# %%
brief_prompts = sorted((row for row in train.rows[:80] if row["resp_ids"]), key=lambda row: len(row["prompt_ids"]))[:40]
by_length = sorted(brief_prompts, key=lambda row: len(row["resp_ids"]))
four = Answers(train.header, by_length[:2] + by_length[-2:])
few = lessonlib.score_answers(target, four, Path(scratch.name) / "four", lesson.preset.k, show=False)

# %%
brief = replace(recipe, steps=2, batch_size=4, micro_batch=4)
mine, theirs = lesson.fresh("A"), lesson.fresh("A")
trained = [weight for weight in mine.parameters() if weight.requires_grad]
optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.0)
order = sorted(range(4), key=lambda i: len(few.sequence(i)[1]))
pieces, steps = [padded(few, order[:2]), padded(few, order[2:])], []
for number in range(brief.steps):
    optimizer.param_groups[0]["lr"] = brief.rate(number)
    steps.append(train_step(mine.train(), optimizer, pieces, losses_of))
losses = lessonlib.train_draft(theirs, few, brief, "kl", show=False)

# %%
counts = [int(counted.sum()) for _, counted in pieces]
with torch.inference_mode():
    means = [losses_of(lesson.fresh("A"), inputs)[counted].mean().item() for inputs, counted in pieces]
print(f"answer tokens in the two pieces: {counts[0]} and {counts[1]}; their mean losses {measured(means[0], '.2f')} and "
      f"{measured(means[1], '.2f')} nats")
print(f"loss of the first step: {measured(steps[0][0], '.2f')}; the mean of the two means would be {measured(sum(means) / 2, '.2f')}")
off = max(abs(yours - loss) for (yours, _), loss in zip(steps, losses))
pairs = zip(mine.parameters(), theirs.parameters())
furthest = max(float((a - b).detach().abs().max()) for a, b in pairs)
print(f"losses differ by at most {measured(off, '.0e')}, below 1e-4: {off < 1e-4}")
print(f"after two steps the weights differ by at most {measured(furthest, '.0e')}, below a step of {brief.lr:g}: {furthest < brief.lr}")

# %% [markdown]
r"""
The losses agree to rounding, and so do the weights but for single ones: Adam divides each gradient by its own size, so where
a gradient is nearly zero its rounding decides the direction.

That division has another consequence. Multiply *all* losses by ten, and Adam takes the same steps; only the clipping
notices. A wrong constant hides well. A wrong *weighting*, short pieces over long ones, does not cancel.

## What training holds

Four numbers for each parameter that trains: its weight, its gradient, and Adam's two running means, of the gradient and of its
square. All are held in fp32, 4 bytes each, because at a small learning rate a 16-bit weight would not move at all: **16 bytes a
parameter**. (With bf16 weights in use and fp32 masters beside them it is again 16: 2 + 2 + 4 + 4 + 4.) A frozen parameter costs its
weight alone. Activations come on top.

**Exercise 6.3** (easy, 5 minutes). Write it.

<details><summary>Hint</summary>

Weights: `4 * trained + frozen_bytes * frozen`. Gradients: 4 bytes, state: 8 bytes a trained parameter.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/06_train_the_draft.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def training_bytes(trained, frozen, frozen_bytes=4):
    """(bytes of weights, of gradients, of optimizer state, of all) with AdamW; trained parameters in fp32."""
    # <solution>
    weights, gradients, state = 4 * trained + frozen_bytes * frozen, 4 * trained, 8 * trained
    return weights, gradients, state, weights + gradients + state
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
training_bytes = checks.ex_6_3(training_bytes)

# %%
gigabytes = predict("Llama 3.2 1B, all of it trained: how many GB without activations?", 5, unit="GB")

# %%
d, mlp, kv, vocabulary = 2048, 8192, 512, 128_256  # meta-llama/Llama-3.2-1B-Instruct: 16 layers, head tied to the embedding
llama = vocabulary * d + 16 * (2 * d * d + 2 * d * kv + 3 * d * mlp + 2 * d) + d
layers = sum(weight.numel() for weight in trained)
others = sum(weight.numel() for weight in mine.parameters()) - layers
print("draft                       trained         frozen   weights  gradients  AdamW    all, GB")
for name, (learns, still) in {"Llama 3.2 1B": (llama, 0), "this preset's A": (layers, others)}.items():
    parts = "  ".join(f"{part / 1e9:>7.3f}" for part in training_bytes(learns, still))
    print(f"{name:<18} {learns:>16,} {still:>14,}   {parts}")
explain(gigabytes, training_bytes(llama, 0)[3] / 1e9, reference=20, band=1, form=".1f", exact=True, must_hold=True)

# %%
held = [*mine.parameters(), *(weight.grad for weight in trained)]
held += [part for state in optimizer.state.values() for part in state.values() if part.ndim]  # and not its counters of steps
found, wanted = sum(part.numel() * part.element_size() for part in held), training_bytes(layers, others)[3]
print(f"counted in your own trained draft: {found:,} bytes; computed: {wanted:,}; the same: {found == wanted}")
print(f"beside it the 8B in bf16, to score: {2 * 8.03:.0f} GB")
del mine, theirs, optimizer, trained, held, pairs, pieces

# %% [markdown]
r"""
For draft A of the tiny pair embedding and head are the target's own, frozen: they are held once, and not for the draft alone.

## CE against KL

Now both trainings. The same draft to begin with, the same answers in the same order, the same steps, rate and seed; CE is
given the target's text, KL its odds. Both should raise alpha, since both show the draft the target's habits. The course
expects KL to gain more at the same number of steps, by more in alpha at $T = 1$ than in top-1. (With any but the tiny
pair each trained draft is saved, so that [08 Decode and score](08_decode_and_score.ipynb) can decode with it.)
"""

# %%
ahead = predict("Alpha by KL minus alpha by CE after these few steps?", 0.02)

# %%
from lessonlib.pair.draft_files import save_draft
from lessonlib.progress import Progress

def train_a(objective):
    """(weights halfway, trained draft, losses) of draft A by an objective, with a line of progress every ten seconds."""
    learner, half = lesson.fresh("A"), {}
    name = objective if isinstance(objective, str) else objective.name
    progress = Progress(f"training by {name}", recipe.steps, "steps")

    def on_step(step, loss):
        progress.add(note=f"loss {loss:.3f}")
        if step + 1 == recipe.steps // 2:
            half.update({name: weight.detach().clone() for name, weight in learner.named_parameters() if weight.requires_grad})

    losses = lessonlib.train_draft(learner, store, recipe, objective, on_step=on_step, show=False)
    progress.finish()
    if not tiny:
        save_draft(learner, lesson.folder / f"A-{name}", target, kind="shape A", training=name)
    return half, learner.eval(), losses

by = {name: train_a(name) for name in ("ce", "kl")}

# %%
from lessonlib.measure.offline import alpha_gain, offline_alphas
from lessonlib.pair.layers_draft import cast_parameters

def halfway(name):
    """The draft as it was after half of the steps."""
    learner = lesson.fresh("A")
    learner.load_state_dict(by[name][0], strict=False)
    return learner.eval()

heldout, greedy = (lesson.answers(name).sequences()[:HELD] for name in ("heldout", "heldout-greedy"))
drafts = {"untrained": draft, "ce": by["ce"][1], "kl": by["kl"][1]}
ready = {**drafts, "ce, half": halfway("ce"), "kl, half": halfway("kl")}
ready = {name: cast_parameters(model, target.dtype) for name, model in ready.items()}
result = dict(zip(ready, offline_alphas(list(ready.values()), target, heldout)))
drafts = {name: ready[name] for name in drafts}
del ready

# %% [markdown]
r"""
Judged on the same answers, so each *difference* is redrawn answer by answer (notebook 05). For greedy serving top-1 is
counted on greedy text, where the target's favourite is the token that stands there: the draft alone has to read.
"""

# %%
import numpy as np
from lessonlib.measure.estimate import ratio_estimate

@torch.inference_mode()
def favourites(model, seqs):
    """For each answer: the model's odds for its favourite at every place, and whether the text has that token; arrays [R]."""
    found = []
    for prompt, answer in seqs:
        text = torch.tensor([prompt + answer], device=model.device)
        logits = model(text, logits_to_keep=len(answer) + 1).logits[0, :-1].float()  # no logits for the prompt
        sure, token = logits.softmax(-1).max(-1)
        found.append((sure.cpu().numpy(), token.cpu().numpy() == np.array(answer)))
    return found

lengths = np.array([len(answer) for _, answer in greedy])
kept = {name: np.array([hit.sum() for _, hit in favourites(model, greedy)]) for name, model in drafts.items()}
top1_gain = lambda after, before: ratio_estimate(kept[after] - kept[before], lengths)

# %%
told = lambda estimate, form=".3f": f"{measured(estimate, form)} [{measured(estimate.low, form)}, {measured(estimate.high, form)}]"
print("draft       alpha, T = 1             KL, nats                 top-1, T = 1 text        top-1, greedy text")
for name in drafts:
    cells = [told(value) for value in (result[name].alpha, result[name].kl, result[name].top1, ratio_estimate(kept[name], lengths))]
    print(f"{name:<10}  " + "  ".join(f"{cell:<23}" for cell in cells))

# %%
def verdict(gain):
    """What an interval says about a gain."""
    return here("a gain" if gain.low > 0 else "a loss" if gain.high < 0 else "not here: the interval holds 0")

# %%
print("difference            alpha, T = 1                                        top-1, greedy text")
for after, before in (("ce", "untrained"), ("kl", "untrained"), ("kl", "ce")):
    gains = alpha_gain(result[after], result[before]), top1_gain(after, before)
    cells = [f"{told(gain, '+.3f')} {verdict(gain)}" for gain in gains]
    print(f"{after + ' - ' + before:<16}  {cells[0]:<50}  {cells[1]}")
gain = alpha_gain(result["kl"], result["ce"])
explain(ahead, gain, reference=0.005, band=(0.0, 0.02) if tiny else 0.1, form="+.3f", must_hold=tiny)

# %%
names, places = ("untrained", "half", "end"), (0, recipe.steps // 2, recipe.steps)
fig, ax = style.figure(6.8, 3.0)
for i, name in enumerate(("ce", "kl")):
    alphas = [result[key].alpha for key in ("untrained", f"{name}, half", name)]
    reach = np.abs([[alpha - alpha.low, alpha.high - alpha] for alpha in alphas]).T
    ax.errorbar(np.array(places) + (i - 0.5) * places[-1] / 60, alphas, reach, color=style.COLOURS[i], linestyle=style.LINES[i],
                marker="os"[i], linewidth=2, capsize=3, label=name.upper())
ax.set(xlabel=f"steps of {recipe.batch_size} answers", ylabel="alpha at T = 1")
ax.set_ylim(top=ax.get_ylim()[1] + 0.02)
ax.legend(frameon=False, loc="upper left", ncols=2)
reach = min(result[name].alpha.high - result[name].alpha.low for name in ("ce", "kl"))
wider = "more" if reach > abs(gain) else "less"
style.finding(ax, f"Each alpha is uncertain by {wider} than the two trainings differ")
show(fig, f"Alpha with its 95 % interval before, halfway and after {recipe.steps} steps by CE and by KL, on {HELD} answers.")

# %% [markdown]
r"""
These intervals are of each alpha by itself. The table above redrew *differences*, and answers that are hard for one draft
are hard for the other. That makes its intervals narrower, and it is the table, not the picture, that decides.

What a few steps cannot show, the long runs on record can. Their drafts were trained on answers of up to 256 tokens and all
judged on the same 500 held-out ones, on their first 64 tokens. Each of the six objectives was trained five times, a seed each:
other answers drawn by the target, in another order. The tables are of seed 0. Their intervals say how sure the *measurement*
is; the lines below say what other seeds have come to.
"""

# %%
from lessonlib.reference import recorded_gain, recorded_trainings

records = recorded_trainings()
record = records[0]
of = lambda name, record=record: record["untrained"]["A"] if name == "untrained" else record["runs"][f"A, {name}"]
wide = lambda value, form=".3f": f"{value['value']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"

def recorded(*names):
    """The long trainings of draft A of these names, a line each."""
    print("on record          alpha, T = 1           KL, nats               top-1, T = 1 text      top-1, greedy text")
    for name in names:
        found = [of(name)["heldout"][key] for key in ("alpha", "kl", "top1")] + [of(name)["heldout-greedy"]["top1"]]
        print(f"{name:<17}  " + "  ".join(f"{wide(value):<21}" for value in found))

# %%
long_run = of("kl")["recipe"]
print(f"{record['answers']:,} answers, {record['tokens']:,} tokens, {long_run['steps']} steps of {long_run['batch_size']}, "
      f"rate {long_run['lr']:g}, seed {long_run['seed']}; {record['machine']}, {record['versions'].split(',')[0]}")
recorded("untrained", "ce", "kl")

# %%
at = lambda name, run, key, record=record: of(name, record)[run][key]["value"]
in_seeds = lambda holds: f"in {sum(map(bool, holds))} of {len(records)} seeds"
gained = at("kl", "heldout", "alpha") - at("untrained", "heldout", "alpha")
print(f"KL over untrained: {gained:+.3f} alpha; several points (3 or more):", "as expected" if gained >= 0.03 else "not here")

# %%
print("KL over CE   alpha at T = 1, redrawn by answers   top-1 on greedy text")
leads = []
for each in records:
    alpha = recorded_gain(each, "A, kl", "A, ce")
    top1 = at("kl", "heldout-greedy", "top1", each) - at("ce", "heldout-greedy", "top1", each)
    leads.append((alpha, top1))
    print(f"seed {each['seed']}       {alpha:+.4f} {alpha.interval('+.4f'):<27} {top1:+.4f}")
print("KL ahead in alpha, the interval above 0:", in_seeds(alpha.low > 0 for alpha, _ in leads))
larger = [alpha > top1 for alpha, top1 in leads]
print("its lead is larger in alpha than in top-1:", in_seeds(larger) + ",", "as expected" if all(larger) else "not here")
assert all(alpha > 0 for alpha, _ in leads)

# %% [markdown]
r"""
The course hopes for several points of alpha over the untrained draft. Its other expectation, the last line, has a reason: CE sees
one token a place, and one would think that it learns the favourite from that about as well as KL. Where it says *not
here*, KL's lead is the larger one in top-1. A point of one is not a point of the other, so the sizes say little. That the
order is the same in so many seeds says more.

Is a lead of that size worth anything? By the formula of notebook 01, with verification for free and alpha as recorded:
"""

# %%
best = lambda alpha, c: max(lessonlib.speedup(alpha, K, c) for K in range(9))
print("     c   untrained      ce      kl   kl, 6 epochs   last over first   10 to 45 %")
for c in (0.3, 0.15):
    speeds = [best(at(name, "heldout", "alpha"), c) for name in ("untrained", "ce", "kl", "kl, 6 epochs")]
    more = speeds[3] / speeds[0] - 1
    print(f"  {c:>4}   {speeds[0]:>8.2f}x  {speeds[1]:>5.2f}x  {speeds[2]:>5.2f}x  {speeds[3]:>11.2f}x   {more:>+14.0%}"
          f"    {'inside' if 0.1 <= more <= 0.45 else 'not here'}")

# %% [markdown]
r"""
The published range for distilled drafts (DistillSpec) is 10 to 45 % of extra speed, measured, in other set-ups than this
one; the last column holds ours, computed, against it. The cheaper the draft's step, the more the same points of alpha are
worth.

## Why the odds teach more than the text

Put both losses at one place. With respect to the draft's logits the gradient of KL is $q - p$, that of CE is $q - e_x$, where
$e_x$ is 1 at the token $x$ that was drawn and 0 elsewhere. But $x$ was drawn *from* $p$. So the average of $e_x$ is $p$:

$$\mathbb{E}_{x \sim p}\,[\,q - e_x\,] = q - p, \qquad
\mathbb{E}\,\|e_x - p\|^2 = 1 - \sum_x p(x)^2.$$

So on text that the target drew at $T = 1$, CE *is* KL over all odds, with noise. No direction differs on average. How large
is the noise? At each place compare its mean square, $1 - \sum p^2$, with the square of what is to be learnt, $\|q - p\|^2$.
"""

# %%
noisy = predict("Noise over signal, both squared and averaged over an answer's places?", 1, unit="times")

# %%
with torch.inference_mode():
    rows = []
    for prompt, answer in heldout[:3]:
        text = torch.tensor([prompt + answer], device=target.device)
        p, q = (model(text).logits[0, len(prompt) - 1:-1].double().softmax(-1) for model in (target, draft))
        e = F.one_hot(text[0, len(prompt):], p.shape[-1])
        rows.append(torch.stack([1 - p.square().sum(-1), (e - p).square().sum(-1), (q - p).square().sum(-1)]))
noise, drawn, signal = torch.cat(rows, 1).mean(1).tolist()
explain(noisy, noise / signal, reference=2.7, band=1.0 if tiny else 100, form=".1f", exact=True, must_hold=tiny)
print(f"noise expected {noise:.2f}, with the tokens that were drawn {drawn:.2f}; signal {signal:.2f}")

# %% [markdown]
r"""
Over a batch of places the noise averages out, while what they have in common stays. But as the draft gets better the signal
shrinks and the noise does not. So by CE each further point of alpha takes ever more text, while KL is told the average at
every place.

**A little CE beside the KL?** A common recipe adds a small weight $w$ of CE on the text, "to stabilise". What does the
algebra say? With all odds stored the gradient would be $(1 + w)(q - p)$ on average: nothing that KL has not, plus $w$ times
noise. With 64 and one tail CE adds one thing, how the target spreads its tail, and pays for it with noise. (On *human* text
it would pull elsewhere.) On record with $w = 0.1$:
"""

# %%
recorded("kl", "kl + 0.1 ce")
mixed = recorded_gain(record, "A, kl + 0.1 ce", "A, kl")
size = "less than a thousandth" if max(-mixed.low, mixed.high) < 0.001 else "an effect"
print(f"alpha with the CE minus without: {mixed:+.4f} {mixed.interval('+.4f')}: {size} (seed 0)")

# %% [markdown]
r"""
In code it is `Objective("kl", ce_weight=0.1)` in place of `"kl"`. It can still be of use where labels are cut to very few
tokens and the tail is large, for there the stored odds say little.

## Does it know how sure it may be?

A draft that says 0.8 should be right 8 times in 10. Alpha asks for that too: a sampled guess is kept in full only where the draft
bets no more than the target does. On text drawn at $T = 1$ it can be seen without a target: sort the places by the draft's
odds for its favourite, and count how often the text has it.
"""

# %%
surer = predict("Before training: the draft's mean odds for its favourite, minus how often the text has it?", 0.1)

# %%
edges = np.array([0, 0.2, 0.4, 0.6, 0.8, 1.001])
bins, error, over, excess = {}, {}, {}, {}
for name, model in drafts.items():
    looked = favourites(model, heldout)
    sure, hit = (np.concatenate(column) for column in zip(*looked))
    excess[name] = np.array([(sure - hit).sum() for sure, hit in looked])
    which = np.digitize(sure, edges) - 1
    bins[name] = [(sure[which == b].mean(), hit[which == b].mean(), (which == b).mean()) for b in range(5) if (which == b).any()]
    error[name] = sum(share * abs(said - found) for said, found, share in bins[name])
    over[name] = sure.mean() - hit.mean()
for name in drafts:
    print(f"{name:<10} odds minus hits {measured(over[name], '+.3f')}; bin by bin they are off by {measured(error[name], '.3f')}")
explain(surer, over["untrained"], reference=0.03, band=0.03 if tiny else 0.3, form="+.3f", must_hold=tiny)

# %%
fig, ax = style.figure(5.2, 3.6)
ax.plot([0, 1], [0, 1], color=style.QUIET, linewidth=1)
for i, (name, points) in enumerate(bins.items()):
    said, found, _ = zip(*points)
    ax.plot(said, found, color=style.COLOURS[i], linestyle=style.LINES[i], marker="os^"[i], linewidth=2, label=name)
ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="the draft's odds for its favourite", ylabel="share of places where the text has it")
ax.legend(frameon=False, loc="upper left")
lowest = min(error, key=error.get)
style.finding(ax, f"Nearest to the diagonal: {lowest}")
show(fig, "How often the text has the draft's favourite, over the odds that the draft gave it, before training and after it by "
          "CE and by KL; on the diagonal a draft would be exactly as sure as it may be.")

# %% [markdown]
r"""
With few places in a bin a point is uncertain by several hundredths, so do not read much into single points. KL and CE reward
honest odds: their minimum is $q = p$, as it is for every divergence here. Where a draft is too small to reach $p$, the
divergences part; the last line after the third training below says which way.

## Every divergence on the same budget

The stored odds serve any divergence: each is computed over the 64 tokens and one tail, as above. `lessonlib.Objective` has
reverse KL, JSD (the symmetric one between them), TV ($1 - \alpha$ if all odds are stored; over 64 and a tail at most that),
and LK, which begins as KL and turns into TV as alpha grows. All from the same draft, on the same answers, for the same steps: which will be best if you sample at $T = 1$, and
which if you serve greedily? Notebook 03's one bump gave a hint. Write your guesses down, and choose the one that you want
to train here, besides the two that are trained.
"""

# %%
GUESS = {"T = 1": "tv", "greedy": "kl"}  # your guesses: ce, kl, reverse_kl, jsd, tv or lk
OTHER = "jsd"  # the third training of this notebook: any of these but ce and kl
leap = predict("Alpha at T = 1: the best of the six minus forward KL, on record?", 0.0)

# %%
by[OTHER] = train_a(OTHER)
drafts[OTHER] = cast_parameters(by[OTHER][1], target.dtype)
(result[OTHER],) = offline_alphas([drafts[OTHER]], target, heldout)
kept[OTHER] = np.array([hit.sum() for _, hit in favourites(drafts[OTHER], greedy)])

# %%
for name in ("untrained", "ce", "kl", OTHER):
    print(f"{name:<10}  alpha {told(result[name].alpha)}   top-1, greedy text {told(ratio_estimate(kept[name], lengths))}   "
          f"KL {measured(result[name].kl, '.2f')} nats")
for name in ("untrained", "kl"):
    gains = alpha_gain(result[OTHER], result[name]), top1_gain(OTHER, name)
    print(f"{OTHER} - {name}: " + "; ".join(f"{word} {told(gain, '+.3f')} {verdict(gain)}"
                                            for word, gain in zip(("alpha", "top-1"), gains)))
excess[OTHER] = np.array([(sure - hit).sum() for sure, hit in favourites(drafts[OTHER], heldout)])
surer_by = ratio_estimate(excess[OTHER] - excess["kl"], result["kl"].lengths)
way = "surer than by kl" if surer_by.low > 0 else "less sure than by kl" if surer_by.high < 0 else "not here: the interval holds 0"
print(f"odds minus hits: kl {measured(over['kl'], '+.3f')}, {OTHER} higher by {told(surer_by, '+.3f')}: {here(way)}")

# %% [markdown]
r"""
And all of them, for the long runs: the table of seed 0, then the order of the means over the five seeds. All seeds are judged on the
same answers, so what differs from seed to seed is the training.
"""

# %%
SIX = ("ce", "kl", "reverse_kl", "jsd", "tv", "lk")
recorded("untrained", *SIX)
first = {}
for serving, (run, key) in {"T = 1": ("heldout", "alpha"), "greedy": ("heldout-greedy", "top1")}.items():
    by_seed = {name: [at(name, run, key, each) for each in records] for name in SIX}
    order = sorted(SIX, key=lambda name: -sum(by_seed[name]))
    first[serving] = [max(SIX, key=lambda name: by_seed[name][i]) for i in range(len(records))]
    print(f"{serving:<7} mean of the seeds: " + ", ".join(f"{name} {np.mean(by_seed[name]):.3f}" for name in order))
    print(f"        from seed to seed at most {max(max(values) - min(values) for values in by_seed.values()):.3f} apart; first "
          f"{in_seeds(name == order[0] for name in first[serving])}: {order[0]}; your guess {GUESS[serving]} is number {order.index(GUESS[serving]) + 1}")
best_alpha = max(at(name, "heldout", "alpha") for name in SIX)
explain(leap, best_alpha - at("kl", "heldout", "alpha"), reference=0.022, band=0.01, form=".3f", exact=True, must_hold=True)

# %% [markdown]
r"""
Four things to look for, each settled by a line below:

- Is one objective the first **both ways**?
- **At $T = 1$**, do those that charge the draft for its own misplaced odds end above forward KL? Forward KL covers all that
  the target might say, and a draft this small pays for the cover.
- **Greedily**, which of them end above forward KL? A draft can be off in its odds and right in its ranking.
- **KL itself**: whose is lowest, whose highest?
"""

# %%
both = in_seeds(sampled == greedily == "jsd" for sampled, greedily in zip(*first.values()))
print(f"jsd is first both ways {both}")
for name in ("ce", "reverse_kl", "jsd", "tv", "lk"):
    gains = [recorded_gain(each, f"A, {name}", "A, kl") for each in records]
    top1 = [at(name, "heldout-greedy", "top1", each) - at("kl", "heldout-greedy", "top1", each) for each in records]
    print(f"{name:<10} minus kl, seed 0: alpha {gains[0]:+.3f} {gains[0].interval('+.3f')}; above 0 {in_seeds(gain > 0 for gain in gains)}; "
          f"greedy top-1 above kl's {in_seeds(gain > 0 for gain in top1)}")
    assert all(gain.high < 0 if name == "ce" else gain.low > 0 for gain in gains)
by_kl = sorted(SIX, key=lambda name: at(name, "heldout", "kl"))
print(f"lowest KL: {by_kl[0]}; highest: {by_kl[-1]}, whose alpha is {at(by_kl[-1], 'heldout', 'alpha') - at(by_kl[0], 'heldout', 'alpha'):+.3f} from it")
assert set(first["T = 1"]) == set(first["greedy"]) == {"jsd"}

# %% [markdown]
r"""
Each objective gets what it asks for. So never judge by a loss that one of the candidates was trained on, and never compare the
*values* of two losses.

Of all losses TV is the nearest to what is wanted; is it the best to train on? Its gradient vanishes wherever the draft's odds
are small, so it hardly moves what the draft does not know yet. A draft that can write already, such as A, is where it has a
chance; one that knows nothing had better begin with KL. (So say the slopes in notebook 03; no run on record trains B by TV.)

Choose an objective and a step, and see its alpha and its loss side by side.
"""

# %%
from lessonlib.workbook.explorables.nb06 import RecordedTrainings

RecordedTrainings({name.removeprefix("A, "): run for name, run in record["runs"].items() if name.startswith("A, ")})

# %% [markdown]
r"""
**Longer.** Six epochs instead of two, over the same answers:
"""

# %%
recorded("kl", "kl, 6 epochs", "jsd", "jsd, 6 epochs")
for name in ("kl", "jsd"):
    more = recorded_gain(record, f"A, {name}, 6 epochs", f"A, {name}")
    print(f"{name}: {more:+.3f} {more.interval('+.3f')} alpha for three times the steps (seed 0)")

# %% [markdown]
r"""
The draft of the six epochs by KL comes with the course under the name `distilled`, and notebook 08 decodes with it. Of its layers only
the *difference* from the off-the-shelf draft is stored: it is small, so 4 bits a weight hold it. What did the rounding cost?
"""

# %%
from lessonlib.files import read_json
from lessonlib.reference import REFERENCE

shipped = read_json(REFERENCE / "distilled.json")["drafts"]
for name, runs in shipped.items():
    print(f"{name:<22} alpha {wide(runs['heldout']['alpha'])}   top-1, greedy text {wide(runs['heldout-greedy']['top1'])}")
whole, rounded = (runs["heldout"]["alpha"]["value"] for runs in shipped.values())
print(f"the rounding costs {whole - rounded:.4f} of alpha")

# %% [markdown]
r"""
## Recap

- The loss over stored odds needs the tail as an event of its own; without it the loss is no divergence. A step's loss is the mean
  over all answer tokens of the whole batch, however it is cut.
- On the target's own text CE is KL with noise. So expect KL to learn faster from the same answers, and next to nothing new
  from a little CE beside it.
- Which divergence is best has to be measured, in the way that you serve, on held-out text and never by the losses. On this
  record JSD came first both ways, with every seed; at $T = 1$ all four that charge the draft for misplaced odds stand above
  forward KL, and CE below it.

## Explain it back

Say each answer aloud before you open it.

<details><summary>What happens in training if the tail is left out, although each stored probability is right?</summary>

The loss falls when the draft moves odds from the rest of the vocabulary to the stored tokens, without end. It ends below
zero, and the draft gives the tail nothing, though the target does.

</details>

<details><summary>Two micro-batches hold 200 and 60 answer tokens, and you average their mean losses. What is learnt?</summary>

Tokens of short answers more than those of long ones, by a factor of 200/60. It also depends on how the batch happened to be cut.

</details>

<details><summary>Which draft is better: KL loss 0.8 or JSD loss 0.13?</summary>

The numbers say nothing about each other: they have different units, so to speak. Measure alpha of both on the same text.

</details>

<details><summary>CE and KL have the same gradient on average. Why is KL the better one at the same number of steps?</summary>

On average over all tokens that could have been drawn. A place of the text has one draw. KL has at each place what CE would
see only after many draws in the same context, which does not come again.

</details>

<details><summary>Your 8B target fits into 16 GB. What does training a 1B draft need beside it?</summary>

16 bytes a parameter, some 20 GB, and activations, which the micro-batch decides. With stored odds the target need not be there at all.

</details>

## Two things to change and rerun

1. `OTHER = "tv"`, then `OTHER = "reverse_kl"`, from that cell on. Do a few steps put them in the order of the record?
2. `STEPS = 40` and `ANSWERS = 240` in the second cell, if you have ten minutes. Which intervals cease to hold 0?

**Next**: [07 Truncate the target](07_truncate_the_target.ipynb), a draft of another shape with the same training. Back:
[05 Measure without decoding](05_measure_without_decoding.ipynb).
"""
