# %% [markdown]
r"""
# Learn from soft labels

A text says which token came next. The model that wrote it knew more: how likely *every* token was. A draft can be trained
on the one or on the other, and a single line of code tells them apart. Here you see, at one place of a real text, what
the one token leaves out, how many such tokens it would take to make up for it, and what to do about odds so one-sided
that the rest hardly shows.

**You will** compare one drawn token with the whole vector of odds; count how many drawn labels it takes until they show
the vector; write the loss with a soft label, its gradient $q - p$, and the loss at a temperature $T$ with its $T^2$;
measure why a draft should copy the odds it will serve; tell draft distillation from its relatives.

**You need** [00 Meet the pair](00_meet_the_pair.ipynb) (target, draft, the overlap $\alpha$) and softmax. In formulas $p$ is
the target's odds and $q$ the draft's, here as in the whole course. The real pair is asked about two places; everything
else is arithmetic in float64. For another pair set `LESSON_PRESET`, as 00 explains.

**Time**: it runs in about half a minute on two cores with the tiny pair; on a DGX Spark about 2 minutes, most of that for
loading the models (an estimate). Reading and three exercises: three quarters of an hour. [All
solutions](solutions/02_learn_from_soft_labels.ipynb).
"""

# %%
from lessonlib.workbook import Explorable, Slider  # no module lessonlib? Run: make lab
from lessonlib.workbook import checks, explain, here, measured, predict, show, style
import lessonlib, torch

# %%
from lessonlib.lesson import Lesson
from lessonlib.pair.chat import chat_ids

lesson = Lesson(lessonlib.preset())
target, tokenizer, draft = lesson.target, lesson.tokenizer, lesson.load()
print(here(lesson.preset))

# %% [markdown]
r"""
## One place, the whole vector

The question is the one of notebook 00, a function for a circle's area, and we stop an answer right after `return`. Once
the answer has begun without an import and once with `import math`; nothing else differs. (The references and bands
printed below are the tiny pair's.)
"""

# %%
request = "Write a Python function that returns the area of a circle, given its radius."
beginnings = {"open": "```python\ndef area(r):\n    return", "sure": "```python\nimport math\n\ndef area(r):\n    return"}

@torch.inference_mode()
def next_logits(model, beginning):
    """The logits [V] for the token after the beginning of an answer, in float64."""
    ids = chat_ids(tokenizer, request) + tokenizer(beginning, add_special_tokens=False)["input_ids"]
    return model(torch.tensor([ids], device=model.device)).logits[0, -1].double().cpu()

target_at = {place: next_logits(target, text) for place, text in beginnings.items()}
draft_at = {place: next_logits(draft, text) for place, text in beginnings.items()}
p_at, q_at = ({place: z.softmax(-1) for place, z in logits.items()} for logits in (target_at, draft_at))

# %%
def best(odds, count=6):
    """The likeliest tokens with their odds, as words."""
    return "  ".join(f"{tokenizer.decode([x])!r} {float(odds[x]):.2f}" for x in odds.topk(count).indices.tolist())

open_p, sure_p = p_at.values()
print(f"target, open: {best(open_p)}  and {len(open_p) - 6:,} others {1 - float(open_p.topk(6).values.sum()):.2f}")

# %%
math_id = tokenizer(" math", add_special_tokens=False)["input_ids"][0]
math_guess = predict("With `import math` above it: of 100 draws, how many are ' math'?", 60, unit="of 100")

# %%
explain(math_guess, 100 * float(sure_p[math_id]), reference=97, band=2, form=".0f", exact=True)
print(f"target, sure: {best(sure_p)}")
course = {" math": 0.46, " r": 0.14, " 3": 0.10}
print("the course's 8B:", *(f"{word!r} {odds:.2f} " for word, odds in course.items()), f"others {1 - sum(course.values()):.2f}")
print("' 3' in this tokenizer:", [tokenizer.decode([x]) for x in tokenizer(" 3", add_special_tokens=False)["input_ids"]])

# %% [markdown]
r"""
The line *the course's 8B* is an example that the course brings along, not measured here; the lines that begin with *target*
are this target's own. (Where ` 3` takes two tokens, its beginning is a lone space: look for `' '` instead.) With the tiny
pair the open place spreads over several beginnings, those of `math.pi * r ** 2`, `r * r * 3.14` and `3.14 * r * r` among
them. One drawn word would not tell you that; the odds do, and they say *how likely each beginning is from this writer*. The
sure place has all but decided. Both places, for the five tokens that the open one likes best:
"""

# %%
five = open_p.topk(5).indices
names = [repr(tokenizer.decode([x])) for x in five.tolist()] + ["others"]
share = lambda odds: [*odds[five].tolist(), 1 - float(odds[five].sum())]
fig, ax = style.figure(7.0, 2.7)
style.bars(ax, names, {"open": share(open_p), "sure": share(sure_p)})
ax.set(ylim=(0, 1.15), ylabel="the target's odds")
surer = "An import makes the target surer" if sure_p.max() > open_p.max() else "An import does not make this target surer"
style.finding(ax, surer)
shares = {place: ", ".join(f"{name} {x:.2f}" for name, x in zip(names, share(p))) for place, p in p_at.items()}
show(fig, f"The target's odds after return. Open: {shares['open']}. Sure, after an import: {shares['sure']}.")

# %% [markdown]
r"""
## What one drawn token leaves out

Let the target write much text and train the draft on it with the ordinary loss: that works, and it is called
**sequence-level distillation**. What the draft gets at this place is then one token, drawn from $p$: a **one-hot** label,
1 for that token and 0 for all others. The rest of the vector has been thrown away.

A student that believed one such label would bet everything on it. Its overlap with $p$ is $p(x)$ for the token $x$ that
was drawn, and $x$ comes up with probability $p(x)$. So on average $\alpha = \sum_x p(x)^2$.

With $n$ labels from the very same place it can count: $q(x) = n_x/n$. How large must $n$ be? This can be computed
exactly. As $\alpha = 1 - \mathrm{TV}$, all we need is how far a count $n_x$ lies from $n\,p(x)$ on average, and de Moivre
knew that in 1730: $2m\binom{n}{m}p(x)^m(1-p(x))^{n-m+1}$ with $m = \lfloor n\,p(x) \rfloor + 1$.
"""

# %%
def alpha_of_counts(p, n):
    """The mean alpha of a student that has counted n labels drawn from p [V]; exact."""
    m, n = (n * p).floor() + 1, torch.tensor(float(n), dtype=p.dtype)
    ways = torch.lgamma(n + 1) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)
    off = 2 * m * (ways + m * p.log() + (n - m + 1) * torch.log1p(-p)).exp()
    return 1 - float(off.sum() / n) / 2

for place, p in p_at.items():
    one = alpha_of_counts(p, 1)
    equal = abs(float((p * p).sum()) - one) < 1e-9
    print(f"{place}: one label gives alpha {one:.2f}, the sum of squares, equal to 1e-9: {equal}")

# %%
labels_needed = predict("At the open place: how many labels until the counts reach alpha 0.95?", 100, unit="labels")

# %%
from bisect import bisect_left

needed = {place: 1 + bisect_left(range(1, 10**6), 0.95, key=lambda n: alpha_of_counts(p, n)) for place, p in p_at.items()}
explain(labels_needed, needed["open"], reference=1047, band=100, form=",.0f")
print(f"at the sure place: {measured(needed['sure'], '.0f')} labels; soft labels: 1 at either")

# %% [markdown]
r"""
Is the formula right? Draw the labels (seed 2): 300 students with 100 labels each. With 300 of them the mean should come
within 0.005 of the exact value.
"""

# %%
chance = torch.Generator().manual_seed(2)

def drawn(p, *shape):
    """Tokens drawn from p [V]."""
    return torch.searchsorted(p.cumsum(0), torch.rand(*shape, generator=chance, dtype=p.dtype)).clamp_max(len(p) - 1)

for place, p in p_at.items():
    counted = [torch.bincount(labels, minlength=len(p)) / 100 for labels in drawn(p, 300, 100)]
    mean = torch.stack([torch.minimum(p, q).sum() for q in counted]).mean()
    exact = alpha_of_counts(p, 100)
    print(f"{place}: exact {exact:.2f}; 300 students come within 0.005 of it: {bool(abs(mean - exact) < 0.005)}")

# %%
ns = [2**i for i in range(15)]
curves = {place: [alpha_of_counts(p, n) for n in ns] for place, p in p_at.items()}
fig, ax = style.figure(7.0, 2.9)
style.lines(ax, ns, curves)
ax.axhline(1, color=style.SHARED, linewidth=2)
ax.text(1.2, 1.02, "one soft label", color=style.SHARED, fontweight="bold")
ax.set(xscale="log", ylim=(0, 1.12), xlabel="labels drawn at this one place", ylabel="mean alpha of the counts")
style.finding(ax, f"Counts need {needed['open']:,} and {needed['sure']:,} labels to reach alpha 0.95")
show(fig, f"Mean alpha of counted labels against their number: {curves['open'][0]:.2f} with one label and "
          f"{curves['open'][10]:.2f} with 1,024 at the open place, {curves['sure'][0]:.2f} and {curves['sure'][10]:.2f} at "
          "the sure one; a soft label is at 1 at once.")

# %% [markdown]
r"""
And no place of a text comes a thousand times. A real draft does not count, it generalises from similar places, so in
practice one-hot labels lose less than this picture says. How much less is what notebook 06 measures. What the picture
does say is where soft labels have something to give: where the target wavers.

Draw labels yourself. The slider doubles their number with each step.
"""

# %%
class Counting(Explorable):
    sliders = (Slider("doublings", "labels drawn, 2 to the power", 3, 0, 14),)

    def setup(self, ax):
        self.labels = drawn(open_p, 2**14)
        self.bars = style.bars(ax, names, {"target": share(open_p), "counted": [0.0] * 6})
        ax.set(ylim=(0, 1.12), ylabel="odds, and share of the labels")
        self.title = ax.set_title("", loc="left", pad=10, fontsize=11.5, fontweight="bold", color=style.INK)

    def draw(self, doublings):
        n = 2**doublings
        q = torch.bincount(self.labels[:n], minlength=len(open_p)) / n
        alpha = float(torch.minimum(open_p, q).sum())
        style.move_bars(self.bars, {"counted": share(q)})
        self.title.set_text(f"{n:,} label{'s'[:n > 1]} overlap with the target's odds by {alpha:.2f}")
        seen = int((q > 0).sum())
        return f"After {n:,} drawn label{'s'[:n > 1]}, {seen:,} different token{'s'[:seen > 1]} seen, the counts have alpha {alpha:.2f}."

Counting()

# %% [markdown]
r"""
## The loss you know, with a soft label

**Knowledge distillation** keeps the vector: the label *is* $p$, a **soft label**. How far is $q$ from it? The KL
divergence says

$$\mathrm{KL}(p \,\|\, q) = \sum_x p(x)\log\frac{p(x)}{q(x)}
= \underbrace{-\sum_x p(x)\log q(x)}_{\text{cross-entropy against } p} -
\underbrace{\Bigl(-\sum_x p(x)\log p(x)\Bigr)}_{\text{entropy of } p}.$$

The second part does not contain the draft: no training can change it. The first is the ordinary loss. With a one-hot
label only one term of its sum is left, $-\log q(x)$.

**Exercise 2.1** (easy, 10 minutes). Write the cross-entropy against whole vectors, for $R$ places at once, and average
over the places.

<details><summary>Hint</summary>

`draft_logits.log_softmax(-1)` is $\log q$, of shape $[R, V]$. Multiply by the odds, sum over the last dimension, turn the
sign, and take the mean of what is left.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/02_learn_from_soft_labels.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def soft_label_loss(draft_logits, target_probs):
    """Cross-entropy of the draft against the target's whole vector, both [R, V]; the mean over the R places."""
    # <solution>
    return -(target_probs * draft_logits.log_softmax(-1)).sum(-1).mean()
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
soft_label_loss = checks.ex_2_1(soft_label_loss)

# %% [markdown]
r"""
On the real draft, at both places. The entropy is the part that stays even for a perfect draft. lessonlib's loss for
training, `kl_loss`, reads the target's odds from stored logits; here it gets all of them.
"""

# %%
entropy = lambda p: float(torch.special.entr(p).sum())  # minus the sum of p log p
every_id, differences = torch.arange(len(open_p))[None], []
for place, p in p_at.items():
    z, y = target_at[place][None], draft_at[place][None]
    loss, theirs = float(soft_label_loss(y, p[None])), float(lessonlib.kl_loss(y, every_id, z, z.logsumexp(-1)))
    differences.append(abs(loss - entropy(p) - theirs))
    print(f"{place}: cross-entropy {loss:.2f} - entropy {entropy(p):.2f} = KL {theirs:.2f} nats (rounded)")
largest = max(differences)
print(f"your KL and lessonlib's: max difference {measured(largest, '.0e')} nats, below 1e-9: {largest < 1e-9}")

# %%
import torch.nn.functional as F

y, label = draft_at["open"][None], drawn(open_p, 1)
by_token, by_vector = F.cross_entropy(y, label), F.cross_entropy(y, open_p[None])
print(f"PyTorch's own loss with one token is -log q of it: {bool(abs(by_token + y.log_softmax(-1)[0, label[0]]) < 1e-9)}")
print(f"with the whole vector it is yours: {bool(abs(by_vector - soft_label_loss(y, open_p[None])) < 1e-9)}")

# %% [markdown]
r"""
So one line changes: the same function gets the vector in place of the token.

## The gradient is q - p

Which way does this loss push? Call the draft's logits $y$ and the target's $z$. Written in $y$, the cross-entropy is
$-\sum_x p(x)\,y_x + \log \sum_x e^{y_x}$, since $p$ sums to 1. The derivative of the first part in $y_x$ is $-p(x)$, that
of the second is the softmax, $q(x)$.

**Exercise 2.2** (easy, 5 minutes). Write the gradient at one place.

<details><summary>Hint</summary>

It has one number for each token: what the draft bets on it, minus what the target bets on it.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/02_learn_from_soft_labels.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def soft_label_gradient(draft_logits, target_probs):
    """The gradient of the loss in the draft's logits, both [V]; returns [V]."""
    # <solution>
    return draft_logits.softmax(-1) - target_probs
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
soft_label_gradient = checks.ex_2_2(soft_label_gradient)

# %%
for place, p in p_at.items():
    leaf = draft_at[place].clone().requires_grad_()
    soft_label_loss(leaf[None], p[None]).backward()
    gap = float(abs(leaf.grad - soft_label_gradient(leaf.detach(), p)).max())
    print(f"{place}: yours and autograd's, {len(p):,} tokens: max difference {measured(gap, '.0e')}, below 1e-12: {gap < 1e-12}")

# %% [markdown]
r"""
Ordinary training has the gradient $q - \text{onehot}$: the same shape. And the two agree *on average*: if the token is
drawn from $p$, its one-hot vector is $p$ in expectation. A single label is this gradient plus noise. How much noise? The
squared length of $\text{onehot} - p$ is $1 - \sum_x p(x)^2$ on average, and averaging $n$ labels divides it by $n$. So
the noise is as large as the gradient itself at

$$n = \frac{1 - \sum_x p(x)^2}{\lVert q - p \rVert^2}.$$
"""

# %%
noisy = predict("At the open place: how many labels until the noise is no larger than the gradient?", 2, unit="labels")

# %%
noise = {place: float(1 - (p * p).sum()) for place, p in p_at.items()}
signal = {place: float(soft_label_gradient(draft_at[place], p).square().sum()) for place, p in p_at.items()}
explain(noisy, noise["open"] / signal["open"], reference=5.5, band=0.5, form=".1f", exact=True)
print(f"at the sure place: {noise['sure'] / signal['sure']:.2f}")
off = [(torch.bincount(labels, minlength=len(open_p)) / 10 - open_p).square().sum() for labels in drawn(open_p, 2000, 10)]
print(f"squared noise of 10 labels, 2,000 times, over that expected: {float(torch.stack(off).mean() / noise['open'] * 10):.1f}")

# %% [markdown]
r"""
The better the draft gets, the smaller $q - p$ becomes, and the noise stays. The last points of $\alpha$ are the ones that
drown.

Watch it happen: a student with a free logit for every token starts where the draft is and takes the same steps (learning
rate 0.3), once with the soft label, once with a fresh drawn label each time.
"""

# %%
def course_of(label_at, steps=(1, 10, 100, 1000)):
    """alpha after so many steps at the open place; label_at(i) is the label [V] of step i."""
    y, alphas = draft_at["open"].clone(), []
    for i in range(max(steps)):
        y -= 0.3 * soft_label_gradient(y, label_at(i))
        if i + 1 in steps:
            alphas.append(float(torch.minimum(open_p, y.softmax(-1)).sum()))
    return alphas

tokens, blank = drawn(open_p, 1000), torch.zeros_like(open_p)
print("steps        ", *(f"{steps:>6,}" for steps in (1, 10, 100, 1000)))
print("drawn labels ", *(f"{alpha:6.2f}" for alpha in course_of(lambda i: blank.scatter(0, tokens[i], 1.0))))
print("soft label   ", *(f"{alpha:6.2f}" for alpha in course_of(lambda i: open_p)))

# %% [markdown]
r"""
With the tiny pair these drawn labels lead after 1 and 10 steps. That is luck: on average they push like the soft label, and
another seed may trail. Later they only shake the student about, and it stays behind. A smaller learning rate calms it, at
the price of more steps: that is averaging again.

## T and T squared

Now the sure place. The tiny target puts 0.97 on one token. What it thinks of the *others*, that `r` is a decent second
choice and a bracket a poor one, lies in the last 0.03. How much does the draft hear of it? Its logit of $x$ is pulled up by
$p(x) - q(x)$, so never by more than $p(x)$:
"""

# %%
favourite = int(sure_p.argmax())
others = torch.arange(len(sure_p)) != favourite
pull, loss_of = -soft_label_gradient(draft_at["sure"], sure_p), -sure_p * draft_at["sure"].log_softmax(-1)
for name, which in (("the favourite", ~others), (f"the {int(others.sum()):,} others", others)):
    print(f"{name:<17} {float(loss_of[which].sum()):.2f} of {float(loss_of.sum()):.2f} nats of loss; "
          f"strongest pull upwards {float(pull[which].max()):.3f}, largest p(x) {float(sure_p[which].max()):.3f}")

# %% [markdown]
r"""
Together the others have a part of the loss, but no one of them pulls with more than its own odds, so what they have to say
hardly reaches the student. Hinton, Vinyals and Dean called it dark knowledge. Their way to bring it out: divide the logits
of *both* models by a **distillation temperature** $T > 1$ before the softmax.
"""

# %%
best64 = {place: z.topk(64) for place, z in target_at.items()}  # what the course will store of a place (notebook 04)
print("  T   favourite's odds    among the best 64 alone: favourite, second, third, all but the favourite")
for T in (1, 2, 4, 8):
    softened = (best64["sure"].values / T).softmax(-1)
    shown = [*softened[:3].tolist(), 1 - float(softened[0])]
    print(f"{T:>3}   {float((target_at['sure'] / T).softmax(-1).max()):<19.3f} {'  '.join(f'{x:.3f}' for x in shown)}")

# %% [markdown]
r"""
In a vocabulary of tens of thousands a temperature of 4 is a hot bath: so many tokens share in it that the favourite
itself can drown. Keep that in mind. Turn the knob yourself, on both models and the target's best 64 tokens:
"""

# %%
words = {place: [repr(tokenizer.decode([x])) for x in found.indices[:5].tolist()] for place, found in best64.items()}

class Softened(Explorable):
    sliders = (Slider("T", "T, distillation temperature", 1.0, 0.5, 8.0, 0.1),)

    def setup(self, ax):
        self.logits = {"target": best64["sure"].values, "draft": draft_at["sure"][best64["sure"].indices]}
        self.bars = style.bars(ax, [*words["sure"], "others"], {name: [0.0] * 6 for name in self.logits})
        ax.set(ylim=(0, 1.12), ylabel="odds at T, of the best 64")
        self.title = ax.set_title("", loc="left", pad=10, fontsize=11.5, fontweight="bold", color=style.INK)

    def draw(self, T):
        p, q = (softened := {name: (z / T).softmax(-1) for name, z in self.logits.items()}).values()
        style.move_bars(self.bars, {name: [*odds[:5].tolist(), float(odds[5:].sum())] for name, odds in softened.items()})
        gradient = float((q - p).norm()) / T
        self.title.set_text(f"T = {T:.1f}: gradient {gradient:.3f}, times T squared {gradient * T**2:.2f}")
        return (f"At T = {T:.1f} the target bets {p[0]:.2f} and the draft {q[0]:.2f} on {words['sure'][0]}; the gradient of "
                f"the KL has length {gradient:.3f}, times T squared {gradient * T**2:.2f}.")

Softened()

# %% [markdown]
r"""
What does it do to the gradient? It is $(q_T - p_T)/T$, with $q_T$ and $p_T$ the softened odds: the division inside the
softmax gives one factor $1/T$. The other one comes from the odds. Once they are nearly flat, their difference too shrinks
as $1/T$. Then the gradient shrinks as $1/T^2$, and that is why the loss is multiplied by $T^2$. First on small logits:
"""

# %%
shrunk = predict("50 tokens, random logits. By what factor is the gradient smaller at T = 4 than at T = 1?", 4)

# %%
def gradient_at(target_logits, draft_logits, T):
    """The length of the gradient of KL(p || q), both softened by T, in the draft's logits."""
    return float(((draft_logits / T).softmax(-1) - (target_logits / T).softmax(-1)).norm() / T)

pair = torch.randn(2, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
explain(shrunk, gradient_at(*pair, 1) / gradient_at(*pair, 4), reference=16, band=4, form=".1f", exact=True, must_hold=True)
print("   T   times smaller than at T = 1      T squared")
for T in (2, 4, 8, 16):
    print(f"{T:>4}   {gradient_at(*pair, 1) / gradient_at(*pair, T):<27.1f}      {T**2}")

# %% [markdown]
r"""
**Exercise 2.3** (medium, 10 minutes). Write the loss: soften both, take KL(p || q), multiply by $T^2$.

<details><summary>Hint</summary>

`(target_logits / T).log_softmax(-1)` is $\log p_T$, and its `.exp()` is $p_T$. Sum $p_T(\log p_T - \log q_T)$. Never take
the logarithm of a softmax: it can be 0.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/02_learn_from_soft_labels.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def distil_loss(target_logits, draft_logits, T):
    """T squared times KL(p || q) of the two softened vectors of odds; both logits [V], returns one number."""
    # <solution>
    log_p, log_q = ((logits / T).log_softmax(-1) for logits in (target_logits, draft_logits))
    return T**2 * (log_p.exp() * (log_p - log_q)).sum()
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
distil_loss = checks.ex_2_3(distil_loss)

# %%
differences, bucketed = [], []
for T in (1, 2, 4):
    for z, y in ((target_at[place], draft_at[place]) for place in p_at):
        slow, ids = distil_loss(z, y, T), z.topk(64).indices[None]
        stored = (y[None], every_id, z[None], (z / T).logsumexp(-1)[None])
        differences.append(abs(slow - lessonlib.kl_loss(*stored, T)) / slow)
        bucketed.append(lessonlib.kl_loss(y[None], ids, z[ids], stored[3], T) / slow)
largest = float(max(differences))
print(f"yours and lessonlib's: max difference {measured(largest, '.0e')} of the loss, below 1e-9: {largest < 1e-9}")
print("the best 64 and one bucket for the rest never say more than all:", bool(max(bucketed) <= 1))

# %% [markdown]
r"""
lessonlib's loss runs on the 64 stored logits and one bucket for all the rest; that is what training uses ([06 Train the
draft](06_train_the_draft.ipynb)).

Does $T^2$ restore the scale on the *real* vectors?
"""

# %%
Ts = (1, 2, 4, 8, 16, 32, 64)
print("         length of the gradient, and the same times T squared; loss with T squared")
for place in p_at:
    z, y = target_at[place], draft_at[place]
    for T in Ts:
        size = gradient_at(z, y, T)
        print(f"{place}  T = {T:<3} {size:<10.1e} {size * T**2:<8.3f} {float(distil_loss(z, y, T)):.2f}")
    print(f"{place}  half the variance of the logits' difference over the vocabulary: {float((y - z).var() / 2):.2f}")

# %%
sizes = {place: [gradient_at(target_at[place], draft_at[place], T) for T in Ts] for place in p_at}
sizes["random"] = [gradient_at(*pair, T) for T in Ts]
for place, size in sizes.items():
    print(f"{place:<6}  times T squared, {size[0] / size[2] / 4**2:.2g} times smaller at T = 4 than at T = 1, and "
          f"{size[0] / size[-1] / 64**2:.2g} times at T = 64")
steady = all(abs(size[-2] / size[-1] / 4 - 1) < 0.02 for size in sizes.values())
print("from T = 32 to 64 every gradient is 4 times smaller, within 2 %:", steady)
limits = {place: float((draft_at[place] - z).std(correction=0)) / len(z) ** 0.5 for place, z in target_at.items()}
near = all(abs(sizes[place][-1] * 64**2 / limit - 1) < 0.05 for place, limit in limits.items())
print(f"at T = 64 it is the standard deviation of y - z over the root of {len(open_p):,}, within 5 %: {near}")

# %%
fig, ax = style.figure(7.0, 3.0)
rescaled = {place: [s * T**2 / (size[-1] * Ts[-1] ** 2) for s, T in zip(size, Ts)] for place, size in sizes.items()}
for i, (place, values) in enumerate(rescaled.items()):
    ax.plot(Ts, values, color=style.COLOURS[i], linestyle=style.LINES[i], linewidth=2.2, label=place)
ax.set(xscale="log", yscale="log", xticks=Ts, xlabel="T", ylabel="gradient times T squared,\nover its limit")
ax.set_xticks(Ts, [str(T) for T in Ts])
ax.minorticks_off()
ax.legend(frameon=False)
settled = next(T for i, T in enumerate(Ts) if all(abs(v - 1) < 0.2 for values in rescaled.values() for v in values[i:]))
smaller = " and ".join(f"{rescaled[place][0]:.2g}" for place in p_at)
style.finding(ax, f"Times T squared, the real gradients end {smaller} times smaller")
beginnings_at = ", ".join(f"{place} {values[0]:.1f}" for place, values in rescaled.items())
show(fig, f"The gradient times T squared, over its value at T = 64. At T = 1: {beginnings_at}. From T = {settled} on all three "
          "are within 20 % of their end at 1.")

# %% [markdown]
r"""
So $T^2$ does *not* give back the size that the gradient had at $T = 1$. The rule $1/T^2$ is a limit, for logits that are
small beside $T$. On the random ones it holds from the start. A real model's logits spread much wider, and until $T$ outgrows
that spread the gradient goes its own way: with the tiny pair, times $T^2$, it even grows at the sure place up to $T = 2$,
and at $T = 4$ it is 13 and 14 times smaller than at $T = 1$. From about $T = 8$ on $T^2$ keeps a size, and that size is
small, because the vocabulary is large: a gradient that sat on a few likely tokens has been spread over all $V$ of them. Its
length times $T^2$ tends to the standard deviation of $y - z$ divided by $\sqrt{V}$.

In the limit you see *what* is being learnt, too. With $T^2$ the loss tends to half the variance of $y - z$, taken over the
whole vocabulary with equal weights. The draft is asked to copy every logit equally well, and a token that is never said
counts as much as the one that always is.

## Copy what you serve

Hinton's student was to learn what the teacher knows, and was tested on its best answer. A draft is tested on its *odds*,
at the temperature the server decodes at. A student that can match $p$ perfectly matches it at every $T$ at once. One that
cannot, and no draft can, has to choose where to be wrong, and $T$ chooses for it.

Here is the smallest such student. It knows the order of the target's 64 best tokens, and has a single number $a$ to say
how steeply the odds fall: the logit of rank $r$ is $-a\log r$. Every $T$ gives another best $a$.
"""

# %%
from lessonlib.workbook.explorables.nb02 import Served, alpha_served, fitted, log_probs

top = {place: found.values for place, found in best64.items()}
a = fitted(top["sure"], 1)
distance = lambda steepness: float(distil_loss(top["sure"], log_probs(steepness), 1))
print(f"best a at T = 1: {a:.1f}; a little less or more is worse:", distance(a) < min(distance(a - 0.02), distance(a + 0.02)))
hot = predict(f"Learnt at T = 1, alpha is {float(alpha_served(top['sure'], a)):.2f}. And learnt at T = 4?", 0.95)

# %%
explain(hot, alpha_served(top["sure"], fitted(top["sure"], 4)), reference=0.85, band=0.03, form=".2f", exact=True)
print("                      alpha of drafts learnt at")
print("place  serving at  ", *(f"T = {T:<5g}" for T in (0.5, 1, 2, 4, 8)), " right favourite")
for place, z in top.items():
    steepness = [fitted(z, T) for T in (0.5, 1, 2, 4, 8)]
    for serving in (0.5, 1.0, 1.5):
        alphas = " ".join(f"{float(alpha_served(z, one, serving)):<9.2f}" for one in steepness)
        print(f"{place:<6} {serving:<12} {alphas}  {sum(int(log_probs(one).argmax()) == 0 for one in steepness)} of 5")

# %%
tried = [T / 10 for T in range(5, 81)]
for place, z in top.items():
    learnt = torch.tensor([fitted(z, T) for T in tried], dtype=z.dtype)
    best_T = {serving: tried[int(alpha_served(z, learnt, serving).argmax())] for serving in (0.5, 1.0, 2.0)}
    print(f"{place:<6} best T:", "  ".join(f"serving at {serving:g}: {measured(T, '.1f')}" for serving, T in best_T.items()))

# %% [markdown]
r"""
Two things to read off. The last column is Hinton's test, and this student passes it always: the favourite is right
whatever $T$ was. What differs is $\alpha$. And with the tiny pair the best $T$ moves up with the temperature that is
served. So start at $T = 1$ where you serve at 1, and if you try another $T$, measure $\alpha$ *at the temperature you
serve*, never at $T$. (Notebook [09](09_break_it.ipynb) does it wrong on purpose with a real draft.) Move the sliders:
"""

# %%
Served({f"the {place} place": (top[place], words[place]) for place in ("sure", "open")})

# %% [markdown]
r"""
Put *serving* to 0.5, then to 2, and follow the top of the curve. It moves up with the served temperature and need not be
equal to it: with the tiny pair, serving at 2, it lies below 2 at the sure place and above it at the open one, as printed.
KL is not $\alpha$. Which divergence comes closer is the subject of notebook 03.

## What it is, and what it is not

Distillation has relatives that sound alike. What separates them is what counts as success.

| | learns from | label | done when | a wrong favourite costs |
|---|---|---|---|---|
| general distillation | a teacher, on the task's data | soft, often softened | the student answers well *by itself* | a wrong answer |
| **draft distillation** | *this* target, on the text *it* writes | soft, as served | the target keeps its guesses | time, never text |
| fine-tuning | people's texts for a task | one-hot | the task is done well | a wrong answer |

So draft distillation is a special case of the first: behaviour is cloned, and nothing asks whether the behaviour is good.
Take the course's 8B after `return`, and suppose (an invented example) that people write `3` there more often. Four
students, each perfect at its own aim:
"""

# %%
writer = torch.tensor([*course.values(), 1 - sum(course.values())], dtype=torch.float64)  # ' math', ' r', ' 3', others
people = torch.tensor([0.20, 0.15, 0.45, 0.20], dtype=torch.float64)
students = {"draft distillation": writer, "distilled at T = 4": (writer.log() / 4).softmax(-1),
            "the favourite only": torch.eye(4, dtype=writer.dtype)[0], "fine-tuned on people": people}
print("student               alpha   same favourite   nats a token on people's text")
for name, q in students.items():
    nats = float(-torch.special.xlogy(people, q).sum())
    print(f"{name:<21} {float(torch.minimum(writer, q).sum()):<7.2f} {str(bool(q.argmax() == writer.argmax())):<16} {nats:.2f}")

# %% [markdown]
r"""
(*Distilled at T = 4* stands for a student that serves the softened odds as they are, the worst case.) The one that
predicts people best is not the one whose guesses this target keeps, and the same favourite is worth little when the
target samples. Perplexity measures the last column, $\alpha$ the first one.

Often a little ordinary cross-entropy is added to steady the training, with a weight $w$. Its gradient is $(q - p) + w(q -
\text{onehot})$, which on average is zero at $q = (p + w h)/(1 + w)$, with $h$ the odds of that text:
"""

# %%
w = 0.1
for name, text in (("the target's own text", writer), ("people's text", people)):
    q = (writer + w * text) / (1 + w)
    push = soft_label_gradient(q.log(), writer) + w * soft_label_gradient(q.log(), text)
    alpha = float(torch.minimum(writer, q).sum())
    print(f"w = {w} on {name:<22} alpha {alpha:.3f}, gradient zero: {bool(push.abs().max() < 1e-12)}")

# %% [markdown]
r"""
On the target's own text it costs nothing but noise: its odds *are* $p$. On people's text it pulls away from the target.

## "Sequence-level", twice

The word is used in two senses.

**First: whole outputs of the teacher as training text** (Kim and Rush, 2016). The loss on a text is the sum of the losses
on its tokens, and so is the divergence: KL between the odds of whole texts is the KL of the first token plus, on average
over *the target's* first tokens, the KL of the second, and so on. So one-hot labels on the target's text and soft labels
on the target's text aim at the same thing, and differ in noise.

**Second: training for several tokens ahead**, since a draft proposes several. Its second guess stands on its own first
guess, not on a token of the target's. All of this with six tokens, two places and random odds (seed 5):
"""

# %%
chance_5 = torch.Generator().manual_seed(5)
some_odds = lambda *shape: torch.softmax(2 * torch.randn(*shape, generator=chance_5, dtype=torch.float64), -1)
p1, q1, p2, q2 = some_odds(6), some_odds(6), some_odds(6, 6), some_odds(6, 6)  # row x of p2, q2: the second token after the first one, x
divergence = lambda p, q: (p * (p / q).log()).sum(-1)
whole = divergence((p1[:, None] * p2).flatten(), (q1[:, None] * q2).flatten())
by_token = divergence(p1, q1) + (p1 * divergence(p2, q2)).sum()
print(f"KL of both tokens together {whole:.4f}, token by token {by_token:.4f}, equal to 1e-12: {bool(abs(whole - by_token) < 1e-12)}")

# %%
alpha2 = torch.minimum(p2, q2).sum(-1)  # of the second guess, after each first token
both, alpha1 = torch.minimum(p1, q1), torch.minimum(p1, q1).sum()
for after, weights in (("after the target's first tokens", p1), ("after first guesses that were kept", both / alpha1),
                       ("after all the draft's first guesses", q1)):
    print(f"alpha of the second guess {after:<36} {float((weights * alpha2).sum()):.3f}")

# %% [markdown]
r"""
Three different averages of the same six numbers. Training on the target's text minds the first one; a round that has come
to its second guess lives on the second. The third counts what the draft says and the target would hardly say: places
that the target's own text seldom shows. Training on text of the draft's, scored by the target, reaches them: that is
notebook 10. Heads that guess two and three tokens ahead at once are [notebook 11](11_grow_medusa_heads.ipynb).

## Recap

- A drawn token is one sample of $p$, and a soft label is $p$. The expected gradient is the same, $q - p$; what the
  one-hot label adds is noise, most where the target wavers.
- KL is cross-entropy against the whole vector minus the target's entropy, which no draft can change. One line of code
  differs from ordinary training.
- $T$ shows the loss the small odds. $T^2$ undoes a shrinking by $1/T^2$, and that rule holds only once $T$ outgrows the
  logits; on real vectors the gradient can come out many times smaller all the same. A draft should copy what it serves: start at
  $T = 1$, and measure $\alpha$ at the served temperature.

## Explain it back

Say each answer aloud before you open it.

<details><summary>The KL of a draft is 0.8 nats, and its cross-entropy is 2.9. What is the difference, and can training remove it?</summary>

2.1 nats, the target's own entropy. It does not depend on the draft: even a perfect one has a cross-entropy of 2.1. Only
the 0.8 can be trained away.

</details>

<details><summary>If the expected gradient is the same, why are soft labels better?</summary>

Because you see the expectation at once. The squared noise of one label is $1 - \sum_x p(x)^2$, which falls only as $1/n$
with the number of labels, while $q - p$ itself shrinks as the draft improves.

</details>

<details><summary>Where in a text do one-hot labels lose nearly nothing?</summary>

Where the target is nearly certain: there a drawn token is almost always the favourite, and the one-hot vector almost is
$p$. $\sum_x p(x)^2$ near 1 says so.

</details>

<details><summary>Why is the loss multiplied by T squared and not by T?</summary>

For logits small beside $T$ the gradient has two factors of $1/T$: one from the slope of $y/T$, one because flattened odds
differ less. There the square keeps its size whatever $T$ is, so that the loss can be mixed with an ordinary one. On a real
vocabulary measure it: above, times $T^2$, the gradient at $T = 4$ was still many times smaller than at $T = 1$, so the
weight of such a mixture, or the learning rate, has to be looked at again.

</details>

<details><summary>A student distilled at T = 4 agrees with the target's favourite everywhere. Is it a good draft?</summary>

For greedy decoding yes, as far as the favourites go. For sampling nobody can tell yet: it may spread its bets far too
widely. Measure $\alpha$ at the temperature you serve.

</details>

## Two things to change and rerun

1. Change the two beginnings, for example to `"The capital of France is"` and `"Here is"`, and the request to one of your
   own. Which places need the most labels? Compare with their entropy.
2. Give the smallest student odds that fall geometrically. In a new cell: `import lessonlib.workbook.explorables.nb02 as toy`
   and `toy.log_probs = lambda a, T=1.0: (-torch.as_tensor(a)[..., None] * torch.arange(1, 65) / T).log_softmax(-1)`. Then
   run the table and the best $T$ below it again. Where does this student keep more? Does its best $T$ still follow the
   served temperature?

**Next**: [03 Pick a divergence](03_pick_a_divergence.ipynb). Back to [01 Measure overlap](01_measure_overlap.ipynb). The
map of the course is in the [README](../README.md).
"""
