# %% [markdown]
r"""
# Read the target's mind

A draft that sees only tokens has to work out from scratch what the target has worked out already. An *EAGLE head* does not: it
is a single layer of the target's shape that reads the target's own hidden states, its *features*, and the token that was
drawn from them. And where the target has not been yet, it goes on with its own.

**You will** see by an equation what the final norm does, and which side of it the head reads; pair features with tokens; work out what
a layer may see while it drafts on its own states, and see what practice is worth; draft chains and trees; check, case by case, that several
candidates at one place can be judged exactly; cut the vocabulary; and read the scoreboard of every draft of this course.

**You need** [11 Grow Medusa heads](11_grow_medusa_heads.ipynb) (trees and what they are worth) and [08 Decode and
score](08_decode_and_score.ipynb) (the exact rule, $c$ and $v$). $p$ is the target, $q$ the draft.

**Time**: it runs in about a minute on two cores with the tiny pair. Reading and three exercises: an hour. [All
solutions](solutions/12_read_the_targets_mind.ipynb).
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
trained_on, length, steps, batch, measured_on = (24, 24, 10, 6, 16) if tiny else (2_000, 200, 300, 16, 100)
print(here(lesson.preset))

# %% [markdown]
r"""
## Before or after the norm?

"The last hidden state" is two things: what the last layer leaves behind, and that after the final norm, which the output layer
takes. Which one is a feature? Ask the output layer:
"""

# %%
from lessonlib.pair.llama import read_texts

prompt_ids, resp_ids = lesson.answers("heldout-greedy").sequences()[0]
ids = torch.tensor([prompt_ids + resp_ids], device=target.device)
last = target.config.num_hidden_layers
with torch.no_grad():
    tapped = {last: None}
    after = read_texts(target, ids, tapped=tapped)[0]
    before, logits = tapped[last][0], target(ids).logits[0]
    near = 1e-3 if target.dtype == torch.float32 else 0.1 * float(logits.abs().max())
    torch.testing.assert_close(target.lm_head(target.model.norm(before)), logits, rtol=1e-3, atol=near)
    torch.testing.assert_close(target.lm_head(after), logits, rtol=1e-3, atol=near)
    same = (target.lm_head(before).argmax(-1) == logits.argmax(-1)).float().mean()
size = lambda x: x.float().pow(2).mean(-1).sqrt().median().item()
print("output layer(norm(before)) and output layer(after) are the model's logits: asserted")
print(f"output layer(before), without the norm: the same favourite at fewer than half of the places: {bool(same < 0.5)}")
print(f"a typical entry before the norm is more than ten times as large as after it: {size(before) > 10 * size(after)}")

# %% [markdown]
r"""
Ours is the one *before*: it is what a next layer of the target would get, and the head *is* such a layer. It ends in a norm of its own,
so that its states are what the output layer expects. (EAGLE and EAGLE-2 take the one *after*, and their head has no norm at its end; EAGLE-3, like ours, takes what layers leave behind.) Mix the two up, hand the output
layer states without a norm, and the logits are wrong before the first step. Not by a factor alone: the norm also weighs each entry, so the favourites change.

## What it reads

The feature of token $t$ holds the odds of token $t + 1$. It cannot hold which token was then *drawn*. So a position of the
head is a pair: the feature of token $t$ and the embedding of token $t + 1$. From them it guesses token $t + 2$.

**Exercise 12.1** (easy, 5 minutes). Cut the pairs and their labels out of a text: features of shape $[S, F]$, ids of shape $[S]$.

<details><summary>Hint</summary>

The last label is the last id, so the last two features have no pair with a label.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/12_read_the_targets_mind.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def pairs_of(features, ids):
    """(features, tokens that follow them, tokens to be guessed), as many of each as there are labels."""
    # <solution>
    return features[:-2], ids[1:-1], ids[2:]
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
pairs_of = checks.ex_12_1(pairs_of)

# %% [markdown]
r"""
What is all that worth? Medusa's head 1 guesses token $t + 2$ as well, from the state alone, blind to the token between. They differ in more than the token: the EAGLE head sees all pairs before it and is
larger. So this bounds what the token is worth and does not isolate it. And what are more features worth: three layers' instead of the last one's, joined by one more matrix? All on record, on the same held-out
answers:
"""

# %%
from lessonlib.files import read_json
from lessonlib.reference import REFERENCE

record = read_json(REFERENCE / "heads.json")
several, single, medusa = (record["runs"][name] for name in ("eagle, short", "eagle, layer 30", "medusa"))

def told(found):
    """A recorded number with its interval."""
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"

print(f"on record ({record['machine']}, {record['tokens']:,} different answer tokens), the guess of token t + 2:")
print("                              alpha, T = 1           top-1, greedy          read in training")
for name, run in (("Medusa head 1", medusa), ("EAGLE, layer 30", single), ("EAGLE, layers 10, 20, 30", several)):
    print(f"  {name:<26}  {told(run['heldout']['alpha'][0])}   {told(run['heldout-greedy']['top1'][0])}   {run['tokens'] / 1e6:.0f} M tokens, {run['seconds'] / 60:.0f} min")
gains = [run["heldout-greedy"]["top1"][0] for run in (medusa, single, several)]
print("each better than the one above:", all(a["high"] < b["low"] for a, b in zip(gains, gains[1:])))

# %% [markdown]
r"""
## On its own states

After its first guess the head has no feature of the target's to go on with. It takes what its layer came to, in the feature's place, and the token it has just guessed.
Was it trained for that? With one pass over a text, never: every pair it saw held the target's own feature. (EAGLE and EAGLE-2 pull the head's state towards the target's next feature with a second loss; EAGLE-3 drops that
and practises instead.) So train it in several passes (EAGLE-3's *training-time
test*): in pass 2 each pair's feature is what pass 1 made of the pair before it; in pass 3 the last two are the head's own, and so on.

What may a pair see? Number the pairs $t = 0, 1, \dots, n - 1$. In pass $s$, pair $t$ is the end of a chain that was begun $s - 1$ pairs ago. Up to pair $t - (s - 1)$ it sees the first
pass's, with the target's features. Of each later pass $j = 2, \dots, s$ it sees one pair, its own chain's: number $t - (s - j)$; the last of them, $j = s$, is itself.

**Exercise 12.2** (medium, 15 minutes). Write that as a mask for pass $s$: `True` where a pair is seen. Its columns are the $n$ pairs of pass 1, then those of pass 2, and so on.

<details><summary>Hint</summary>

`back = torch.arange(n)[:, None] - torch.arange(n)` says how far back a column lies. The first block is `back >= s - 1`, the block of pass $j$ is `back == s - j`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/12_read_the_targets_mind.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def sees(s, n):
    """bool [n, s * n]: which pairs of the passes 1 to s each pair of pass s sees."""
    # <solution>
    back = torch.arange(n)[:, None] - torch.arange(n)
    return torch.cat([back >= s - 1, *(back == s - j for j in range(2, s + 1))], 1)
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
sees = checks.ex_12_2(sees)

# %% [markdown]
r"""
A few steps of it, in two passes over a few short answers, so that you see it learn; the target reads each text once for both. The heads on record took a thousand steps of 96 texts on a GPU, the one that the course ships four thousand.
"""

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from lessonlib.distil.heads import train_heads
from lessonlib.distil.train import Recipe
from lessonlib.drafts.eagle import EagleHead
from lessonlib.traffic.answers import Answers

scratch = TemporaryDirectory()  # the folder is gone when the kernel ends
run = lesson.answers("train")
rows = sorted(run.rows, key=lambda row: len(row["prompt_ids"]))[:trained_on]
answers = Answers(run.header, [{**row, "resp_ids": row["resp_ids"][:length]} for row in rows])
store = lessonlib.score_answers(target, answers, Path(scratch.name) / "labels", k=64, show=not tiny)

# %%
fresh, recipe = EagleHead(target, (10, 20, 30) if tiny else None), Recipe(steps=steps, lr=3e-3, batch_size=batch)
losses = train_heads(fresh, target, store, recipe, passes=2 if tiny else 4, show=not tiny)
print(f"{sum(weight.numel() for weight in fresh.parameters()):,} weights, {steps} steps of {batch} answers: loss {measured(losses[0], '.1f')} -> {measured(losses[-1], '.1f')}")
assert losses[-1] < losses[0]

# %% [markdown]
r"""
What does practice buy? On record are a head trained in four passes and one trained in a single pass, on the same answers, for as many steps. On held-out greedy answers, each guess stands on the head's own
states, as in decoding, and on the right tokens.
"""

# %%
once, often = (record["runs"][name]["heldout-greedy"]["top1"] for name in ("eagle, one pass", "eagle, short"))
second = predict(f"The head of one pass: its first guess is right {100 * once[0]['value']:.0f} times in 100. Its second?", 50, unit="times in 100")

# %%
print("favourite right, greedy answers, on record: guess 1   2      3      4")
for name, found in (("one pass", once), ("four passes", often)):
    print(f"  {name:<12}                              " + "  ".join(f"{each['value']:.3f}" for each in found))
explain(second, 100 * once[1]["value"], band=(0, 75 * once[0]["value"]), form=".0f", exact=True, must_hold=True)

# %% [markdown]
r"""
From here on it is the head that the course ships: four passes, and four times as many steps (with your own pair, it is the one just trained).
"""

# %%
from lessonlib.drafts.head_files import heads_note, load_heads, noted_ways
from lessonlib.pair.load import EAGLE, locate

head = load_heads(locate(EAGLE), target) if tiny else fresh.to(target.dtype).eval().requires_grad_(False)
heldout = sorted(lesson.answers("heldout-greedy").sequences(), key=lambda pair: len(pair[0]))[:measured_on]

# %% [markdown]
r"""
## Draft with it

A chain first. Every text is the target's own, token for token.
"""

# %%
from lessonlib.decode.decoder import Decoded, Decoder
from lessonlib.decode.eagle import EagleDrafter
from lessonlib.pair.chat import chat_ids, end_of_turn_ids

decoder, end = Decoder(target), end_of_turn_ids(tokenizer, target.generation_config)
texts = [row["prompt"] for row in lesson.prompts.heldout if row["source"] != "templates"][:4 if tiny else 20]
prompts, longest = [chat_ids(tokenizer, text) for text in texts], 48 if tiny else 128
plain = [decoder.decode(prompt, 0, longest, None, end).tokens for prompt in prompts]

def decoded(drafter, K=4):
    """The rounds of all prompts with this drafter, and how many texts are plain decoding's."""
    total, same = Decoded(K), 0
    for prompt, wanted in zip(prompts, plain):
        one = decoder.decode(prompt, K, longest, drafter, end)
        same += one.tokens == wanted
        total.add(one)
    assert target.dtype != torch.float32 or same == len(prompts)
    return total, same

# %%
chain, same = decoded(EagleDrafter(head))
by_place = " ".join(measured(share, ".2f") for share in chain.conditional)
print(f"chain of 4: {measured(chain.tokens_per_round, '.2f')} tokens a round, kept by place {by_place}; texts that are plain decoding's: {same} of {len(prompts)}")

# %% [markdown]
r"""
## Trees: a fixed one, and one that grows

As in notebook 11, the shape of a tree can be fixed once, by how often each favourite was right on other text. But an EAGLE head knows more than that: at every guess it has odds of its own. If they
can be trusted, a tree may grow where *this* round is sure (EAGLE-2). Can they? Sort its first guesses by the odds it gives its favourite:
"""

# %%
from lessonlib.distil.heads import look_ahead
from lessonlib.pair.hidden import padded_responses

with torch.no_grad():
    ids, places = padded_responses(heldout, target.device)
    own = torch.tensor([token for _, resp in heldout for token in resp], device=target.device)
    (states, rows, _), *_ = look_ahead(head, target, ids, places, 1)[1]
    sure, favourites = target.lm_head(states).float().softmax(-1).max(-1)
    right = (favourites == own[rows]).float()
edges = torch.linspace(0, 1, 6)
bins = [chosen for low, high in zip(edges, edges[1:]) if (chosen := ((sure > low) & (sure <= high)).cpu()).any()]
said, was = zip(*((sure.cpu()[chosen].mean().item(), right.cpu()[chosen].mean().item()) for chosen in bins))

# %%
figure, ax = style.figure(7.6, 3.2)
style.lines(ax, said, {"as it says": said, "as it was": was})
ax.set(xlabel="odds that the head gives its favourite", ylabel="share right", ylim=(0, 1.05))
style.finding(ax, "The surer it is, the more often it is right" if sorted(was) == list(was) else "Surer is not always more often right here")
show(figure, "How often the head's favourite is right on greedy answers, over the odds it gives it; where the two lines meet, it is as sure as it should be.")

# %% [markdown]
r"""
Where both rise, its odds can lead a tree: depth by depth, go on from the likeliest few ways, and keep the likeliest of all that were tried. Two trees of 15 guesses, at most four deep, each checked in one pass of the target:
"""

# %%
from lessonlib.decode.sparse_tree import sparse_tree
from lessonlib.measure.ahead import look_ahead_measured

ways = noted_ways(heads_note(locate(EAGLE))) if tiny else look_ahead_measured(head, target, lesson.answers("heldout-greedy").sequences()[-100:]).ways
promised = 1 + sum(share for share, _ in ways[:15])
print(f"the 15 most frequent ways, counted on held-out answers, none of them decoded here: {promised:.2f} tokens a round")
kept = {}
for name, drafter in {"fixed": EagleDrafter(head, tree=sparse_tree(ways, 15)), "growing": EagleDrafter(head, budget=15)}.items():
    total, same = decoded(drafter)
    kept[name] = total.tokens_per_round
    print(f"{name + ' tree':<12}  {measured(kept[name], '.2f')} tokens a round; texts that are plain decoding's: {same} of {len(prompts)}")
print("more kept here by the", here(max(kept, key=kept.get)), "one")
known, new = (record["runs"]["eagle"][answers]["top1"][0] for answers in ("training answers", "heldout-greedy"))
print(f"favourite right, guess 1, on record: {told(known)} on answers that it was trained on, {told(new)} on others")

# %% [markdown]
r"""
The shape of the fixed tree was chosen on other text; the odds of the growing one are of the text at hand. And choose the shape on answers that the head was *not* trained on: those it knows better than others, so a count
on them promises rounds that do not come.

The sliders of notebook 11 for this head, by the same count: how much sooner does its tree grow deep?
"""

# %%
from lessonlib.workbook.explorables.nb11 import GrowTree

GrowTree(ways, "the shipped EAGLE head" if tiny else "this EAGLE head")

# %% [markdown]
r"""
One round of the growing tree, the one in which most was kept:
"""

# %%
from lessonlib.workbook.trees import best_round, round_figure

parents, tokens, rows = best_round(decoder, prompts, 4, longest, EagleDrafter(head, budget=15), end)
caption = f"A tree of {len(parents)} guesses that grew behind one token of a text; the way that was kept, {len(rows) - 1} guesses long, is drawn bold."
show(round_figure(parents, [tokenizer.decode([token]) for token in tokens], rows), caption)

# %% [markdown]
r"""
## Several candidates, and still exact

When sampling, several guesses may stand on one row. Draw them from $q$ one after another, without putting any back. Judge the first as always: keep it with probability $\min(1, p(x)/q(x))$. If it is refused, the world
has changed: what the target still has to give is $\max(p - q, 0)$, scaled to sum to 1, and the draft draws the next one from $q$ without $x$, scaled likewise. Judge the next one by those two. When all are refused, draw from
what is left of $p$. (The trees above do not draw their candidates, they take the likeliest; then $q$ is 1 at each, and the rule becomes that of the last question at the end.)

**Exercise 12.3** (medium, 10 minutes). Write that step: the two odds after candidate $x$ was refused.

<details><summary>Hint</summary>

`q.clone()`, so that the caller's odds stay as they are; set its entry to 0; divide each of the two by its sum.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/12_read_the_targets_mind.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def after_refusal(p, q, x):
    """(p, q) of shape [V] each, as the next candidate is to be judged by once x was refused."""
    # <solution>
    left, rest = (p - q).clamp_min(0), q.clone()
    rest[x] = 0
    return left / left.sum(), rest / rest.sum()
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
after_refusal = checks.ex_12_3(after_refusal)

# %% [markdown]
r"""
One, two and three candidates, every case written out: no coin is thrown here, the probabilities are multiplied. What comes out must be $p$, to 12 digits. And the more candidates, the more often one of them is kept:
"""

# %%
chance = torch.Generator().manual_seed(12)
p, q = (torch.softmax(1.5 * torch.randn(6, generator=chance, dtype=torch.float64), -1) for _ in range(2))

def outcome(p, q, candidates):
    """(the odds of what is written [V], the share of it that were kept candidates) with so many candidates."""
    written, kept = torch.minimum(p, q), torch.minimum(p, q).sum()
    for x in (q > p).nonzero()[:, 0].tolist():
        refused = q[x] - p[x]  # drawn, and refused
        p2, q2 = after_refusal(p, q, x)
        rest, kept2 = outcome(p2, q2, candidates - 1) if candidates > 1 else (p2, 0.0)
        written, kept = written + refused * rest, kept + refused * kept2
    return written, kept

for candidates in (1, 2, 3):
    written, kept = outcome(p, q, candidates)
    print(f"{candidates} candidates: largest error {float((written - p).abs().max()):.0e}, kept {float(kept):.3f}")
    assert torch.allclose(written, p, atol=1e-12)

# %% [markdown]
r"""
lessonlib's `accept_tree` does that for every row of a tree at once; its tests hold whole sampled texts to the target's distribution by a chi-square.

## A smaller vocabulary for the draft

The head's layer is small; the output layer that it borrows is not. Most of a vocabulary is hardly ever written, so let the draft name only the tokens that the target's answers hold most often, at most 8,192 of them. A token outside is never proposed:
it costs a rejection, and no text changes.
"""

# %%
from lessonlib.measure.costs import step_costs
from lessonlib.pair.short_head import most_frequent

vocabulary = heads_note(locate(EAGLE))["vocabulary"] if tiny else most_frequent(lesson.answers("train").sequences(), 8192).tolist()
written = torch.tensor([token for _, resp in lesson.answers("heldout").sequences() for token in resp])
inside = torch.isin(written, torch.tensor(vocabulary)).float().mean().item()
print(f"{len(vocabulary):,} of {target.config.vocab_size:,} tokens: {measured(inside, '.1%')} of the tokens of held-out answers are among them")
costs = {name: step_costs(target, EagleDrafter(head, vocabulary=ids), (4,)) for name, ids in (("whole", None), ("8k", vocabulary))}
(short, same), whole, some = decoded(EagleDrafter(head, vocabulary=vocabulary)), *(record["runs"]["eagle"][key]["alpha"] for key in ("heldout", "some of the vocabulary"))
print(f"c here: whole {measured(costs['whole'].c, '.3f')}, 8k {measured(costs['8k'].c, '.3f')}; "
      f"tokens a round {measured(chain.tokens_per_round, '.2f')} and {measured(short.tokens_per_round, '.2f')}; plain decoding's texts: {same} of {len(prompts)}")
print(f"on record, alpha of guess 1: whole {whole[0]['value']:.4f}, 8k {some[0]['value']:.4f}: lost {whole[0]['value'] - some[0]['value']:.4f}")

# %%
from lessonlib.reference_board import SHORT_VOCABULARY

boards = {name: read_json(path) for name in ("gpu", "cpu") if (path := REFERENCE / f"board_{name}.json").is_file()}
if "gpu" in boards:
    large = boards["gpu"]["output layer of the 1B"]
    print(f"a draft of the 1B's shapes on record ({boards['gpu']['machine']}): a step with all {large['vocabulary']:,} tokens {1e3 * large['whole']:.2f} ms, "
          f"with {SHORT_VOCABULARY:,} {1e3 * large['short']:.2f} ms")
else:
    print(f"a draft of the 1B's shapes, with {SHORT_VOCABULARY:,} tokens: on a GPU, and not on record yet")

# %% [markdown]
r"""
## The scoreboard of all drafts

Every draft that the course ships, on the same held-out real prompts, greedily, on each machine on record; of each the number of guesses with the best prediction. MB: weights that are read for one guess after another of a chain.
Minutes: of training, on one H200; alpha: offline, at $T = 1$, of the first guess with the whole vocabulary (a dash: none, or not on record). (Make the table for your own machine: `python -m lessonlib reference board
--preset tiny`, in a clone as committed.)
"""

# %%
def best_row(draft):
    """The K with the best prediction, and its row."""
    return max(draft["K"].items(), key=lambda each: each[1]["predicted_by_position"])

def number(value, form):
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)

for name, board in boards.items():
    print(f"{board['machine']}: {board['prompts']} prompts of at most {board['tokens']} tokens")
    print("                             own weights  MB      minutes  alpha  K  tokens  c      v     predicted  measured")
    for label, draft in board["drafts"].items():
        K, row = best_row(draft)
        fast, alpha = row["speedup"], draft["alpha"] and draft["alpha"]["value"]
        print(f"  {label:<26} {draft['parameters'] / 1e6:8.2f} M  {draft['bytes'][K] / 1e6:6.1f}  {number(draft['minutes'], '.0f'):>7}  {number(alpha, '.2f'):>5}  {K}  {row['tokens_per_round']:6.2f}  {row['c']:.3f}  {row['v']:.2f}  "
              f"{row['predicted_by_position']:9.2f}  {fast['value']:.2f} [{fast['low']:.2f}, {fast['high']:.2f}]")

# %% [markdown]
r"""
Guess by guess; and before training we had set ourselves aims, in tokens a round:
"""

# %%
board = next(iter(boards.values()))
print(f"kept by place in the block, at the largest K ({board['machine']}):")
for label, draft in board["drafts"].items():
    row = draft["K"][max(draft["K"], key=int)]
    print(f"  {label:<26} " + " ".join("-" if share != share else f"{share:.2f}" for share in row["conditional"]) + f"   per tested {row['per_tested']:.2f}")
AIMS = {"eagle": 2.6, "eagle, tree of 15": 3.0, "medusa, tree of 63": 2.0}
for label, aim in AIMS.items():
    got = max(row["tokens_per_round"] for row in board["drafts"][label]["K"].values())
    print(f"{label}: {got:.2f} tokens a round; our aim of {aim} is {'reached' if got >= aim else 'not here'}")

# %%
labels = ["ngram", "distilled", "medusa, tree of 15", "eagle", "eagle, 8k", "eagle, tree of 7, 8k", "eagle, tree of 15, 8k"]
fasts = {board["machine"]: [best_row(board["drafts"][label])[1]["speedup"] for label in labels] for board in boards.values()}
figure, ax = style.figure(8.4, 3.8)
bars = style.bars(ax, [label.replace(", ", "\n") for label in labels], {name: [fast["value"] for fast in row] for name, row in fasts.items()})
for number, (name, row) in enumerate(fasts.items()):
    for place, (fast, (_, text, _)) in enumerate(zip(row, bars[name])):
        ax.plot([place + 0.4 * number - 0.2 * (len(fasts) - 1)] * 2, [fast["low"], fast["high"]], color=style.INK, linewidth=1.4)
        text.set_visible(False)  # the table above has the values, and they would stand on the intervals
ax.axhline(1, color=style.QUIET, linewidth=1)
ax.set(ylabel="times plain decoding")
style.finding(ax, "Highest measured of these: " + ", ".join(labels[int(np.argmax([fast["value"] for fast in row]))] for row in fasts.values()))
show(figure, f"How many times as fast as plain decoding each draft is, with 95 % intervals, measured on {' and on '.join(fasts)}.")

# %% [markdown]
r"""
## Recap

- Our feature is what the last layer leaves *before* the final norm; the token drawn from it is what it cannot know, so the head reads both.
- A head that will go on from its own states must have practised that: pass by pass, with a mask that shows each pair what drafting would show it.
- A tree may be fixed by what was counted, or grow by the head's own odds. Without replacement and with the residual, several candidates are as exact as one.
- Of what a small draft reads, most can be the output layer. Name fewer tokens, and measure what is lost.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Medusa's head 1 and an EAGLE head's first guess are about the same token. Why is the second better?</summary>

Head 1 has to average over everything that token $t + 1$ may be. The EAGLE head has been told, and has all earlier pairs before it.

</details>

<details><summary>Why does a wrong feature, or a spoilt head, never change the text?</summary>

The target judges every guess by its own odds. A bad draft is refused more often, which is slower, and nothing else.

</details>

<details><summary>In pass 3, why may a pair not see the first pass's pair at its own place?</summary>

While drafting there is none: the target has not been there. What the cache holds at that place is the head's own pair. Seeing the target's would be practising with a feature that it will not have.

</details>

<details><summary>Candidates are the likeliest tokens, not drawn. Is the rule still exact when sampling?</summary>

Yes: each is then a draw from odds that are 1 at it. Keep it with probability $p(x)$; if not, take it out of $p$, scale the rest to sum to 1, and go on with the next.

</details>

## Two things to change and rerun

1. Give `EagleDrafter` a tree of 6 instead of 15: how many tokens a round are left? And is it faster on your machine? `lessonlib.sweep(target, drafter, prompts, (4,), longest, end)` times it.
2. Take `most_frequent(..., 1024)` as vocabulary. What does $c$ gain, and what do the rounds lose?

**Previous**: [11 Grow Medusa heads](11_grow_medusa_heads.ipynb). The map is in the [README](../README.md).
"""
