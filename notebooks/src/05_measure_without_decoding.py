# %% [markdown]
r"""
# Measure without decoding

A draft is to be judged by how many of its guesses are kept. Running the whole decoder for every candidate is slow, and
the answer wobbles with every coin it tosses. There is a shortcut: let both models *read* text that the target wrote and
compare their odds at every place. The mean overlap is alpha, and nothing has to be decoded or tossed.

**You will** read an answer place by place and then all at once; write the offline measurement; find out how far to trust
its result; see why perplexity answers another question; look for the places where alpha is lost; and bracket alpha from
stored odds, without the target.

**You need** notebook [01](01_measure_overlap.ipynb) (overlap, alpha) and, for the last section, the label store of
[04 Build the data set](04_build_the_dataset.ipynb). The answers are the course's own, so nothing is drawn here. In formulas
$p$ is the target and $q$ the draft.

**Time**: it runs in about a minute on two cores with the tiny pair, about 10 minutes on a DGX Spark. Reading
and four exercises: an hour. [All solutions](solutions/05_measure_without_decoding.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # no module lessonlib? Run: make lab
import lessonlib, torch
import numpy as np

# %%
from lessonlib.lesson import Lesson

lesson = Lesson(lessonlib.preset())
tiny = lesson.preset.name == "tiny"
COUNT, PROBES = (32, 8) if tiny else (500, 100)  # answers read; answers put behind an earlier conversation
target, tokenizer, draft = lesson.target, lesson.tokenizer, lesson.load()
print(here(lesson.preset))

# %%
answers = lesson.answers("heldout")  # drawn from the target at T = 1, to prompts that no draft is trained on
rows = [row for row in answers.rows if row["resp_ids"]][:COUNT]
seqs = [(row["prompt_ids"], row["resp_ids"]) for row in rows]
lengths = np.array([len(resp) for _, resp in seqs])
drawn_at = "T = {temperature:g} with seed {seed}".format(**answers.header)
print(f"{len(seqs)} answers, {lengths.sum():,} tokens, drawn at {drawn_at}")

# %% [markdown]
r"""
## Place by place

The slow way first, as plainly as it can be said. Take one answer. At each of its places give both models everything that
stands before it, ask for their odds, and add up what both bet.
"""

# %%
@torch.inference_mode()
def odds_after(model, text):
    """A model's odds for the next token after a text."""
    return model(torch.tensor([text], device=model.device)).logits[0, -1].float().softmax(-1)

prompt, answer = seqs[0]
one_by_one = []
print("place  written         the target's favourite   the draft's favourite    overlap")
for j in range(8):
    before = prompt + answer[:j]  # the true text so far, whatever the draft would have guessed
    p, q = odds_after(target, before), odds_after(draft, before)
    one_by_one.append((p, q))
    written, *liked = (repr(tokenizer.decode([int(token)])) for token in (answer[j], p.argmax(), q.argmax()))
    favourites = f"{liked[0]:<14} {p.max():.2f}      {liked[1]:<14} {q.max():.2f}"
    print(f"{j + 1:>5}  {written:<14}  {favourites}      {torch.minimum(p, q).sum():.2f}")

# %% [markdown]
r"""
Each overlap is the chance that a guess drawn from the draft *at that place* would be kept. And that is all the decoder
asks of the first guess of a round: its text so far is the target's own, exactly as here.

## One pass for all places

That took a forward pass for each place and each model. But the text is known in advance, so nothing has to wait. A causal
model that reads the whole text works out its odds after *every* token on the way: row $i$ of its logits, having read the
tokens $0$ to $i$, predicts token $i + 1$. This is **teacher forcing**: at every place the model is given the true tokens,
never its own. It is also the trick by which the target checks $K$ guesses in one pass.

One number has to be right. If the prompt has $s$ tokens, which row predicts the answer's first one? Not row $s$: that one
has read it already.

**Exercise 5.1** (easy, 5 minutes). From one pass over prompt and answer, hand back the rows that predict the answer's
tokens, one row for each.

<details><summary>Hint</summary>

`model(torch.tensor([prompt_ids + resp_ids], device=model.device)).logits` has the shape $[1, s + R, V]$. The first
row wanted is $s - 1$, the last one $s + R - 2$: in Python, `[s - 1:-1]`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/05_measure_without_decoding.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
@torch.inference_mode()
def response_logits(model, prompt_ids, resp_ids):
    """The logits [R, V] with which the model predicts each of the R tokens of an answer."""
    # <solution>
    text = torch.tensor([prompt_ids + resp_ids], device=model.device)
    return model(text).logits[0, len(prompt_ids) - 1:-1]
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
response_logits = checks.ex_5_1(response_logits)

# %%
from time import perf_counter

start = perf_counter()
at_once = [response_logits(model, prompt, answer).float().softmax(-1) for model in (target, draft)]
one_pass, start = (perf_counter() - start) / len(answer), perf_counter()
for model in (target, draft):
    odds_after(model, prompt + answer[:7])
one_place = perf_counter() - start
difference = max(float(abs(row - odds[j]).max()) for j, both in enumerate(one_by_one) for row, odds in zip(both, at_once))
print(f"place by place and at once: the odds differ by at most {measured(difference, '.0e')}, below 1e-5: {difference < 1e-5}")
took = [measured(1e3 * seconds, ".0f", "ms") for seconds in (one_place, one_pass)]
print(f"time a place: {took[0]} one by one, {took[1]} at once")

# %% [markdown]
r"""
## Offline alpha

Now for all places of many answers. At each response position $t$, with $p_t$ and $q_t$ the softmax of both models' logits
divided by the temperature $T$ that will be served:

$$a_t = \sum_x \min(p_t(x), q_t(x)), \qquad \text{top}_t = [\arg\max p_t = \arg\max q_t], \qquad
\mathrm{KL}_t = \sum_x p_t(x) \log \frac{p_t(x)}{q_t(x)}.$$

The mean of the $a_t$ is the **offline alpha**. At each place $a_t$ is exactly the chance that a first guess made *there* is
kept. The mean over all places is not quite the share of first guesses kept: a new round begins right after a refusal, and
hard places come in runs. Nor is it that of later guesses, which are tested only after guesses that were kept: after text
that both models like, more often than the target alone would write it. How much that matters, and what a draft step costs,
the decoder shows (notebook [08](08_decode_and_score.ipynb)).

Three rules keep it honest. The text is *held out*, no draft was trained on it. It was *written by the target* at the
temperature that is served. And the mean goes over *positions*: rounds are played at positions, and a long answer has more
of them.

**Exercise 5.2** (medium, 15 minutes). Write it.

<details><summary>Hint</summary>

For each pair in `seqs`: your `response_logits` of both models, `.float()` (two 16-bit models would agree on three digits
at best), divided by `T`, `log_softmax(-1)`. The overlap is `torch.minimum(log_p.exp(), log_q.exp()).sum(-1)`. Collect the
vectors, `torch.cat` each kind at the end, and take the means there.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/05_measure_without_decoding.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def offline_alpha(draft, target, seqs, T=1.0):
    """(mean overlap, mean top-1 agreement, mean KL(p || q) in nats, overlap at every position [N]) over all answers."""
    # <solution>
    overlap, same, kl = [], [], []
    for prompt_ids, resp_ids in seqs:
        log_p, log_q = ((response_logits(model, prompt_ids, resp_ids).float() / T).log_softmax(-1) for model in (target, draft))
        overlap.append(torch.minimum(log_p.exp(), log_q.exp()).sum(-1))
        same.append((log_p.argmax(-1) == log_q.argmax(-1)).float())
        kl.append((log_p.exp() * (log_p - log_q)).sum(-1))
    overlap, same, kl = (torch.cat(column) for column in (overlap, same, kl))
    return overlap.mean().item(), same.mean().item(), kl.mean().item(), overlap
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
offline_alpha = checks.ex_5_2(offline_alpha)

# %% [markdown]
r"""
lessonlib's version reads answers of like length together and never holds more than 512 rows of logits. It can also
measure several drafts while the target, which costs the most, reads the text once. It reads four answers, and on the first
two yours must agree. With the draft from the shelf goes one that was never trained at all, the target's own first layers.
"""

# %%
from lessonlib.measure.offline import alpha_gain, offline_alphas

raw = lesson.fresh("B", target.dtype)
yours = offline_alpha(draft, target, seqs[:2])[3].cpu()
shelf, truncated = offline_alphas([draft, raw], target, seqs[:4])
difference = abs(yours - torch.from_numpy(shelf.per_position[:len(yours)])).max().item()
print(f"largest difference at any of {len(yours)} positions: "
      f"{measured(difference, '.0e')}, below 1e-4: {difference < 1e-4}")
for name, result in {"off the shelf": shelf, f"first {raw.config.num_hidden_layers} layers, raw": truncated}.items():
    print(f"{name:<20} alpha {result.alpha:.2f}   top-1 {result.top1:.2f}   KL {result.kl:.1f} nats")

# %% [markdown]
r"""
## Read once, ask often

The two models' odds at a place hold more than three numbers, and reading is what costs. So read all the answers once and
keep everything that the rest of this notebook is going to ask about. The last lines sharpen or flatten the *draft's* odds
only, by multiplying its logits; you will see what for. (The references and bands printed below are the tiny pair's.)
"""

# %%
SCALES = (0.6, 0.8, 1.0, 1.25, 1.6)

@torch.inference_mode()
def facts(prompt_ids, resp_ids):
    """What is to be known about every position of an answer: vectors of length R, by name."""
    log_p, log_q = (response_logits(model, prompt_ids, resp_ids).float().log_softmax(-1) for model in (target, draft))
    p, written = log_p.exp(), torch.tensor(resp_ids, device=log_p.device)[:, None]
    found = {"entropy": -(p * log_p).sum(-1), "kl": (p * (log_p - log_q)).sum(-1),
             "log p": log_p.gather(-1, written)[:, 0], "same": log_p.argmax(-1) == log_q.argmax(-1)}
    for scale in SCALES:
        log_s = (scale * log_q).log_softmax(-1)
        found[f"overlap {scale}"] = torch.minimum(p, log_s.exp()).sum(-1)
        found[f"log q {scale}"] = log_s.gather(-1, written)[:, 0]
    return {name: vector.double().cpu().numpy() for name, vector in found.items()}

# %%
alpha_here = predict("The off-the-shelf draft has never read a chat. Its alpha at T = 1 on the target's answers?", 0.6)

# %%
from lessonlib.files import DATA, read_json
from lessonlib.progress import Progress

progress, read = Progress("reading", int(lengths.sum()), "positions"), []
for pair in seqs:
    read.append(facts(*pair))
    progress.add(len(pair[1]))
seconds = progress.finish()
all_of = {name: np.concatenate([found[name] for found in read]) for name in read[0]}
overlap = all_of["overlap 1.0"]
on_record = read_json(DATA / "reference" / "off_the_shelf.json")["before_distillation"]
explain(alpha_here, overlap.mean(), reference=on_record["heldout"]["alpha"]["value"], band=0.04, form=".3f", exact=True)

# %% [markdown]
r"""
When the course's draft was made, all 500 held-out answers were measured, and alpha was kept for each answer. Your answers
are the first of those, so the two must agree one by one. (With another pair there is no such record; then your own
measurement takes its place below.)
"""

# %%
here_by_answer = np.array([found["overlap 1.0"].mean() for found in read])
if tiny:
    alpha_of, length_of = (np.array(on_record["heldout"][name]) for name in ("alpha_by_answer", "answer_lengths"))
    off = abs(alpha_of[:COUNT] - here_by_answer).max()
    print(f"the same {COUNT} answers here and on record: none differs by more than 0.001: {off < 1e-3}")
else:
    alpha_of, length_of = here_by_answer, lengths
recorded = on_record["heldout"]["alpha"]
print(f"on record for the tiny pair, 500 answers: {recorded['value']:.3f} [{recorded['low']:.3f}, {recorded['high']:.3f}]")

# %% [markdown]
r"""
**No coins.** A decoder would toss at every place and report how often it was lucky. At a place with overlap $a$ that adds
a variance of $a(1 - a)$ which has nothing to do with either model. How much is that on this text?
"""

# %%
coins = np.sqrt((overlap * (1 - overlap)).sum()) / len(overlap)
tossed = (np.random.default_rng(0).random((200, len(overlap))) < overlap).mean(1)
print(f"the same text judged with other coins: alpha moves by {coins:.4f} (standard deviation; "
      f"200 trials gave {tossed.std():.4f})")
print("judged by the overlap: it does not move at all")

# %% [markdown]
r"""
## How sure is that?

Without coins the result is the same each time, but for *this* text. Other answers would give another alpha. How far off
can it be? The usual recipe is the **bootstrap**: draw as many pieces as you have, with replacement, from your own data;
take the mean; repeat; the middle 95 % of the means are the interval.

The question is what a *piece* is. There are nearly two thousand positions with the tiny pair, so one could redraw positions.
Or redraw whole answers, each with all of its positions. How much wider is the second interval? (Both with seed 0.)
"""

# %%
wider = predict("The interval from redrawing answers is how many times as wide as from redrawing positions?", 1.0, unit="times")

# %% [markdown]
r"""
**Exercise 5.3** (medium, 10 minutes). Write the interval so that it serves both. Each piece $i$ has a total of overlaps
`totals[i]` and a number of positions `counts[i]`; row $b$ of `chosen`, of shape $[B, n]$, says which pieces were drawn the
$b$-th time. The mean over positions of such a draw is the sum of its totals over the sum of its counts.

<details><summary>Hint</summary>

`totals[chosen]` has the shape $[B, n]$, so `totals[chosen].sum(1)` holds the sum of each draw. Do the same with the
counts, divide, and ask `np.quantile(..., [0.025, 0.975])`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/05_measure_without_decoding.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def interval(totals, counts, chosen):
    """The 95 % interval (low, high) of the mean over positions, from B draws of n pieces, chosen [B, n]."""
    # <solution>
    means = totals[chosen].sum(1) / counts[chosen].sum(1)
    return tuple(np.quantile(means, [0.025, 0.975]))
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
interval = checks.ex_5_3(interval)

# %%
def drawn(n, B=2000, seed=0):
    """B draws of n pieces with replacement."""
    return np.random.default_rng(seed).integers(0, n, (B, n))

totals = here_by_answer * lengths
by_answer = interval(totals, lengths, drawn(COUNT))
by_position = interval(overlap, np.ones(len(overlap)), drawn(len(overlap), 400))
for name, (low, high) in {"positions": by_position, "answers": by_answer}.items():
    print(f"redrawing {name:<10} [{low:.3f}, {high:.3f}], {high - low:.3f} wide")
explain(wider, np.ptp(by_answer) / np.ptp(by_position), reference=2.4, band=0.6, form=".1f", exact=True)

# %%
from lessonlib.measure.estimate import ratio_estimate

library = ratio_estimate(totals, lengths)  # what lessonlib's offline_alpha hands back as .alpha
difference = np.abs(np.subtract((library.low, library.high), by_answer)).max()
print(f"lessonlib's interval differs from yours by at most {difference:.0e}")

# %% [markdown]
r"""
**Why.** Positions of one answer are not independent. An answer is code or it is prose, on a common subject or a rare one,
and all its places share that. With a correlation $\rho$ between two positions of one answer and $L$ positions each, the
variance of the mean is $1 + (L - 1)\rho$ times what independent positions would give. A small $\rho$ is enough, since $L$
is not small. Here it is, estimated from the spread of the answers' means:
"""

# %%
L, between = lengths.mean(), here_by_answer.var(ddof=1)
within = np.mean([found["overlap 1.0"].var(ddof=1) for found in read])
rho = max(0.0, (between - within / L) / (between - within / L + within))
print(f"correlation of two positions of one answer: {rho:.3f}; positions an answer: {L:.0f}")
print(f"so the interval should be about sqrt(1 + {L - 1:.0f} x {rho:.3f}) = {np.sqrt(1 + (L - 1) * rho):.1f} times as wide")

# %% [markdown]
r"""
Wider is not yet *right*. An interval that says 95 % must hold the truth 95 times in 100, and that can be tried: let these
answers be the whole world, so that the truth is known; draw 16 of them and make both intervals; 400 times (seed 1).
"""

# %%
def covers(pieces, truth, seed):
    """Does the interval from these answers' overlaps hold the truth? By position and by answer."""
    flat, sizes = np.concatenate(pieces), np.array([len(piece) for piece in pieces])
    sums = np.array([piece.sum() for piece in pieces])
    both = (interval(flat, np.ones(len(flat)), drawn(len(flat), 200, seed)),
            interval(sums, sizes, drawn(len(sizes), 200, seed)))
    return [low <= truth <= high for low, high in both]

lots = np.random.default_rng(1).integers(0, COUNT, (400, 16))
pieces = [found["overlap 1.0"] for found in read]
hits = np.mean([covers([pieces[i] for i in lot], overlap.mean(), seed) for seed, lot in enumerate(lots)], axis=0)
print(f"the interval holds the truth: by position {hits[0]:.0%} of the times, by answer {hits[1]:.0%}")

# %% [markdown]
r"""
Hold each against the 95 % that it claims. With as few as 16 pieces even the right bootstrap stays somewhat below; the wrong
one is not somewhat below, it is another number.

How many answers does a question need? Move the slider. The widths by answer come from all answers on record.
"""

# %%
from lessonlib.workbook.explorables.nb05 import HowSure, WhereLost

HowSure(alpha_of * length_of, length_of, overlap.std())

# %% [markdown]
r"""
**Comparing two drafts** is easier than measuring one, if both read the *same* answers. What makes a text hard is hard for
both and drops out of the difference, so redraw the *differences*. As an example take our draft and the same draft with its
logits times 1.25. lessonlib's `alpha_gain` does it for two results of `offline_alpha`, such as the two above.
"""

# %%
sharper = all_of["overlap 1.25"]
gain = np.array([(found["overlap 1.25"] - found["overlap 1.0"]).sum() for found in read])
paired = interval(gain, lengths, drawn(COUNT))
print(f"alpha {overlap.mean():.4f} and {sharper.mean():.4f}: a difference of {(sharper - overlap).mean():+.4f} "
      f"[{paired[0]:+.4f}, {paired[1]:+.4f}]")
print(f"that interval is {np.ptp(by_answer) / np.ptp(paired):.0f} times as narrow as the one of a single alpha")
print(f"alpha_gain of the shelf's draft over the raw layers, on four answers: {alpha_gain(shelf, truncated).signed()}")

# %% [markdown]
r"""
Intervals of two alphas may overlap widely while the difference is beyond doubt. So the course measures every draft on the
same held-out answers.

## Greedy serving: top-1

If you serve greedily, a guess is kept when it is the target's favourite. The number for that is the **top-1 agreement**,
and it belongs on text that the target wrote *greedily*, because that is what your server will see. On such text a
shortcut opens: the target's favourite is the very token that stands there, so the target need not read at all.
"""

# %%
greedy = lesson.answers("heldout-greedy").sequences()[:COUNT]
top1 = predict(f"Top-1 was {all_of['same'].mean():.2f} on the sampled answers. And on greedy ones?", 0.4)

# %%
full = offline_alpha(draft, target, greedy[:1])[1] * len(greedy[0][1])
agreed = [(response_logits(draft, *pair).argmax(-1).cpu() == torch.tensor(pair[1])).sum().item() for pair in greedy]
print("both models read, or the draft alone, one answer: the same count:", round(full) == agreed[0])
greedy_lengths = np.array([len(resp) for _, resp in greedy])
on_greedy, recorded = ratio_estimate(agreed, greedy_lengths), on_record["heldout-greedy"]["top1"]
explain(top1, on_greedy, reference=recorded["value"], band=0.05, form=".3f", exact=True)
print(f"interval {on_greedy.interval('.3f')}; on record, tiny pair, 500 answers: "
      f"{recorded['value']:.3f} [{recorded['low']:.3f}, {recorded['high']:.3f}]")

# %% [markdown]
r"""
Notebook 08 takes these yes and no into the decoder. With the tiny pair, first guesses of a round are kept a little less
often there, because rounds begin at hard places.

## Perplexity is another question

The usual number for a language model is its **perplexity**, $\exp$ of the mean $-\log q(\text{token})$. What does it say
about a draft? On text drawn from the target at $T = 1$ the token itself is a draw from $p$. So the mean of $\log p - \log q$ at the
written tokens estimates the KL, and the perplexities differ by just that factor:

$$\frac{\text{perplexity of the draft}}{\text{perplexity of the target}} \approx \exp(\mathrm{KL}).$$
"""

# %%
log_ratio = [(found["log p"] - found["log q 1.0"]).sum() for found in read]
sampled = ratio_estimate(log_ratio, lengths)
perplexities = [np.exp(-all_of[name].mean()) for name in ("log p", "log q 1.0")]
own, drafts = perplexities
print(f"perplexity of the target {own:.1f}, of the draft {drafts:.1f}: {drafts / own:.2f} times")
print(f"log of that: {sampled:.3f} {sampled.interval('.3f')} nats; the KL, without sampling: {all_of['kl'].mean():.3f} nats")

# %% [markdown]
r"""
So a part of the draft's perplexity is the target's own uncertainty, which no training removes. The rest is the KL, and that
is not alpha either. The cleanest example is a draft whose logits are all multiplied by one number: it ranks all tokens as
before and is only more, or less, sure of itself. Which of these is the best draft?
"""

# %%
table = {scale: (np.exp(-all_of[f"log q {scale}"].mean()), all_of[f"overlap {scale}"].mean()) for scale in SCALES}
print("draft's logits times   perplexity   alpha   top-1")
for scale, (perplexity, alpha) in table.items():
    print(f"{scale:>20}   {perplexity:>10.1f}   {alpha:.3f}   {all_of['same'].mean():.3f}")
lowest, highest = min(table, key=lambda s: table[s][0]), max(table, key=lambda s: table[s][1])
print(f"perplexity is best at {lowest}, alpha at {highest}, and top-1 is the same for all")

# %% [markdown]
r"""
Three yardsticks, and only one of them is what your server pays for: at $T = 1$ it is alpha, greedily top-1. If you serve
at $T = 0.6$, measure alpha at $T = 0.6$, on text drawn at $T = 0.6$.

**By domain.** Which *kind of text* suits the draft? Here is each source of prompts with at least four of your answers, and
the order in which each of the two yardsticks puts them.
"""

# %%
source_of = np.array([row["source"] for row in lesson.prompts.heldout])
who = np.repeat(np.arange(COUNT), lengths)  # which answer each position belongs to
source, kinds = np.array([source_of[row["row"]] for row in rows])[who], {}
print("source             answers   target's perplexity   draft's   KL, nats   alpha here")
for name in dict.fromkeys(source):
    inside = source == name
    if len(set(who[inside])) >= 4:
        own, drafts = (np.exp(-all_of[column][inside].mean()) for column in ("log p", "log q 1.0"))
        kl, alpha = all_of["kl"][inside].mean(), overlap[inside].mean()
        kinds[name] = drafts, alpha
        print(f"{name:<18} {len(set(who[inside])):>7} {own:>21.1f} {drafts:>9.1f} {kl:>10.2f} {alpha:>12.2f}")
print("best first, by the draft's perplexity:", *sorted(kinds, key=lambda name: kinds[name][0]))
print("best first, by alpha:                 ", *sorted(kinds, key=lambda name: -kinds[name][1]))

# %% [markdown]
r"""
A few answers a source are few, and the order may be chance. All the answers on record, with intervals:
"""

# %%
sources = source_of[:len(alpha_of)] if tiny else np.array([source_of[row["row"]] for row in rows])
print("source             answers   alpha [95 %]")
for name in sorted(set(sources), key=lambda name: -np.mean(alpha_of[sources == name])):
    inside = sources == name
    alpha = ratio_estimate(alpha_of[inside] * length_of[inside], length_of[inside])
    print(f"{name:<18} {inside.sum():>7}   {alpha:.3f} {alpha.interval('.3f')}")

# %% [markdown]
r"""
Where the intervals of two sources lie apart, their alphas differ, and one average over a mixture belongs to no traffic but
that mixture. **Measure on your own prompts.**

## Where alpha is lost

Every position loses $1 - a_t$. Sort the positions into kinds and ask of each kind: how many are there, what is their
alpha, and which share of the whole loss is theirs? Intervals are by answer, as always.
"""

# %%
lost = 1 - overlap

def tally(kind_of, heading):
    """A line for each kind of position: how many, their alpha, and their share of all that is lost."""
    print(f"{heading:<24} positions   alpha [95 %]           of the loss")
    for kind in sorted(set(kind_of)):
        inside = kind_of == kind
        sums, counts = np.bincount(who[inside], overlap[inside], COUNT), np.bincount(who[inside], minlength=COUNT)
        alpha, loss = ratio_estimate(sums, counts), lost[inside].sum() / lost.sum()
        print(f"{kind:<24} {inside.mean():>9.0%}   {alpha:.2f} {alpha.interval('.2f'):<16} {loss:>12.0%}")

def bucket(values, starts, form):
    """The name of each value's bucket: from one of the starts up to the next."""
    return np.array([f"from {start:{form}}" for start in starts])[np.digitize(values, starts) - 1]

# %% [markdown]
r"""
**By how unsure the target is.** The entropy of $p$ is 0 where only one token will do, and about $\log n$ where $n$ tokens
are equally good. After "The capital of France is" one word fits; after "Here is a poem about" hundreds do, and two writers of
different taste share little.
"""

# %%
unsure = predict("Which share of the lost alpha lies where the target's entropy is 2 nats or more?", 30, unit="%")

# %%
explain(unsure, 100 * lost[all_of["entropy"] >= 2].sum() / lost.sum(), reference=45, band=8, form=".0f", exact=True)
tally(bucket(all_of["entropy"].clip(0), (0, 0.5, 1, 2, 3), ".1f"), "target's entropy, nats")

# %%
WhereLost(all_of["entropy"], overlap)

# %% [markdown]
r"""
Two kinds of loss hide in this picture. Where the target is *sure* and the draft is elsewhere, the draft lacks knowledge or
an acquaintance with this writer: one token was right and it bet on others. Where the target is *unsure*, the draft may be
as good a writer and bet on other words. Training works on both.

**By the kind of token** that the target wrote there:
"""

# %%
def token_kind(token):
    """What sort of token this is; the first yes decides."""
    text = tokenizer.decode([token])
    if token in tokenizer.all_special_ids:
        return "end of the answer"
    if "\n" in text:
        return "new line"
    if text.strip().isdigit():
        return "digit"
    if not any(map(str.isalpha, text)):
        return "punctuation, space"
    return "begins a word" if text[0] == " " else "goes on, or no space"

tally(np.array([token_kind(token) for _, resp in seqs for token in resp]), "token written")

# %% [markdown]
r"""
**By the place in the answer:**
"""

# %%
place = np.concatenate([np.arange(length) for length in lengths]) + 1
tally(bucket(place, (1, 2, 5, 9, 17, 33), "2.0f"), "place in the answer")

# %%
longest = min(64, lengths.max())
alpha_at = [overlap[place == j].mean() for j in range(1, longest + 1)]
fig, ax = style.figure(6.8, 2.8)
ax.bar(range(1, longest + 1), alpha_at, width=0.8, color=style.DRAFT)
ax.axhline(overlap.mean(), color=style.TARGET, linewidth=1.5, linestyle=(0, (5, 2)))
ax.set(ylim=(0, 1), xlabel="place in the answer, tokens", ylabel="alpha")
side = "lies below" if alpha_at[0] < overlap.mean() else "does not lie below"
style.finding(ax, f"The first place, at {alpha_at[0]:.2f}, {side} the mean")
show(fig, f"Alpha at each place of {COUNT} answers; it is {alpha_at[0]:.2f} at the first; dashed: the mean, {overlap.mean():.2f}.")

# %% [markdown]
r"""
The first places tell a stranger: a draft that never saw a chat does not know how this target opens an answer, and notebook
[00](00_meet_the_pair.ipynb) showed its line breaks there. But see the last column. However badly it does there, those few places are a small share of
what is lost. In lessonlib's result the same numbers, with intervals, are `.by_position()`.

## Long contexts

A decoder reads the whole prompt and all that was written. Does a long context help the draft or hurt it? The obvious way
to find out is to sort the answers on record by the length of their prompts.
"""

# %%
from lessonlib.pair.chat import chat_ids

texts = [row["prompt"] for row in lesson.prompts.heldout[:len(alpha_of)]] if tiny else None
prompt_tokens = np.array([len(chat_ids(tokenizer, text)) for text in texts] if tiny else [len(prompt) for prompt, _ in seqs])
short, long = prompt_tokens < 64, prompt_tokens >= 128
alpha_when = lambda inside: ratio_estimate(alpha_of[inside] * length_of[inside], length_of[inside])
if short.any() and long.any():
    after_long = predict(f"After prompts under 64 tokens alpha is {alpha_when(short):.2f}. After 128 tokens or more?", 0.35)
    explain(after_long, alpha_when(long), reference=0.48, band=0.02, form=".2f", exact=True)

# %% [markdown]
r"""
So long prompts help? Before you believe it, split the same answers by source, and each source at its own median length:
"""

# %%
from collections import Counter

print("source             answers   median prompt   shorter half             longer half")
for name in sorted(set(sources)):
    inside = sources == name
    middle = np.median(prompt_tokens[inside])
    halves = [inside & (prompt_tokens <= middle), inside & (prompt_tokens > middle)]
    shown = [f"{alpha_when(half):.2f} {alpha_when(half).interval('.2f')}" if half.any() else "-" for half in halves]
    print(f"{name:<18} {inside.sum():>7} {middle:>8.0f} tokens   {shown[0]:<22}   {shown[1]}")
of_long = Counter(sources[long].tolist()).most_common()
print(f"prompts of 128 tokens or more: {', '.join(f'{count} from {name}' for name, count in of_long)}")

# %% [markdown]
r"""
Compare the two columns *within* each source, then read the last line. With the tiny pair the columns hardly differ, and six in
seven of the long prompts come from one source: code to complete, which suits the draft whatever its length. A quantity that
moves with the mixture is no effect of its own.

To measure the length alone, hold everything else fixed: the same prompts and the same answers, once as they are and once
at the end of a long conversation about other things. Both models read the longer text. (The target did not write these
answers in that conversation; that is the price of keeping them the same.) The conversation is read once
and stays in the cache.
"""

# %%
import os
from lessonlib.pair.step import step_of

messages, earlier = [], [row for row in answers.rows if row["resp_ids"]][-5:]
for row in earlier:
    messages += [{"role": "user", "content": lesson.prompts.heldout[row["row"]]["prompt"]},
                 {"role": "assistant", "content": tokenizer.decode(row["resp_ids"], skip_special_tokens=True)}]
behind = lambda text: chat_ids(tokenizer, [*messages, {"role": "user", "content": text}])
conversation = os.path.commonprefix([behind("a"), behind("b")])
steps = [step_of(model) for model in (target, draft)]
for step in steps:
    step.read(conversation)
print(f"the earlier conversation: {len(earlier)} questions with answers, {len(conversation)} tokens")

# %%
def odds_behind(step, prompt, resp_ids):
    """The odds [R, V] for an answer's tokens when the conversation in the step's cache stands before the prompt."""
    logits = step.run(behind(prompt)[len(conversation):] + resp_ids)[-len(resp_ids) - 1:-1]
    step.rollback(len(conversation))
    return logits.float().softmax(-1)

change, surprise = [], []
for row, found in zip(rows[:PROBES], read):
    p, q = (odds_behind(step, lesson.prompts.heldout[row["row"]]["prompt"], row["resp_ids"]) for step in steps)
    change.append((torch.minimum(p, q).sum(-1).double().cpu().numpy() - found["overlap 1.0"]).sum())
    surprise.append(-p[range(len(p)), row["resp_ids"]].double().log().sum().item())

# %%
moved, first = ratio_estimate(change, lengths[:PROBES]), who < PROBES
print(f"alpha of {PROBES} answers alone {overlap[first].mean():.2f}; behind the conversation it changes by "
      f"{moved:+.3f} {moved.interval('+.3f')}")
verdict = "below 0: the long context costs alpha" if moved.high < 0 else "above 0: the long context helps"
print("the interval", "holds 0: no effect shown" if moved.low <= 0 <= moved.high else f"lies {verdict}")
alone, there = np.exp(-all_of["log p"][first].mean()), np.exp(sum(surprise) / first.sum())
print(f"the target's own perplexity on these answers: {alone:.2f} alone, {there:.2f} behind the conversation")

# %% [markdown]
r"""
Read the last two lines together. Where alpha falls, a part may be the target's own doing: its odds changed too, and a text
that it finds less likely is one that it would less likely have written there. The rest is the draft's. That of the tiny pair learned on
pieces of 512 tokens, and never saw a conversation. A draft is only to be trusted at lengths at which it was measured, and
it is only likely to be good at lengths at which it was trained: some long rows belong in its training data.

## A bracket from the store

The label store of notebook 04 holds the target's $k$ largest probabilities at each position and the mass of the rest. No
full vector, no target. What can be said about alpha from that alone?

Take one position. On the stored tokens the overlap is known: $S = \sum_{x \le k} \min(p(x), q(x))$. For any other token
$p(x)$ is unknown, but not without bounds. It is not larger than $p_k$, the smallest stored one. And all of them together
are $p_\text{tail}$. So

$$S \;\le\; a \;\le\; S + \min\Big(p_\text{tail},\; \sum_{x > k} \min(p_k, q(x))\Big).$$

**Exercise 5.4** (medium, 10 minutes). Write it for one position. `p_top` and `q_top` $[k]$ are the two models' odds of the
stored tokens, `p_top` in falling order, and `q_rest` $[V - k]$ the draft's odds of all the others.

<details><summary>Hint</summary>

`p_top[-1]` is $p_k$ and `1 - p_top.sum()` the tail. `q_rest.clamp_max(limit)` is the smaller of the two for every token.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/05_measure_without_decoding.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def bracket(p_top, q_top, q_rest):
    """(low, high) between which the overlap of a position lies, from the target's k stored probabilities."""
    # <solution>
    stored = torch.minimum(p_top, q_top).sum()
    p_tail = (1 - p_top.sum()).clamp_min(0)
    return stored, stored + torch.minimum(p_tail, q_rest.clamp_max(p_top[-1]).sum())
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
bracket = checks.ex_5_4(bracket)

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from lessonlib.measure.offline import alpha_bracket
from lessonlib.traffic.answers import Answers

def bracket_at(p_top, q, ids):
    """The bracket of one position from the draft's whole odds q [V] and the stored ids [k]."""
    rest = q.clone()
    rest[ids] = 0
    return [float(end) for end in bracket(p_top, q[ids], rest)]

brackets, full_overlap = [], []
with TemporaryDirectory() as folder:
    store = lessonlib.score_answers(target, Answers(answers.header, rows[:3]), Path(folder) / "labels", 64, show=False)
    library = alpha_bracket(draft, store)
    for i in range(len(store)):
        pair, (ids, gaps, lse) = store.sequence(i), store.kl_inputs(i)
        p_top, q = (gaps - lse[:, None]).exp(), response_logits(draft, *pair).double().softmax(-1).cpu()
        brackets += [bracket_at(*row) for row in zip(p_top, q, ids)]
        full_overlap.append(read[seqs.index(pair)]["overlap 1.0"])

# %%
(low, high), truth = np.array(brackets).T, np.concatenate(full_overlap)
inside = (low - 1e-3 <= truth) & (truth <= high + 1e-3)
difference = max(abs(low.mean() - library.low), abs(high.mean() - library.high))
print(f"from the store: alpha lies between {low.mean():.3f} and {high.mean():.3f}; from full logits it is {truth.mean():.3f}")
print(f"inside at {inside.sum()} of {len(truth)} positions, to 0.001")
print(f"yours and lessonlib's differ by {measured(difference, '.0e')}, below 1e-5: {difference < 1e-5}")

# %% [markdown]
r"""
How does its width depend on $k$? From full logits of two answers, cut to their $k$ largest:
"""

# %%
p, q = (torch.cat([response_logits(model, *pair) for pair in seqs[:2]]).double().softmax(-1).cpu()
        for model in (target, draft))
whole = torch.minimum(p, q).sum(-1).mean()
print("   k   stored mass   alpha between        width")
for k in (1, 8, 64, 512):
    top = p.topk(k)
    low, high = np.mean([bracket_at(*row) for row in zip(top.values, q, top.indices)], axis=0)
    assert low - 1e-9 <= whole <= high + 1e-9
    print(f"{k:>4} {top.values.sum(-1).mean():>13.3f}   {low:.3f} and {high:.3f} {high - low:>12.3f}")
print(f"from full logits: {whole:.3f}")

# %% [markdown]
r"""
A bracket costs a pass of the draft and nothing else: during training the target need not even be loaded. Where the brackets
of two drafts on one store lie apart, they rank the two as the full measurement would. Where they overlap, only the full
measurement can tell.

## Recap

- Offline alpha is the mean of $\sum_x \min(p, q)$ at every position of held-out text that the target wrote: one pass of
  each model, no coins; exact at every place for a guess made there. Greedily, it is top-1 on greedy text.
- Its interval redraws whole answers, because positions of one answer resemble each other; two drafts are compared on the
  same answers, by redrawing the differences.
- Perplexity mixes in the target's own uncertainty and is no measure of overlap. Alpha depends on the domain, on entropy, and
  on the kind of token; before you blame a length, look at what else changes with it.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Why does the overlap at a place hold exactly for a first guess made there, and not for a third?</summary>

A first guess follows text that is settled, and settled text is distributed as the target's own, like the text here. A third
guess is tested only where the two before it were kept, that is after tokens that both models like, more often than the
target alone would write them. Offline no place has such text before it in the right proportion.

</details>

<details><summary>A colleague reports alpha 0.612 plus or minus 0.006 from 20 answers of 500 tokens. What do you ask?</summary>

What was redrawn. 10,000 independent positions would give such a 95 % interval. Twenty answers are twenty pieces.

</details>

<details><summary>Draft X has a lower perplexity on your text than draft Y, and a lower alpha. Is that a mistake?</summary>

No. Multiplying all logits by a number showed it: the best factor for perplexity need not be the best for alpha. Perplexity
punishes small probabilities by their logarithm, alpha counts misplaced probability and nothing else.

</details>

<details><summary>Why does top-1 on greedy text need no target?</summary>

Greedy text is the target's favourite at every place, given the text before. The text itself is the target's answer.

</details>

<details><summary>Alpha rises with the length of the prompt in your logs. What next?</summary>

Split by kind of request first. If the rise is gone within each kind, the length did nothing; the mixture did. If it stays,
put the same prompts behind longer contexts and measure the change.

</details>

## Two things to change and rerun

1. Measure at another temperature: hand `offline_alpha` the argument `T=0.6` on six answers, then on `greedy[:6]`. Which text is the
   right one for which temperature?
2. Put the raw truncated draft in place of the other, `draft = raw`, before the cell that reads all answers, and run everything
   below. Where does it lose its alpha, in other places or everywhere? (What is on record is then another draft's.)

**Next**: [06 Train the draft](06_train_the_draft.ipynb), which moves the numbers that you can now measure. Back:
[04 Build the data set](04_build_the_dataset.ipynb).
"""
