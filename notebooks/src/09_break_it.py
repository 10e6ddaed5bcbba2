# %% [markdown]
r"""
# Break it on purpose

Four mistakes that people make with a draft, made here knowingly: labels one row off, a temperature meant for another job,
labels cut down to the favourite, and a benchmark that was trained on. Each time something looks well. Three times it is
the loss, which falls; the fourth time it is the very number that the whole course is about.

**You will** predict what each mistake costs before you make it; train with it and hold alpha against the loss; find a
shift from the labels alone; see what a loss at $T = 4$ looks at; leak the benchmark, count the decoder's rounds on leaked
and on fresh prompts, and compute what that buys; write a leak detector and an honest report.

**You need** [04 Build the data set](04_build_the_dataset.ipynb) (labels, the alignment check), [02 Learn from soft
labels](02_learn_from_soft_labels.ipynb) ($T$ and $T^2$), [05 Measure without
decoding](05_measure_without_decoding.ipynb) (alpha and its interval) and [08 Decode and
score](08_decode_and_score.ipynb) (rounds, the speed-up formula). $p$ is the target, $q$ the draft.

**Time**: it runs in about a minute on two cores with the tiny pair. On a DGX Spark the same cells train on a
few thousand answers, by our estimate (not measured) in about an hour. Reading and three exercises: an hour. [All
solutions](solutions/09_break_it.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # no module lessonlib? Run: make lab
import lessonlib, torch
import numpy as np

# %%
from lessonlib.lesson import Lesson

lesson = Lesson(lessonlib.preset())
target, tokenizer = lesson.target, lesson.tokenizer
tiny = lesson.preset.name == "tiny"
trained_on, length, heldout_on, steps, batch = (20, 20, 10, 7, 4) if tiny else (3_200, 200, 100, 200, 16)
print(here(lesson.preset))

# %% [markdown]
r"""
## One store, one seed, one draft

All runs share everything but the mistake: the same answers of the target, scored once; the same draft to begin with, a
*trained* one, for in it there is most to break; the same steps, learning rate and seed 0. With the tiny pair that draft is
`distilled`, which the course ships (six epochs of forward KL, see [06 Train the draft](06_train_the_draft.ipynb)), and the
training is a handful of short answers
and a few steps, so that you need not wait. What hundreds of steps on thousands of answers do is on record, and printed beside.
"""

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from lessonlib.traffic.answers import Answers

def shortest(run, count):
    """The answers to the shortest prompts, cut at `length` tokens; those that ended earlier are left out."""
    rows = sorted((row for row in run.rows if len(row["resp_ids"]) >= length), key=lambda row: len(row["prompt_ids"]))
    return Answers(run.header, [{**row, "resp_ids": row["resp_ids"][:length]} for row in rows[:count]])

scratch = TemporaryDirectory()  # the folder is gone when the kernel ends
answers, heldout = shortest(lesson.answers("train"), trained_on), shortest(lesson.answers("heldout"), heldout_on).sequences()
store = lessonlib.score_answers(target, answers, Path(scratch.name) / "labels", k=64, temperatures=(4.0,), show=not tiny)
print(f"{len(store)} answers, {store.rows:,} positions to train on; {len(heldout)} held-out answers to measure on")

# %%
own = lesson.folder / "A-kl"  # what notebook 06 leaves, with any but the tiny pair
begin_with = "distilled" if tiny else own if own.is_dir() else None
if begin_with is None:
    print("no trained draft of this pair yet (notebook 06 leaves one): the runs begin with the off-the-shelf one")

# %%
from dataclasses import dataclass, replace
from lessonlib.distil.losses import Objective
from lessonlib.lesson import recipe_of
from lessonlib.measure.offline import OfflineAlpha, alpha_gain, offline_alphas

recipe = replace(recipe_of(lesson.preset, "A"), steps=steps, batch_size=batch, **({"lr": 1e-3} if tiny else {}))

@dataclass
class Run:
    draft: torch.nn.Module
    losses: list
    result: OfflineAlpha

def train(name, labels, objective):
    """The draft that all runs begin with, in fp32, trained on these labels: (draft, losses)."""
    draft = lesson.load(begin_with, torch.float32)
    losses = lessonlib.train_draft(draft, labels, recipe, objective, dtype=lesson.preset.dtype, label=name, show=not tiny)
    return draft.eval(), losses

def measure(*trained):
    """Runs of (draft, losses) pairs, measured on the held-out answers; the target reads them once for all."""
    results = offline_alphas([draft for draft, _ in trained], target, heldout)
    return [Run(*pair, result) for pair, result in zip(trained, results)]

# %%
HEAD = "                      loss                alpha [95 %]               top-1   KL(p || q), nats"

def tell(name, run):
    """One line: where the loss began and ended, and what was measured."""
    losses, result = run.losses, run.result
    fell = f"{measured(losses[0], '.2f')} -> {measured(np.mean(losses[-2:]), '.2f')}" if losses else ""
    alpha = f"{measured(result.alpha, '.3f')} [{measured(result.alpha.low, '.3f')}, {measured(result.alpha.high, '.3f')}]"
    print(f"{name:<20}  {fell:<18}  {alpha:<25}  {measured(result.top1, '.3f'):<6}  {measured(result.kl, '.2f')}")

start = lesson.load(begin_with, torch.float32).eval()
before, right = measure((start, []), train("right", store, Objective("kl")))
print(HEAD)
tell("before", before)
tell("right", right)
change = alpha_gain(right.result, before.result)
print(f"right minus before: {measured(change, '+.3f')} [{measured(change.low, '+.3f')}, {measured(change.high, '+.3f')}]")

# %% [markdown]
r"""
The right run is what all the others are held against. Its labels are right, and still it need not gain: with the tiny pair
the draft has learned from thousands of answers before, and a few steps at a rate meant for beginners, on twenty short ones,
shake it. Whatever the mistakes cost *beyond* that is theirs. And this reads the record. Its runs begin with the target's first four
layers, near useless untrained, so their alphas are not to be compared with the ones here, only with each other. They were
trained on answers of up to 256 tokens and judged on the first 64 tokens of held-out ones, with top-1 on greedy answers. There
are five trainings of each, a seed each: other answers, in another order. The lines are those of seed 0, and their intervals say
how sure the *measurement* is; in how many of the seeds a mistake shows is counted apart.
"""

# %%
from lessonlib.reference import recorded_gain, recorded_trainings

records = recorded_trainings()
record = records[0]

def recorded(*names):
    """The long runs of these names, a line each."""
    print(f"on record ({record['machine']}, {record['answers']:,} answers, {record['tokens']:,} tokens):")
    print("run                     loss              alpha [95 %]           top-1, greedy   KL, nats")
    for name in names:
        run = record["runs"][f"B, {name}"]
        alpha, top1, kl = run["heldout"]["alpha"], run["heldout-greedy"]["top1"], run["heldout"]["kl"]
        fell, interval = f"{run['losses'][0]:.2f} -> {run['losses'][-1]:.2f}", f"[{alpha['low']:.3f}, {alpha['high']:.3f}]"
        called = name.replace("one row late", "cut one row late")
        print(f"{called:<22}  {fell:<16}  {alpha['value']:.3f} {interval}   {top1['value']:<13.3f}   {kl['value']:.2f}")

def in_seeds(what, holds):
    """Print in how many seeds `holds(record of the seed)` is true, and stop where it is not all of them."""
    found = [bool(holds(each)) for each in records]
    print(f"on record, {what}: in {sum(found)} of {len(found)} seeds")
    assert all(found)

recorded("kl")

# %% [markdown]
r"""
## Off by one

With a prompt of $s$ tokens and a text of $n$, the rows that speak of the answer are $s - 1$ to $n - 2$. Cut them one late
for the target, $s$ to $n - 1$, and every row of the draft is told what the target says *one token on*. The shapes fit. All
probabilities sum to 1. Nothing stops.

What will the loss do, and what alpha?
"""

# %%
late_loss = predict("Cut one row late: at the end, the loss is how many percent of what it was?", 100, unit="%")
late_alpha = predict(f"After {steps} steps: the draft's alpha, in percent of what it was before?", 90, unit="%")

# %%
from lessonlib.labels.faults import FavouriteOnly, OneRowLate

(late,) = measure(train("cut one row late", OneRowLate(store), Objective("kl")))
print(HEAD)
tell("right", right)
tell("cut one row late", late)
explain(late_loss, 100 * np.mean(late.losses[-2:]) / late.losses[0], band=(0, 90), form=".0f", must_hold=tiny)
explain(late_alpha, 100 * late.result.alpha / before.result.alpha, band=(0, 60), form=".0f", must_hold=tiny)
cost = alpha_gain(late.result, right.result)
print(f"alpha against the right run: {measured(cost, '.3f')} [{measured(cost.low, '.3f')}, {measured(cost.high, '.3f')}], "
      f"below 0: {cost.high < 0}")

# %%
recorded("kl", "one row late")
run = record["runs"]["B, one row late"]
print(f"the loss fell to {run['losses'][-1] / run['losses'][0]:.0%} of its first value, and alpha is "
      f"{run['heldout']['alpha']['value'] / record['runs']['B, kl']['heldout']['alpha']['value']:.0%} of the right run's")
in_seeds("the loss falls by half or more", lambda seed: 2 * seed["runs"]["B, one row late"]["losses"][-1] < seed["runs"]["B, one row late"]["losses"][0])
in_seeds("alpha is below the right run's", lambda seed: recorded_gain(seed, "B, one row late", "B, kl").high < 0)

# %% [markdown]
r"""
A loss that falls says that the draft has learned *something*. Which thing? It was asked for the token after the next one.
That can be learned, it is only harder: one has to guess the word between as well. So measure alpha against what it was
taught, the odds of one token on. A store alone brackets it (notebook 05); the lower end is enough here.
"""

# %%
from lessonlib.measure.offline import alpha_bracket

for name, draft in (("before", start), ("trained on rows cut late", late.draft)):
    low = alpha_bracket(draft, OneRowLate(store)).low
    print(f"{name:<24}  alpha against the odds of one token on, at least: {measured(low, '.3f')}")

# %% [markdown]
r"""
If the second is higher, the loss has told the truth: the draft agrees better with its labels. They were the wrong
labels.

### The alarm that would have rung

The alignment check of notebook 04 asks the target again, one answer at a time, and compares row by row:
"""

# %%
for name, labels in (("as stored", store), ("cut one row late", OneRowLate(store))):
    try:
        check = lessonlib.check_alignment(target, labels, sequences=2)
        print(f"{name}: no objection; KL over {check.rows} rows below 0.001 nats: {check.kl < 0.001}")
    except lessonlib.LessonError as refusal:
        print(f"{name}: refused. {here(refusal)}")

# %% [markdown]
r"""
(Rows *cut* one late tell every token's odds one place too *early*: row $j$ holds the odds of token $j + 1$. We named the
first, the check names the second.) Two answers read again, against a training that would have been thrown away.

### Find it without the target

Suppose the target is not at hand, only a folder of labels that somebody sent. The text is in it too. The target's
favourite at a place is often the token that was then written. So hold row $j$ against token $j$, and against its
neighbours: of labels that are right, shift 0 agrees most.

**Exercise 9.1** (medium, 10 minutes). For the shifts -1, 0 and +1: at what share of rows $j$ is the favourite equal to the
written token number $j + \text{shift}$? Count only rows for which that token exists.

<details><summary>Hint</summary>

At +1, `favourites[:-1]` meets `written[1:]`; at -1 it is the other way round. `(a == b).double().mean()` is a share.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/09_break_it.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def shift_shares(favourites, written):
    """(share at -1, at 0, at +1) of rows j whose favourite [R] is the written token [R] number j + shift."""
    # <solution>
    pairs = (favourites[1:], written[:-1]), (favourites, written), (favourites[:-1], written[1:])
    return tuple(float((a == b).double().mean()) for a, b in pairs)
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
shift_shares = checks.ex_9_1(shift_shares)

# %%
def mean_shares(labels):
    """The mean of the three shares over all answers of a store."""
    texts = (torch.tensor(labels.sequence(i)[1]) for i in range(len(labels)))
    return np.mean([shift_shares(labels.kl_inputs(i)[0][:, 0], written) for i, written in enumerate(texts)], axis=0)

print("labels              -1     0      +1     best")
for name, labels in (("as stored", store), ("cut one row late", OneRowLate(store))):
    shares = mean_shares(labels)
    print(f"{name:<16}  {'  '.join(format(share, '.2f') for share in shares)}   {('-1', '0', '+1')[shares.argmax()]}")

# %% [markdown]
r"""
This check needs no model and takes a moment. It is weaker than the other one: it sees a shift, not labels of another
target. The favourite throws most of a row away; the log-probability of the written token uses more of it. Both at every
shift, with a few words of one answer:
"""

# %%
def held_against(i, shift):
    """(whether the favourite is it, log-probability) of token j + shift in row j of answer i, for the rows that have one."""
    ids, gaps, lse = store.kl_inputs(i)
    rows = torch.arange(max(0, -shift), len(ids) - max(0, shift))
    token = torch.tensor(store.sequence(i)[1])[rows + shift, None]
    outside = store.log_tail(i)[rows].double() - np.log(target.config.vocab_size - store.k)  # the tail, spread evenly
    logs = (gaps - lse[:, None])[rows].masked_fill(ids[rows] != token, -np.inf).amax(1)
    return (ids[rows, :1] == token)[:, 0].double(), torch.where(logs.isinf(), outside, logs)

# %%
from lessonlib.workbook.explorables.nb09 import ShiftedLabels

curves = [[torch.cat(part).mean() for part in zip(*(held_against(i, shift) for i in range(len(store))))] for shift in range(-3, 4)]
shares, log_probs = zip(*curves)
best = max(range(len(store)), key=lambda i: float(held_against(i, 0)[0][3:12].sum()))
words = [[tokenizer.decode([token]) for token in ids] for ids in (store.sequence(best)[1], store.kl_inputs(best)[0][:, 0].tolist())]
ShiftedLabels(*words, log_probs, shares)

# %% [markdown]
r"""
## Hinton's temperature, another job

Distilling at a temperature $T$ softens both models' odds by it and multiplies the loss by $T^2$. It was made for a student
that is to *know* what its teacher knows, and is judged by its first choice. A draft is judged by its odds, at the
temperature that is served.

Twice, then: $T = 4$ on the 64 stored tokens scaled up to sum to 1, as it is usually done; and with all odds, where the tail
is a bucket of its own with the normaliser that was stored for $T = 4$. Both are measured at $T = 1$. The course expects
less alpha than the right run has, and more harm when sampling at $T = 1$ than greedily.
"""

# %%
flat = predict("T = 4 on the top 64: by how many points (hundredths of alpha) does it fall short of the right run?", 2, unit="points")
whole = predict("T = 4 on all odds: and this one?", 1, unit="points")

# %%
TOP, ALL = "T = 4 on the top 64", "T = 4 on all odds"
top64, all_odds = measure(*(train(name, store, Objective("kl", T=4.0, renormalise=name == TOP)) for name in (TOP, ALL)))
print(HEAD)
tell("right", right)
tell(TOP, top64)
tell(ALL, all_odds)
for prediction, run, band in ((flat, top64, (1, 100)), (whole, all_odds, (0, 100))):
    cost = alpha_gain(right.result, run.result)
    explain(prediction, 100 * cost, band=band, form=".1f", must_hold=tiny)
    verdict = here("as expected" if cost.low > 0 else "not here, not in so few steps")
    print(f"  95 % interval {measured(100 * cost.low, '.1f')} to {measured(100 * cost.high, '.1f')} points; costs alpha: {verdict}")

# %%
def shares_kept(name):
    """In points, on record: alpha at T = 1 and top-1 on greedy answers."""
    run = record["runs"][f"B, {name}"]
    return 100 * np.array([run["heldout"]["alpha"]["value"], run["heldout-greedy"]["top1"]["value"]])

recorded("kl", TOP, ALL)
falls = {name: shares_kept("kl") - shares_kept(name) for name in (TOP, ALL)}
for name, (alpha, top1) in falls.items():
    verdict = "as expected" if alpha > top1 else "not here"
    print(f"{name}: alpha at T = 1 falls by {alpha:.1f} points, greedy top-1 by {top1:.1f}; alpha by more: {verdict}")
for name in (TOP, ALL):
    in_seeds(f"{name}: alpha is below the right run's", lambda seed: recorded_gain(seed, f"B, {name}", "B, kl").high < 0)
worst = max(falls, key=lambda name: falls[name][0])
print(f"the lowest alpha on record is that of {worst}; expected was the top 64: {'as expected' if worst == TOP else 'not here'}")

# %% [markdown]
r"""
One would think that all odds are the better labels, and that flat odds do little harm to the first choice. Where it says *not
here*, the record is against it, and the few steps from another draft here need not agree with the record. So do not guess,
look at what each loss is made of. First the labels: how much of the odds do the tokens have that matter?
"""

# %%
print("          favourite   other 63   all the rest")
for T in (1.0, 4.0):
    ids, gaps, lse = map(torch.cat, zip(*(store.kl_inputs(i, T) for i in range(len(store)))))
    odds = (gaps / T - lse[:, None]).exp()
    shares = odds[:, 0].mean(), odds[:, 1:].sum(1).mean(), 1 - odds.sum(1).mean()
    print(f"T = {T:.0f}:    " + "      ".join(f"{format(share, '.3f'):<6}" for share in shares))
scaled = (gaps / 4).softmax(-1)[:, 0].mean()
print(f"T = 4, the 64 scaled up: the favourite has {scaled:.3f} of the odds; evenly spread it would be {1 / 64:.3f}")

# %% [markdown]
r"""
At $T = 4$ the target's odds are flat, and there are very many tokens. Nearly all of its weight lies outside the 64, on
tokens that are practically never said. A loss *on all odds* is then mostly about the total of the tail, and what it says of
the 64 counts by their small share. *Scaled up*, the 64 count fully, but nearly alike, and the tail is forbidden.

That is notebook 02's limit at work: for large $T$, $T^2$ times the loss tends to half the mean squared difference of the
logits (each row's mean taken away). All tokens count the same, likely or not. So ask the gradient: on which tokens does it
push the draft that all began with?
"""

# %%
from lessonlib.distil.losses import Labels
from lessonlib.pair.hidden import body_and_head, response_hidden

some = range(min(4, len(store)))
with torch.inference_mode():
    body, head = body_and_head(start)
    logits = head(response_hidden(body, [store.sequence(i) for i in some], head.weight.device)).float().cpu().clone()
written = torch.tensor([token for i in some for token in store.sequence(i)[1]])
favourites_first = torch.cat([store.kl_inputs(i)[0] for i in some])

def pushes(objective, labels):
    """Shares of the gradient's absolute sum on the target's favourite, the next 7, the next 56, and the rest; and the rest's net push down."""
    T = 1.0 if objective.renormalise else objective.T
    odds = map(torch.cat, zip(*(labels.kl_inputs(i, T) for i in some)))
    leaf = logits.clone().requires_grad_(True)
    objective(leaf, Labels(written, *odds)).sum().backward()
    push = leaf.grad / leaf.grad.abs().sum(-1, keepdim=True)
    stored = push.gather(-1, favourites_first)
    size, net = stored.abs(), -stored.sum(1)  # a row's gradient sums to 0
    return [float(part.mean()) for part in (size[:, 0], size[:, 1:8].sum(1), size[:, 8:].sum(1), 1 - size.sum(1), net)]

# %%
objectives = {"right, T = 1": (Objective("kl"), store), TOP: (Objective("kl", T=4.0, renormalise=True), store),
              ALL: (Objective("kl", T=4.0), store), "favourite only": (Objective("kl"), FavouriteOnly(store))}
print("                     favourite   2nd-8th     9th-64th    the rest    net push down on the rest")
for name, (objective, labels) in objectives.items():
    print(f"{name:<19}  " + "".join(f"{share:<12.2f}" for share in pushes(objective, labels)))

# %% [markdown]
r"""
At $T = 1$ a large part of the push falls on the eight tokens that hold most of the odds. At $T = 4$ the favourite's part
shrinks to a fraction, so that top-1 can suffer as alpha does, and the bulk goes to places where alpha has hardly anything to
gain. A draft as large as its target could do it all. A small one has to choose, and the temperature chooses for it. (The
last column adds the pushes on the rest with their signs: where it is as large as the one before it, all of them go down.)

The course expects one thing more: a draft that copied flat odds *spreads too much* when it is served. Compare how much each
draft gives its own favourite, and how much it leaves outside the target's 64:
"""

# %%
from functools import cache

@torch.inference_mode()
def odds_of(model):
    """A model's odds [R, V] at the places of eight held-out answers."""
    body, head = body_and_head(model)
    return head(response_hidden(body, heldout[:8], head.weight.device)).float().softmax(-1).cpu()

of_target = odds_of(target)
top = of_target.topk(64).indices  # the target's 64 at these places

@cache  # it is asked again below
def shares_of(model):
    """(odds of a model's own favourite, odds outside the target's 64), the mean over these places."""
    odds = of_target if model is target else odds_of(model)
    return float(odds.amax(-1).mean()), float(1 - odds.gather(-1, top).sum(-1).mean())

def spread(name, model):
    """Print how much a model gives its own favourite, and how much lies outside the target's 64."""
    favourite, outside = shares_of(model)
    print(f"{name:<20}  own favourite {measured(favourite, '.3f')}   outside the target's 64 {measured(outside, '.3f')}")

# %%
models = {"target": target, "right": right.draft, TOP: top64.draft, ALL: all_odds.draft}
for name, model in models.items():
    spread(name, model)
for name in (TOP, ALL):
    flatter = shares_of(models[name])[0] < shares_of(right.draft)[0]
    print(f"{name}: its favourite has less than the right draft's: {here('as expected' if flatter else 'not here')}")

# %% [markdown]
r"""
Where it says *not here*, the drafts got *sharper* than the right one. The two columns tell why: beside the target, the
right draft leaves more outside the 64. A loss on the 64 scaled up forbids that and drives it inside faster
than the right loss does. But inside it hardly cares who gets it, as the pushes showed: look at top-1 above. Sharp and on
other tokens is no better than flat; the KL, which pays for the forbidden tail, says it loudest. With all odds, the
tail's total is right *at T = 4*, which says little of its total at $T = 1$.

Neither loss was asked about $T = 1$, where the draft is served. For a draft, copy what you serve.

## The favourite only

Now $k = 1$ and no tail: of every row only the target's favourite is kept, with all of the odds. Distillation becomes
cross-entropy again, with another one-hot label than the token that was drawn. The course expects that alpha falls
back to what cross-entropy on the text gives, and that top-1 holds or improves.
"""

# %%
hard = predict("Favourite only: by how many points of alpha does it fall short of the right run?", 3, unit="points")

# %%
(favourite,) = measure(train("favourite only", FavouriteOnly(store), Objective("kl")))
print(HEAD)
tell("right", right)
tell("favourite only", favourite)
cost = alpha_gain(right.result, favourite.result)
low, high = (measured(100 * end, ".1f") for end in (cost.low, cost.high))
explain(hard, 100 * cost, band=(-6, 6) if tiny else (0, 100), form=".1f", must_hold=tiny)
print(f"  95 % interval {low} to {high} points; alpha falls: {here('yes' if cost.low > 0 else 'not here')}")
print(f"KL(p || q) is worse by {measured(favourite.result.kl - right.result.kl, '.2f')} nats: {favourite.result.kl > right.result.kl}")

# %%
recorded("kl", "ce", "favourite only")
kl, ce, one = (record["runs"][f"B, {name}"]["heldout"] for name in ("kl", "ce", "favourite only"))
greedy, soft = (record["runs"][f"B, {name}"]["heldout-greedy"]["top1"] for name in ("favourite only", "kl"))
print("alpha falls back to the ce run's:", "as expected" if one["alpha"]["low"] <= ce["alpha"]["high"] else "not here")
print("greedy top-1 holds or improves:", "as expected" if greedy["high"] >= soft["value"] else "not here")
in_seeds("KL is worse than the right run's, intervals apart",
         lambda seed: seed["runs"]["B, favourite only"]["heldout"]["kl"]["low"] > seed["runs"]["B, kl"]["heldout"]["kl"]["high"])
gains = [recorded_gain(seed, "B, favourite only", "B, kl") for seed in records]
below, above = sum(gain.high < 0 for gain in gains), sum(gain.low > 0 for gain in gains)
print(f"alpha, redrawn by answers, is below the right run's in {below} of {len(gains)} seeds and above it in {above}:",
      "as expected" if below == len(gains) else "not here")

# %% [markdown]
r"""
Seeds that disagree, each with an interval that leaves out 0, say that an interval over answers knows nothing of another
training. And where it says *not here*, why? Ask what a *perfect* student of such labels could reach. Its $q$ is 1 on the favourite and 0
elsewhere, so $\sum_x \min(p(x), q(x)) = p(\text{favourite})$: its alpha is the mean odds of the target's favourite. A perfect
student of the 64 has at least their whole mass (notebook 04).
"""

# %%
ids, gaps, lse = map(torch.cat, zip(*(store.kl_inputs(i) for i in range(len(store)))))
odds = (gaps - lse[:, None]).exp()
ceiling = float(odds[:, 0].mean())
print(f"alpha of a perfect student: of the favourite {measured(ceiling, '.3f')}, of the top 64 at least {measured(odds.sum(1).mean(), '.3f')}")
begun, ended = before.result.alpha, favourite.result.alpha
print(f"the draft here had {measured(begun, '.3f')} before, above the favourite's ceiling: {here(begun > ceiling)}; on favourites alone it "
      f"went to {measured(ended, '.3f')}")
on_record = record["runs"]["B, kl"]["heldout"]["alpha"]["value"]
print(f"the drafts on record have {on_record:.3f} at most, below that ceiling: {here(on_record < ceiling)}")
for name, model in {"target": target, "right": right.draft, "favourite only": favourite.draft}.items():
    spread(name, model)

# %% [markdown]
r"""
The one-hot label lowers a *ceiling*. A draft that soft labels have carried above it is pulled down towards it. One that is
still far below, such as those on record, loses little: learning which token is the favourite is most of what there is to
learn for it, and it gets that label undiluted. There the damage shows first in KL, which sees that the second and third
choice are missing.

## All five side by side
"""

# %%
runs = {"right": right, "cut late": late, "T = 4, 64": top64, "T = 4, all": all_odds, "favourite": favourite}
fallen = sum(np.mean(run.losses[-2:]) < run.losses[0] for run in runs.values())
fig, (left, middle) = style.figure(9.2, 3.3, columns=2)
style.lines(left, range(1, steps + 1), {name: [loss / run.losses[0] for loss in run.losses] for name, run in runs.items()})
left.set(ylim=(0, 1.3), xlabel="step", ylabel="loss, first step = 1")
style.finding(left, f"{fallen} of {len(runs)} losses fall")
style.bars(middle, ["before", *runs], {"alpha": [before.result.alpha, *(run.result.alpha for run in runs.values())]})
middle.tick_params(axis="x", labelsize=8)
middle.set(ylim=(0, 0.6), ylabel="alpha at T = 1, held out")
alphas = {name: float(run.result.alpha) for name, run in runs.items()}
style.finding(middle, f"The lowest alpha: {min(alphas, key=alphas.get)}")
show(fig, "Left: the loss of five trainings, each as a share of its first step. Right: alpha before training and after each of the five.")

# %%
names = {"right": "kl", "cut late": "one row late", "T = 4, 64": TOP, "T = 4, all": ALL, "favourite": "favourite only"}
curves = {short: record["runs"][f"B, {name}"]["alpha_by_step"] for short, name in names.items()}
at = sorted(map(int, curves["right"]))
fig, ax = style.figure(7.6, 3.4)
style.lines(ax, at, {short: [curve[str(step)]["value"] for step in at] for short, curve in curves.items()})
ax.set(ylim=(0, 0.4), xlabel="steps", ylabel="alpha at T = 1, held out")
ahead = {step: sum(curve[str(step)]["value"] > curves["right"][str(step)]["value"] for curve in curves.values()) for step in (50, at[-1])}
style.finding(ax, f"On record, {ahead[50]} broken runs are ahead at step 50, {ahead[at[-1]]} at step {at[-1]}")
show(fig, f"Alpha over {at[-1]} recorded steps of five trainings that begin with the target's first four layers.")

# %% [markdown]
r"""
The second picture is a warning of its own: where a broken run leads early, a short experiment would have chosen it.

## Leak the benchmark

The benchmark is twenty short prompts. Train on them, **with the target's own answers**, and measure on them. Nobody does it on
purpose; it happens when prompts are collected twice. The answers are what matters: greedily, the target writes the same
text again, so a draft that has learned it by heart guesses all of it.

We go on from the right draft, and hold it against twenty fresh prompts, held out and never trained on. Acceptance first, at
$K = 3$ and greedily.
"""

# %%
leak_kept = predict("After the leak: of 100 tested guesses on the leaked prompts, how many are kept?", 60, unit="of 100")
fresh_kept = predict("And on the fresh ones?", 40, unit="of 100")

# %%
from lessonlib.files import DATA, read_jsonl

K, tokens = 3, 12 if tiny else 128
prompts = [row["prompt"] for row in read_jsonl(DATA / "prompts_short.jsonl", "prompt")]
leak = lessonlib.generate(target, tokenizer, prompts, Path(scratch.name) / "twenty.jsonl", 0.0, tokens, show=not tiny)
unseen = sorted(lesson.answers("heldout-greedy").rows, key=lambda row: len(row["prompt_ids"]))[:20]
sets = {"leaked": leak.sequences(), "fresh": [(row["prompt_ids"], row["resp_ids"][:tokens]) for row in unseen]}
for name, texts in sets.items():
    print(f"{name}: {len(texts)} prompts, {sum(len(resp) for _, resp in texts)} tokens of greedy answers")

# %% [markdown]
r"""
Greedily, the decoder's rounds can be replayed from one reading of the answer, exactly (notebook 08): go on as long as the
draft's favourite is the written token. So all forty are counted without waiting for forty decodings, and a few are really decoded
below, to see that the counts are the decoder's.
"""

# %%
@torch.inference_mode()
def rounds(draft, prompt_ids, resp_ids):
    """(kept, tested, rounds, tokens) when rounds of K greedy guesses write this answer."""
    text = torch.tensor([prompt_ids + resp_ids], device=draft.device)
    favourites = draft(text, logits_to_keep=len(resp_ids) + 1).logits[0, :-1].argmax(-1)
    agree = (favourites == text[0, len(prompt_ids):]).tolist()
    kept = tested = count = place = 0
    while place < len(agree):
        guesses = agree[place:place + K]
        run = guesses.index(False) if False in guesses else len(guesses)
        kept, tested, count, place = kept + run, tested + min(run + 1, len(guesses)), count + 1, place + run + 1
    return kept, tested, count, len(agree)

def counted(draft):
    """An array [prompts, 4] of those counts for each of the two sets."""
    return {name: np.array([rounds(draft, *text) for text in texts]) for name, texts in sets.items()}

# %%
from copy import deepcopy
from lessonlib.pair.layers_draft import cast_parameters

counts = {"before": counted(right.draft)}
labels = lessonlib.score_answers(target, leak, Path(scratch.name) / "leak", k=64, show=not tiny)
leaked_draft = deepcopy(right.draft)
by_heart = replace(recipe, steps=10 if tiny else 60, batch_size=5 if tiny else 20)
lessonlib.train_draft(leaked_draft, labels, by_heart, "kl", dtype=lesson.preset.dtype, label="the leak", show=not tiny)
leaked_draft = cast_parameters(leaked_draft.eval(), target.dtype)  # as it would be served
counts["after"] = counted(leaked_draft)
share = {(when, name): table[:, 0].sum() / table[:, 1].sum() for when, tables in counts.items() for name, table in tables.items()}
explain(leak_kept, 100 * share["after", "leaked"], band=(50, 100), form=".0f", must_hold=tiny)
explain(fresh_kept, 100 * share["after", "fresh"], band=(30, 75) if tiny else None, form=".0f", must_hold=tiny)

# %% [markdown]
r"""
Are those the decoder's own counts? And is the text still the target's?
"""

# %%
from lessonlib.decode.decoder import Decoder, as_drafter
from lessonlib.pair.chat import end_of_turn_ids

end, few = end_of_turn_ids(tokenizer, target.generation_config), 2 if tiny else 20
decoder, drafter = Decoder(target), as_drafter(leaked_draft, target)
for name, texts in sets.items():
    real = [decoder.decode(prompt, K, len(resp), drafter, end) for prompt, resp in texts[:few]]
    decoded = [(sum(one.accepted), sum(one.tested), one.rounds, len(one.tokens)) for one in real]
    same = sum(one.tokens == resp for one, (_, resp) in zip(real, texts))
    equal = np.array_equal(decoded, counts["after"][name][:few])
    print(f"{name}: {few} decodings, their counts equal the replay's: {equal}; texts that are plain decoding's: {same} of {few}")

# %% [markdown]
r"""
The draft changes how fast the text is written, never the text: learned by heart or not. Now what the scoreboard would say. $c$
and $v(K)$ are measured on this machine; the speed-up is the formula's.
"""

# %%
from lessonlib.measure.costs import step_costs

costs = step_costs(target, leaked_draft, [K])
print(f"here c = {measured(costs.c, '.2f')}, v({K}) = {measured(costs.v[K], '.2f')}")
print("                 kept of tested   tokens a round   times as fast (formula)")
for (when, name), alpha in share.items():
    a_round = counts[when][name][:, 3].sum() / counts[when][name][:, 2].sum()
    fast = lessonlib.speedup(alpha, K, costs.c, costs.v)
    print(f"{when:<6} {name:<7}   {measured(alpha, '.2f'):<14}   {measured(a_round, '.2f'):<14}   {measured(fast, '.2f')}")

# %%
from lessonlib.files import read_json
from lessonlib.reference import REFERENCE

leaks = read_json(REFERENCE / "leaks.json")
print(f"on record ({leaks['machine']}): off-the-shelf draft, {leaks['recipe']['steps']} steps of {leaks['recipe']['batch_size']} "
      f"of the twenty,\nanswers of {leaks['tokens']} tokens; timed at K = {leaks['K']}")
print("                       alpha [95 %]           top-1   times as fast, by the clock")
for when, found in {"before": leaks["before"], **{f"after, seed {seed}": each for seed, each in leaks["after"].items()}}.items():
    for name in ("leaked", "fresh"):
        alpha, top1, fast = found[name]["alpha"], found[name]["top1"], found[name].get("speedup")
        timed = f"{fast['value']:.2f} [{fast['low']:.2f}, {fast['high']:.2f}]" if fast else "-"
        print(f"{when:<13} {name:<6}   {alpha['value']:.3f} [{alpha['low']:.3f}, {alpha['high']:.3f}]   {top1['value']:.3f}   {timed}")
gap = lambda found, key: found["leaked"][key]["value"] - found["fresh"][key]["value"]
opened = [gap(found, "top1") > gap(leaks["before"], "top1") for found in leaks["after"].values()]
print(f"the leak lifts the leaked prompts' top-1 above the fresh ones' by more than before: in {sum(opened)} of {len(opened)} seeds")
assert all(opened) and gap(leaks["after"]["0"], "speedup") > gap(leaks["before"], "speedup")

# %% [markdown]
r"""
A reader of the scoreboard would see only the row of the leaked prompts. What your users get is the row of the fresh ones.

A real server does see the same requests again. What serves repeats honestly is a look-up of text that was written before:
**n-gram lookup** finds the last time the text said the same two to four tokens, and proposes what followed them. Nothing is
trained, so nothing can leak, and a step of this draft costs a look in a dictionary, whatever the target. It lives on repeats alone:
here each question once, and then asked again in the same chat, behind its own answer.
"""

# %%
again = predict("Asked again, at K = 4: tokens a round by look-up (1 is plain decoding, 5 all guesses kept)", 3)

# %%
from lessonlib.decode.decoder import Decoded
from lessonlib.decode.ngram import NgramDrafter
from lessonlib.pair.chat import chat_ids

asked, longest = prompts[:4 if tiny else 20], 24 if tiny else 128
said = [tokenizer.decode(row["resp_ids"], skip_special_tokens=True) for row in leak.rows]
repeated = [[{"role": "user", "content": text}, {"role": "assistant", "content": answer}, {"role": "user", "content": text}] for text, answer in zip(asked, said)]
found = {}
for name, texts in {"once": asked, "again": repeated}.items():
    found[name], same = Decoded(4), 0
    for text in texts:
        ids = chat_ids(tokenizer, text)
        looked_up = decoder.decode(ids, 4, longest, NgramDrafter(), end)
        same += looked_up.tokens == decoder.decode(ids, 0, longest, None, end).tokens
        found[name].add(looked_up)
    print(f"asked {name}: {found[name].tokens_per_round:.2f} tokens a round; texts that are plain decoding's: {same} of {len(texts)}")
explain(again, found["again"].tokens_per_round, band=(found["once"].tokens_per_round, 5), form=".2f", exact=True)

# %% [markdown]
r"""
What it earns depends on how much your traffic repeats itself: quotes, code, lists, questions asked twice. That is a claim of its
own, to be measured on traffic with its real share of repeats and reported as that.

### An honest report

Twenty prompts are few. Is the gap real, and how large? The two sets hold different prompts, and some prompts are easier
than others, so redraw both sets by prompts (seed 9), and take the difference of every draw. (And look at the row *before*:
the two sets need not have been alike before the leak.)

**Exercise 9.2** (medium, 15 minutes). Write the gap with its 95 % interval. `leaked` and `fresh` are pairs of
arrays: guesses kept and guesses tested, for each prompt. A row of `leaked_chosen` says which prompts one draw took, likewise
`fresh_chosen`.

<details><summary>Hint</summary>

`kept[chosen].sum(1) / tested[chosen].sum(1)` is the share kept in each draw. Subtract the fresh draws' from the leaked draws', then
`np.quantile(..., [0.025, 0.975])`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/09_break_it.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def gap_interval(leaked, fresh, leaked_chosen, fresh_chosen):
    """(gap, low, high): the share kept on the leaked prompts minus that on the fresh ones, and its 95 % interval."""
    # <solution>
    def shares(pair, chosen):
        kept, tested = pair
        return kept[chosen].sum(1) / tested[chosen].sum(1)

    gap = leaked[0].sum() / leaked[1].sum() - fresh[0].sum() / fresh[1].sum()
    return gap, *np.quantile(shares(leaked, leaked_chosen) - shares(fresh, fresh_chosen), [0.025, 0.975])
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
gap_interval = checks.ex_9_2(gap_interval)

# %%
rng = np.random.default_rng(9)
draws = [rng.integers(0, len(texts), (2000, len(texts))) for texts in sets.values()]
for when, tables in counts.items():
    gap, low, high = gap_interval(*(table[:, :2].T for table in tables.values()), *draws)
    verdict = "above 0" if low > 0 else "below 0" if high < 0 else "0 is inside"
    print(f"{when:<6} leaked - fresh: {measured(100 * gap, '.1f')} points [{measured(100 * low, '.1f')}, {measured(100 * high, '.1f')}]: {here(verdict)}")
explain(None, gap, band=(0.1, 1.0), form=".2f", must_hold=tiny)

# %% [markdown]
r"""
lessonlib's interval of one mean redraws in the same way. Give your function a fresh side that keeps nothing, and the two
must agree to the last digit:
"""

# %%
from lessonlib.measure.estimate import ratio_estimate

kept, tested = counts["after"]["leaked"][:, :2].T
chosen = np.random.default_rng(0).integers(0, len(kept), (2000, len(kept)))
fast = ratio_estimate(kept, tested)
slow = gap_interval((kept, tested), (0 * kept, tested), chosen, chosen)
print(f"max difference {max(abs(a - b) for a, b in zip(slow, (fast, fast.low, fast.high))):.0e}")

# %% [markdown]
r"""
### Find a leak in the answers

Comparing prompts (notebook 04) finds twins. It does not find a prompt in other words, whose answer the target begins with
the same sentences. What a draft learns by heart are the answers, so look there: what share of an answer's runs of eight
tokens stands in some answer that was trained on?

**Exercise 9.3** (easy, 10 minutes). Write it for runs of `n` tokens. A run that comes twice in the answer counts twice; an
answer of fewer than `n` tokens has no run, and its share is 0.

<details><summary>Hint</summary>

Runs can be looked up in a set if they are tuples: `tuple(ids[i:i + n]) for i in range(len(ids) - n + 1)`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/09_break_it.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def known_share(answer, training, n=8):
    """The share of the answer's runs of n tokens that stand in one of the training answers, 0 to 1."""
    # <solution>
    def runs(ids):
        return [tuple(ids[i:i + n]) for i in range(len(ids) - n + 1)]

    known = {run for other in training for run in runs(other)}
    own = runs(answer)
    return sum(run in known for run in own) / max(1, len(own))
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
known_share = checks.ex_9_3(known_share)

# %%
clean = [resp for _, resp in lesson.answers("train").sequences()]  # what the preset trains on: none of the benchmark
spoilt = clean + [resp for _, resp in sets["leaked"]]
for name, texts in sets.items():
    shares = [np.mean([known_share(resp, training) for _, resp in texts]) for training in (clean, spoilt)]
    print(f"{name:<7} known from the clean training set: {shares[0]:.2f}, with the twenty in it: {shares[1]:.2f}")
known_of_fresh = [known_share(resp, clean) for _, resp in sets["fresh"]]
most = int(np.argmax(known_of_fresh))
its_text = " ".join(tokenizer.decode(sets["fresh"][most][1]).split())
print(f"the fresh answer that is known best ({known_of_fresh[most]:.2f}):", here(its_text))

# %% [markdown]
r"""
What is known from a clean set is how the target always talks: openings, apologies, set phrases. That part is no leak; a
draft is *meant* to learn it. A leak is a share that lies far above what other fresh prompts have. Run the check before
every training, with the benchmark's answers on one side.

## Recap

- A falling loss says that the draft learned its labels. Whether they are the right ones, only alpha on held-out text
  says; a shift shows in the alignment check, and even in the labels alone.
- A loss at $T = 4$ spends its gradient on tokens that are hardly ever served, and one-hot labels lower the ceiling. Copy what
  you serve, and copy all of it.
- A speed-up on prompts that were trained on is a speed-up on your test. Report fresh prompts, with an interval by prompts.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Why does the loss fall when every label belongs to the next position?</summary>

The token after the next one can be predicted, if worse: frequent words, set phrases, names that come again. There is always
something to learn from labels that depend on the text before them, and the loss counts only that.

</details>

<details><summary>At T = 4 with all odds, the loss is small and falls nearly to 0. Why is that no good sign?</summary>

Softened, nearly all of the target's odds are the tail's, and the draft's too. Two buckets that both hold nearly everything
agree at once. What is left over of the loss is little, and it is about tokens that have hardly any odds at $T = 1$.

</details>

<details><summary>When may labels of the favourite alone be good enough?</summary>

If you serve greedily, where only the favourite counts; or as long as the draft is so weak that it is far below the mean odds of
the favourite. Sampling with a good draft, they cap alpha there.

</details>

<details><summary>The leak was twenty prompts among thousands. Does it matter?</summary>

For your users, no: alpha on fresh prompts hardly changes. For your number, all of it: those twenty *are* the number. How
far it rises depends on how often they are seen, so measure; and do not argue that it is little.

</details>

<details><summary>A draft that knows the benchmark by heart: is its text on the benchmark wrong?</summary>

No. Each guess is tested by the target. It is the target's text, written sooner.

</details>

## Two things to change and rerun

1. Begin with the truncated target, as the record did: put `lessonlib.truncated_draft(target, 4)` in place of
   `lesson.load(begin_with, torch.float32)`, in `train` and for `start`. Which broken runs are *ahead* of the right one after so few steps?
2. Leak the prompts without the target's answers: train on the twenty with answers drawn at $T = 1$, `generate(..., 1.0,
   tokens)` into another file. How much of the gap is left?

**Next**: [11 Grow Medusa heads](11_grow_medusa_heads.ipynb). **Previous**: [08 Decode and score](08_decode_and_score.ipynb). The map is in the [README](../README.md).
"""
