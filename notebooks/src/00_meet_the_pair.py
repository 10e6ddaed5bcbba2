# %% [markdown]
r"""
# Meet the pair

A language model writes one token at a time, and for each token it must read all of its weights. *Speculative decoding*
lets a small model, the **draft**, guess the next few tokens; the large one, the **target**, then checks all the guesses
in a single pass. Guesses it agrees with are kept, the first one it does not is replaced, and the text that comes out is
the target's own: token for token when it takes its likeliest token, with exactly its probabilities when it samples.

How much time that saves depends on how many guesses survive. Here you meet a real pair, play one round by hand, and read
twenty guesses that did not survive. They are what the rest of the course is about: training a draft to guess as *this*
target writes.

**You will** check this machine and choose a pair; compute the chance that a sampled guess is kept and write the rule that
keeps a greedy one; play a round; sort real rejections by kind; see that a bad guess costs time and never changes the text.

**You need** Python and a little PyTorch (tensors, `softmax`, `argmax`). No GPU, no account, no network.

**Time**: it runs in about a minute on two cores with the tiny pair, in about 5 on a DGX Spark (an estimate). Reading and
two exercises: half an hour. [All solutions](solutions/00_meet_the_pair.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # no module lessonlib? Run: make lab
import lessonlib, torch

# %% [markdown]
r"""
## Check the machine, choose the pair

One line for each thing that is needed; a ✗ is followed by what to do. The last line is the *preset*: the pair of models,
the device and the number format, with the reason for the choice. To choose another one, set `LESSON_PRESET` to `tiny`,
`spark`, `spark-open` or `custom` before you open the notebook; nothing below has to change. Two signs are used throughout
the course: `⟨ ⟩` stands around words, and `≈` before a number, that differ from machine to machine.
"""

# %%
import os, platform, shutil, sys
from importlib.metadata import version
from lessonlib.environment import OLDER, OLDEST_PYTHON, OLDEST_TORCH, dotted

numbers = lambda text: tuple(map(int, text.split(".")[:2]))
oldest = numbers(OLDER[0].partition("==")[2])  # the oldest transformers that the course is tested with
memory, disk = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, shutil.disk_usage(".").free / 1e9
needs = [
    (f"Python {dotted(OLDEST_PYTHON)} or newer", sys.version_info >= OLDEST_PYTHON, platform.python_version(),
     f"run: make env PYTHON=python{dotted(OLDEST_PYTHON)}"),
    (f"torch {dotted(OLDEST_TORCH)} or newer", numbers(torch.__version__) >= OLDEST_TORCH, torch.__version__,
     "run: make env"),
    (f"transformers {dotted(oldest)} or newer", numbers(version("transformers")) >= oldest, version("transformers"),
     "run: make env"),
    ("two processor cores", os.cpu_count() >= 2, os.cpu_count(), "it runs, only slower"),
    ("4 GB of memory", memory > 3.8, f"{memory:.0f} GB", "use a machine with more"),
    ("1 GB of free disk", disk > 1, f"{disk:.0f} GB", "free some space"),
]
for need, met, found, mend in needs:
    print("✓" if met else f"✗ ({mend})", need, here(found))
preset = lessonlib.preset()
print(here(preset))

# %%
from lessonlib.lesson import Lesson

lesson = Lesson(preset)
target, tokenizer, draft = lesson.target, lesson.tokenizer, lesson.load()
millions = lambda weights: sum(weight.numel() for weight in weights) / 1e6
lent = {weight.data_ptr() for weight in target.parameters()}  # where the target's weights lie in memory
for name, model in (("target", target), ("draft", draft)):
    print(f"{name:<7}{model.config.num_hidden_layers:>3} layers, {millions(model.parameters()):6.1f} M weights")
own = millions(weight for weight in draft.parameters() if weight.data_ptr() not in lent)
print(f"of the draft's weights {own:.1f} M are its own")
ends = [(model.get_input_embeddings(), model.get_output_embeddings()) for model in (target, draft)]
for end, *layers in zip(("embedding", "output layer"), *ends):
    shared = layers[0].weight.data_ptr() == layers[1].weight.data_ptr()
    print(f"{end}: {'one for both' if shared else 'one each'}")

# %% [markdown]
r"""
A pair has one hard rule: **one tokenizer**. Token 1234 must be the same piece of text to both, or a guess says one thing
and the target checks another. A draft on the target's own embedding cannot break the rule. A separate one can, so it is
checked before any work. To see the check refuse, give it a tokenizer that knows one word more:
"""

# %%
from lessonlib.errors import LessonError
from lessonlib.pair.load import load_tokenizer
from lessonlib.pair.tokenizer_check import check_same_tokenizer

stranger = load_tokenizer(preset)
stranger.add_tokens(["circle_area"])
for name, other in (("the draft's", tokenizer if shared else load_tokenizer(preset.draft)), ("the stranger's", stranger)):
    try:
        check_same_tokenizer(tokenizer, other)
        print(f"{name} tokenizer: {'the target' if other is tokenizer else 'like the target'}'s")
    except LessonError as refused:
        print(f"{name} tokenizer: {refused}")

# %% [markdown]
r"""
The tiny target is SmolLM2-135M-Instruct, a real chat model that comes inside a Python package. Its draft has four layers.
They began as copies of the target's first three and its last, under the target's own embedding and output layer, and were
then trained to predict what the target predicts, on presidents' addresses, the Python manual and a dictionary, never on a
chat. A model from a shelf would know less of its target, so this one only *stands in* for it: a fair writer with habits of
its own. In the course's big pair, Llama 3.1 8B with Llama 3.2 1B, the 1B plays this part.

Some of what was recorded when the tiny draft was made, its sentences sampled from their first words on:
"""

# %%
from lessonlib.files import DATA, read_json, read_jsonl

made = read_json(DATA / "reference" / "off_the_shelf.json")
sentences = read_json(DATA / "reference" / "off_the_shelf_sentences.json")["sentences"]
healing = made["healing"]["healing"]
print("copied: the target's layers", *(place + 1 for place in made["healing"]["layers"]), end="; ")
print(f"trained on {healing['training_tokens'] / 1e6:.1f} M tokens, {healing['tokens_seen'] / healing['training_tokens']:.0f} times over")
print("perplexity on general text:", *(f"{name} {value:.0f}" for name, value in made["perplexity"].items()))
print(*(f"  {sentences[i]}" for i in (3, 4, 5, 9)), sep="\n")

# %% [markdown]
r"""
Grammar it has, wisdom it has not.

## Speculative decoding on one page

Why guess at all? A target of 8 billion weights in 16 bits must read 16 GB for every token. A DGX Spark reads 273 GB a
second, so it writes at most about 17 tokens a second as long as each token needs a pass of its own. But a pass that looks
at four tokens reads the same 16 GB as a pass that looks at one. Checking is cheap; writing is what costs.

So one **round** goes like this:

1. **Propose.** The draft writes $K$ tokens, one after another. Each is a small step.
2. **Verify.** The target reads the text and all $K$ guesses in *one* pass. That yields its own *odds* (in this course: the
   probability of every token to come next, summing to 1) at $K + 1$ places: after the text, after the first guess, ...,
   after the last.
3. **Keep or resample.** From left to right, each guess is kept or refused by the rule below. At the first refusal the
   target writes a token of its own, and the guesses after it are thrown away: they continue a text that no longer exists.
4. **The bonus token.** If all $K$ are kept, the target's odds after the last guess are there already, so it writes one
   token more, for free.

Either way a round writes at least one token that is the target's own. It is never stuck, only slow.

## How a guess is kept

Call the target's odds for the next token $p$ and the draft's $q$. The draft draws a token $x$ from $q$.

- Keep $x$ with probability $\min(1, p(x)/q(x))$: surely where the target likes it at least as well as the draft does.
- If it is refused, draw from what the draft proposes too rarely: $\max(p - q, 0)$, scaled to sum to 1.

The token written has exactly the odds $p$. It is $x$ by a kept guess with probability $q(x)\min(1, p(x)/q(x)) =
\min(p(x), q(x))$. What is missing from $p(x)$ is $p(x) - \min(p(x), q(x)) = \max(p(x) - q(x), 0)$, and a refusal adds just
that: it happens with probability $1 - \sum_x \min(p(x), q(x)) = \sum_x \max(p(x) - q(x), 0)$, the very number by which the
leftover was divided to sum to 1, so the two cancel.

An example with three tokens:
"""

# %%
p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.3])
fig, ax = style.figure(6.4, 2.6)
style.bars(ax, ["red", "green", "blue"], {"target p": p, "draft q": q, "both": torch.minimum(p, q)})
ax.set(ylim=(0, 0.75), ylabel="probability")
style.finding(ax, "What both models bet is what is kept")
show(fig, "Three tokens: the target bets 0.5, 0.3 and 0.2, the draft 0.1, 0.6 and 0.3; both bet 0.1, 0.3 and 0.2.")

# %% [markdown]
r"""
**Exercise 0.1** (easy, 5 minutes). How likely is it that a guess is kept? The draft proposes $x$ with probability $q(x)$,
and $x$ is then kept with probability $\min(1, p(x)/q(x))$. Write it as one number for two vectors of odds.

<details><summary>Hint</summary>

Multiply the two and sum over all $x$. The product $q(x)\min(1, p(x)/q(x))$ has a shorter form that needs no division: the
third set of bars above.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/00_meet_the_pair.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def p_keep(target_probs, draft_probs):
    """The probability that a token drawn from draft_probs [V] is kept by a target with the odds target_probs [V]."""
    # <solution>
    return torch.minimum(target_probs, draft_probs).sum()
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
p_keep = checks.ex_0_1(p_keep)
print(f"in the example: {p_keep(p, q):.2f}")

# %% [markdown]
r"""
This number has a name in the course, $\alpha$, and, beside the time a guess costs, it is all that makes a draft good: not
that it is clever, but that its bets are the target's bets. Notebook [01](01_measure_overlap.ipynb) looks at it closely.

**Greedy decoding** is the special case where each model always takes its likeliest token. Then $p$ has all its weight on
one token, and the rule is short: keep the guess if it is that token.

## One round by hand

The decoding below is greedy, so nothing is left to chance: with the tiny pair, in float32, you should see the same text. We
ask for a function and step in where the answer has come to `calculate_circle_area(radius`.
"""

# %%
from lessonlib.pair.chat import chat_ids, end_of_turn_ids

request = "Write a Python function that returns the area of a circle, given its radius."
so_far = "```python\nimport math\n\ndef calculate_circle_area(radius"
ids = chat_ids(tokenizer, request) + tokenizer(so_far, add_special_tokens=False)["input_ids"]
print(f"{len(ids)} tokens so far, the last ones:", [tokenizer.decode([token]) for token in ids[-8:]])

# %%
@torch.inference_mode()
def choices(model, ids, places):
    """What the model would write after each of the last `places` tokens of a text: one pass, no tricks."""
    logits = model(torch.tensor([ids], device=model.device)).logits[0, -places:]
    return logits.argmax(-1).tolist()

# %% [markdown]
r"""
**Propose**: three small steps of the draft. Each reads the text and the guesses before it.
"""

# %%
K, proposed = 3, []
for _ in range(K):
    proposed += choices(draft, ids + proposed, 1)
print("the draft proposes:", [tokenizer.decode([token]) for token in proposed])

# %% [markdown]
r"""
**Verify**: one pass of the target over everything, and its choice at $K + 1 = 4$ places.
"""

# %%
wanted = choices(target, ids + proposed, K + 1)
words = lambda tokens: [repr(tokenizer.decode([token])) for token in tokens]
for place, (guess, own) in enumerate(zip([*words(proposed), "(no guess)"], words(wanted)), 1):
    print(f"place {place}: proposed {guess:<12} wanted {own:<12} {'same' if guess == own else ''}")

# %% [markdown]
r"""
The target's choice at a place counts only if every guess before it was right: otherwise it answers a text that nobody
wrote.

**Exercise 0.2** (easy, 5 minutes). The greedy rule: how many of the proposed tokens are kept, and which token does the
target add after them? `proposed` has $K$ tokens, `wanted` has $K + 1$.

<details><summary>Hint</summary>

Walk along both lists until they differ; the place where you stop is the number kept. `wanted` has a choice for that place
too, even when you walked to the end: that is the bonus token.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/00_meet_the_pair.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def kept_prefix(proposed, wanted):
    """(kept, added): how many proposed tokens are kept, and the token that the target writes after them."""
    # <solution>
    kept = 0
    while kept < len(proposed) and proposed[kept] == wanted[kept]:
        kept += 1
    return kept, wanted[kept]
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
kept_prefix = checks.ex_0_2(kept_prefix)

# %%
kept, added = kept_prefix(proposed, wanted)
by_hand = proposed[:kept] + [added]
print(f"kept {kept} of {K}, then the target's own {words([added])[0]}: {len(by_hand)} tokens in one pass of the target")
by_decoder = lessonlib.spec_greedy(target, draft, ids, K, max_new_tokens=len(by_hand))
print(f"lessonlib's decoder writes the same in {by_decoder.rounds} round: {by_decoder.tokens == by_hand}")

# %% [markdown]
r"""
Without a draft the target would have needed a pass for each of those tokens. `spec_greedy` does what you just did, with a
cache in place of reading everything again; notebook 08 comes back to it.

## How many guesses survive?

Now twenty prompts, the ones that the course keeps aside and never trains on. The target answers each with up to 24
tokens, the draft proposing three at a time. Commit yourself first: change the numbers and run the cells. Each result is
printed beside a *reference*, which is a figure that the course was built on or, as here, what was recorded with the tiny
pair. The *band* is how far from it yours may lie. Outside it the line says `not here`, which is a finding, not an error.
"""

# %%
first_guess = predict("Of the 20 answers, how many have their very first guess kept?", 12, unit="of 20")
share_kept = predict("Of every 100 guesses that are tested, how many are kept?", 60, unit="of 100")

# %%
from lessonlib.measure.rejections import record_rounds
from lessonlib.progress import Progress

prompts = [row["prompt"] for row in read_jsonl(DATA / "prompts_short.jsonl", "prompt")]
questions, end = [chat_ids(tokenizer, text) for text in prompts], end_of_turn_ids(tokenizer, target.generation_config)
progress, recorded = Progress("decoding", 24 * len(prompts), "tokens"), []
for question in questions:
    recorded.append(record_rounds(target, draft, question, K, 24, end))
    progress.add(len(recorded[-1][0].tokens))
seconds = progress.finish()

# %%
kept_first = sum(rounds[0].kept > 0 for _, rounds in recorded)
explain(first_guess, kept_first, reference=0, band=(0, 1), exact=True)
openings = {tokenizer.decode(rounds[0].proposed[:1]) for _, rounds in recorded}
print("to begin an answer the draft proposed:", *map(repr, sorted(openings)))
print("and the target wanted:", *sorted({tokenizer.decode(rounds[0].written[:1]) for _, rounds in recorded}))

# %% [markdown]
r"""
Not one survives, and you can see why: all twenty are a line break. The draft has read speeches and manuals, never a chat,
and does not know what the chat template's marker before an answer means. It lacks no intelligence here, only acquaintance
with this writer.

Over the whole answers it does better. Three ways to count are in use, and they differ a lot, so each has its name:

- **per tested**: kept guesses over guesses that were *tested*, that is, up to and including the first refused one. This
  is the $\alpha$ of the speed-up formula.
- **per proposed**: kept over *all* proposed ones, those behind a refusal included.
- **by position**: per tested, separately for the first, second and third guess of a round (notebook 08).
"""

# %%
from lessonlib.decode.decoder import Decoded

total = Decoded(K)
for decoded, _ in recorded:
    total.add(decoded)
explain(share_kept, 100 * total.per_tested, reference=38, band=3, form=".0f", exact=True)
print(f"per proposed: {100 * total.per_proposed:.0f} of 100")
print(f"{len(total.tokens)} tokens took {total.rounds} passes of the target: {total.tokens_per_round:.2f} a pass")

# %% [markdown]
r"""
Six of ten tested guesses are refused. By the course's figures the two Llamas start higher, near 70 of 100, and a draft step
there takes about 0.3 target steps, which makes decoding some 1.4 times as fast: the starting line that the course wants to
leave behind. In the literature distilled drafts are 10 to 45 % faster than undistilled ones, and a good draft has more than
80 % of the 3 to 5 tokens kept that it proposes (that is, per *proposed*).

Two levers move that. A cheaper draft step (CUDA graphs, fused kernels) lowers what a guess costs; a better draft raises the
share that is kept. This course pulls the second.

Counting greedy guesses has a twin for sampled ones: your `p_keep` on both models' odds, averaged over all places.
lessonlib's `offline_alpha` does that for many answers at once, without decoding anything. First both on one answer, to
see that they agree, then all twenty:
"""

# %%
answers = [(question, decoded.tokens) for question, (decoded, _) in zip(questions, recorded)]
asked, answer = answers[0]
with torch.inference_mode():
    both = torch.tensor([asked + answer], device=target.device)
    odds = [model(both).logits[0, len(asked) - 1:-1].float().softmax(-1) for model in (target, draft)]
slow = torch.stack([p_keep(target_probs, draft_probs) for target_probs, draft_probs in zip(*odds)]).cpu()
fast = lessonlib.offline_alpha(draft, target, answers)
difference = abs(slow - torch.from_numpy(fast.per_position[:len(answer)])).max()
print(f"yours and lessonlib's: max difference {measured(difference, '.1g')}, below 0.0001: {bool(difference < 1e-4)}")
on_record = made["before_distillation"]["heldout"]["alpha"]
print(f"alpha on the first answer {slow.mean():.2f}, on all twenty {fast.alpha:.2f}; on record, 500 other answers: "
      f"{on_record['value']:.2f} [{on_record['low']:.2f}, {on_record['high']:.2f}]")

# %% [markdown]
r"""
The recorded answers are other texts, to other prompts, sampled, and up to 64 tokens long, where these stop at 24. Which of
these makes their alpha another one is not measured here. In brackets, here as everywhere in the course, stands the 95 %
interval.

## Twenty rejections, side by side

Here is one rejection from each answer, among those where the *first* guess of a round was refused. They are drawn by lot
(seed 0), so nobody has picked the pretty ones. Read them before you go on: which of the draft's guesses are *wrong*?
"""

# %%
import random

lot, twenty = random.Random(0), []
for question, (_, rounds) in zip(questions, recorded):
    if at_once := [found for found in rounds if found.rejected and found.kept == 0]:
        twenty.append((question, lot.choice(at_once)))
print(f"{'the answer so far':>42}   {'the draft proposed':<20} the target wanted")
for question, found in twenty:
    tail = repr(tokenizer.decode(found.before[len(question):])[-38:])
    print(f"{tail:>42}   {words([found.refused])[0]:<20} {words([found.wanted])[0]}")

# %%
in_top_five = predict("Of every 100 refused guesses, how many are in the target's own top five?", 30, unit="of 100")

# %% [markdown]
r"""
To sort *all* the rejections by kind, a small rule that you can read and argue with. It asks five questions in order and
the first yes decides.
"""

# %%
import re

def kind(prompt, answer, guess, wanted):
    """What sort of rejection this is; all four are texts, `answer` is what was written before it."""
    word = wanted.strip()
    if answer.count("```") % 2:
        return "inside code"
    if not any(map(str.isalnum, guess)) or not any(map(str.isalnum, wanted)) or "<|" in guess + wanted:
        return "punctuation, new line, end"
    begins = answer.rstrip()[-1:] in '.!?:"'  # a sentence: there a capital letter says nothing
    if word[0].isdigit() or (word[0].isupper() and word != "I" and not begins):
        return "name, number, fact"
    if len(word) > 3 and word.lower() in re.findall(r"\w+", prompt.lower()):
        return "a word of the prompt"
    return "other wording"

# %%
from collections import Counter

kinds, liked, refused = Counter(), 0, 0
for prompt, question, (_, rounds) in zip(prompts, questions, recorded):
    for found in filter(lambda found: found.rejected, rounds):
        before, guess, own = map(tokenizer.decode, (found.before[len(question):], [found.refused], [found.wanted]))
        kinds[kind(prompt, before, guess, own)] += 1
        liked, refused = liked + (found.refused in dict(found.target_bets)), refused + 1
explain(in_top_five, 100 * liked / refused, reference=41, band=3, form=".0f", exact=True)

# %%
fig, ax = style.figure(7.0, 2.6)
names, counts = zip(*kinds.most_common())
two_lines = [name.replace(", ", ",\n").replace("word of", "word\nof") for name in names]
style.bars(ax, two_lines, {"rejections": counts}, form=".0f")
ax.set(ylim=(0, max(counts) * 1.2), ylabel="rejections")
style.finding(ax, f"Of {refused} rejections, {counts[0]} are of one kind: {names[0]}")
told = "; ".join(f"{name}: {count}" for name, count in kinds.most_common())
show(fig, f"The {refused} rejections in twenty answers by kind: {told}.")

# %% [markdown]
r"""
**What they show.** With the tiny pair about four in ten refused guesses are among the five tokens that the target itself
likes best at that place. Some of the twenty rows read that way: `I'll give` for `I'll tell`, `you can` for `you may`,
`personal choices` for `personal preferences`. Where a guess would have done as well, the draft is not wrong. It is another
writer.

**What they also show.** The tiny pair's draft is *small*, and some of its guesses are plainly worse. After `Mercury,` it
goes on with `the` where the target names the next planet. After `To undo a` it writes `task` where the target has
`commit`. And wherever a rejection counts as *a word of the prompt*, what the target wanted stood there to be copied.
Training will not make four layers know all that thirty know. It can move every bet as close to the target's as four
layers allow, and later notebooks measure how close that is. With another pair the rows and the counts are others: read
them before you judge it.

The course's own example, with the two Llamas and not measured here, is all habits: the 8B opens with `Here's a` and the 1B
with `Sure`; before a list the 8B sets a Markdown heading, and the 1B goes straight to `1.`; for the circle the 8B writes
`math.pi * r ** 2` and the 1B `3.14 * r * r`. Good English, working code, and not what *this* target says.

So the plan of the course is not a cleverer draft but a better *impersonator*: let the target answer prompts like yours,
write down its odds at every place, and train the draft on those odds.

## A bad guess costs time, never text

One can read that a draft's errors may change the text a little. With an exact rule they cannot. For greedy text that is
quickly measured here; for sampled text notebook 08 tests the distribution. Two prompts, up to 24 tokens each, written in
three ways: without a draft, with ours, and with a hopeless one, the target's first two layers without any training.
"""

# %%
identical = predict("Of 4 texts written with a draft, how many are what the target writes alone?", 2, unit="of 4")

# %%
def two_texts(helper, K):
    """The first two answers, written with a draft or (None, 0) without."""
    return [lessonlib.spec_greedy(target, helper, question, K, 24, end) for question in questions[:2]]

alone = two_texts(None, 0)
ours = [decoded for decoded, _ in recorded[:2]]  # written above
helped = {"off the shelf": ours, "two raw layers": two_texts(lessonlib.truncated_draft(target, 2), K)}
same = sum(text.tokens == plain.tokens for texts in helped.values() for text, plain in zip(texts, alone))
explain(identical, same, reference=4, band=(4, 4), exact=True, must_hold=preset.dtype == torch.float32)
for name, texts in {"no draft": alone, **helped}.items():
    tokens, passes = sum(len(text.tokens) for text in texts), sum(text.rounds for text in texts)
    guesses = sum(sum(text.accepted) for text in texts)
    print(f"{name:<15} {tokens} tokens in {passes} passes of the target, guesses kept: {guesses}")

# %% [markdown]
r"""
With the tiny pair one single guess of the hopeless draft is kept, a text's very last token, so it saves no pass at all; and
the text is still the target's. Only the passes tell the drafts apart. (In 16-bit arithmetic two tokens that are nearly tied
can change places between a pass over one token and a pass over four. That is rounding, not the draft, and it happens
without one too.)

## Step through a text yourself

The first 48 tokens of the answer that the round by hand belongs to. Move the slider with the mouse or the arrow keys, or
press Play. Each step is one round: what was kept, what was struck out, and both models' five best bets for the last token
written. `·` is a space, `⏎` a new line.
"""

# %%
from lessonlib.workbook.explorables.nb00 import Rounds

_, its_rounds = record_rounds(target, draft, questions[0], K, 48, end)
Rounds(its_rounds, tokenizer, start=min(22, len(its_rounds)))  # the tiny pair's 22nd is worth a look

# %% [markdown]
r"""
Find a round that keeps all three guesses, one where the target is almost sure and the draft bets on something else, and
one where both spread their bets.

## Recap

- A round: the draft proposes $K$ tokens, one pass of the target verifies them, the guesses up to the first refusal are
  kept, and the target adds a token of its own. The text is the target's, whatever the draft does.
- A guess is kept with probability $\alpha = \sum_x \min(p(x), q(x))$: the overlap of the two models' bets.
- Of the tiny pair's refused guesses 41 in 100 are in the target's own top five; by a crude rule a third of the
  rejections are layout or punctuation, and most of the others neither a name nor a number. A good draft is an impersonator
  of its target.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Why does verifying three guesses cost about as much as writing one token?</summary>

Writing a token is slow because all the weights must be read once for it. One pass over the text and three guesses reads
them once as well; the extra arithmetic for three more tokens fits beside it. (On a small CPU it does not quite: notebook
08 measures how much more it costs.)

</details>

<details><summary>Why are the guesses after a refused one thrown away, even if the target would agree with them?</summary>

They continue a text in which the refused guess stands. The target's odds at those places were computed for that text, so
its agreement there says nothing about the text that is really being written.

</details>

<details><summary>A sampling draft proposes one word far too often. Why does the text not have it too often?</summary>

Guesses of that word are kept only with probability $p(x)/q(x)$, so that it comes through with $p(x)$ in all. And it
cannot come in after a refusal: where $q$ is above $p$, the leftover $\max(p - q, 0)$ is zero.

</details>

<details><summary>A friend shows you a draft with a lower perplexity on web text. Is it a better draft?</summary>

Nobody can tell from that. Perplexity says how well it predicts the web; what counts is the overlap of its odds with this
target's odds, on the text this target writes.

</details>

## Two things to change and rerun

1. Set `K` to 1, then to 6, in the round by hand, and run everything below again. Kept per *tested* guess hardly moves,
   kept per *proposed* falls: why? And how many passes does the target need?
2. Put a prompt of your own in front of `prompts` and look for its rejections. A prompt in another language shows a draft
   at its worst.

**Next**: [01 Measure the overlap](01_measure_overlap.ipynb) takes $\alpha$ apart; [08 Decode and
score](08_decode_and_score.ipynb) writes the exact round, and measures what all this costs and earns in seconds. Words that
the course uses are in the [glossary](../notebooks/glossary.md); the map of it is in the [README](../README.md).
"""
