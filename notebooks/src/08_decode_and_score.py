# %% [markdown]
r"""
# Decode faster and score it

Offline numbers are promises. Here the draft goes into the real decoder, and the clock decides.

**You will** write one exact round of keep-or-resample and test it with a chi-square; compare what the offline measurement
promised with what the decoder does, guess by guess; derive the speed-up formula and find the best $K$; measure what a
draft step and a verifying pass cost *on this machine*; sweep $K$, hold prediction against measurement, and write a row
for the scoreboard.

**You need** [00 Meet the pair](00_meet_the_pair.ipynb) (a round, the keep rule, the three ways to count) and
[05 Measure without decoding](05_measure_without_decoding.ipynb) (the offline numbers). The pair is the one from there: the
target with its *off-the-shelf* draft. [06 Train the draft](06_train_the_draft.ipynb) trains that draft; the end of this
notebook decodes with a trained one. `make lesson` leaves another, and so does notebook 06 on a DGX Spark: name it in the second cell and run
everything again.

**Time**: it runs in about a minute on two cores with the tiny pair, about 10 on a DGX Spark. Reading and three
exercises: an hour. [All solutions](solutions/08_decode_and_score.ipynb).
"""

# %%
from lessonlib.workbook import Explorable, Slider  # no module lessonlib? Run: make lab
from lessonlib.workbook import checks, explain, here, measured, predict, show, style
import lessonlib, torch

# %%
from lessonlib.lesson import UNTRAINED, Lesson

lesson = Lesson(lessonlib.preset())
target, tokenizer = lesson.target, lesson.tokenizer
draft, shape, training = lesson.load(), "A", UNTRAINED  # or lesson.load(lesson.folder / "A-kl"), "A", "kl"
print(here(lesson.preset))

# %% [markdown]
r"""
## Keep or resample

The target's odds are $p$, the draft's are $q$. One round with $K$ guesses gets

- `target_probs` of shape $[K+1, V]$: $p$ after the text, after the first guess, ..., after the last;
- `draft_probs` of shape $[K, V]$: the $q$ that each guess was drawn from;
- `draft_tokens` of shape $[K]$: the guesses;
- `uniforms` of shape $[K+1]$: fresh numbers from $[0, 1)$, one coin for each guess and the last one for the token that
  the target adds.

Go through the guesses in order. Keep $x$ if its coin $u$ says $u < p(x)/q(x)$. At the first refusal, draw the added token
from $\max(p - q, 0)$, with $p$ and $q$ *of that place*, scaled to sum to 1. If all are kept, draw it from the last row of
`target_probs`: the bonus token.

Why is this exact? Token $x$ comes out as a kept guess with probability $q(x)\min(1, p(x)/q(x)) = \min(p(x), q(x))$. All
those sum to $\alpha$, so a refusal happens with probability $1 - \alpha$, and that is also what $\max(p - q, 0)$ sums to.
So a refusal adds exactly $\max(p(x) - q(x), 0)$, and the two together are $p(x)$.

**Exercise 8.1** (medium, 15 minutes). Write the round. `draw(weights, u)` gives the token that the number $u$ picks from
`weights` of shape $[V]$; it divides by their sum itself.

<details><summary>Hint</summary>

Loop over the guesses with their place `i`. Write the test as `uniforms[i] * q[x] < p[x]`: it needs no division, so $q(x)
= 0$ is harmless. At the first guess that fails, return `i` and a draw from `(p - q).clamp_min(0)`. After the loop, all
were kept.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/08_decode_and_score.ipynb), in the same place.

</details>
"""

# %%
from lessonlib.kernels.draw import draw

# %% tags=["exercise"]
def accept_round(target_probs, draft_probs, draft_tokens, uniforms):
    """(kept, next_token) of one exact round; draw the next token with the last of the uniforms."""
    # <solution>
    for i, x in enumerate(draft_tokens):
        p, q = target_probs[i], draft_probs[i]
        if not uniforms[i] * q[x] < p[x]:
            return i, int(draw((p - q).clamp_min(0), uniforms[-1]))
    return len(draft_tokens), int(draw(target_probs[-1], uniforms[-1]))
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
accept_round = checks.ex_8_1(accept_round)

# %% [markdown]
r"""
A decoder runs this rule for every round, so lessonlib has it without the loop, for any number of rounds at once:
`accept`. Fast and slow must agree, here on 2,000 random rounds (seed 8, as for all coins of this notebook).
"""

# %%
from lessonlib.decode.rule import accept

chance = torch.Generator().manual_seed(8)
random_odds = lambda *shape: torch.softmax(1.5 * torch.randn(*shape, generator=chance, dtype=torch.float64), -1)
uniform = lambda *shape: torch.rand(*shape, generator=chance, dtype=torch.float64)

# %%
N, K, V = 2000, 3, 8
rounds = [random_odds(N, K + 1, V), random_odds(N, K, V), uniform(N, K + 1)]
rounds.insert(2, draw(rounds[1], uniform(N, K)))  # the guesses, drawn from the draft's odds
fast = torch.stack(accept(*rounds), -1)
slow = torch.tensor([accept_round(*one) for one in zip(*rounds)])
print(f"rounds in which yours and lessonlib's differ: {int((fast != slow).any(-1).sum())} of {N:,}")

# %% [markdown]
r"""
## Is it exact? A chi-square says so

A proof can be right and its code wrong. So count: play 200,000 rounds at fixed odds and compare how often each token was
written with how often $p$ says it should be. The yardstick is

$$\chi^2 = \sum_x \frac{(\text{observed}_x - \text{expected}_x)^2}{\text{expected}_x}.$$

With 8 tokens there are 7 free counts, and an exact rule gives about 7; above 24.3 it comes only once in a thousand times.
First a rule that is *nearly* right. It tosses the coin properly, but after a refusal it draws from $p$ instead of from
$\max(p - q, 0)$. Those are the target's own odds: what could be wrong with them?
"""

# %%
nearly = predict("chi-square of the nearly right rule after 200,000 rounds (an exact one: about 7)", 30)

# %%
def chi_square(tokens, odds):
    """(chi-square, chance of one at least as large) of tokens [N] that ought to have these odds [V]."""
    expected = len(tokens) * odds
    chi2 = ((torch.bincount(tokens, minlength=len(odds)) - expected) ** 2 / expected).sum()
    return float(chi2), float(torch.special.gammaincc(torch.tensor((len(odds) - 1) / 2).double(), chi2 / 2))

# %%
N, p_rows = 200_000, random_odds(K + 1, V)
q_rows = (p_rows[:K] + random_odds(K, V)) / 2  # a fair draft: half the target's odds, half its own
p, q = p_rows[0], q_rows[0]
guesses = draw(q.expand(N, V), uniform(N))
passed = uniform(N) * q[guesses] < p[guesses]
for rule, leftover in {"max(p - q, 0)": (p - q).clamp_min(0), "p itself": p}.items():
    written = torch.where(passed, guesses, draw(leftover.expand(N, V), uniform(N)))
    chi2, at_least = chi_square(written, p)
    print(f"redraw from {rule:<14} chi-square {chi2:>9,.1f}   chance of that or more {at_least:.2f}")
often = torch.minimum(p, q)
often = often + (1 - often.sum()) * p  # how often the nearly right rule writes each token, where p would be right
theory = float(7 + N * ((often - p) ** 2 / p).sum())
explain(nearly, chi2, reference=theory, band=0.1 * theory, form=",.0f", exact=True, must_hold=True)

# %% [markdown]
r"""
The reference is what the algebra expects. A kept guess writes token $x$ with probability $\min(p(x), q(x))$, and then only
$\max(p - q, 0)$ is missing. Drawing from all of $p$ adds $(1 - \alpha)\,p(x)$ instead. So each token that the draft does not
underrate, $q(x) \ge p(x)$, comes out $2 - \alpha$ times as often as it should, and the others pay for it. Is that what was
counted?
"""

# %%
seen, alpha = torch.bincount(written, minlength=V) / (N * p), float(torch.minimum(p, q).sum())
liked = seen[q >= p]
print(f"{len(liked)} tokens with q >= p come out {liked.min():.2f} to {liked.max():.2f} times as often as they should; "
      f"2 - alpha is {2 - alpha:.2f}")
print(f"the other {V - len(liked)}: {seen[q < p].min():.2f} to {seen[q < p].max():.2f} times")

# %% [markdown]
r"""
Now the whole rule, with every position of a round of three. A token stands at position $i$ in the rounds that kept the
guesses before it, and there it must have the odds of row $i$, whatever those guesses were. Once with a draft that draws
its guesses, and once with a greedy one, whose guess is always its favourite: such a draft has all its weight on one
token, so `accept` gets `None` in place of $q$.
"""

# %%
target_rows, coins = p_rows.expand(N, K + 1, V), uniform(N, K + 1)
drawn, favourite = draw(q_rows.expand(N, K, V), uniform(N, K)), q_rows.argmax(-1).expand(N, K)
for name, block, odds in (("draws its guesses", drawn, q_rows.expand(N, K, V)), ("always its favourite", favourite, None)):
    how_many, added = (column[:, None] for column in accept(target_rows, odds, block, coins))
    written = torch.cat([block, added], 1).scatter(1, how_many, added)
    for place in range(K + 1):
        there = written[how_many[:, 0] >= place, place]
        chi2, at_least = chi_square(there, p_rows[place])
        print(f"{name:<21} position {place + 1}: {len(there):>7,} tokens, chi-square {chi2:5.1f}, chance {at_least:.2f}")

# %% [markdown]
r"""
Eight chances between 0 and 1, none of them tiny: no objection. That was sampling. In greedy decoding there is no chance
at all and exactness is easier to see: the text must be plain decoding's text, token for token. The sweep below checks
that on every prompt and for every $K$.

## Offline against online

Notebook 00 measured acceptance by decoding. The offline way is quicker: let the draft read a text that the target has
written and ask at each place whether its favourite is the next token. For greedy decoding that is the **top-1
agreement**. The course ships answers of the target, so only the draft has to read.
"""

# %%
@torch.inference_mode()
def agreement(prompt_ids, answer_ids):
    """At each place of an answer: is the draft's favourite the token that the target wrote?"""
    text = torch.tensor([prompt_ids + answer_ids], device=draft.device)
    favourites = draft(text, logits_to_keep=len(answer_ids) + 1).logits[0, :-1].argmax(-1)
    return (favourites == text[0, len(prompt_ids):]).tolist()

answers = lesson.answers("heldout-greedy").sequences()[:64]
agree = [agreement(*pair) for pair in answers]
places = sum(map(len, agree))
offline = sum(map(sum, agree)) / places
print(f"top-1 agreement: {offline:.3f} of {places:,} places in {len(answers)} answers")

# %% [markdown]
r"""
The greedy decoder is no more than a walk over these answers of yes and no. A round starts at some place and goes on as
long as it reads yes; at the first no the target writes the token itself, and the next round starts behind it. So the
offline record can be *replayed* at any $K$, without a model.
"""

# %%
def replay(rows, K):
    """(tested, kept) at positions 1..K if rounds of K guesses run over rows of yes and no."""
    tested, kept = [0] * K, [0] * K
    for row in rows:
        place = 0
        while place < len(row):
            guesses = row[place:place + K]
            run = guesses.index(False) if False in guesses else len(guesses)
            for i in range(K):
                kept[i] += i < run
                tested[i] += i < min(run + 1, len(guesses))
            place += run + 1  # the kept guesses and the target's own token
    return tested, kept

# %% [markdown]
r"""
Is that really what the decoder does? The real one on two prompts, against a replay of the texts that it wrote:
"""

# %%
from lessonlib.pair.chat import chat_ids, end_of_turn_ids

K, end = 4, end_of_turn_ids(tokenizer, target.generation_config)
prompts = [chat_ids(tokenizer, row["prompt"]) for row in lesson.prompts.heldout]
real = [lessonlib.spec_greedy(target, draft, prompt, K, 32, end) for prompt in prompts[:2]]
from_text = replay([agreement(prompt, text.tokens) for prompt, text in zip(prompts, real)], K)
counted = [[sum(counts) for counts in zip(*columns)] for columns in zip(*((text.tested, text.accepted) for text in real))]
print("tested and kept at positions 1 to 4, by the decoder:", *counted)
print("the replay counts the same:", counted == list(from_text))

# %% [markdown]
r"""
So the replay can stand in for the decoder on all the answers. Two predictions: the *first* guess of a round against the
offline agreement, and the *fourth* guess, given that the three before it were kept. It stands further from anything the
target wrote. Is it kept more rarely?
"""

# %%
first = predict(f"Offline, {100 * offline:.1f} of 100 agree. Of 100 first guesses, how many are kept?", 47, unit="of 100")
fourth = predict("Of 100 fourth guesses that are tested, how many are kept?", 30, unit="of 100")

# %%
def shares(tested, kept):
    """The share kept of the guesses tested, at each position."""
    return [part / whole for part, whole in zip(kept, tested)]

as_written = shares(*replay(agree, K))
near = [round(100 * offline + points, 1) for points in (-2, 2)]  # the course: within a couple of points of the offline number
explain(first, 100 * as_written[0], band=near, form=".1f", exact=True)
explain(fourth, 100 * as_written[3], band=(round(100 * as_written[0], 1), 100), form=".1f", exact=True)  # flat or rising

# %% [markdown]
r"""
The bands are the course's expectations: first guesses within two points of the offline number, later ones as good or
better. The share rises! And the first one lies lower than expected. Before you read on, think about why. One experiment
helps: the same answers of yes and no, but all places shuffled (20 times, seeds 0 to 19), so that a place no longer knows its
neighbours.
"""

# %%
import random

pooled = sum(agree, [])
shuffled = shares(*replay([random.Random(seed).sample(pooled, places) for seed in range(20)], K))
print("position in the round", *(f"{place:>6}" for place in range(1, K + 1)))
print("share kept           ", *(f"{share:6.2f}" for share in as_written))
print("same, places shuffled", *(f"{share:6.2f}" for share in shuffled))

# %%
fig, ax = style.figure(6.6, 2.8)
style.lines(ax, range(1, K + 1), {"as written": as_written, "shuffled": shuffled})
ax.set(ylim=(0.3, 0.8), xticks=range(1, K + 1), xlabel="position in the round", ylabel="share of tested guesses kept")
style.finding(ax, "Easy places come in runs, and only there are later guesses tested")
show(fig, "The share kept of tested guesses rises with the position in the round; with the places shuffled it is flat.")

# %% [markdown]
r"""
**Why it rises.** The draft does not get better further out. Position 4 is *tested* only where three guesses in a row were
right, and those are the easy stretches: a set phrase, the end of a long word, a list in full swing. Position 1 comes
right after a token that the target had to write itself, mostly because a guess failed, so it is tested on the hard
stretches more than its share. This is **selection**. Shuffling the places proves it: the same yes and no in random order,
and the curve is flat at the offline agreement.

**Why position 1 lies below the offline number.** For the same reason. Offline averages over *all* places; first guesses
are made more often at the harder ones. A draft that is never refused has no such gap, and one that is refused as often as
this one has a larger one than the course expects.

**And when sampling?** Then the offline number is alpha, the mean of $\sum_x \min(p(x), q(x))$ over the places of a text.
The decoder tosses coins; offline there is nothing to toss. On one answer that the target drew at $T = 1$, against 500
guesses drawn and judged at every place:
"""

# %%
asked, answer = lesson.answers("heldout").sequences()[0]
with torch.inference_mode():
    text = torch.tensor([asked + answer], device=target.device)
    p_text, q_text = (model(text).logits[0, len(asked) - 1:-1].float().softmax(-1).cpu() for model in (target, draft))
alpha_offline = torch.minimum(p_text, q_text).sum(-1).mean()
guesses = torch.multinomial(q_text, 500, replacement=True, generator=chance)
tossed = uniform(*guesses.shape) * q_text.gather(1, guesses) < p_text.gather(1, guesses)
close = abs(tossed.double().mean() - alpha_offline) < 0.01
print(f"alpha {alpha_offline:.2f}; the share kept of {tossed.numel():,} guesses is within 0.01 of it: {bool(close)}")

# %% [markdown]
r"""
For later positions it is an approximation when sampling: the guesses before them may be words of the draft's, such as the
target would hardly have chosen. (Greedily it is not: a guess is tested only where all before it are the target's own.)

## The speed-up formula

Count time in steps of the target. A round costs $K$ draft steps of $c$ each and one verifying pass of $v$: $Kc + v$. On a
GPU that waits for memory $v$ is close to 1; on a CPU it grows with $K$.

It writes at least one token. It writes a second one if the first guess is kept, probability $\alpha$; a third one with
$\alpha^2$; and the last, the bonus token, with $\alpha^K$. So

$$\text{speed-up} = \frac{1 + \alpha + \dots + \alpha^K}{Kc + v} = \frac{1 - \alpha^{K+1}}{(1 - \alpha)(Kc + v)}.$$

Here $\alpha$ is the share kept *per tested guess*. The formula takes it to be the same everywhere, which you have just
seen it is not; the sweep will show how much that matters.

**Exercise 8.2** (easy, 10 minutes). Write it, and think of $\alpha = 1$.

<details><summary>Hint</summary>

The sum `sum(alpha**i for i in range(K + 1))` is right for every $\alpha$; the closed form divides by zero at $\alpha =
1$.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/08_decode_and_score.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def speedup(alpha, K, c, v=1.0):
    """How many times as fast as plain decoding; a draft step takes c, a verifying pass v steps of the target."""
    # <solution>
    return sum(alpha**i for i in range(K + 1)) / (K * c + v)
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
speedup = checks.ex_8_2(speedup)

# %%
grid = [(alpha, K, c, v) for alpha in (0.0, 0.3, 0.7, 0.95, 1.0) for K in range(1, 9) for c in (0.0, 0.15, 0.3) for v in (1.0, 1.6)]
apart = max(abs(speedup(*setting) - lessonlib.speedup(*setting)) for setting in grid)
print(f"yours and lessonlib's differ by at most {apart:.0e} in {len(grid)} settings")

# %% [markdown]
r"""
## How many guesses

A longer round may write more and surely costs more. The best $K$ is where the formula peaks, and that can be $K = 0$: no
draft at all.

**Exercise 8.3** (easy, 5 minutes). Find it for $v = 1$, among $K = 0$ to $32$.

<details><summary>Hint</summary>

`max(candidates, key=function)` returns the candidate for which the function is largest.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/08_decode_and_score.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def best_k(alpha, c):
    """The number of guesses a round, 0 to 32, with the highest speed-up."""
    # <solution>
    return max(range(33), key=lambda K: speedup(alpha, K, c))
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
best_k = checks.ex_8_3(best_k)

# %%
grid = [(alpha / 10, c / 20) for alpha in range(10) for c in range(1, 7)]
other = sum(best_k(*setting) != lessonlib.best_k(*setting) for setting in grid)
print(f"yours and lessonlib's differ in {other} of {len(grid)} settings")

# %% [markdown]
r"""
Now the figures that this course starts from. A Llama 1B drafting for the 8B: $\alpha$ about 0.7, $c$ about 0.3.
Distillation may lift $\alpha$ to 0.8. Better engineering may halve $c$. What is each worth?
"""

# %%
distilled = predict("At c = 0.3 and alpha 0.7 the best is 1.37 times as fast. And at alpha 0.8?", 1.45, unit="x")

# %%
for c in (0.3, 0.15):
    for alpha in (0.7, 0.8):
        best = best_k(alpha, c)
        print(f"c = {c:<4}  alpha = {alpha}:  best K = {best}, {speedup(alpha, best, c):.2f} times as fast")
explain(distilled, speedup(0.8, best_k(0.8, 0.3), 0.3), reference=1.55, band=0.01, form=".2f", exact=True, must_hold=True)

# %% [markdown]
r"""
Ten points of $\alpha$ are worth 0.18 at the slow draft and 0.36 at the fast one. The two levers multiply: the cheaper the
draft's step, the more a point of $\alpha$ is worth. A draft in 4 bits is one way to a lower $c$.

What does that make of the four figures of [01 Measure overlap](01_measure_overlap.ipynb)? An 8B on a DGX Spark writes about
17 tokens a second; 1.4 times is where it starts with a 1B; distilling drafts is reported to add 10 to 45 %; and a good draft
is said to have more than 80 % of its 3 to 5 guesses kept.
"""

# %%
start, better = speedup(0.7, 2, 0.3), speedup(0.8, 3, 0.3)
print(f"17 tokens a second become {17 * start:.0f} at the starting line ({start:.1f} x) and {17 * better:.0f} at alpha 0.8 "
      f"({better:.2f} x): {better / start - 1:+.0%}, within 10 to 45 %: {0.1 <= better / start - 1 <= 0.45}")
print("rounds that keep all their guesses at alpha 0.8:", ", ".join(f"K = {K} {0.8**K:.0%}" for K in (3, 4, 5)))

# %% [markdown]
r"""
So the 80 % can only be meant for each guess that is tested. Whole rounds are kept much more rarely.

Move the three sliders. The last one is what a CPU adds: each guess makes the verifying pass dearer by that part of a
step.
"""

# %%
class SpeedCurve(Explorable):
    sliders = (Slider("alpha", "alpha, share kept", 0.7, 0.0, 0.99, 0.01),
               Slider("c", "c, cost of a draft step", 0.3, 0.0, 0.6, 0.01),
               Slider("slope", "v, more for each guess", 0.0, 0.0, 0.3, 0.01))

    def setup(self, ax):
        self.ax = ax
        (self.curve,) = style.lines(ax, range(13), {"speed-up": [1.0] * 13})
        (self.best,) = ax.plot([0], [1], "o", markersize=9, color=style.DRAFT)
        ax.axhline(1, color=style.QUIET, linewidth=1, linestyle=(0, (2, 2)))
        ax.set(ylim=(0, 4), xlabel="K, guesses a round", ylabel="times as fast as plain decoding")

    def draw(self, alpha, c, slope):
        speeds = [speedup(alpha, K, c, 1 + slope * K) if K else 1.0 for K in range(13)]
        K = max(range(13), key=speeds.__getitem__)
        self.curve.set_ydata([min(speed, 4.2) for speed in speeds])
        self.best.set_data([K], [min(speeds[K], 4)])
        best = f"K = {K} is best, {speeds[K]:.2f} times as fast as plain decoding" if K else "plain decoding is fastest"
        style.finding(self.ax, best[0].upper() + best[1:])
        return f"With alpha {alpha:.2f}, c {c:.2f} and v = 1 + {slope:.2f} K, {best}."

SpeedCurve()

# %% [markdown]
r"""
## Where c comes from

$c$ is one time divided by another, and the code of a step decides both. A step of one token computes next to nothing: it
reads every weight once. So the bytes of the weights say what $c$ could be, and how a step is run says what it is. Two ways
to run it, each with the model's own weights:

- **transformers' forward**: some thousand small operations, each sent off from Python. A layer of a small model waits for
  Python as long as one of a large model does.
- **graph**: five kernels a layer, captured once and launched all at once on a GPU
  ([graph_step.py](../lessonlib/pair/graph_step.py)). Elsewhere the course runs the same arithmetic in as few operations as
  PyTorch allows ([llama.py](../lessonlib/pair/llama.py)).

The record is of one H200, with weights in the shapes of Llama's 8B, its 1B, and the first four layers of the 8B.
"""

# %%
by_forward = predict("By its bytes a step of the 1B costs a sixth of one of the 8B, 0.16. And by transformers' forward?", 0.25)

# %%
from lessonlib.files import read_json
from lessonlib.reference import REFERENCE

machine = "NVIDIA H200"
parts = read_json(REFERENCE / "decoding.json")["machines"][machine]["parts"]
steps = {(row["work"], row["rows"]): row for row in parts["steps"]}
print(f"on record ({machine})")
print("                  8B step   drafting: 1B                             first 4 layers of the 8B")
for way in ("bytes", "transformers", "graph"):
    rows = [steps[f"{name}, {'graph' if way == 'bytes' else way}", 1] for name in ("8B", "1B", "first 4 layers")]
    times = [row["floor_ms" if way == "bytes" else "ms"] for row in rows]
    line = f"  {way:<13} {times[0]:6.1f} ms"
    for time in times[1:]:
        c = time / times[0]
        K = lessonlib.best_k(0.8, c)
        line += f"   c {c:.2f}, at alpha 0.8 {lessonlib.speedup(0.8, K, c):.2f} x (K = {K})"
    print(line)
c_of = lambda name, way: steps[f"{name}, {way}", 1]["ms"] / steps[f"8B, {way}", 1]["ms"]
slow, fast = (steps[f"{name}, transformers", 1] for name in ("8B", "1B"))
explain(by_forward, c_of("1B", "transformers"), band=(fast["low"] / slow["high"], fast["high"] / slow["low"]), form=".2f", exact=True)
assert c_of("1B", "graph") < c_of("1B", "transformers") and c_of("first 4 layers", "graph") > c_of("first 4 layers", "transformers")

# %% [markdown]
r"""
(The band holds every single one of the timings on record: what Python takes varies, the graph hardly.)

The graph is several times as quick for all three, and most of all for the 1B, so its $c$ falls and the same $\alpha$ buys
more. That is the order of work: what a slow step costs hides in $c$, and no training repays it.

The draft of four layers goes the other way. By transformers' forward a layer takes the time of launching it, so four of 32
layers come cheap; at the speed of memory each weight counts alike, the draft's large output layer too, and $c$ *rises* to its
share of the bytes. It gains less, over a target that is several times as quick.

Verifying is nearly free there, since one pass reads the weights once, whatever the rows.
"""

# %%
for name in ("8B", "1B", "first 4 layers"):
    forward, graph = (steps[f"{name}, {way}", 1]["ms"] for way in ("transformers", "graph"))
    print(f"{name:<15} the graph is {forward / graph:.0f} times as quick as transformers' forward, {graph / steps[f'{name}, graph', 1]['floor_ms']:.1f} times its bytes' time")
print(f"the 8B's graph: v(4) = {steps['8B, graph', 5]['to_one_row']:.2f}, v(8) = {steps['8B, graph', 9]['to_one_row']:.2f}")
shares = sorted(row["share"] for row in parts["rounds"] if "share" in row)
print(f"the 8B with the 1B, kept by a coin: {shares[0]:.0%} to {shares[-1]:.0%} of the formula's speed-up, {shares[len(shares) // 2]:.0%} in the middle")

# %% [markdown]
r"""
A decoder that waits for its device inside a round would fall short of the formula; this one waits once a round, at its end.

All this is one text at a time. A server writes many at once, and then plain decoding shares the reading of the weights among
them too. Verifying asks for $K + 1$ rows of each text, and sooner or later the arithmetic of so many rows takes longer than
reading the weights: from there on guesses cost what they save. (Batches run through a simpler step than a single text, captured
as a graph too: [batch_step.py](../lessonlib/pair/batch_step.py). It is slower for one text, so compare within a line.)
"""

# %%
rates = {(row["rows"], row["K"]): row for row in parts["batches"]}
print("texts at once   plain        times as fast with K = 1     2     4    (0.8 of the tested guesses kept)")
for texts in sorted({texts for texts, _ in rates}):
    plain, fast = rates[texts, 0]["tokens_per_second"], [rates[texts, K]["to_plain"] for K in (1, 2, 4)]
    print(f"{texts:>8} {plain:>10.0f} tok/s" + " " * 20 + "".join(f"{each:6.2f}" for each in fast))
best = {texts: max(rates[texts, K]["to_plain"] for K in (1, 2, 4)) for texts in (1, 16)}
print("with sixteen texts guessing still pays there:", best[16] > 1, "; less than with one:", best[16] < best[1])

# %% [markdown]
r"""
And on this machine, with this pair?
"""

# %%
from time import perf_counter
from lessonlib.pair.step import CachedModel, path, step_of, synchronize

def step_ms(step):
    """Milliseconds of a step of one token behind 64 others: the middle one of nine."""
    step.read(list(range(1, 65)))
    times = []
    for _ in range(10):
        synchronize(step.device)
        start = perf_counter()
        step.run([7])
        synchronize(step.device)
        times.append(1e3 * (perf_counter() - start))
    return sorted(times[1:])[4]

for name, ways in (("transformers", CachedModel), ("lessonlib", step_of)):
    ours, its = (step_ms(ways(model)) for model in (target, draft))
    print(f"{name:<13} target {measured(ours, '.1f', 'ms')}, draft {measured(its, '.1f', 'ms')}, c {measured(its / ours, '.2f')}")
print("lessonlib's step here:", here(path(step_of(target))))
weights = [sum(p.numel() for p in model.parameters()) for model in (target, draft)]
print(f"by the weights that a step reads, c is {weights[1] / weights[0]:.2f}")

# %% [markdown]
r"""
Half the bytes are the other way to a quicker step: the same weights in bf16. What that is worth depends on the processor, and
so does $v$: one that multiplies bf16 numbers itself checks several guesses for the price of one. The last column is what the
formula then promises a draft whose favourite is the target's in 53 of 100 places, at its best $K$.
"""

# %%
from copy import deepcopy
from lessonlib.measure.costs import step_costs

Ks, worth = (1, 2, 3, 4), 0.53
print("            target   c      " + "".join(f"v({K})   " for K in Ks) + "  best K  times as fast")
for dtype in dict.fromkeys((target.dtype, torch.bfloat16)):
    pair = [model if model.dtype == dtype else deepcopy(model).to(dtype) for model in (target, draft)]
    cost = step_costs(*pair, Ks)
    best = max(Ks, key=lambda K: lessonlib.speedup(worth, K, cost.c, cost.v))
    columns = [measured(1e3 * cost.target_seconds, ".0f", "ms"), *(measured(value, ".2f") for value in (cost.c, *(cost.v[K] for K in Ks)))]
    gain = measured(lessonlib.speedup(worth, best, cost.c, cost.v), ".2f")
    print(f"{str(dtype).removeprefix('torch.'):<10}", *columns, here(best), gain, sep="   ")
del pair

# %% [markdown]
r"""
In bf16 two nearly tied tokens can change places between a pass over one token and a pass over several, so a greedy text may
part from plain decoding's. `python -m lessonlib sweep --dtype bfloat16` decodes so, and says where texts part and how near a
tie it was.
"""

# %% [markdown]
r"""
## Measure it here

Everything above was arithmetic. Now the clock: plain decoding and $K$ = 1 to 4 take turns on each prompt, so that a busy
machine slows them all alike, and the costs $c$ and $v(K)$ are measured in the same run. Two figures of the formula stand
beside each measurement, one from a single $\alpha$ and one from the acceptance of each position. Both take this run's own
acceptance, so they test only the formula and the costs. The *promise* is the line below the table: it was known before a
single round was decoded, from the offline agreement.
"""

# %%
count, length = (4, 20) if lesson.preset.name == "tiny" else (20, 128)
swept = lessonlib.sweep(target, draft, prompts[:count], (1, 2, 3, 4), length, end)
print("              times as fast as plain decoding")
print(" K   tok/s   measured [95 %]         one alpha  by position   tokens a round  per tested  same text")
for row in swept.rows[1:]:
    low, middle, high = (measured(value, ".2f") for value in (row.speedup.low, row.speedup, row.speedup.high))
    predictions = f"{measured(row.predicted, '.2f'):<9}  {measured(row.predicted_by_position, '.2f'):<12}"
    print(f"{row.K:>2}   {measured(row.tokens_per_second, '.1f'):<6}  {middle} [{low}, {high}]  {predictions}  "
          f"{row.counts.tokens_per_round:<14.2f}  {row.counts.per_tested:<10.2f}  {row.identical} of {swept.prompts}")
promised = {row.K: lessonlib.speedup(offline, row.K, swept.costs.c, swept.costs.v) for row in swept.rows[1:]}
print("promised by the offline agreement:", ", ".join(f"K = {K} {measured(speed, '.2f')}" for K, speed in promised.items()))
print(f"plain decoding writes {measured(swept.rows[0].tokens_per_second, '.1f')} tokens a second")
assert target.dtype != torch.float32 or all(row.identical == swept.prompts for row in swept.rows)

# %%
Ks, low, high = zip(*((row.K, row.speedup.low, row.speedup.high) for row in swept.rows))
gains = ", ".join(str(row.K) for row in swept.rows[1:] if row.speedup.low > 1)
fig, ax = style.figure(6.6, 3.0)
style.lines(ax, Ks, {"measured": [row.speedup for row in swept.rows], "one alpha": [row.predicted for row in swept.rows],
                     "by position": [row.predicted_by_position for row in swept.rows]})
ax.fill_between(Ks, low, high, color=style.TARGET, alpha=0.15, linewidth=0)
ax.axhline(1, color=style.QUIET, linewidth=1)
ax.set(xticks=Ks, xlabel="K, guesses a round", ylabel="times as fast as plain decoding")
style.finding(ax, f"The measured interval lies above 1 at {f'K = {gains}' if gains else 'no K'}")
show(fig, "Speed-up against K: measured, with its 95 % interval over prompts, and predicted twice; 1 is plain decoding.")

# %% [markdown]
r"""
The column *same text* is the greedy check: plain decoding's own tokens on every prompt, whatever $K$. One can read that a
draft's errors may slightly alter the text. In fp32 they never do, and the cell would stop if they did. (In bf16 a near tie
between two tokens may fall otherwise in a pass over several tokens than in a pass over one: rounding, not the rule.)

What would a draft need here? The **break-even alpha** is the acceptance at which, by the formula, $K$ guesses cost
exactly what they earn, at the costs just measured (*none*: a round would cost more than it writes even if all were kept).
The last column is the formula's verdict, a prediction: gain where alpha here is above the break-even, else lose. The clock
may disagree.
"""

# %%
costs = swept.costs
print(f"a target step: {measured(1e3 * costs.target_seconds, '.0f', 'ms')}; a draft step: {measured(costs.c, '.2f')} of that")
print(" K   v(K)   break-even alpha  alpha here  the formula predicts")
for row in swept.rows[1:]:
    needed = lessonlib.break_even_alpha(row.K, costs.c, costs.v)
    alpha, enough = row.counts.per_tested, here(f"{needed:.2f}" if needed <= 1 else "none")
    verdict = here("gain" if alpha > needed else "lose")
    print(f"{row.K:>2}   {measured(costs.v[row.K], '.2f'):<6} {enough:<17} {alpha:<11.2f} {verdict}")

# %% [markdown]
r"""
Now the verdict of the clock. It goes by the interval: where 1 lies inside, this run cannot tell gain from loss.
"""

# %%
def which(holds):
    """The K of the sweep whose rows pass the test `holds`, as words."""
    return here(", ".join(str(row.K) for row in swept.rows[1:] if holds(row)) or "none")

print("the interval lies above 1, a gain:               K =", which(lambda row: row.speedup.low > 1))
print("the interval lies below 1, a loss:               K =", which(lambda row: row.speedup.high < 1))
print("the interval holds 1, undecided:                 K =", which(lambda row: row.speedup.low <= 1 <= row.speedup.high))
inside = lambda row, predicted: row.speedup.low <= predicted <= row.speedup.high
print("the interval holds what was promised offline:    K =", which(lambda row: inside(row, promised[row.K])))
print("the interval holds the one-alpha prediction:     K =", which(lambda row: inside(row, row.predicted)))
print("the interval holds the prediction by position:   K =", which(lambda row: inside(row, row.predicted_by_position)))

# %% [markdown]
r"""
**Read it honestly.** Where the draft gains, a round writes more than it costs; where it loses, it costs more than it
writes. Three causes decide, each of them a number above:

- **alpha**: the more guesses are kept, the more a round writes. Where alpha here is below the break-even, too few are.
  That is what training is for, in [06 Train the draft](06_train_the_draft.ipynb).
- **c**: a draft with 4 of 30 layers, as in the tiny pair, would cost 0.13 steps by its layers alone. But each of its steps
  also runs the output layer, whose 28 million weights for 49,152 tokens are twice those of its four layers. Counted by
  weights, it costs 0.32 ([07 Truncate the target](07_truncate_the_target.ipynb) counts them); the clock's own $c$ stands
  above, and it need not be the same.
- **v(K)**: a GPU that waits for memory verifies five tokens in about the time of one. A CPU has less arithmetic to spare.
  Where v(K) grows with $K$, a longer round must write that much more to pay.

Where a prediction lies inside the interval, the measurement does not contradict it. With four prompts and wide intervals
that says little. Where it lies outside, look for something else. The formula leaves out what happens between the steps,
choosing tokens and rolling back caches; that alone would make the measurement lower. A machine that is busier in one part
of the run than in another can move it either way. And the promise can miss because it is an average over many answers, and
these are the beginnings of a few of them; or because acceptance is not the same at each guess. *By position* knows of the
latter.

## The same with a trained draft

With the tiny pair that is `distilled`, which the course ships: the off-the-shelf draft after six epochs of forward KL on the
target's own answers, recorded in notebook 06. (With another pair it is the draft that your own notebook 06 has left.) It has
the same layers, so the same $c$; nothing but its guesses differs. Same prompts, same texts.
"""

# %%
better = predict("Of 100 tested guesses of the trained draft, how many are kept, at K = 2?", 55, unit="of 100")

# %%
place = "distilled" if lesson.preset.name == "tiny" else lesson.folder / "A-kl"
if lesson.preset.name != "tiny" and not place.is_dir():
    print("not run: no trained draft yet; run notebook 06 with this pair, or set `place` to its folder")
else:
    again = lessonlib.sweep(target, lesson.load(place), prompts[:count], (1, 2, 3), length, end)
    print("      off the shelf                          trained")
    print(" K    per tested  tokens a round  x plain     per tested  tokens a round  x plain [95 %]       same text")
    for old, row in zip(swept.rows[1:], again.rows[1:]):
        speed, low, high = (measured(value, ".2f") for value in (row.speedup, row.speedup.low, row.speedup.high))
        print(f"{row.K:>2}    {old.counts.per_tested:<11.2f} {old.counts.tokens_per_round:<15.2f} {measured(old.speedup, '.2f'):<11} "
              f"{row.counts.per_tested:<11.2f} {row.counts.tokens_per_round:<15.2f} {speed} [{low}, {high}]   {row.identical} of {again.prompts}")
    explain(better, 100 * again.rows[2].counts.per_tested, band=(100 * swept.rows[2].counts.per_tested, 100), form=".0f", exact=True)
    assert target.dtype != torch.float32 or all(row.identical == again.prompts for row in again.rows)

# %% [markdown]
r"""
Four prompts and short answers again. On record are the twenty short prompts of the course, answers of up to 256 tokens, and every
draft that the course trains: each at its own best $K$, which was chosen on other prompts, so that no draft picked the number
that suits these best.
"""

# %%
table = read_json(REFERENCE / "decoded.json")
print(f"on record ({table['machine']}): {table['prompts']} prompts, up to {table['tokens']} tokens, greedy")
print("draft             K   per tested  tokens a round  c     v(K)  predicted  times as fast [95 %]  tokens a second  same text")
for name, found in table["drafts"].items():
    fast = found["speedup"]
    print(f"{name:<16}  {found['K']}   {found['per_tested']:<11.3f} {found['tokens_per_round']:<15.2f} {found['c']:.2f}  {found['v']:.2f}  "
          f"{found['predicted']:<10.2f} {fast['value']:.2f} [{fast['low']:.2f}, {fast['high']:.2f}]     "
          f"{found['tokens_per_second']:<16.1f} {found['identical']} of {table['prompts']}")
first, best = table["drafts"]["A, off-the-shelf"], max(table["drafts"].values(), key=lambda found: found["speedup"]["value"])
gain = best["speedup"]["value"] / first["speedup"]["value"] - 1
print(f"the best over the off-the-shelf draft: {gain:+.0%}; the published 10 to 45 %:", "as expected" if 0.1 <= gain <= 0.45 else "not here")
assert best["speedup"]["low"] > first["speedup"]["value"] and best["per_tested"] > first["per_tested"]
assert all(found["identical"] == table["prompts"] for found in table["drafts"].values())

# %% [markdown]
r"""
That is what training is for: the same text from models of the same size, more guesses kept, and the clock agrees.

## Write the row

The scoreboard has one row for each run, written by the program: the pair, the draft and its training, the offline numbers
with their interval, what the decoder did, the machine, the versions, the seed. A notebook changes no file of the course,
so this row goes to a temporary folder; `make lesson` adds its own to `SCOREBOARD.md`.
"""

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from lessonlib.lesson import record

(arm,) = lesson.measure({(shape, training): draft}, lesson.answers("heldout").sequences()[:6])
with TemporaryDirectory() as folder:
    board = Path(folder) / "SCOREBOARD.md"
    record(lesson, arm, swept, board)
    columns, _, cells = (line.strip("| ").split(" | ") for line in board.read_text().splitlines()[-3:])
for column, cell in zip(columns, cells):
    print(f"{column:<16} {here(cell)}")

# %% [markdown]
r"""
Read such a row from the left: what was paired, how it was trained, what was promised (`alpha`, `top-1`), what the formula
makes of this run's own acceptance (`predicted`), what came out (`measured`), where, and with what.

## Recap

- Keep $x$ if $u < p(x)/q(x)$, redraw from $\max(p - q, 0)$, take the bonus token from the last row: exact, and a
  chi-square can tell it from a rule that is nearly right.
- Offline agreement can be replayed as rounds. Acceptance rises with position because only easy stretches get that far,
  and first guesses fall on the harder places.
- Speed-up is tokens a round over $Kc + v$. A draft earns its keep above the break-even alpha of *this* machine, and
  nowhere else.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Why is the leftover max(p - q, 0) and not p?</summary>

Kept guesses have already put $\min(p, q)$ of each token into the text. Only the rest, $p - \min(p, q) = \max(p - q, 0)$,
is missing. Drawing from $p$ writes the overlap a second time.

</details>

<details><summary>The fourth guess is kept more often than the first. Should K be large, then?</summary>

No. The fourth is *reached* rarely: its share counts only rounds whose first three were kept. What it earns is the product
of all four shares, and what it costs is one draft step in every round.

</details>

<details><summary>Draft X has alpha 0.60 at c = 0.10, draft Y alpha 0.70 at c = 0.30. Which one do you take?</summary>

With $v = 1$: X is best with three guesses a round, 1.67 times as fast; Y with two, 1.37 times. X, by far. Alpha alone
decides nothing.

</details>

<details><summary>Why does a draft that always proposes its favourite stay exact when the target samples?</summary>

Its $q$ is 1 on that token. The rule keeps it with probability $p(x)$, and the leftover is $p$ without $x$: together again
$p$.

</details>

## Two things to change and rerun

1. Make a cheaper, worse draft: `draft, shape = lessonlib.truncated_draft(target, 2), "B"` at the end of the second cell (and
   `cast_parameters(draft, target.dtype)`, as notebook 07 does, where that is not fp32). What happens to $c$, to alpha, to the
   text?
2. Decode at a temperature: hand `lessonlib.sweep` the argument `sampling=Sampling(1.0)` with `from
   lessonlib.decode.drafter import Sampling`. Which alpha belongs in the formula now, and why do the texts differ from
   plain decoding's without being wrong?

**Next**: [09 Break it](09_break_it.ipynb). The whole course in one command is `make lesson`; the map is in the
[README](../README.md). Back to [00 Meet the pair](00_meet_the_pair.ipynb).
"""
