# %% [markdown]
r"""
# Pick a divergence

A draft is smaller than its target and cannot copy all of it. Something has to give, and the *training objective* decides
what: two objectives that agree on a perfect copy make two different drafts where none is possible. Here a student far too
simple for its teacher shows what each of them gives up, and what that does to $\alpha$.

**You will** write KL both ways and the Jensen-Shannon divergence; find the best student under each objective and under
$\alpha$ itself; see one student reach the most $\alpha$ and fail completely when decoding is greedy; draw Pinsker's bound
between KL and $\alpha$.

**You need** [00 Meet the pair](00_meet_the_pair.ipynb) ($\alpha = \sum_x \min(p(x), q(x))$, the chance that a guess is
kept). No model is loaded, so `LESSON_PRESET` changes nothing here.

**Time**: it runs in less than half a minute on two cores; no GPU is used. Reading and three exercises: 45 minutes. [All
solutions](solutions/03_pick_a_divergence.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # no module lessonlib? Run: make lab
import torch
torch.set_default_dtype(torch.float64)

# %% [markdown]
r"""
## Two bumps for the target, one for the student

Let the tokens stand in a line, 0.03 units apart. The target likes two kinds of them: its odds are two bumps, 6.54 units
apart, each as wide as a standard deviation of 1. The right bump holds 0.35 of the odds, the left one the rest.

The student can make one bump, no more. It chooses a mean and a width. That is its whole capacity, and it is too little.
In formulas $p$ is the target and $q$ the student, the draft.
"""

# %%
torch.set_num_threads(1)  # all tables here are small: a second thread would only get in the way
points = 0.03 * torch.arange(-500, 501)

def bump(mean, width):
    """The odds of one bump over all the points; mean and width may be whole arrays of bumps."""
    return torch.softmax(-0.5 * ((points - mean) / width) ** 2, -1)

def two_bumps(weight):
    """The target's odds if its second bump holds `weight` of them."""
    return (1 - weight) * bump(-3.27, 1.0) + weight * bump(3.27, 1.0)

def p_keep(target_probs, draft_probs):
    """Alpha, the chance that a guess is kept, one value a row."""
    return torch.minimum(target_probs, draft_probs).sum(-1)

# %%
def draw_students(target_probs, students, finding, caption):
    """The target as an area and each student as a line, in odds per unit."""
    fig, ax = style.figure(7.2, 2.9)
    ax.fill_between(points, target_probs / 0.03, color=style.GRID, label="target")
    for i, (name, odds) in enumerate(students.items()):
        ax.plot(points, odds / 0.03, color=style.COLOURS[i % 5], linestyle=style.LINES[i % 5], linewidth=2, label=name)
    ax.set(xlim=(-10, 10), ylim=(0, 0.45), xlabel="place on the line of tokens (units)", ylabel="odds per unit")
    ax.legend(frameon=False, loc="upper right")
    style.finding(ax, finding)
    show(fig, caption)

# %% [markdown]
r"""
Two students by hand, before any search. The *straddler* lies across both bumps. The *hider* sits on the large one and
leaves the other alone. Which one would you rather have as your draft?
"""

# %%
uneven_target = two_bumps(0.35)
by_hand = {"straddler": bump(-1.0, 3.3), "hider": bump(-3.27, 1.0)}
draw_students(uneven_target, by_hand, "One bump can cover both of the target's, or fit one of them",
              "The target's two bumps, a wide student across both, and a narrow one on the larger bump.")

# %% [markdown]
r"""
## Two ways to be wrong

The Kullback-Leibler divergence weighs each token's log-ratio by the odds of *one* of the two models. So there are two:

$$\text{forward: } \mathrm{KL}(p \,\|\, q) = \sum_x p(x) \log \frac{p(x)}{q(x)}, \qquad
\text{reverse: } \mathrm{KL}(q \,\|\, p) = \sum_x q(x) \log \frac{q(x)}{p(x)}.$$

Forward KL asks at the tokens the *target* writes: did you give this enough? A token that the target likes and the student
nearly forgot costs a lot. Reverse KL asks at the tokens the *student* writes: would the target say that? What the student
never says costs nothing.

**Exercise 3.1** (easy, 10 minutes). Write both, in nats (natural logarithm), for odds of shape $[..., V]$: one value for
each row. A token with no odds counts 0, because $a \log a \to 0$ as $a \to 0$.

<details><summary>Hint</summary>

`torch.xlogy(a, b)` is `a * log(b)`, and 0 wherever `a` is 0. So KL is `torch.xlogy(a, a) - torch.xlogy(a, b)`, summed
over the last dimension, `.sum(-1)`. Write a helper with two arguments and call it twice.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/03_pick_a_divergence.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def both_kls(target_probs, draft_probs):
    """(forward KL, reverse KL) in nats, one value of each for every row of odds [..., V]."""
    # <solution>
    def kl(a, b):
        return (torch.xlogy(a, a) - torch.xlogy(a, b)).sum(-1)

    return kl(target_probs, draft_probs), kl(draft_probs, target_probs)
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
both_kls = checks.ex_3_1(both_kls)

# %% [markdown]
r"""
The straddler's forward KL is below 1. The hider gives almost nothing to bump two, where 0.35 of the target's odds lie,
6.54 widths away. What does forward KL charge for that?
"""

# %%
charge = predict("Forward KL of the hider", 2, unit="nats")

# %%
print("            forward KL  reverse KL  alpha")
for name, student in by_hand.items():
    forward, reverse = both_kls(uneven_target, student)
    print(f"{name:<11} {forward:10.2f}  {reverse:10.2f}  {p_keep(uneven_target, student):5.3f}")
shares = torch.tensor([0.65, 0.35])
forgotten = 0.35 * 6.54**2 / 2 + torch.xlogy(shares, shares).sum()
charged = both_kls(uneven_target, by_hand["hider"])[0]
explain(charge, charged, reference=forgotten, band=0.02, form=".2f", exact=True, must_hold=True)
print(f"and the hider's reverse KL is -log 0.65 = {-torch.tensor(0.65).log():.2f}")

# %% [markdown]
r"""
Each KL has a favourite, and they are not the same. Forward KL makes the hider pay $6.54^2/2$ nats on all of the 0.35 that it
forgot, so it prefers the straddler. Reverse KL does not ask about what is left out; it makes the straddler pay for what it
says between the bumps and beyond them. So forward KL is called **mode-covering** and reverse KL **mode-seeking**. Alpha is
in the last column, and in this table it sides with the hider.

## Two compromises

**JSD**, the Jensen-Shannon divergence, compares each model with the odds midway, $m = (p + q)/2$:

$$\mathrm{JSD} = \tfrac12 \mathrm{KL}(p \,\|\, m) + \tfrac12 \mathrm{KL}(q \,\|\, m).$$

Neither term can be infinite: wherever a model has odds, $m$ has at least half of them. So JSD is $\log 2$ at most.

**TV**, the total variation distance $\tfrac12 \sum_x |p(x) - q(x)|$, is $1 - \alpha$, since $|p - q| = p + q - 2\min(p, q)$.
To minimise TV is to maximise $\alpha$, whatever the model.

**Exercise 3.2** (easy, 5 minutes). Write JSD for odds of shape $[..., V]$. Your `both_kls` may help.

<details><summary>Hint</summary>

`both_kls(a, m)[0]` is KL(a || m), summed row by row already.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/03_pick_a_divergence.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def jensen_shannon(target_probs, draft_probs):
    """The Jensen-Shannon divergence in nats, one value for every row of odds [..., V]."""
    # <solution>
    m = (target_probs + draft_probs) / 2
    return (both_kls(target_probs, m)[0] + both_kls(draft_probs, m)[0]) / 2
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
jensen_shannon = checks.ex_3_2(jensen_shannon)

# %% [markdown]
r"""
lessonlib trains with the same four. They take log-probabilities, in which odds too small for a float do not vanish. Slow and
fast on 1,000 random pairs of odds over 50 tokens (seed 3), some nearly equal and some far apart:
"""

# %%
from lessonlib.distil import divergences

chance = torch.Generator().manual_seed(3)
logits = 2 * torch.randn(1000, 50, generator=chance)
apart = torch.rand(1000, 1, generator=chance) ** 2 * 3
p, q = logits.softmax(-1), (logits + apart * torch.randn(1000, 50, generator=chance)).softmax(-1)
slow = [*both_kls(p, q), jensen_shannon(p, q), 1 - p_keep(p, q)]
fast = [f(p.log(), q.log()) for f in (divergences.forward_kl, divergences.reverse_kl, divergences.jsd,
                                      divergences.total_variation)]
difference = max(float((one - other).abs().max()) for one, other in zip(slow, fast))
print(f"max difference {measured(difference, '.0e')} nats, below 1e-12: {difference < 1e-12}")

# %% [markdown]
r"""
## Find the best student

Two numbers describe a student, so a search needs no gradients: try 25 means with 25 widths, take the best, look closer
around it, six times. It follows no slope, so neither a kink nor a second bottom stops it. It is coarse all the same: whether it
found the lowest point, Exercise 3.3 checks for forward KL.
"""

# %%
def best_student(objective, target_probs):
    """(odds, mean, width) of the one bump for which objective(target_probs, bump) is lowest; of equals the leftmost."""
    mean, log_width, reach = torch.tensor(0.0), torch.tensor(0.6), torch.tensor([6.0, 1.3])
    steps = torch.linspace(-1, 1, 25)
    for _ in range(6):
        means, log_widths = mean + reach[0] * steps, log_width + reach[1] * steps
        losses = objective(target_probs, bump(means[:, None, None], log_widths[:, None].exp()))
        row, column = divmod(int(losses.round(decimals=10).numpy().argmin()), 25)
        mean, log_width, reach = means[row], log_widths[column], reach / 5
    return bump(mean, log_width.exp()), float(mean), float(log_width.exp())

# %%
objectives = {"forward KL": lambda p, q: both_kls(p, q)[0], "reverse KL": lambda p, q: both_kls(p, q)[1],
              "JSD": jensen_shannon, "TV": lambda p, q: (p - q).abs().sum(-1) / 2}

# %% [markdown]
r"""
Before the search: $\alpha$ at the best student of forward KL, of reverse KL, and the most that *any* single bump can
reach. The references are the course's own numbers, from its original figure.
"""

# %%
by_forward = predict("Second bump 0.35: alpha of forward KL's best student", 0.7)
by_reverse = predict("The same for reverse KL's", 0.6)
by_alpha = predict("The most alpha that one bump can reach", 0.75)

# %%
def search(target_probs):
    """name -> (odds, mean, width) of each objective's best student, and of the search for the most alpha itself."""
    found = {name: best_student(objective, target_probs) for name, objective in objectives.items()}
    return found | {"max alpha": best_student(lambda p, q: -p_keep(p, q), target_probs)}

def compare(target_probs, found, expected):
    """A row for each student, then prediction and reference beside alpha; expected: objective -> (prediction, reference)."""
    print("objective     mean  width  alpha")
    for name, (odds, mean, width) in found.items():
        print(f"{name:<12} {round(mean, 1) + 0:5.1f}  {width:5.2f}  {p_keep(target_probs, odds):.3f}")
    for name, (prediction, reference) in expected.items():
        alpha = p_keep(target_probs, found[name][0])
        print(f"alpha of {name if name in objectives else 'any bump, at most'}: ", end="")
        explain(prediction, alpha, reference=reference, band=0.003, form=".3f", exact=True, must_hold=True)

# %%
uneven = search(uneven_target)
compare(uneven_target, uneven, {"forward KL": (by_forward, 0.557), "reverse KL": (by_reverse, 0.650),
                                "max alpha": (by_alpha, 0.656)})

# %%
draw_students(uneven_target, {name: uneven[name][0] for name in objectives}, "Forward KL straddles; the others take the big bump",
              "The target with a second bump of 0.35 and four best students: forward KL's is wide and peaks between the "
              "bumps, those of reverse KL, JSD and TV sit on the larger one.")

# %% [markdown]
r"""
Where bumps exactly this far apart and this fine a line give 0.658, the course has 0.656: its figure was made at settings
that it does not print. All of its numbers are met within 0.003.

- **Forward KL** covers both bumps and pays with $\alpha$: much of its odds lies where the target has little.
- **Reverse KL** takes the big bump and nothing else. Its $\alpha$ is that bump's share, $1 - 0.35$.
- **JSD** lands beside reverse KL here.
- **TV and the most alpha** are one student, as they must be. It too takes the big bump, but is half as wide again and shifted
  by 0.3 towards the second one: a bit of overlap more.

## Forward KL without a search

For forward KL there is a shortcut. Written out, the part of $\mathrm{KL}(p \,\|\, q)$ that depends on the student is
$-\sum_x p(x) \log q(x)$. For a bump, $\log q(x)$ is a parabola in $x$, so only the mean and the spread of $x$ *under the
target* matter. The best bump is the one with the same mean and the same standard deviation.

**Exercise 3.3** (easy, 5 minutes). Compute both for tokens at `points` $[V]$ with odds `probs` $[V]$.

<details><summary>Hint</summary>

The mean is $\sum p(x)\,x$. The standard deviation is the square root of $\sum p(x)\,(x - \text{mean})^2$.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/03_pick_a_divergence.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def mean_and_spread(points, probs):
    """(mean, standard deviation) of the place of a token drawn with the odds probs [V]."""
    # <solution>
    mean = (probs * points).sum()
    return mean, (probs * (points - mean) ** 2).sum().sqrt()
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
mean_and_spread = checks.ex_3_3(mean_and_spread)
mean_of_p, spread_of_p = mean_and_spread(points, uneven_target)
_, found_mean, found_width = uneven["forward KL"]
print(f"the target's mean {mean_of_p:.2f} and spread {spread_of_p:.2f}; the search found {found_mean:.2f} and {found_width:.2f}")
print("equal within 0.001:", bool(abs(mean_of_p - found_mean) < 0.001 and abs(spread_of_p - found_width) < 0.001))

# %% [markdown]
r"""
Nothing in that recipe asks whether the target has any odds at its mean. A target's *mean* need not be a thing that it
ever says.

## Now make the bumps equal

The second bump grows from 0.35 to 0.50. Giving up half of the odds is expensive. Which KL is ahead now?
"""

# %%
forward_even = predict("Second bump 0.50: alpha of forward KL's student", 0.5)
reverse_even = predict("And of reverse KL's", 0.6)

# %%
even_target = two_bumps(0.5)
even = search(even_target)
compare(even_target, even, {"forward KL": (forward_even, 0.558), "reverse KL": (reverse_even, 0.500),
                            "max alpha": (None, 0.558)})

# %% [markdown]
r"""
The order has turned round. Forward KL has kept its $\alpha$, reverse KL has lost what the bump lost, and the most alpha is
now a straddler's, with forward KL's. JSD has changed sides as well. (Reverse KL has two best students, one on each bump;
the search takes the left one.) Where do the two KLs cross?
"""

# %%
from lessonlib.workbook.explorables.nb03 import TwoBumps, fit, two_bumps as log_two_bumps

weights = [round(0.05 + 0.025 * i, 3) for i in range(19)]
sweep = [fit(log_two_bumps(weight, 6.54, 1.0)) for weight in weights]
by_weight = {name: [found[name][1] for found in sweep] for name in sweep[0]}
slow_and_fast = [(float(p_keep(two_bumps(weight), found[name][0])), by_weight[name][weights.index(weight)])
                 for weight, found in ((0.35, uneven), (0.5, even)) for name in by_weight]
gap = max(abs(one - other) for one, other in slow_and_fast)
print(f"lessonlib's search, on a coarser line for speed, and yours: max difference in alpha {measured(gap, '.4f')}, "
      f"below 0.001: {gap < 0.001}")
turn = next(w for w, f, r in zip(weights, by_weight["forward KL"], by_weight["reverse KL"]) if f > r)
print(f"forward KL's alpha is above reverse KL's from a second bump of {turn} on")

# %%
fig, ax = style.figure(7.2, 3.0)
style.lines(ax, weights, by_weight)
ax.set(ylim=(0.45, 1.0), xlabel="odds of the second bump", ylabel="alpha of the best student")
style.finding(ax, f"Reverse KL is ahead up to {turn - 0.025:.3f}, forward KL from {turn} on")
show(fig, "Alpha of the best student against the odds of the second bump: reverse KL falls in a straight line, forward KL "
          "falls early and then stays, and TV is never below either.")

# %% [markdown]
r"""
TV's student runs along the top, as it must: TV is $1 - \alpha$. Each KL comes close to it in its own region. How large the
two regions are depends on the distance and the width of the bumps too: the sliders further down move those.

## The greedy column

All this was sampling, at temperature 1. Served greedily, the draft proposes its *top token*, and the guess is kept exactly
if that is the target's top token. Where does the straddler have its top token, and what does the target think of it?
"""

# %%
valley = predict("Second bump 0.50: the target's odds at forward KL's top token, of its best odds", 40, unit="%")

# %%
def at_top(target_probs, student):
    """(place of the student's top token, the target's odds there over its best odds)."""
    top = int((student / student.max()).round(decimals=9).numpy().argmax())  # of equals the leftmost
    return float(points[top]), float(target_probs[top] / target_probs.max())

print("second bump  objective   alpha  its top token at  tokens off  target's odds there  same token")
for weight, odds, found in ((0.35, uneven_target, uneven), (0.50, even_target, even)):
    right_at, _ = at_top(odds, odds)
    print(f"{weight:<12.2f} {'(target)':<11} {'':<7}{right_at:8.1f} {100:32.1f} %")
    for name, (student, *_) in found.items():
        top_at, share = at_top(odds, student)
        print(f"{'':<12} {name:<11} {p_keep(odds, student):.3f}  {round(top_at, 1) + 0:8.1f} {(top_at - right_at) / 0.03:18.0f} "
              f"{100 * share:13.1f} %            {'kept' if share > 1 - 1e-9 else 'refused'}")
explain(valley, 100 * at_top(even_target, even["forward KL"][0])[1], reference=0.95, band=0.05, form=".2f", exact=True)

# %% [markdown]
r"""
Forward KL's top token lies in the valley between the bumps. At 0.50 the target gives it less than a hundredth of its best
odds, although $\alpha$ at temperature 1 is, to three digits, as high as one bump can have it: the same student is the best
for sampling and hopeless for greedy decoding. Reverse KL, with the lowest $\alpha$ of the table, gets its greedy guess right.
(At 0.50 the target has two top tokens; either counts as kept.)

And one more line to read honestly: at 0.35 the student with the most alpha is refused too, if barely. Its top token lies nine
tokens from the right one and has 96 % of its odds. Greedy decoding knows no *nearly*. Even $\alpha$ itself is not the
objective for greedy serving.

## What KL promises about alpha

If the two disagree so much, why does anyone train with KL? Because it is a bound. **Pinsker's inequality**:

$$1 - \alpha = \mathrm{TV}(p, q) \le \sqrt{\mathrm{KL} / 2}, \qquad \text{with } \mathrm{KL}(p \,\|\, q) \text{ or } \mathrm{KL}(q \,\|\, p).$$

Drive either of them to 0 and $\alpha$ goes to 1. Here is the bound with the 1,000 random pairs from above and the students
from both searches:
"""

# %%
fig, axes = style.figure(8.0, 3.3, columns=2, sharey=True)
nats, broken = torch.linspace(0, 3, 200), 0
for i, (ax, direction) in enumerate(zip(axes, ("forward KL", "reverse KL"))):
    ax.plot(nats, (nats / 2).sqrt(), color=style.INK, linewidth=2)
    ax.annotate("the bound", (1.55, 0.88), ha="right", xytext=(-8, 4), textcoords="offset points", fontweight="bold")
    ax.plot(slow[i], slow[3], ".", markersize=3, color=style.QUIET, label="random pairs")
    broken += int((slow[3] > (slow[i] / 2).sqrt() + 1e-12).sum())
    for j, (odds, found, filled) in enumerate(((uneven_target, uneven, "full"), (even_target, even, "none"))):
        for k, name in enumerate(objectives):
            x, y = float(both_kls(odds, found[name][0])[i]), 1 - float(p_keep(odds, found[name][0]))
            broken += y > (x / 2) ** 0.5
            ax.plot([min(x, 2.95)], [y], "os^DvP"[k % 6], color=style.COLOURS[k % 5], fillstyle=filled, markersize=8,
                    linestyle="none", label=None if j else f"{name}'s")
    ax.set(xlim=(0, 3), ylim=(0, 1), xlabel=f"{direction} (nats; at the edge: 3 or more)")
axes[0].set_ylabel("TV = 1 - alpha")
axes[1].legend(frameon=False, fontsize=8.5, loc="lower right")
usual = torch.cat([slow[3] / (kls / 2).sqrt() for kls in slow[:2]]).median()
style.finding(fig, f"{broken} points lie above the bound; half of the random pairs below {usual:.2f} of it")
show(fig, "TV against forward KL and against reverse KL for random pairs and for the best students (filled: second bump "
          "0.35, open: 0.50), all below the curve of Pinsker's bound.")

# %% [markdown]
r"""
A bound is not a ranking. From $\mathrm{KL} = 2$ on it says that TV is at most 1, which is no news. And below, it leaves room: two
students with the same KL can have quite different $\alpha$. Of all the bumps on a grid, those with a forward KL of about
1 nat:
"""

# %%
means, widths = torch.linspace(-5, 5, 101)[:, None, None], torch.linspace(1, 6, 51)[:, None]
many_bumps = bump(means, widths)
same_kl = (both_kls(uneven_target, many_bumps)[0] - 1).abs() < 0.02
alphas = p_keep(uneven_target, many_bumps)[same_kl]
print(f"{int(same_kl.sum())} students with a forward KL of 0.98 to 1.02: alpha from {alphas.min():.2f} to {alphas.max():.2f}")
print("the bound, near equality, on two tokens with odds of one half against one half plus a bit:")
for bit in (0.3, 0.1, 0.01):
    half, close = torch.tensor([0.5, 0.5]), torch.tensor([0.5 + bit, 0.5 - bit])
    print(f"  {bit:<5} TV is {bit / (both_kls(half, close)[0] / 2).sqrt():.3f} of the bound")

# %% [markdown]
r"""
So no smaller constant will do: close to equality there are pairs that fill the bound. Further off they leave room.

## Why not simply train on TV?

It is the true objective, so why is forward KL the usual one? A search looks everywhere; training only follows the slope it
stands on. Put a student of width 1 far to the left and ask each objective which way to move its mean, and how strongly:
"""

# %%
for start in (-4.0, -8.0, -12.0):
    student_mean, slopes = torch.tensor(start, requires_grad=True), {}
    for name, objective in objectives.items():
        (slope,) = torch.autograd.grad(objective(uneven_target, bump(student_mean, 1.0)), student_mean)
        slopes[name] = f"{name} {slope:.1e}"
    print(f"student at {start:5.1f}: ", "   ".join(slopes.values()))

# %% [markdown]
r"""
A negative slope says: move right. The further off the student, the louder both KLs call. TV and JSD fall silent: where the
student's bets and the target's hardly overlap, moving a little changes hardly anything. TV helps a draft that is near
already. So the course trains with forward KL first and can finish with TV. (lessonlib's `lk` slides from one to the other
as $\alpha$ grows.) There is a practical reason too: the target's stored odds are all that forward KL needs, since the
student's own odds stand only inside the logarithm.

## Move it yourself

Three sliders for the target; the four students are found anew at each step. The hatched bars are the greedy column: the
target's odds at the student's top token, as a share of its best odds.
"""

# %%
TwoBumps()

# %% [markdown]
r"""
Find three things. A distance at which all four agree: the bumps have become one. A weight at which reverse KL is far ahead,
and what the greedy bars say there. And, with the bumps of equal weight, the distance at which the best straddler loses to
a hider.

## A student that must serve many places

A real draft is no bump. It fails in another way: a few numbers must serve thousands of places at once. So here is a
middle-sized toy. The target has 500 places and 50 tokens, its logits a random table of rank 16 (seed 3). The student's
table has rank 3, 6 or 12, trained by following the slope, 400 steps for each objective, with the very functions that train
the real drafts. Then each student is scored at temperature 1, at 0.5 (both models), and greedily.
"""

# %%
def random_table(rank, scale, chance):
    """Two factors whose product is a table [500, 50]."""
    return [scale * torch.randn(n, rank, generator=chance) for n in (500, 50)]

chance = torch.Generator().manual_seed(3)
left, right = random_table(16, 1.0, chance)
target_logits = 2.5 / 4 * left @ right.T
starts = {rank: random_table(rank, 0.1, chance) for rank in (3, 6, 12)}

# %%
def train(divergence, start, target_logits, steps=400, rate=0.05):
    """The two factors of a student that began at `start` and was trained to lower the divergence from the target."""
    left, right = (factor.clone().requires_grad_() for factor in start)
    optimiser = torch.optim.Adam([left, right], rate)
    log_p = target_logits.log_softmax(-1)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimiser.zero_grad()
        divergence(log_p, (left @ right.T).log_softmax(-1)).mean().backward()
        optimiser.step()
    return left.detach(), right.detach()

# %%
def scores(factors, target_logits):
    """Alpha at T = 1, alpha at T = 0.5, and the share of places with the target's top token."""
    logits = factors[0] @ factors[1].T
    soft = [p_keep((target_logits / T).softmax(-1), (logits / T).softmax(-1)).mean() for T in (1.0, 0.5)]
    return [*map(float, soft), float((logits.argmax(-1) == target_logits.argmax(-1)).double().mean())]

# %%
from lessonlib.distil.losses import DIVERGENCES

named = {"forward KL": "kl", "reverse KL": "reverse_kl", "JSD": "jsd", "TV": "tv"}
columns = ("alpha at T = 1", "alpha at T = 0.5", "greedy")
table = {rank: {name: scores(train(DIVERGENCES[key], start, target_logits), target_logits) for name, key in named.items()}
         for rank, start in starts.items()}
for rank, rows in table.items():
    print(f"student of rank {rank}:", *columns, sep="   ")
    for name, row in rows.items():
        print(f"  {name:<18}", *(f"{measured(score, '.3f'):<16}" for score in row))
    print("  best:", *(here(f"{column}: {max(rows, key=lambda name: rows[name][i])}") for i, column in enumerate(columns)))
gaps = {rank: max(row[0] for row in rows.values()) - min(row[0] for row in rows.values()) for rank, rows in table.items()}
print("alpha at T = 1, best minus worst:", ", ".join(f"rank {rank} {measured(gap, '.3f')}" for rank, gap in gaps.items()))

# %%
orders = [sorted(rows, key=lambda name: rows[name][i]) for rows in table.values() for i in range(3)]  # worst first, nine columns
print(f"forward KL is last in {sum(order[0] == 'forward KL' for order in orders)} of {len(orders)} columns; "
      f"JSD or TV is first in {sum(order[-1] in ('JSD', 'TV') for order in orders)}")
print("smaller at each larger rank:", gaps[3] > gaps[6] > gaps[12])

# %% [markdown]
r"""
Forward KL comes last in every column: at every rank, at both temperatures, greedily. JSD or TV comes first in all columns
but one. Which of them it is, and who takes the last one, changes with the rank and with how you decode. So there is no
universal winner, not even between three students of one target. For real pairs DistillSpec (Zhou and others, 2024) found
the like: which divergence is best depends on the task and on the decoding. And the gap shrinks as the rank grows: the nearer
a student can come, the less the choice matters. The two bumps are the extreme, chosen to be seen.

## A worse start

Two cautions. This is one table with one seed, so do not read small differences. And the start was easy: a fresh student bets
about equally on all of 50 tokens, and this target, not very sure of itself, overlaps with that. Spread over 49,152 tokens a
fresh draft overlaps with hardly any target, and there the slopes of *Why not simply train on TV?* count. So make the start
worse: the same table with logits 2.4 times as large. Each objective gets 800 steps at rank 6, once alone, once with forward
KL for the first 400.
"""

# %%
surer_logits, mean_odds = 2.4 * target_logits, lambda z: z.softmax(-1).max(-1).values.mean()
fresh = (starts[6][0] @ starts[6][1].T).softmax(-1)
for name, z in (("target", target_logits), ("surer target", surer_logits)):
    print(f"{name:<13} its favourite has {mean_odds(z):.2f} on average, a fresh student's alpha is {p_keep(z.softmax(-1), fresh).mean():.2f}")
first_half = {name: train(DIVERGENCES[key], starts[6], surer_logits) for name, key in named.items()}
alone, after = ({name: scores(train(DIVERGENCES[key], first_half[name if own else "forward KL"], surer_logits), surer_logits)[0]
                 for name, key in named.items()} for own in (True, False))
print("alpha at T = 1   alone     forward KL first")
for name in named:
    print(f"  {name:<14} {measured(alone[name], '.3f'):<9} {measured(after[name], '.3f')}")
others = [name for name in named if name != "forward KL"]
print("forward KL first beats each of the other three alone:", all(after[name] > alone[name] for name in others))
print("and beats forward KL all the way:", all(after[name] > alone["forward KL"] for name in others))
print("last of the four alone:", min(alone, key=alone.get))

# %% [markdown]
r"""
So measure it. This course begins with forward KL *although* it lost the first contest: its slope does not fall silent from a
bad start, and the stored odds suffice. The second contest shows what that is worth: the last one is now reverse KL, and each
of the other three ends higher if forward KL goes first, higher also than forward KL that goes on alone. What a real draft
makes of it, notebook 06 measures; then try it on *your* pair, scored in the way that you serve.

## Recap

- Where a draft cannot copy its target, the objective picks the mistake: forward KL covers every bump, reverse KL seeks one,
  and $\alpha = 1 - \mathrm{TV}$ charges for odds in the wrong place, whichever side they are on.
- Which of them reaches more $\alpha$ turns with the target: at a second bump of 0.35 reverse KL, at 0.50 forward KL. With
  many places at once forward KL came last, and yet was the best one to begin with from a bad start. And the best student for
  sampling can be the worst for greedy decoding.
- Pinsker: $1 - \alpha \le \sqrt{\mathrm{KL}/2}$, so either KL at 0 means $\alpha = 1$. Before that it bounds and does not rank.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Why does forward KL put the student's top token where the target says almost nothing?</summary>

It fits the mean and the spread of the target's odds, since it must leave no place uncovered that the target uses. The mean
of two bumps lies between them, and one bump has its peak at its mean.

</details>

<details><summary>Why is reverse KL's alpha just the big bump's share?</summary>

Its student has the big bump's shape and puts all its odds there. Inside the bump the target's odds are the smaller ones, so
the overlap is what the target has there, one minus the second bump's weight; outside, the student has nothing to overlap with.

</details>

<details><summary>You serve greedily. A colleague reports a draft with a higher alpha at temperature 1. Do you switch?</summary>

Not for that reason. Greedy acceptance is the share of places where both top tokens agree; a student can gain overlap and
lose its top token. Measure top-1 agreement on text that the target wrote greedily.

</details>

<details><summary>Forward KL fell from 1.0 to 0.9. How much did alpha rise?</summary>

Nobody can tell. The bound moved from 0.71 to 0.67 for TV, and students with the same KL had quite different alphas above.
Alpha may even have fallen.

</details>

<details><summary>If TV is the true objective, why begin with forward KL?</summary>

TV's slope vanishes where the two hardly overlap, so from a bad start it hardly learns. Forward KL's slope in the logits is
$q - p$, which is there until the two agree.

</details>

## Two things to change and rerun

1. Put a generalised JSD among the `objectives`: `lambda p, q: divergences.jsd(p.log(), q.log(), 0.9)`, then with 0.1. On
   the even target, which of the two straddles and which one hides? The end that it resembles tells you why.
2. Give the last toy another seed, and then a rank of 12 in place of 6 in the second contest. Is forward KL last again in the
   first one? Is it still the best beginning in the second?

**Next**: [04 Build the data set](04_build_the_dataset.ipynb) has the target write what drafts learn from; [06 Train the
draft](06_train_the_draft.ipynb) trains real ones with these objectives. The map of the course is in the
[README](../README.md).
"""
