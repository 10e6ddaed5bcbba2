# %% [markdown]
r"""
# Grow Medusa heads

A draft of its own is a second model: weights, a cache, a step for every guess. *Medusa* has none of that. While the target
writes a token it has, in its last layer, a vector that says more than the next token. A small head on that vector guesses
the token after it, another the one after that, all at once, in one short step.

**You will** find out which token a head is to guess, and what happens one place off; train three heads and see how fast
they lose sight; hang their guesses on a tree and compute what a tree is worth; decode with it; and measure what *typical
acceptance*, a rule made for such trees, does to the text.

**You need** [07 Truncate the target](07_truncate_the_target.ipynb) (bytes a step, $c$) and [08 Decode and
score](08_decode_and_score.ipynb) (rounds, $v(K)$, the exact rule). The target is frozen: nothing here changes what it writes.

**Time**: it runs in about a minute on two cores with the tiny pair. Reading and three exercises: an hour. [All
solutions](solutions/11_grow_medusa_heads.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show  # no module lessonlib? Run: make lab
import lessonlib, torch
import numpy as np

# %%
from lessonlib.lesson import Lesson

lesson = Lesson(lessonlib.preset())
target, tokenizer = lesson.target, lesson.tokenizer
tiny = lesson.preset.name == "tiny"
trained_on, length, steps, batch = (24, 24, 24, 6) if tiny else (2_000, 200, 300, 16)
print(here(lesson.preset))

# %% [markdown]
r"""
## The head

Let $h_t$ be the target's last hidden state at token $t$, after its final norm: what its output layer takes. A head is one
matrix, a bias and a swish, added to it:

$$\text{head}_k(h) = h + \text{SiLU}(W_k h + b_k)$$

What comes out goes through the target's *own* output layer, which stays frozen. With $W = b = 0$ the head is the identity:
it starts with what the target knows, and learns what to change.

How large is it? For an 8B target, of width 4,096 and a vocabulary of 128,256:
"""

# %%
from lessonlib.drafts.medusa import MedusaHead, MedusaHeads

h = torch.randn(3, 8)
assert torch.equal(MedusaHead(8)(h), h)  # the identity at first
weights = lambda width: sum(weight.numel() for weight in MedusaHead(width).parameters())
print(f"a head of this target: {weights(target.config.hidden_size):,} weights")
print(f"a head of an 8B      : {weights(4096):,} weights, {2 * weights(4096) / 1e6:.1f} MB in 16 bits")
print(f"with an output layer of its own as well: {2 * 4096 * 128_256 / 1e9:.2f} GB more for each head")

# %% [markdown]
r"""
17 million weights a head: three of them are less than 1 % of the 8B. Medusa's authors give every head an output layer of its
own; ours share the target's, which is there, is read once for all heads of a round, and costs no memory.

## Which token is it to guess?

The output layer on $h_t$ itself names token $t + 1$. The first head is there to go one further.

**Exercise 11.1** (easy, 5 minutes). Head $k = 1, 2, \dots$ at position $t$ guesses token $t + 1 + k$. A text has $S$ tokens, number 0
to $S - 1$. Give the places of the states that head $k$ can learn from, and the places of their labels. A text too short for the head has none: two
empty rows.

<details><summary>Hint</summary>

The last label is token $S - 1$, so the last state stands at $S - 2 - k$: there are $S - 1 - k$ of them, or `max(0, S - 1 - k)`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/11_grow_medusa_heads.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def places_of(S, k):
    """(places of the states, places of their labels), two tensors of whole numbers, for head k in a text of S tokens."""
    # <solution>
    states = torch.arange(max(0, S - 1 - k))
    return states, states + 1 + k
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
places_of = checks.ex_11_1(places_of)

# %% [markdown]
r"""
One place off, and a head learns to do what the output layer does already. Hold the *untrained* head, the identity, against
tokens $t + 1$ to $t + 4$ of greedy answers ($k = 0$ is the output layer itself): the first is its own, since it wrote the text.
"""

# %%
from lessonlib.pair.llama import read_texts

greedy = lesson.answers("heldout-greedy").sequences()[:16]

@torch.no_grad()
def states_of(prompt_ids, resp_ids):
    """(the last hidden states [S, width] from the last prompt token on, those tokens [S]): computed once, for all heads."""
    ids = torch.tensor([prompt_ids + resp_ids], device=target.device)
    start = len(prompt_ids) - 1
    return read_texts(target, ids)[0, start:], ids[0, start:]

read = [states_of(*pair) for pair in greedy]

# %%
@torch.no_grad()
def right_at(head, k):
    """How often this head's favourite is token t + 1 + k, over all the answers."""
    hits = []
    for hidden, ids in read:
        states, labels = (place.to(ids.device) for place in places_of(len(ids), k))
        hits.append(target.lm_head(head(hidden[states])).argmax(-1) == ids[labels])
    return torch.cat(hits).float().mean().item()

itself = torch.nn.Identity()
untrained = [right_at(itself, k) for k in range(4)]
print("the untrained head's favourite is token")
for k, share in enumerate(untrained):
    print(f"  t + {1 + k}: " + ("nearly always" if share > 0.99 else "almost never" if share < 0.05 else measured(share, ".1%")))
assert not tiny or (untrained[0] > 0.99 and max(untrained[1:]) < 0.3)

# %% [markdown]
r"""
## Train three heads

The target reads each text once, without gradients, and all heads learn from that: head $k$'s loss counts $0.8^{k-1}$. They
learn the target's odds at their token, as a draft does (forward KL on the stored labels, [notebook 02](02_learn_from_soft_labels.ipynb); Medusa's authors train on the tokens alone). A few
short answers here, so that you need not wait; the heads that the course ships learned from far more, on a GPU.

Head 1 must guess over one unknown token, head 2 over two, head 3 over three, and none of them knows what the others guess.
"""

# %%
expected = predict("For every 100 times that head 1's favourite is right, how often is head 3's?", 60)

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from lessonlib.distil.heads import train_heads
from lessonlib.distil.train import Recipe
from lessonlib.traffic.answers import Answers

scratch = TemporaryDirectory()  # the folder is gone when the kernel ends
run = lesson.answers("train")
rows = sorted(run.rows, key=lambda row: len(row["prompt_ids"]))[:trained_on]
answers = Answers(run.header, [{**row, "resp_ids": row["resp_ids"][:length]} for row in rows])
store = lessonlib.score_answers(target, answers, Path(scratch.name) / "labels", k=64, show=not tiny)

# %%
heads = MedusaHeads(target, 3)
recipe = Recipe(steps=steps, lr=3e-3, batch_size=batch)
losses = train_heads(heads, target, store, recipe, "kl", show=not tiny)
print(f"{steps} steps of {batch} answers: the loss of all three together fell to less than half: {bool(np.mean(losses[-4:]) < losses[0] / 2)}")
assert np.mean(losses[-4:]) < losses[0]
heads = heads.to(target.dtype).eval().requires_grad_(False)

# %%
from lessonlib.drafts.head_files import heads_note, load_heads
from lessonlib.pair.load import MEDUSA, locate

shipped = load_heads(locate(MEDUSA), target) if tiny else heads  # with your own pair: the heads just trained
trained = [right_at(head, k) for k, head in enumerate(heads.heads, 1)]
longer = [right_at(head, k) for k, head in enumerate(shipped.heads, 1)]
print("favourite right:   untrained   trained here   shipped")
for k in (1, 2, 3):
    print(f"  head {k}, t + {k + 1}   {measured(untrained[k], '.3f'):<9}   {measured(trained[k - 1], '.3f'):<12}   {measured(longer[k - 1], '.3f')}")
explain(expected, 100 * longer[2] / longer[0], band=(12, 80), form=".0f", must_hold=tiny)

# %% [markdown]
r"""
Each head sees less than the one before it, though all of them look at the same vector: what is not decided yet cannot be read off it.
A draft model's second guess has *seen* its first. Is head 1 any rival for one? Both guess token $t + 2$; the distilled draft
is allowed to read token $t + 1$ first.
"""

# %%
from lessonlib.files import read_json
from lessonlib.reference import REFERENCE

record, distilled = read_json(REFERENCE / "heads.json"), read_json(REFERENCE / "distilled.json")
medusa, rival = record["runs"]["medusa"], distilled["drafts"]["as shipped"]
print(f"on record ({record['machine']}; the heads read {medusa['tokens'] / 1e6:.0f} M answer tokens), held-out answers:")
print("                  alpha, T = 1              top-1, greedy")
lines = {f"head {k + 1}": [medusa[run][key][k] for run, key in (("heldout", "alpha"), ("heldout-greedy", "top1"))] for k in range(3)}
lines["distilled draft"] = [rival["heldout"]["alpha"], rival["heldout-greedy"]["top1"]]
for name, found in lines.items():
    print(f"{name:<16}  " + "   ".join(f"{each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}]" for each in found))
first, third = lines["head 1"][1], lines["head 3"][1]
print("head 1 below the distilled draft:", first["high"] < lines["distilled draft"][1]["low"])
print("head 3 below head 1:", third["high"] < first["low"])

# %% [markdown]
r"""
## What a tree is worth

One chain of favourites is lost at its first slip. But a head's second and third favourites are worth something too, and one
verifying pass can check several continuations side by side: a *tree*. Every guess stands on one row: row 0 is the
text's last token, row $i + 1$ is guess $i$. In the pass a guess may look only at what it stands on (a mask), its position is row 0's plus its
depth, and afterwards the cache keeps the one way down that was right.

Let $s_{d,r}$ be how often head $d$'s favourite of rank $r$ is right, counted over all places of a text. A guess is kept if it and all that it stands on are
right: multiply along its way, *as if* its guesses were right independently of each other. Each guess that is kept is one token more, so the expected
tokens a round are 1 plus the sum of all those products.

**Exercise 11.2** (medium, 10 minutes). Compute that. `parents[i]` is the row that guess $i$ stands on, `ranks[i]` which favourite it
is, from 0, `shares[d][r]` is $s_{d+1,r}$.

<details><summary>Hint</summary>

Keep two lists by row, begun with row 0: its odds, 1.0, and its depth, 0. A guess's odds are its parent's times `shares[depth of the parent][rank]`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/11_grow_medusa_heads.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def tokens_of_tree(parents, ranks, shares):
    """Tokens a round that a tree of guesses keeps, the target's own among them."""
    # <solution>
    odds, depth = [1.0], [0]
    for parent, rank in zip(parents, ranks):
        odds.append(odds[parent] * shares[depth[parent]][rank])
        depth.append(depth[parent] + 1)
    return sum(odds)
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
tokens_of_tree = checks.ex_11_2(tokens_of_tree)

# %%
from lessonlib.drafts.head_files import noted_ways
from lessonlib.measure.ahead import look_ahead_measured

if tiny:  # as counted on held-out greedy answers, for the ways to other prompts than are decoded below
    shares, ways = medusa["heldout-greedy"]["shares"], noted_ways(heads_note(locate(MEDUSA)))
else:
    found = look_ahead_measured(shipped, target, lesson.answers("heldout-greedy").sequences()[-100:])  # the first ones are decoded below
    shares, ways = [each.shares for each in found.guesses], found.ways

# %% [markdown]
r"""
But they are not independent: easy places come in runs. So count whole *ways* instead: at how many places were the next tokens the heads' favourites of just these ranks, one after another? The best tree of $n$
guesses is then the $n$ most frequent ways: a way is never more frequent than its beginning, so the beginning is there when it comes.
"""

# %%
from lessonlib.decode.sparse_tree import sparse_tree

share_of = {way: share for share, way in ways}
chain = ((0, 1, 2), (0, 0, 0))
print("                 multiplied   counted")
print(f"chain of 3       {tokens_of_tree(*chain, shares):.2f}         {1 + sum(share_of.get((0,) * n, 0) for n in (1, 2, 3)):.2f} tokens a round")
for n in (3, 7, 15, 63):
    print(f"best tree of {n:<2}  {tokens_of_tree(*sparse_tree(ways, n), shares):.2f}         {1 + sum(share for share, _ in ways[:n]):.2f}")

# %% [markdown]
r"""
Grow one. The grey curve is what all favourites at all depths would give.
"""

# %%
from lessonlib.workbook.explorables.nb11 import GrowTree

GrowTree(ways, "the shipped Medusa heads" if tiny else "these Medusa heads")

# %% [markdown]
r"""
The first guesses are worth most; each one more adds less. Whether a tree grows wide or deep depends on the heads: move the sliders.

## Decode with it

Chain or tree, the text is the target's own: nothing but right guesses is ever kept.
"""

# %%
from lessonlib.decode.decoder import Decoded, Decoder
from lessonlib.decode.medusa import MedusaDrafter
from lessonlib.pair.chat import chat_ids, end_of_turn_ids

decoder, end = Decoder(target), end_of_turn_ids(tokenizer, target.generation_config)
texts = [row["prompt"] for row in lesson.prompts.heldout if row["source"] != "templates"][:4 if tiny else 20]
prompts, longest = [chat_ids(tokenizer, text) for text in texts], 48 if tiny else 128
plain = [decoder.decode(prompt, 0, longest, None, end).tokens for prompt in prompts]
kept = predict("Tokens a round with the tree of 15 (a plain step writes 1)", 2)

# %%
rounds = {}
for name, n in {"chain of 3": None, "tree of 15": 15, "tree of 63": 63}.items():
    drafter, total, same = MedusaDrafter(shipped, target, n and sparse_tree(ways, n)), Decoded(3), 0
    for prompt, wanted in zip(prompts, plain):
        found = decoder.decode(prompt, 3, longest, drafter, end)
        same += found.tokens == wanted
        total.add(found)
    rounds[name], promised = total, 1 + sum(share for share, _ in ways[:n]) if n else 1 + sum(share_of.get((0,) * d, 0) for d in (1, 2, 3))
    print(f"{name:<11}  {promised:.2f} counted, {measured(total.tokens_per_round, '.2f')} tokens a round here; texts that are plain decoding's: {same} of {len(prompts)}")
    assert target.dtype != torch.float32 or same == len(prompts)
explain(kept, rounds["tree of 15"].tokens_per_round, band=(1.2, 3), form=".2f", must_hold=tiny)

# %% [markdown]
r"""
Two things part what was counted from what is decoded: it is other text, and rounds begin where the last guess failed, at the harder places. One of the rounds, the one in which most was kept:
"""

# %%
from lessonlib.workbook.trees import best_round, round_figure

parents, tokens, rows = best_round(decoder, prompts, 3, longest, MedusaDrafter(shipped, target, sparse_tree(ways, 15)), end)
caption = f"A tree of {len(parents)} guesses behind one token of a text; the way that was kept, {len(rows) - 1} guesses long, is drawn bold."
show(round_figure(parents, [tokenizer.decode([token]) for token in tokens], rows), caption)

# %% [markdown]
r"""
## What it earns

A *round* of drafting costs three small matrices and one output layer. How much is that beside a step of the target, which reads all its weights?
"""

# %%
drafting = 3 * weights(target.config.hidden_size) + target.lm_head.weight.numel()
print(f"a round reads {drafting / sum(weight.numel() for weight in target.parameters()):.0%} of this target's weights, "
      f"and {(3 * weights(4096) + 4096 * 128_256) / 8.03e9:.0%} of an 8B's")

# %% [markdown]
r"""
And a tree of 15 is a pass over 16 rows; whether that costs as much as one row depends on the machine. On record, on held-out real prompts, greedily ($c$ is
a round's cost shared out among its $K$; for a tree, $K$ is how deep it may be: at $K = 2$ it is cut to its first two depths):
"""

# %%
boards = {name: read_json(path) for name in ("gpu", "cpu") if (path := REFERENCE / f"board_{name}.json").is_file()}
for board in boards.values():
    print(f"{board['machine']}: {board['prompts']} prompts of at most {board['tokens']} tokens")
    print("                        K   tokens a round   c       v      predicted   measured, times plain")
    for name in ("distilled", "medusa", "medusa, tree of 7", "medusa, tree of 15", "medusa, tree of 63"):
        draft = board["drafts"][name]
        K, row = max(draft["K"].items(), key=lambda each: each[1]["predicted_by_position"])
        fast = row["speedup"]
        print(f"  {name:<20}  {K}   {row['tokens_per_round']:<15.2f}  {row['c']:<6.3f}  {row['v']:<5.2f}  {row['predicted_by_position']:<9.2f}   "
              f"{fast['value']:.2f} [{fast['low']:.2f}, {fast['high']:.2f}]")

# %% [markdown]
r"""
(Of each draft's numbers of guesses, the line shows the one with the best *prediction*.) The paper's abstract reports over 2.2 times as fast with a frozen target, and 2.3 to 3.6 times where the target learns along. Its
targets are far larger, its heads have output layers of their own, and when sampling it uses typical acceptance. Does ours come near?
"""

# %%
for board in boards.values():
    fast = max(row["speedup"]["value"] for name, draft in board["drafts"].items() if name.startswith("medusa") for row in draft["K"].values())
    print(f"{board['machine']}: the best of all our Medusa rows, whatever its K and its vocabulary, is {fast:.2f} times plain decoding; 2.2 is {'reached' if fast >= 2.2 else 'not here'}")

# %% [markdown]
r"""
## A rule that is not exact

When sampling, the exact rule refuses many guesses that would read just as well. *Typical acceptance* keeps a guess $x$ if the target finds it typical:

$$p(x) > \min\left(\epsilon,\ \delta\, e^{-H(p)}\right)$$

with $H$ the entropy of $p$ in nats, $\epsilon = 0.09$ and $\delta = 0.3$. Where the target is sure, $\epsilon$ decides; where it is unsure, less will do.

**Exercise 11.3** (easy, 5 minutes). Write the threshold.

<details><summary>Hint</summary>

`torch.special.xlogy(p, p)` is $p \log p$, and 0 where $p$ is 0.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/11_grow_medusa_heads.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def typical_threshold(p, epsilon, delta):
    """What p(x) must exceed for typical acceptance to keep a guess x at odds p [V]."""
    # <solution>
    entropy = -torch.special.xlogy(p, p).sum()
    return float(min(epsilon, delta * torch.exp(-entropy)))
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
typical_threshold = checks.ex_11_3(typical_threshold)

# %% [markdown]
r"""
Keeping by a threshold leaves nothing to chance: at a given place, the same guess is kept every time, and the same prompt gets the same text. How far is that from the target's $p$? The *total variation* between a sure
token $x$ and $p$ is $1 - p(x)$; the exact rule's is 0. Head 1's favourite, at real places of answers drawn at $T = 1$ (where it is not typical, the target's favourite is written); beside it, what writing the target's
favourite everywhere, plain greedy decoding, would be off:
"""

# %%
bias, greedily, typical_kept, exact_kept = [], [], [], []
with torch.no_grad():
    for pair in lesson.answers("heldout").sequences()[:8]:
        hidden, ids = states_of(*pair)
        guesses = target.lm_head(shipped.heads[0](hidden[:-1])).argmax(-1)
        for p, x in zip(target.lm_head(hidden[1:]).float().softmax(-1).cpu(), guesses.tolist()):
            keeps = float(p[x]) > typical_threshold(p, 0.09, 0.3)
            typical_kept.append(keeps)
            exact_kept.append(float(p[x]))  # a guess made without chance is kept with probability p(x)
            bias.append(1 - float(p[x] if keeps else p.max()))
            greedily.append(1 - float(p.max()))
print(f"{len(bias)} places: typical acceptance keeps {measured(np.mean(typical_kept), '.0%')} of head 1's guesses, the exact rule {measured(np.mean(exact_kept), '.0%')}")
print(f"total variation from the target's own odds at the place, on average: typical {measured(np.mean(bias), '.3f')}, greedy {measured(np.mean(greedily), '.3f')}, the exact rule 0")
assert not tiny or (np.mean(typical_kept) > np.mean(exact_kept) and np.mean(bias) > np.mean(greedily) > 0.1)

# %% [markdown]
r"""
It keeps more and writes something else: always a likely token, never the target's own spread. Most of that is not the threshold's: no chance is left, as in greedy decoding, and where a guess is typical
but not the favourite it is a little further off. That may be what you want, but then say so; it is no speculative *sampling*. lessonlib has the
rule for whole trees (`lessonlib.decode.tree.typical`) and its decoder does not use it.

## Recap

- A head is a small change to a vector that is there anyway; head $k$ at $t$ guesses token $t + 1 + k$, through the target's own output layer.
- Heads guess blind to each other, so each is worse than the one before; a tree of several favourites buys some of that back, for rows in the verifying pass.
- Wrong guesses never change the text, as long as the rule is exact. Typical acceptance is not.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Why do the heads start as the identity, and why not at random?</summary>

What a head has to learn is then a change to a vector that the output layer reads already. Random weights would first have to find back to what it can read.

</details>

<details><summary>Head 3 has a top-1 far below head 1's. Is it useless?</summary>

No, but it is seldom asked: only where heads 1 and 2 were right. Those are the easy stretches, so there it is right more often than its top-1 says. In a tree it earns rows on the likeliest ways only.

</details>

<details><summary>A tree of 63 keeps more than one of 15. Why may it be slower?</summary>

The pass has 64 rows. Where reading the weights is what costs, they come nearly for free; where arithmetic costs, as on two cores, $v$ grows faster than what is kept.

</details>

<details><summary>A head was trained on labels one place too near. What would you see?</summary>

A wonderful loss and a top-1 near 100 %, since it does what the output layer does. And in the decoder hardly anything kept: it proposes the token that was just written in the target's own
name, one place late.

</details>

## Two things to change and rerun

1. Train the heads on the text alone: `train_heads(..., "ce")`. Which objective falls further in as many steps, and which guesses better?
2. Let the tree have three favourites at a place at most: `[(share, way) for share, way in ways if max(way) < 3]`. What does the tree of 15 lose?

**Next**: [12 Read the target's mind](12_read_the_targets_mind.ipynb). **Previous**: [09 Break it](09_break_it.ipynb). The map is in the
[README](../README.md).
"""
