# %% [markdown]
r"""
# Measure the overlap

What makes a draft good? Not that it writes well, and not that it knows much. It is good for *one* target, as far as its
bets for the next token are that target's bets. This notebook turns the sentence into a number, $\alpha$, computes it in
ways that must agree to the last digit, and then into time: how many times as fast the decoder gets.

**You will** derive that the chance of keeping a guess is one minus a distance, and check it to 16 digits, in exact
fractions and by playing a hundred thousand guesses; see what the number rewards and what it ignores; read the real pair's odds at
easy and at hard places; write the tokens a round earns and the rule for one more guess; move a draft towards its target
with a slider and watch the speed-up.

**You need** [00 Meet the pair](00_meet_the_pair.ipynb) (a round, the keep rule). Nearly everything here is arithmetic on
short lists; the pair is loaded once, in the middle.

**Time**: it runs in about 20 seconds on two cores with the tiny pair, and about as long on a DGX Spark (an estimate) once the
two models are loaded. Reading and three exercises: three quarters of an hour. Other pair: `LESSON_PRESET`, see
[00](00_meet_the_pair.ipynb). [All solutions](solutions/01_measure_overlap.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # no module lessonlib? Run: make lab
import lessonlib, math, torch
import numpy as np

# %% [markdown]
r"""
## The chance of a keep

Throughout, $p$ is the target's odds for the next token and $q$ the draft's. The draft draws a token $x$ from $q$; it is
kept with probability $\min(1, p(x)/q(x))$. Average that over everything that the draft might propose:

$$P(\text{keep}) = \sum_x q(x)\,\min\!\left(1, \frac{p(x)}{q(x)}\right) = \sum_x \min(q(x), p(x)).$$

The second form is the first with $q(x)$ multiplied in. It is symmetric: which of the two is the target no longer shows.

Five words will do to see it. Some code has come to `return`, and five words can follow. The odds are made up, so that
the figures below come out as those that this course is built on.
"""

# %%
WORDS = ["MATH", "NONE", "SELF", "3.14", "RADIUS"]
p = torch.tensor([0.60, 0.12, 0.12, 0.10, 0.06], dtype=torch.float64)  # the target
q = torch.tensor([0.254, 0.34, 0.266, 0.10, 0.04], dtype=torch.float64)  # a draft off the shelf
fig, ax = style.figure(7.0, 2.8)
style.bars(ax, WORDS, {"target p": p, "draft q": q, "both": torch.minimum(p, q)})
ax.set(ylim=(0, 0.75), ylabel="probability")
style.finding(ax, "The draft bets on NONE and SELF what belongs to MATH")
show(fig, "The target bets .60 on MATH and .12 each on NONE and SELF; the draft .25, .34 and .27; on the rest they differ by .02 at most.")

# %%
kept_of_100 = predict("Of 100 guesses that this draft makes here, how many are kept?", 50, unit="of 100")

# %% [markdown]
r"""
Three ways to find out: by the rule, by the overlap, and by playing. A played guess is a draw from $q$ and a coin (seed 1).
"""

# %%
by_rule = (q * (p / q).clamp_max(1)).sum()
overlap = torch.minimum(p, q).sum()
chance = np.random.default_rng(1)

def play(p, q, count):
    """Draw `count` guesses from q and judge each by the rule; returns which were kept."""
    guesses = np.searchsorted(np.cumsum(q), chance.random(count)).clip(max=len(q) - 1)
    return chance.random(count) * q[guesses] < p[guesses]

played = play(p.numpy(), q.numpy(), 100_000).mean()
explain(kept_of_100, 100 * overlap, reference=63, band=0.5, form=".1f", exact=True, must_hold=True)
print(f"by the rule {by_rule:.4f}, by the overlap {overlap:.4f}, of 100,000 guesses played {played:.4f} were kept")

# %% [markdown]
r"""
## One minus a distance

How far apart are two lists of odds? One answer is the **total variation distance**, TV: half of all the absolute
differences,

$$\mathrm{TV}(p, q) = \tfrac12 \sum_x |p(x) - q(x)|.$$

Half, because a piece of probability in the wrong place is counted twice: where it is missing, and where it lies. So TV is
the share of the bets that would have to move to make one list the other: 0 for equal lists, 1 for two that share nothing.

**Exercise 1.1** (easy, 5 minutes). Write it. Let it work on a whole text at once: the odds have shape $[\dots, V]$, with
the vocabulary last, and the result has one number for each place.

<details><summary>Hint</summary>

`.abs()`, then `.sum(-1)`: the sum runs over the last dimension only.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/01_measure_overlap.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def total_variation(target_probs, draft_probs):
    """TV of odds [..., V]: half the summed absolute differences, one number for each row."""
    # <solution>
    return (target_probs - draft_probs).abs().sum(-1) / 2
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
total_variation = checks.ex_1_1(total_variation)
print(f"in the example TV is {total_variation(p, q):.3f} and the overlap {overlap:.3f}")

# %% [markdown]
r"""
The two add up to 1, and they always do. For any two numbers $|a - b| = a + b - 2\min(a, b)$: take the larger, subtract
the smaller. Sum that over the vocabulary, where $p$ and $q$ each sum to 1:

$$\mathrm{TV}(p, q) = \tfrac12\Bigl(1 + 1 - 2\sum_x \min(p(x), q(x))\Bigr) = 1 - \sum_x \min(p(x), q(x)).$$

So the chance of a keep, $\alpha$ from here on, is **one minus a distance**:

$$\alpha = P(\text{keep}) = 1 - \mathrm{TV}(p, q).$$

Leviathan and others (2023) state the identity too. It can be believed or checked. Random odds over 50 tokens (seed 1), both
sides with 16 digits after the point, each sum rounded once:
"""

# %%
def random_odds(V=50):
    """V random odds, as Python floats that sum to 1 as nearly as floats can."""
    weights = chance.random(V).tolist()
    return [weight / math.fsum(weights) for weight in weights]

chance, gaps = np.random.default_rng(1), []
for i in range(1000):
    one, other = random_odds(), random_odds()
    left = math.fsum(map(min, one, other))
    right = 1 - math.fsum(abs(a - b) for a, b in zip(one, other)) / 2
    gaps.append(abs(left - right))
    if i < 4:
        print(f"sum of min {left:.16f}   1 - TV {right:.16f}")
assert max(gaps) < 5e-16
print(f"largest difference in 1,000 pairs: {max(gaps):.1e}; a float near 1 is known to {2**-53:.1e}")

# %% [markdown]
r"""
What is left in the last digits is rounding, not the identity. In whole-number fractions there is no rounding:
"""

# %%
from fractions import Fraction

def exact_odds(V=50):
    """V random odds as fractions: their sum is 1, not nearly 1."""
    weights = [int(weight) for weight in chance.integers(1, 1_000_000, V)]
    return [Fraction(weight, sum(weights)) for weight in weights]

equal = 0
for _ in range(100):
    one, other = exact_odds(), exact_odds()
    equal += sum(map(min, one, other)) == 1 - sum(abs(a - b) for a, b in zip(one, other)) / 2
assert equal == 100
print(f"exactly equal in {equal} of 100 pairs")

# %% [markdown]
r"""
The library computes the overlap without the detour, `keep_probability`, and so does every measurement of this course.
Against yours, on 2,000 places at once:
"""

# %%
from lessonlib.decode.rule import keep_probability

rows = [torch.from_numpy(chance.dirichlet(np.full(50, 0.3), 2000)) for _ in range(2)]
difference = (keep_probability(*rows) - (1 - total_variation(*rows))).abs().max()
print(f"the library's alpha and 1 - your TV: max difference {measured(difference, '.1g')}, below 1e-14: {bool(difference < 1e-14)}")

# %% [markdown]
r"""
**What TV means.** It is also the most that the two can disagree about *any* statement on the next token, such as "it is
MATH or RADIUS". With five words there are only 32 such statements; try them all:
"""

# %%
from itertools import product

statements = [torch.tensor(members, dtype=torch.float64) for members in product((0, 1), repeat=5)]
disagree = [float(((p - q) * members).sum()) for members in statements]
widest = statements[int(np.argmax(disagree))]
words = " or ".join(word for word, member in zip(WORDS, widest) if member)
print(f"widest over '{words}': target {(p * widest).sum():.3f}, draft {(q * widest).sum():.3f}")
print(f"they differ by {max(disagree):.3f}, and TV is {total_variation(p, q):.3f}")

# %% [markdown]
r"""
That statement collects the words that the draft proposes too rarely. They are the ones that a refusal draws from: the
leftover $\max(p - q, 0)$ sums to TV as well, and TV is the chance of a refusal. Put together what a place writes, kept
guesses and redrawn ones, and it is $p$ again:
"""

# %%
leftover = (p - q).clamp_min(0)
by_keeping, by_redrawing = torch.minimum(p, q), (1 - overlap) * leftover / leftover.sum()
print(f"the leftover sums to {leftover.sum():.3f}; a guess is refused with chance {1 - overlap:.3f}")
for word, *odds in zip(WORDS, by_keeping, by_redrawing, by_keeping + by_redrawing, p):
    print(f"{word:<7} kept {odds[0]:.3f} + redrawn {odds[1]:.3f} = written {odds[2]:.3f}; the target's own {odds[3]:.3f}")
assert torch.allclose(by_keeping + by_redrawing, p, rtol=0, atol=1e-15)

# %% [markdown]
r"""
## Coins are slow

If $\alpha$ can be played, why compute it? Because a played guess is a coin, and the share kept of $n$ coins is off by about
$\sqrt{\alpha(1 - \alpha)/n}$. One computed overlap has no coin in it. Commit yourself:
"""

# %%
off_by = predict("alpha from 100 played guesses: by how many points is it typically off?", 1, unit="points")

# %%
alpha = float(overlap)
explain(off_by, 100 * math.sqrt(alpha * (1 - alpha) / 100), reference=4.8, band=0.1, form=".1f", exact=True, must_hold=True)
chance = np.random.default_rng(1)
for count in (100, 1_000, 10_000):
    shares = play(p.numpy(), q.numpy(), 400 * count).reshape(400, count).mean(1)
    print(f"{count:>6,} guesses, played 400 times: off by {((shares - alpha)**2).mean()**0.5:.4f} (root mean square), "
          f"expected {math.sqrt(alpha * (1 - alpha) / count):.4f}")
print(f"to be off by 0.0001 only: {alpha * (1 - alpha) / 0.0001**2 / 1e6:.0f} million guesses")

# %% [markdown]
r"""
And all those guesses are for *one* place. Notebook [05](05_measure_without_decoding.ipynb) measures drafts by computing.

## Read it as a specification

$\alpha = 1 - \mathrm{TV}(p, q)$ says what a draft must be, apart from being quick: near the target's odds, on the text that
the target writes. Look for what is *not* in it. Here is a draft that always knows the target's favourite word,
and puts everything on it. Nobody could guess better. How many of its guesses are kept?
"""

# %%
always_right = predict("A draft that always bets on the target's favourite, MATH: kept of 100?", 90, unit="of 100")

# %%
def kl(p, q):
    """KL(p || q) in nats; a token that p never takes adds nothing."""
    return float(torch.where(p > 0, p * (p / q).log(), 0.0).sum())

favourite = torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64)
drafts = {"off the shelf": q, "always the favourite": favourite, "no idea: all alike": torch.full_like(p, 0.2),
          "surer than the target": p**2 / (p**2).sum(), "halfway distilled": (p + q) / 2}
explain(always_right, 100 * keep_probability(p, favourite), reference=60, band=0.5, form=".0f", exact=True, must_hold=True)
print(f"{'draft':<22} favourite  alpha  KL(p||q)")
for name, odds in drafts.items():
    likes = WORDS[int(odds.argmax())] if (odds == odds.max()).sum() == 1 else "any"
    print(f"{name:<22} {likes:<9}  {keep_probability(p, odds):.3f}  {kl(p, odds):.2f}")

# %% [markdown]
r"""
The draft that always knows best is kept 60 times in 100, no more than one that has no idea and bets on all five alike,
and *less* than the one off the shelf, whose favourite is wrong. The target takes MATH only six times in ten; the other four
such a draft is refused. (Greedily it would be kept always: then the target takes its favourite always, and $p$ is another
list.)

- Probability in a wrong place costs the same wherever that place is. Too much on NONE, too much on SELF, too little on
  MATH: TV adds the sizes of the misplaced pieces.
- KL judges otherwise. To the draft that never says NONE it gives infinity, since the target sometimes does; TV gives it
  0.40. [03 Pick a divergence](03_pick_a_divergence.ipynb) is about which of them to train on.

## Easy places and hard ones

$\alpha$ is a number for *one* place of a text. Average it over the places that your server sees, and you have the
$\alpha$ of the speed-up formula. The average hides a lot. One would expect this: after `The capital of France is`, two
decent models both bet more than 0.8 on ` Paris`, and then they share at least that. After `Here is a poem about` both
spread their bets over hundreds of words, each to its own taste, and share little.
"""

# %%
from lessonlib.lesson import Lesson
from lessonlib.pair.chat import chat_ids

lesson = Lesson(lessonlib.preset())
target, tokenizer, draft = lesson.target, lesson.tokenizer, lesson.load()
print(here(lesson.preset))

@torch.inference_mode()
def both_odds(prompt_ids, answer_ids, places):
    """(p, q) [places, V] of target and draft, at the last `places` places of prompt and answer."""
    text = torch.tensor([prompt_ids + answer_ids], device=target.device)
    return [model(text, logits_to_keep=places).logits[0].float().softmax(-1).cpu() for model in (target, draft)]

# %%
paris = predict("The tiny pair after 'The capital of France is': alpha?", 0.8)

# %%
begun = {"What is the capital of France?": "The capital of France is", "Write me a poem.": "Here is a poem about",
         "Who lives in the White House?": "The President of the United"}
at = {}
for question, so_far in begun.items():
    answer = tokenizer(so_far, add_special_tokens=False)["input_ids"]
    at[so_far] = [odds[0] for odds in both_odds(chat_ids(tokenizer, question), answer, 1)]
    print(f"{so_far} ...   alpha {keep_probability(*at[so_far]):.2f}")
    for name, odds in zip(("target", "draft"), at[so_far]):
        best = ", ".join(f"{tokenizer.decode([x])!r} {odds[x]:.2f}" for x in odds.topk(3).indices.tolist())
        count = int((odds.double().sort(descending=True).values.cumsum(0) < 0.9).sum()) + 1
        many = f"about {round(count, -2):,}" if count > 99 else count  # the last digits differ between processors
        print(f"  {name:<7} {best}; nine tenths on {many} token{'s' * (count > 1)}")

# %%
explain(paris, keep_probability(*at["The capital of France is"]), reference=0.8, band=(0.8, 1.0), form=".2f", exact=True)

# %% [markdown]
r"""
The reference is the expectation, for two models that *both* know the answer. Look at the verdict and at the rows above it.
If your pair is the tiny one, it says "not here": the target is nearly sure of ` Paris`, and its draft, which was trained
on speeches, manuals and a dictionary, has no notion of it. ` States` after `United` it knows from those speeches, and
there the overlap is large. And on the poem they share half after all, for both like ` a` and ` the`.

So a place is not easy because the target is sure. It is easy where *both* are sure *of the same*. Where both are sure of
the same token to at least 0.8, the overlap is at least 0.8: that token alone brings it. Where the target spreads its bets,
nothing brings it but having the same taste.

Is that only so in three chosen places? Take sixteen held-out answers that the target has written, evenly spread over those
there are, and sort all their places by how sure the target is.
"""

# %%
surest = predict("Where the target bets 0.95 or more on one token: the mean alpha?", 0.9)

# %%
from lessonlib.files import DATA, read_json

held_out, pieces = lesson.answers("heldout").sequences(), []
for prompt_ids, answer_ids in held_out[::max(1, len(held_out) // 16)][:16]:
    target_odds, draft_odds = (rows[:-1] for rows in both_odds(prompt_ids, answer_ids, len(answer_ids) + 1))
    pieces.append(torch.stack([target_odds.max(-1).values, keep_probability(target_odds, draft_odds)]))
top_bet, alpha_at = torch.cat(pieces, 1)
group = torch.bucketize(top_bet, torch.tensor([0.25, 0.5, 0.75, 0.95]), right=True)
means = [float(alpha_at[group == i].mean()) for i in range(5)]
explain(surest, means[-1], reference=0.60, band=0.05, form=".2f", exact=True)
on_record = read_json(DATA / "reference" / "off_the_shelf.json")["before_distillation"]["heldout"]["alpha"]["value"]
print(f"over all {len(alpha_at)} places alpha is {alpha_at.mean():.2f}; on record, the tiny pair on 500 answers: {on_record:.2f}")
surest_alpha = alpha_at[group == 4]
print(f"of the surest places {(surest_alpha > 0.8).float().mean():.0%} have alpha above 0.8, "
      f"{(surest_alpha < 0.2).float().mean():.0%} below 0.2")

# %%
names = ["below .25", ".25 to .5", ".5 to .75", ".75 to .95", ".95 and more"]
fig, ax = style.figure(7.0, 2.8)
style.bars(ax, [f"{name}\n{int((group == i).sum())} places" for i, name in enumerate(names)], {"mean alpha": means})
ax.set(ylim=(0, 1), xlabel="the target's bet on its favourite", ylabel="mean alpha")
style.finding(ax, f"Surest places: mean alpha {means[-1]:.2f}; least sure: {means[0]:.2f}")
listed = ", ".join(f"{name}: {mean:.2f}" for name, mean in zip(names, means))
show(fig, f"Mean overlap at the places of sixteen answers, by the target's bet on its favourite token; {listed}.")

# %% [markdown]
r"""
The bars are this pair's, and so are the two shares above them. With the tiny pair the surest places are on average the
easiest and still far from 1: many are shared nearly whole, but at others, as after `The capital of France is`, the target
knows and the draft does not, and those are lost. The places where the target is less sure differ little among themselves.

Training can work on both lacks. The target's *taste* a draft can pick up from its text; of what the target *knows* it can
learn as much as its few layers hold. Notebook [06](06_train_the_draft.ipynb) measures how far that goes.

## What a round writes

Now from overlap to time. A round of $K$ guesses writes one token surely, since the target always adds one. It writes a
second one if the first guess is kept, chance $\alpha$; a third if the first two are, chance $\alpha^2$; and so on to
$\alpha^K$. (This takes $\alpha$ to be the same at each guess. Notebook 08 measures that it is not, and what it matters.)

**Exercise 1.2** (easy, 5 minutes). Write the mean number of tokens a round. Mind $\alpha = 1$.

<details><summary>Hint</summary>

$1 + \alpha + \alpha^2 + \dots + \alpha^K$. The closed form $(1 - \alpha^{K+1})/(1 - \alpha)$ is 0/0 at $\alpha = 1$.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/01_measure_overlap.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def tokens_per_round(alpha, K):
    """Mean tokens that a round of K guesses writes, the target's own one included."""
    # <solution>
    return sum(alpha**i for i in range(K + 1))
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
tokens_per_round = checks.ex_1_2(tokens_per_round)

# %% [markdown]
r"""
Against rounds that are really played, 200,000 of them (seed 1), and against the library's:
"""

# %%
from lessonlib.measure import speedup as formulas

chance = np.random.default_rng(1)
for K in (1, 3, 8):
    kept = play(p.numpy(), q.numpy(), 200_000 * K).reshape(-1, K)
    written = 1 + kept.cumprod(1).sum(1).mean()  # cumprod is 1 up to the first refusal and 0 behind it
    print(f"K = {K}: {tokens_per_round(alpha, K):.3f} tokens a round, played {written:.3f}")
grid = [(a / 100, K) for a in range(101) for K in range(17)]
difference = max(abs(tokens_per_round(a, K) - formulas.tokens_per_round(a, K)) for a, K in grid)
assert difference < 1e-12
print(f"yours and the library's over {len(grid):,} settings: max difference {difference:.1g}, "
      f"below 1e-12: {bool(difference < 1e-12)}")

# %% [markdown]
r"""
## What a round costs

Count time in steps of the target: one draft step costs $c$, so $K$ of them cost $Kc$, and one verifying pass costs about
1. Plain decoding writes one token a step. So

$$\text{speed-up} = \frac{1 + \alpha + \dots + \alpha^K}{Kc + 1} = \frac{1 - \alpha^{K+1}}{(1 - \alpha)(Kc + 1)}.$$

(Leviathan and others, 2023. Where verifying is dearer than one step, as on a CPU, write $v$ for the 1; notebook 08.)

Now distil. Training moves the draft's odds towards the target's. In the simplest picture each goes in a straight line, and
$s$ is the share of the way: $q_s = (1 - s)\,q + s\,p$. Every difference $p - q_s$ shrinks by the factor $1 - s$, so TV does
too. Halfway, $s = 0.5$, at $K = 3$ and $c = 0.3$:
"""

# %%
halfway = predict("Undistilled it is about 1.2 times as fast. And halfway?", 1.4, unit="x")

# %%
print("distilled  alpha     KL  speed-up at K = 3")
for share in (0.0, 0.25, 0.5, 0.75, 1.0):
    mixed = (1 - share) * q + share * p
    a = float(keep_probability(p, mixed))
    print(f"{share:>9.0%}  {a:.3f}  {kl(p, mixed) + 0:5.3f}  {tokens_per_round(a, 3) / (3 * 0.3 + 1):.2f}")
mixed = (p + q) / 2
a = float(keep_probability(p, mixed))
explain(halfway, tokens_per_round(a, 3) / 1.9, reference=1.6, band=0.05, form=".2f", exact=True, must_hold=True)
for what, found, wanted, unit in (("alpha at the start", overlap, 0.63, ""), ("KL at the start", kl(p, q), 0.32, "nats"),
                                  ("alpha halfway", a, 0.82, ""), ("KL halfway", kl(p, mixed), 0.08, "nats")):
    print(f"{what:<19}", end="")
    explain(None, found, reference=wanted, band=0.005, unit=unit, form=".3f", exact=True, must_hold=True)

# %% [markdown]
r"""
The same model, the same $c$, one change: it imitates better. Note how differently the two distances fall. TV halves when
the differences halve. KL falls to a quarter, since near equality it goes with the *square* of the differences. In this
picture a loss that has fallen by three quarters has brought $\alpha$ half of the way.

## How many guesses pay?

A longer round may write more and surely costs more. Think of one more guess. It adds $\alpha^{K+1}$ tokens and costs $c$.
That pays exactly where it earns more tokens a step than the round earns already.

**Exercise 1.3** (medium, 10 minutes). Is a round of $K + 1$ guesses faster than one of $K$? `True` or `False`.

<details><summary>Hint</summary>

Either compare the two speed-ups, or compare $\alpha^{K+1}/c$ with the speed-up at $K$. (The average of a round lies
between what it was and what was added, so the two say the same.) Equally fast is not faster.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/01_measure_overlap.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def one_more_pays(alpha, K, c):
    """Whether K + 1 guesses a round are faster than K, if a draft step costs c and verifying 1."""
    # <solution>
    now = tokens_per_round(alpha, K) / (K * c + 1)
    return alpha ** (K + 1) > c * now
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
one_more_pays = checks.ex_1_3(one_more_pays)

# %% [markdown]
r"""
What one more guess adds never grows with $K$. So once a guess does not pay, no later one does, and the best $K$ is found by
walking: go on while one more pays. No search over all $K$ is needed; the library searches, and must agree.
"""

# %%
def best_k(alpha, c):
    """The best number of guesses a round, 0 (no draft) to 32, by walking."""
    K = 0
    while K < 32 and one_more_pays(alpha, K, c):
        K += 1
    return K

settings = [(a / 100, c / 100) for a in range(0, 100, 3) for c in range(2, 80, 5)]
differ = sum(best_k(a, c) != lessonlib.best_k(a, c) for a, c in settings)
print(f"walking and searching differ in {differ} of {len(settings)} settings")
print("a first guess pays where alpha > c:", all((best_k(a, c) > 0) == (a > c) for a, c in settings))

# %% [markdown]
r"""
The second line is worth keeping: with $v = 1$ a draft pays at all exactly where $\alpha > c$.

## Move it yourself

The five words again, with the draft's odds on a slider. Things to look for:

- **At the start** too much lies on NONE and SELF, too little on MATH. Which of the three costs most? (MATH, but only because
  its gap is the widest. Point for point all cost the same: TV adds the gaps, wherever they are.)
- **Halfway**, at 0.50: the dot goes from about 1.2 to about 1.6.
- **Then push $K$.** The better the draft, the further right the diamond: long rounds now survive.
- **Then raise $c$** and watch a slow draft eat its gain.
"""

# %%
from lessonlib.workbook.explorables.nb01 import Distil, SpeedOverAlpha

Distil(WORDS, p, q)

# %% [markdown]
r"""
## Why the last points matter most

Forget the words; let $\alpha$ itself be the slider. What do ten points more of it earn, at the best $K$ for each?
"""

# %%
last_ten = predict("At c = 0.1 and at most 32 guesses a round, alpha .60 to .70 adds 0.31 to the speed-up. And .90 to 1?", 0.4, unit="x")

# %%
def fastest(alpha, c):
    """The speed-up at the best K of 0 to 32."""
    K = best_k(alpha, c)
    return tokens_per_round(alpha, K) / (K * c + 1)

steps = [(a / 10, (a + 1) / 10) for a in range(5, 10)]
print("alpha           " + "".join(f"{low:.1f} to {high:.1f}  " for low, high in steps))
for c in (0.3, 0.15, 0.1):
    print(f"c = {c:<4}   adds  " + "".join(f"{fastest(high, c) - fastest(low, c):<12.2f}" for low, high in steps))
explain(last_ten, fastest(1.0, 0.1) - fastest(0.9, 0.1), reference=4.43, band=0.01, form=".2f", exact=True, must_hold=True)
print(f"alpha 1 at 32 guesses: {fastest(1.0, 0.1):.2f} times as fast; without a limit towards 1 / c = 10, "
      f"which would add {10 - fastest(0.9, 0.1):.2f}")

# %%
alphas = np.linspace(0, 1, 101)
curve = lambda K: [tokens_per_round(a, K) / (0.1 * K + 1) for a in alphas]
fig, ax = style.figure(7.0, 3.2)
style.lines(ax, alphas, {"K = 1": curve(1), "K = 3": curve(3), "K = 8": curve(8)})
ax.axhline(1, color=style.QUIET, linewidth=1)
ax.set(ylim=(0, 5.2), xlabel="alpha, chance that a tested guess is kept", ylabel="times as fast")
style.finding(ax, "The longer the round, the more its gain sits in the last points")
show(fig, "Speed-up against alpha at c = 0.1: one guess a round gives a straight line, eight a curve that shoots up near 1.")

# %% [markdown]
r"""
With one guess a round, every point of $\alpha$ is worth the same. With many, a round is a chain, and a chain of eight at
$\alpha = 0.8$ holds one time in six. Points near 1 are worth most because they let *long* rounds survive, and because the
best $K$ then grows as well. (How much the last step adds hangs on the longest round allowed. With all guesses kept a round
of $K$ is $(K + 1)/(Kc + 1)$ times as fast, which grows with $K$ towards $1/c$.)

Now the same with sliders: the dot is your $\alpha$ and your $K$, the diamond the best $K$ there. Start near 0.5, go up
with the arrow key, and read in the sentence what one more point adds. Then lower $c$ and do it again.
"""

# %%
SpeedOverAlpha()

# %% [markdown]
r"""
## Four figures from the field, as arithmetic

You will meet these four; each is a point on that picture.
"""

# %%
start = fastest(0.7, 0.3)
print(f"The starting line, alpha 0.7 and c 0.3: best K = {best_k(0.7, 0.3)}, {start:.2f} times as fast")
plain = 273 / 16  # GB a second of a DGX Spark over GB of an 8B in 16 bits
print(f"{plain:.0f} tokens a second, plain, become {plain * start:.0f}; at alpha 0.8 they become {plain * fastest(0.8, 0.3):.0f}")
for more in (1.10, 1.45):
    needed = next(a for a in alphas if a >= 0.7 and fastest(a, 0.3) >= more * start)
    print(f"{more - 1:.0%} faster than the starting line, by alpha alone: alpha {needed:.2f}")
for K in (3, 4, 5):
    row = ", ".join(f"{a:.1f}: {tokens_per_round(a, K):.2f} tokens, all kept {a**K:.0%}" for a in (0.6, 0.8, 0.9))
    print(f"K = {K}, alpha {row}")
per_proposed = lambda a, K: (tokens_per_round(a, K) - 1) / K  # kept tokens over proposed ones
for K in (3, 4, 5):
    needed = next(a for a in np.linspace(0, 1, 1001) if per_proposed(a, K) >= 0.8)
    print(f"K = {K}: at alpha 0.8 {per_proposed(0.8, K):.0%} of all proposed are kept; 80% needs alpha {needed:.2f}")

# %% [markdown]
r"""
- **1.4 x** is where two Llamas, 8B and 1B, start without training.
- **About 17 tokens a second**: that often a DGX Spark can read 16 GB of weights, and every plain step reads them all. The
  speed-up multiplies it.
- **10 to 45 % more speed** is what distilling drafts is reported to add. By $\alpha$ alone, at $c = 0.3$, that takes a rise
  from 0.70 to the two values printed: the upper end needs a very close copy, or a draft that is cheaper too.
- **More than 80 % kept for 3 to 5 guesses** is a common mark of a good draft. It counts per *proposed* guess, so it asks for
  an $\alpha$, which counts per *tested* one, of 0.89 to 0.93. At $\alpha = 0.8$ a round of three breaks about every second
  time, and 65 % of its guesses are kept.

## Recap

- The chance that a guess is kept is the overlap $\sum_x \min(p(x), q(x))$, which is $1 - \mathrm{TV}(p, q)$: not nearly, exactly.
- It rewards being *like* the target, in every bet, on the target's text. Being right about its favourite is not enough.
- Tokens a round over $Kc + 1$ is the speed-up. One more guess pays while $\alpha^{K+1}/c$ beats it, and the last points of
  $\alpha$ are worth most.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Why does TV have a half in front, and KL not?</summary>

What one list has too much another has too little, so the absolute differences count each misplaced piece twice. KL weighs
log-ratios by $p$ and counts each token once.

</details>

<details><summary>Draft X names the target's favourite token 95 times in 100, draft Y 80 times. You sample at temperature 1. Which do you take?</summary>

You cannot tell yet. When sampling, all the odds count: X could be far too sure of its favourites, as the draft was that
always bet on MATH. Measure both overlaps. Greedily, X.

</details>

<details><summary>A place has alpha 0.95, the next one 0.35. Is that the same as 0.65 twice?</summary>

For the mean, yes. For a round, no: both kept has chance 0.33 in the first case and 0.42 in the second. But had the easy
places come in runs, long rounds would survive there. The formula's one $\alpha$ is a summary; the order of the places is
not in it.

</details>

<details><summary>Training has brought KL from 0.32 to 0.08. Somebody says the draft is now four times as good. Is it?</summary>

In the straight-line picture its distance TV has halved, from 0.37 to 0.18, and at $K = 3$, $c = 0.3$ decoding goes from 1.21
to 1.59 times as fast. KL goes with the square of the differences; acceptance does not.

</details>

<details><summary>Why does a better draft want a larger K, and a slower one a smaller?</summary>

One more guess adds $\alpha^{K+1}$ tokens and costs $c$. With a larger $\alpha$ the powers fall more slowly, so more of them
lie above what they must beat; with a larger $c$ fewer do.

</details>

## Two things to change and rerun

1. Add to `drafts` one that bets 0.366 too little on MATH and spreads it *evenly* over the other four, so that TV is 0.366
   again. What does $\alpha$ do, and what does KL? Then one that takes it from MATH and gives it all to NONE.
2. Put a question and the beginning of an answer of your own into `begun`. Find a place where the pair shares more than 0.95,
   and one where it shares less than 0.05. What does the draft not know there?

**Next**: [02 Learn from soft labels](02_learn_from_soft_labels.ipynb) is how a draft comes nearer to its target; [08 Decode
and score](08_decode_and_score.ipynb) measures $\alpha$, $c$ and $v$ with a clock. The map of the course is in the
[README](../README.md).
"""
