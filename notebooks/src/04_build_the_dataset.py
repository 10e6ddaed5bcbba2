# %% [markdown]
r"""
# Build the data set

A draft learns from what its target says. So the target is made to say a lot: it answers prompts like your traffic, then
reads its own answers again, and at every position you keep its 64 favourite next tokens with their odds. That is 388 bytes
where the whole row would take a quarter of a million. Everything that is trained later stands on these files, and the
mistakes that are made here are silent: a leak makes a draft look good, and labels one row off make a loss that falls and
a draft that is useless.

**You will** find prompts that give the test away; draw three runs of answers; multiply the bytes out; write the scorer and
break its alignment on purpose; measure what 64 tokens leave out, and prove what that costs; see a probability below zero,
and why; ask whose text a draft should learn on.

**You need** [00 Meet the pair](00_meet_the_pair.ipynb) ($\alpha$, the share of guesses kept) and a little of [02 Learn from
soft labels](02_learn_from_soft_labels.ipynb). $p$ is the target, $q$ the draft.

**Time**: it runs in about a minute on two cores with the tiny pair. On a DGX Spark the same cells make the whole data set
of the 8B, by our estimate (not measured) in about two hours, nearly all of it the target's writing. Reading and four
exercises: an hour and a half. [All solutions](solutions/04_build_the_dataset.ipynb).
"""

# %%
from lessonlib.workbook import checks, explain, here, measured, predict, show, style  # no module lessonlib? Run: make lab
import lessonlib, torch

# %%
from lessonlib.lesson import Lesson

lesson = Lesson(lessonlib.preset())
target, tokenizer, draft = lesson.target, lesson.tokenizer, lesson.load()
tiny = lesson.preset.name == "tiny"
drawn, scored, deep, texts, length = (3, 16, 8, 8, 32) if tiny else (8, lesson.preset.train_prompts, 200, 100, 200)
print(here(lesson.preset))

# %%
steps = {"prompts": "like your traffic,\nsplit, no leaks", "answers": "the target writes,\nT = 1 and greedy",
         "labels": "it reads them again,\ntop 64 + tail", "draft": "trained on labels,\nany number of times"}
fig, ax = style.figure(7.6, 1.7)
for i, (name, what) in enumerate(steps.items()):
    ax.text(i, 0, f"{name}\n{what}", ha="center", va="center", fontsize=9, linespacing=1.5,
            bbox={"boxstyle": "round,pad=0.6", "facecolor": "white", "edgecolor": style.COLOURS[min(i, 2)], "linewidth": 2})
    if i:
        ax.annotate("", (i - 0.39, 0), (i - 0.61, 0), arrowprops={"arrowstyle": "-|>", "color": style.INK})
ax.set(xlim=(-0.5, 3.5), ylim=(-1, 1))
ax.axis("off")
style.finding(ax, "The target works in two of the four steps, and only once")
show(fig, "Four boxes in a row: prompts, answers that the target writes, labels that the target gives, a draft that is "
          "trained on them.")

# %% [markdown]
r"""
## Prompts like your traffic

The draft will guess while your server answers your users, so it should study what your server writes to *them*. Your own
logs are the best source: point `LESSON_PROMPTS` at a JSON Lines file, and everything below uses it. Here stands in for
them what ships inside four packages, filled up with templates, or on a Spark a public set of chats. The table counts what
became of every row read.
"""

# %%
print(lesson.prompts.table())
read, repeats = (sum(row[name] for row in lesson.prompts.report["sources"].values() for name in names)
                 for names in (("read",), ("exact", "near")))
print(f"{100 * repeats / read:.0f} of 100 rows read say the same as another one")

# %% [markdown]
r"""
People send the same request again and again, and so do the makers of data sets.

## Split without a leak

The held-out prompts are to tell how the draft does on requests that it has never seen. Split *by prompt*, before any
answer is drawn: all that is made from a prompt stays on its side. Splitting positions or answers would put two halves of
one text on both sides. But is a prompt on the held-out side really unseen if its twin with another comma is in training?

So prompts are compared by what they say. Lower case, no punctuation (`normalise` does that); then the set of all runs of
three neighbouring words; then **Jaccard's similarity**: how many runs both sets share, over how many are in either. From
0.5 on, the course calls it a leak.

**Exercise 4.1** (medium, 10 minutes). Write the similarity of two prompts. A text of fewer than three
words is a single run: all of it.

<details><summary>Hint</summary>

`words = normalise(text).split()`; the runs begin at every `i` in `range(max(1, len(words) - 2))`. For sets, `a & b` is
what both have, `a | b` what either has.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/04_build_the_dataset.ipynb), in the same place.

</details>
"""

# %%
from lessonlib.traffic.duplicates import LEAK, leaks, normalise

# %% tags=["exercise"]
def similarity(one, other):
    """Jaccard's similarity of two prompts, 0 to 1, by their runs of three words."""
    # <solution>
    def runs(text):
        words = normalise(text).split()
        return {" ".join(words[i:i + 3]) for i in range(max(1, len(words) - 2))}

    a, b = runs(one), runs(other)
    return len(a & b) / len(a | b)
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
similarity = checks.ex_4_1(similarity)

# %% [markdown]
r"""
Now a split as it is often made: take the packages' prompts as they come, shuffle (seed 4), hold out 500. For how many of
those 500 does the training half hold a twin?
"""

# %%
twins = predict("Of 100 held-out prompts of a plain random split, how many have a twin in training?", 10, unit="of 100")

# %%
import random
from lessonlib.traffic.sources import package_prompts

pool = package_prompts()
random.Random(4).shuffle(pool)
heldout, train = pool[:500], pool[500:]
leaking = leaks(heldout, train)[1]
explain(twins, 100 * len(leaking) / len(heldout), form=".0f", exact=True)
said = {normalise(row["prompt"]) for row in train}
near = [row["prompt"] for row in leaking if normalise(row["prompt"]) not in said]
print(f"{len(leaking)} in all; {len(near)} of them are worded otherwise than their twin")

# %% [markdown]
r"""
Looking for equal texts alone would have missed that last kind. But comparing everything with everything is slow, 500 times
5,000 pairs here. lessonlib looks up only pairs that share a rare run, and compares those exactly. On a part that your
function can do in a moment, both must find the same:
"""

# %%
every_pair = [row for row in heldout[:40] if any(similarity(row["prompt"], other["prompt"]) >= LEAK for other in train[:500])]
looked_up = leaks(heldout[:40], train[:500])[1]
print(f"leaks found by yours {len(every_pair)}, by lessonlib {len(looked_up)}, the same ones: {every_pair == looked_up}")
for prompt in [prompt for prompt in near if len(prompt) < 100][:3]:
    twin = max((other["prompt"] for other in train), key=lambda text: similarity(prompt, text))
    print(f"{similarity(prompt, twin):.2f}  held out: {' '.join(prompt.split())}\n      training: {' '.join(twin.split())[:110]}")

# %% [markdown]
r"""
The course's own split drops repeats first, then leaks; and it keeps a third set apart, the twenty short prompts that the
benchmark decodes. The check, on the halves that everything below uses:
"""

# %%
from lessonlib.files import DATA, read_json, read_jsonl

benchmark = list(read_jsonl(DATA / "prompts_short.jsonl", "prompt"))
clean, leaking = leaks(lesson.prompts.train, lesson.prompts.heldout + benchmark)
print(f"{len(clean):,} training prompts, {len(lesson.prompts.heldout)} held out, {len(benchmark)} of the benchmark: "
      f"{len(leaking)} leaks")

# %% [markdown]
r"""
## Three runs of answers

| run | drawn | for |
|---|---|---|
| train | T = 1 | learning |
| heldout | T = 1 | $\alpha$, the acceptance of a server that samples |
| heldout-greedy | greedy | top-1 agreement, the acceptance of a greedy server |

T = 1 with the *whole* vocabulary: no top-k, no top-p, no penalty. A server that cuts the tail off writes other text, and a
draft that is to know all that the target might say must be shown it in the right proportions. Each run has its seed in its
first line, and each answer has its own random numbers, so that a run can be stopped, gone on with, and drawn again.

Who writes them? On a GPU vLLM, which is made for such work, if `make vllm` has installed it; nothing has to be said here.
It is a process of its own, given the same ids and settings, and its memory is free again when it ends. Without it
transformers does the same work, more slowly. (From a shell: `python -m lessonlib generate --engine vllm`.)

For the tiny pair the answers ship with the course. Are they really this target's? Draw a few again, their first eight tokens:
"""

# %%
from lessonlib.pair.chat import end_of_turn_ids

runs = {name: lesson.answers(name) for name in ("train", "heldout", "heldout-greedy")}
end = end_of_turn_ids(tokenizer, target.generation_config)
print("run               T  seed  answers   tokens  ended by themselves")
for name, run in runs.items():
    tokens, ended = sum(len(row["resp_ids"]) for row in run.rows), sum(row["resp_ids"][-1] in end for row in run.rows)
    print(f"{name:<15} {run.header['temperature']:>3} {run.header['seed']:>5} {len(run):>8,} {tokens:>8,} {ended:>8,}")

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

scratch, parted = TemporaryDirectory(), []  # the folder is gone when the kernel ends
for name, run in runs.items():
    half = lesson.prompts.train if name == "train" else lesson.prompts.heldout
    again = lessonlib.generate(target, tokenizer, [row["prompt"] for row in half[:drawn]], Path(scratch.name) / f"{name}.jsonl",
                               run.header["temperature"], 8, run.header["seed"], show=False)
    differ = [i for i in range(drawn) if again.rows[i]["resp_ids"] != run.rows[i]["resp_ids"][:8]]
    parted += [(run, i, again.rows[i]["resp_ids"]) for i in differ]
    print(f"{name:<15} drawn again here: {measured(drawn - len(differ), '.0f')} of {drawn} the same, 8 tokens each")

# %% [markdown]
r"""
Greedy text should come out the same on every machine. A sampled answer can part from the shipped one: its token is the one
into whose share of the line from 0 to 1 a random number falls, and where that lies within a rounding of the border
between two tokens, another processor may see it on the other side. From there on it is another answer, as good as the
first. Is that what happened to those that differ, if any does? (vLLM draws with numbers of its own, which cannot be looked
at here.)
"""

# %%
from lessonlib.traffic.engine import row_uniforms

@torch.inference_mode()
def to_border(run, i, resp_ids):
    """How far the number that drew the first token which differs lies from the nearest border between two tokens."""
    row = run.rows[i]
    place = next(j for j, pair in enumerate(zip(resp_ids, row["resp_ids"])) if pair[0] != pair[1])
    text = torch.tensor([row["prompt_ids"] + resp_ids[:place]], device=target.device)
    borders = target(text).logits[0, -1].double().softmax(-1).cumsum(0).cpu()
    return float((borders - row_uniforms(run.header["seed"], i, place + 1)[place]).abs().min())

rounding = 1e-5 if target.dtype == torch.float32 else 0.05
at_border = [to_border(*each) < rounding for each in parted if each[0].header["engine"] == "transformers"]
print(f"every answer that parts does so where its number lies within {rounding:g} of a border: {all(at_border)}")

# %% [markdown]
r"""
## How long is long enough

A draft reads the whole prompt and all that was written since. What it was never shown at length, it cannot be expected to
read well. So look at the lengths before you train:
"""

# %%
lengths = {"prompt": [len(row["prompt_ids"]) for row in runs["train"].rows],
           "answer": [len(row["resp_ids"]) for row in runs["train"].rows]}
lengths["both"] = [sum(pair) for pair in zip(*lengths.values())]
for name, counts in lengths.items():
    counts = sorted(counts)
    print(f"{name:<7} half are up to {counts[len(counts) // 2]:>4} tokens, nine in ten to {counts[9 * len(counts) // 10]:>4}, "
          f"the longest has {counts[-1]:>4}")
cut = sum(row["resp_ids"][-1] not in end for row in runs["train"].rows)
print(f"cut at {lesson.preset.max_new_tokens} tokens: {100 * cut / len(runs['train']):.0f} of 100 answers")

# %% [markdown]
r"""
Two limits to know of. Answers cut at a limit teach nothing about how long answers go on and end. And if your users hold
long conversations, some rows must be long: take the earlier turns into the prompt. Only prompts of the *training* half may
go in there, for the draft reads them too.
"""

# %%
def long_chat(turns, question):
    """A conversation that has gone on for a while: (prompt, answer ids) of earlier turns, and the question now asked."""
    chat = []
    for prompt, resp_ids in turns:
        answer = tokenizer.decode(resp_ids, skip_special_tokens=True).strip()
        chat += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return [*chat, {"role": "user", "content": question}]

asked = [row["prompt"] for row in lesson.prompts.train[:5]]
chat = long_chat([(prompt, row["resp_ids"]) for prompt, row in zip(asked[:4], runs["train"].rows)], asked[4])
long_row = lessonlib.generate(target, tokenizer, [chat], Path(scratch.name) / "long.jsonl", 1.0, 8, show=False).rows[0]
print(f"asked alone: {len(runs['train'].rows[4]['prompt_ids'])} tokens; after four turns: {len(long_row['prompt_ids'])}, "
      f"and {len(long_row['resp_ids'])} tokens answered")

# %% [markdown]
r"""
Such a row is scored and trained on like any other. How much of $\alpha$ a long context costs, notebook 05 measures.

## Multiply it out first

What should be kept of each position? Everything the target said there is a row of odds over the vocabulary. Before any
code, the arithmetic. A row of fp16 logits takes 2 bytes a token of the vocabulary. The alternative keeps $k$ tokens: their
ids (int32, 4 bytes each), their values (fp16, 2 bytes each), and for the whole position one fp32 number (4 bytes) from which
the normaliser follows.

**Exercise 4.2** (easy, 5 minutes). How many bytes are that for a data set of `tokens` positions, and how many would the full
rows be?

<details><summary>Hint</summary>

Each position: `k * (4 + 2) + 4` bytes, against `2 * vocabulary`.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/04_build_the_dataset.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def label_bytes(tokens, k, vocabulary):
    """(bytes of the stored labels, bytes of the full rows in fp16) of so many positions."""
    # <solution>
    return tokens * (6 * k + 4), tokens * 2 * vocabulary
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
label_bytes = checks.ex_4_2(label_bytes)

# %%
ratio = predict("k = 64, Llama's 128,256 tokens: how many times smaller is the stored position?", 100, unit="times")

# %%
LLAMA, SMOL = 128_256, 49_152
positions = {"Llama, one": (1, LLAMA), "tiny, one": (1, SMOL), "Llama, 10,000 answers of 200 tokens": (2_000_000, LLAMA),
             "tiny, this run's training answers": (sum(lengths["answer"]), SMOL)}
for name, (tokens, vocabulary) in positions.items():
    stored, full = label_bytes(tokens, 64, vocabulary)
    size = (lambda n: f"{n / 1e9:,.3f} GB") if tokens > 1 else (lambda n: f"{n:,} bytes")
    print(f"{name:<36} {tokens:>9,} positions: {size(stored):>10} instead of {size(full)}")
explain(ratio, 256_512 / 388, form=",.0f", exact=True)
gigabytes = [size / 1e9 for size in label_bytes(2_000_000, 64, LLAMA)]
explain(None, gigabytes[0], reference=0.78, band=0.01, form=".2f", unit="GB", exact=True, must_hold=True)
explain(None, gigabytes[1], reference=510, band=5, form=".0f", unit="GB", exact=True, must_hold=True)

# %% [markdown]
r"""
The course's text rounds to 510; it is 513. Either way: one fits into memory beside two models, the other does not fit on
most disks.

## The target reads its answers again

All of an answer is scored in **one** pass: the target is given prompt and answer together, and gives a row of logits for
every position. The row *at* a position speaks of the token *after* it. With a prompt of $s$ tokens, answer token $j$ stands at
position $s + j$, so its row stands at $s + j - 1$: the first one at the prompt's last token. The row at the answer's last
token speaks of a token that was never written.

**Exercise 4.3** (medium, 15 minutes). Write the scorer for one answer of $R$ tokens. It returns ids (int32, $[R, k]$), their
logits (fp16, $[R, k]$) and the logsumexp over the *whole* vocabulary (fp32, $[R]$), from which any kept logit becomes an
exact probability: $p(x) = \exp(\text{logit}(x) - \text{logsumexp})$.

<details><summary>Hint</summary>

`logits = target(torch.tensor([[*prompt_ids, *resp_ids]], device=target.device)).logits[0].float()` has a row for each
position. Take the rows from `len(prompt_ids) - 1` up to, and without, the last. `rows.topk(k)` gives values, then ids.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/04_build_the_dataset.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
@torch.inference_mode()
def score_one(target, prompt_ids, resp_ids, k=64):
    """(ids int32 [R, k], logits fp16 [R, k], lse fp32 [R]): row j is the odds for response token j, given all before it."""
    # <solution>
    ids = torch.tensor([[*prompt_ids, *resp_ids]], device=target.device)
    rows = target(ids).logits[0, len(prompt_ids) - 1:-1].float()
    values, ids = rows.topk(k)
    return ids.int(), values.half(), rows.logsumexp(-1)
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
score_one = checks.ex_4_3(score_one)

# %% [markdown]
r"""
lessonlib's scorer never holds more than a few hundred rows of logits, runs answers of like length together, and asks the
output layer only for the rows that are wanted. The numbers must be yours:
"""

# %%
sequences = runs["train"].sequences()
mine, theirs = score_one(target, *sequences[0]), lessonlib.score_one(target, *sequences[0])
print("same ids:", float((mine[0] == theirs[0]).double().mean()) > 0.99)
for name, one, other in zip(("logits", "logsumexp"), mine[1:], theirs[1:]):
    gap, bound = float((one.float().cpu() - other.float().cpu()).abs().max()), 0.02 if name == "logits" else 1e-4
    print(f"{name:<10} differ by at most {measured(gap, '.0e')} nats, below {bound:g}: {gap < bound}")

# %% [markdown]
r"""
(Two logits that are equal to the last digit may trade places; and where a value lies on the border of two fp16 numbers, a
difference of one fp16 step is possible.)

Now the answers, into a store on disk: with the tiny pair a handful, on a Spark all of them. The prediction is yours to
check: within a few percent of 388 bytes a position, or something is padded.
"""

# %%
from lessonlib.traffic.answers import Answers

folder = Path(scratch.name) / "labels" if tiny else lesson.folder / "labels"
store = lessonlib.score_answers(target, Answers(runs["train"].header, runs["train"].rows[:scored]), folder, k=64, show=not tiny)
on_disk = sum(file.stat().st_size for file in folder.glob("labels-*.safetensors"))
print(f"{len(store)} answers, {store.rows:,} positions, {on_disk:,} bytes of labels")
explain(None, on_disk / store.rows, reference=388, band=(388, 400), form=".1f", unit="bytes", exact=True, must_hold=True)

# %% [markdown]
r"""
The store also knows who made it: fingerprints of target, tokenizer and chat template, the temperature, the seed, a checksum
of each file. A store of another target is refused when it is opened, and not when a training has failed to help.

## Break the alignment on purpose

Does row $j$ really speak of token $j$? A shift by one is the classic mistake of this whole undertaking, since nothing looks
wrong: shapes fit, probabilities sum to 1, the loss falls. So the store is checked against the target itself: a few answers
are read again, one at a time and with all logits, and compared row by row. Shift the stored rows by one and compare
again: how far off are they?
"""

# %%
off = predict("Labels one row off: mean KL(target || label)", 2, unit="nats")

# %%
check = lessonlib.check_alignment(target, store)
explain(off, (check.kl_late + check.kl_early) / 2, band=(1, 20), form=".1f", exact=True)
print(f"as stored: below 1e-5 nats over {check.rows} rows: {check.kl < 1e-5}; where it is above 0.05 the check refuses")

# %% [markdown]
r"""
Now break it. `Shifted` moves the labels `by` rows down (by 1, the check calls them *late*). Try 1, -1 and 0.
"""

# %%
class Shifted:
    """The store, but row j holds what belongs to row j - by."""

    def __init__(self, by):
        self.by, self.sequence = by, store.sequence

    def __len__(self):
        return len(store)

    def kl_inputs(self, i):
        return [column.roll(self.by, 0) for column in store.kl_inputs(i)]

for by in (0, 1, -1):
    try:
        lessonlib.check_alignment(target, Shifted(by), sequences=1)
        print(f"shifted by {by}: no objection")
    except lessonlib.LessonError as refusal:
        print(f"shifted by {by}: refused. {str(refusal).partition(' (')[0]}")

# %% [markdown]
r"""
The check says which way. It costs reading a few answers again, and `lesson.labels()` runs it every time. Later in the course you
will train on shifted labels and see the loss fall.

## How much do 64 tokens hold?

The **top-64 mass** is the target's probability on its 64 favourites, at one position. The rest is the **tail**: of its 49,152
tokens the tiny target has 49,088 there, Llama 128,192. What is the mass on average?
"""

# %%
average = predict("Mean top-64 mass of the tiny target on its own sampled answers (of 1)", 0.95)

# %%
from lessonlib.labels.scorer import score
from lessonlib.measure.estimate import ratio_estimate

def mean_mass(masses):
    """The mean over all positions, with an interval by answers: masses, one tensor for each answer."""
    return ratio_estimate([float(mass.double().sum()) for mass in masses], [len(mass) for mass in masses])

sampled = [1 - store.log_tail(i).exp() for i in range(len(store))]
greedy_labels = list(score(target, runs["heldout-greedy"].sequences()[:deep]))
greedy = [1 - labels.log_tail.exp() for labels in greedy_labels]
mass, sure = torch.cat(sampled), torch.cat(greedy)

# %%
from lessonlib.reference import recorded_gain, recorded_trainings

record = recorded_trainings()[0]
for name, each, reference, band in (("sampled, T = 1", sampled, record["top_mass"], 0.06), ("greedy", greedy, 0.976, 0.015)):
    held = mean_mass(each)
    print(f"{name}: 95 % interval {held.low:.3f} to {held.high:.3f}")
    explain(average if each is sampled else None, held, reference=reference, band=band, form=".3f", exact=True)
longer = [each for each in sampled if len(each) > 32]
change = ratio_estimate([float(each[32:].mean() - each[:32].mean()) for each in longer], [1] * len(longer))
print(f"{len(longer)} answers here of more than 32 tokens, later mass minus that of the first 32: {change:+.3f} {change.interval('+.3f')}")
print(f"on record (tiny pair), up to 256 tokens, {record['tokens']:,} positions: {record['top_mass']:.3f}; "
      f"well under 0.9, that is below 0.87: {record['top_mass'] < 0.87}")

# %% [markdown]
r"""
The first reference is the mean on record, of 500 times as many answers as are scored here with the tiny pair, each up to
four times as long. And where the change above lies below 0, the 64 hold less as an answer goes on. The course expects a high
mean for chat answers with a *long low tail* at open-ended places. A mean hides that, so sort the positions:
"""

# %%
shares = [i / 100 for i in range(101)]
curves = {"T = 1": mass.quantile(torch.tensor(shares)).tolist(), "greedy": sure.quantile(torch.tensor(shares)).tolist()}
fig, ax = style.figure(7.0, 3.0)
style.lines(ax, [100 * share for share in shares], curves)
ax.set(ylim=(0, 1.03), xlabel="positions, those with the lowest mass first (%)", ylabel="top-64 mass")
style.finding(ax, f"{100 * float((mass < 0.8).double().mean()):.0f} of 100 sampled positions are below 0.8")
show(fig, "Top-64 mass of every position, sorted: both curves rise to 1; the one of greedy text lies higher.")

# %%
places = [(i, j) for i in range(len(store)) for j in range(len(sampled[i]))]
print("the lowest of all:  ... text before, then the token that was drawn")
for at in mass.argsort()[:4].tolist():
    i, j = places[at]
    prompt_ids, resp_ids = store.sequence(i)
    before = " ".join(tokenizer.decode([*prompt_ids, *resp_ids[:j]]).split())[-60:]
    print(f"mass {mass[at]:.2f}: ...{before} |{tokenizer.decode(resp_ids[j])}|")

# %% [markdown]
r"""
Look at what they have in common: before such a place, nearly anything could follow. There the target spreads its bets over
thousands of tokens, and sampling has taken one of them.

## Would a larger k help?

The course's rule: *if the mean is well under 0.9, try k = 128*. On the record's longer answers it *is* well under 0.9, so
try it. Score a few answers with the 1,024 favourites, once; every smaller $k$ follows from that.
"""

# %%
from lessonlib.workbook.explorables.nb04 import KS, StoredTop

rows = list(score(target, sequences[:deep], k=1024))
odds = torch.cat([(each.logits - each.lse[:, None]).double().exp() for each in rows])
masses = odds.cumsum(-1)[:, [k - 1 for k in KS]]
print("    k   bytes  mean mass  below 0.5")
for k, column in zip(KS, masses.T):
    print(f"{k:>5} {label_bytes(1, k, 1)[0]:>7,}  {format(float(column.mean()), '.3f'):<9}  {(column < 0.5).double().mean():.1%}")

# %%
counts = [len(each.lse) for each in rows]
by_k = {k: masses[:, KS.index(k)].split(counts) for k in (64, 128)}
more = mean_mass([after - before for before, after in zip(by_k[64], by_k[128])])
print(f"k = 128 holds {more:.3f} more than k = 64 (95 % interval {more.low:.3f} to "
      f"{more.high:.3f}), for {label_bytes(1, 128, 1)[0] - label_bytes(1, 64, 1)[0]} bytes more a position")
sampled_mean = mean_mass(sampled)
print("the mean of the short answers here lies under 0.9, with its whole interval:", sampled_mean.high < 0.9)

# %% [markdown]
r"""
Each doubling of $k$ doubles the bytes and closes a part of what is left. The course stays at 64, since the tail's
*total* is stored as well and trained on. Whether 128 buys any $\alpha$ is a question for a training run, not for this table.
"""

# %%
StoredTop(masses)

# %% [markdown]
r"""
## A student that knows only the 64

Throw the tail away and scale the 64 up to sum to 1. A student that matches *that* perfectly: what is its $\alpha$?

Let $m$ be the mass. The student has $q(x) = p(x)/m$ on the 64 and 0 elsewhere. On the 64 it has more than the target, since
$m \le 1$, so the smaller of the two is $p(x)$. Elsewhere the smaller is 0. So

$$\alpha = \sum_x \min(p(x), q(x)) = \sum_{x \in \text{top } k} p(x) = m.$$

Its $\alpha$ is *exactly* the mass. And every guess is tossed with the same coin, $p(x)/q(x) = m$. The numbers, on the
target's full rows over one answer, then by tossing (seed 4):
"""

# %%
@torch.inference_mode()
def full_rows(model, prompt_ids, resp_ids):
    """The model's log-probabilities [R, V] at every answer position, float64."""
    text = torch.tensor([[*prompt_ids, *resp_ids]], device=model.device)
    return model(text).logits[0, len(prompt_ids) - 1:-1].double().log_softmax(-1).cpu()

p = full_rows(target, *sequences[0]).exp()
values, ids = p.topk(64)
m = values.sum(-1)
student = torch.zeros_like(p).scatter(-1, ids, values / m[:, None])
overlap = torch.minimum(p, student).sum(-1)
print("alpha equals the mass, max difference below 1e-12:",
      bool(torch.allclose(overlap, m, rtol=0, atol=1e-12)))

# %%
chance = torch.Generator().manual_seed(4)
guesses = ids.gather(-1, torch.multinomial(values, 2000, replacement=True, generator=chance))
coins = torch.rand(guesses.shape, generator=chance, dtype=torch.float64)
kept = (coins * student.gather(-1, guesses) < p.gather(-1, guesses)).double()
error = float((m * (1 - m) / 2000).sum().sqrt() / len(m))
print(f"kept {kept.mean():.3f} of {kept.numel():,} guesses, mass {m.mean():.3f}; "
      f"within four standard errors: {bool(abs(kept.mean() - m.mean()) < 4 * error)}")

# %% [markdown]
r"""
So the mean mass is *roughly* a ceiling for what the 64 can teach. Roughly, since the tail's total is known too: a student
may keep $p$ itself on the 64 and put what is left, $1 - m$, somewhere on the others. It has all of $m$, and whatever it
hits outside on top. Two ways to spread it: evenly, or as the off-the-shelf draft does, which has never seen these labels.
"""

# %%
tail, outside = 1 - m, torch.ones_like(p).scatter(-1, ids, 0.0)
draft_tail = full_rows(draft, *sequences[0]).exp() * outside
spread = {"nothing outside, the 64 scaled up": student, "evenly": p * (1 - outside) + tail[:, None] * outside / outside.sum(-1)[:, None],
          "as the draft spreads it": p * (1 - outside) + tail[:, None] * draft_tail / draft_tail.sum(-1)[:, None]}
for name, q in spread.items():
    alpha, kl = torch.minimum(p, q).sum(-1), torch.where(p > 0, p * (p / q).log(), 0.0).sum(-1).mean()
    print(f"{name:<34} alpha {alpha.mean():.3f}, never below the mass: {bool((alpha >= m - 1e-12).all())}, "
          f"KL(p || q) {'infinite' if kl.isinf() else f'{kl:.2f} nats'}")

# %% [markdown]
r"""
The scaled-up 64 claim that the rest of the vocabulary is impossible, and forward KL charges infinity for that. The one extra
number a position, *everything else*, is what the training loss will make a bucket of.

## What the sixty-four leave out

That number is worth a little care. With $\ell$ the logsumexp of all logits, the tail is $1 - \sum_{64} \exp(z(x) - \ell)$.
Where the target is sure, that is 1 minus something that rounds to 1. Better sum the tail itself, in logarithms: the
logsumexp of the logits *outside* the $k$ largest, minus the logsumexp of all.

**Exercise 4.4** (easy, 5 minutes). Write the log tail for logits $[R, V]$.

<details><summary>Hint</summary>

`logits.sort(-1, descending=True)[0]` puts the $k$ largest first; `[..., k:]` is the rest.

</details>

<details><summary>Solution</summary>

It stands in [the solved notebook](solutions/04_build_the_dataset.ipynb), in the same place.

</details>
"""

# %% tags=["exercise"]
def log_tail(logits, k):
    """The log of the probability outside the k largest logits, one value for each row."""
    # <solution>
    rest = logits.sort(-1, descending=True)[0][..., k:]
    return rest.logsumexp(-1) - logits.logsumexp(-1)
    # </solution>
    # <stub>
    # return ...  # your turn
    # </stub>

# %%
log_tail = checks.ex_4_4(log_tail)

# %% [markdown]
r"""
lessonlib's scorer takes it from the row while it has the whole row. Both on 300 rows of 2,000 logits in float64 (seed 44),
from nearly even to very peaked, beside the short way, one minus the sum:
"""

# %%
from lessonlib.kernels.topk_lse import topk_lse

chance = torch.Generator().manual_seed(44)
logits = torch.linspace(0.1, 40, 300)[:, None] * torch.randn(300, 2000, generator=chance, dtype=torch.float64)
slow, fast = log_tail(logits, 64), topk_lse(logits, 64)[3]
one_minus = (1 - logits.softmax(-1).topk(64)[0].sum(-1)).log()
relative, wrong = ((slow - fast) / fast).abs().max(), (one_minus / fast - 1).abs() > 0.01
print(f"yours and lessonlib's: max relative difference below 1e-12: {bool(relative < 1e-12)}")
print(f"one minus the sum: the logarithm is off by more than 1 % in {100 * wrong.double().mean():.0f} of 100 rows; "
      f"the smallest log tail is {fast.min():.0f}")

# %% [markdown]
r"""
## A probability below zero

The obvious layout keeps the 64 logits in fp16 beside an exact logsumexp in fp32, as `score_one` hands them out. But an fp16
number around 40 has a step of 1/32. Half a step up, and a probability of 0.99 becomes $0.99 \cdot e^{1/64} = 1.006$. In how
many of the tiny target's rows do the 64 sum to *more* than 1, so that the tail is negative and its logarithm no number?
"""

# %%
negative = predict("Of 100 rows with fp16 logits, how many have a negative tail?", 2, unit="of 100")

# %%
for name, labels in (("sampled", rows), ("greedy", greedy_labels)):
    top, lse = (torch.cat(column).double() for column in zip(*((each.logits[:, :64], each.lse) for each in labels)))
    exact = (top - lse[:, None]).exp()
    rounded = (top.half().double() - lse[:, None]).exp()
    below = float((rounded.sum(-1) > 1).double().mean())
    gaps = (top - top[:, :1]).half().double()
    stored = exact.sum(-1, keepdim=True) * gaps.softmax(-1)  # 1 - tail, shared out by the gaps
    print(f"{name:<8} fp16 logits: negative tail in {below:.0%} of rows, worst probability off by "
          f"{(rounded - exact).abs().max():.0e}; fp16 gaps: {(stored - exact).abs().max():.0e}, never negative")
    if name == "sampled":
        explain(negative, 100 * below, form=".0f", exact=True)

# %% [markdown]
r"""
The surer a target, the more often: one with 150,000 tokens, measured for this course, had a negative tail in half of its
rows. Same bytes, other numbers: the store keeps the *gaps* to the largest logit, in fp16, and the log of the tail in fp32. Probabilities are then $(1 -
\text{tail}) \cdot \text{softmax}(\text{gaps})$, which no rounding can carry past 1. And the gap that matters most, the
favourite's, is exactly 0. Logits count only up to a constant a row, so nothing is lost.

One thing it cannot do: tell the odds at another temperature. At $T = 2$ the tail grows by an amount that the 64 do not
know. lessonlib keeps a tail for each temperature that you ask for when scoring, and refuses the others.

## Store, or run the target live?

The target could also stand by during training and be asked at every step. In floating-point operations: a training step
costs about 6 for each weight and token (forward 2, backward 4), reading costs 2.
"""

# %%
triple = predict("8B and 1B: how many times as much does a training step cost with the target live?", 2, unit="times")

# %%
def matrix_weights(model):
    """The weights that every token is multiplied with: the layers' and the output layer's."""
    layers = sum(weight.numel() for weight in model.get_decoder().layers.parameters())
    return layers + model.get_output_embeddings().weight.numel()

pairs = {"Llama 8B and 1B": (8.0e9, 1.2e9), "this pair": (matrix_weights(target), matrix_weights(draft))}
for name, (large, small) in pairs.items():
    step, read = 6 * small, 2 * large
    print(f"{name:<16} training {step / 1e9:6.2f} GFLOP a token, the target's reading {read / 1e9:6.2f}: "
          f"live costs {(step + read) / step:.1f} times as much; six epochs {6 * (step + read) / (6 * step + read):.1f} times")
    if name.startswith("Llama"):
        explain(triple, (step + read) / step, reference=3, band=0.3, form=".1f", exact=True, must_hold=True)

# %% [markdown]
r"""
(A draft whose output layer is frozen, as this pair's is, saves the last 2 of the 6 there.) About 7 against 16 GFLOP a token for Llama: a live target roughly triples every epoch of every experiment, and a stored
one is paid once. Live targets are for text that keeps changing, when the draft learns on what it writes itself.

## Whose text?

A label needs a place to be asked at: a text. Three writers offer themselves.

1. **Generic text**: books, manuals, the web. What a small model has read before you download it. Other prompts, another writer.
2. **The target's answers** to prompts like yours. What you have just built.
3. **The draft's own text**, scored by the target. From the second guess of a round on, the draft reads its own guesses.

Here is the off-the-shelf draft's $\alpha$ on each, before any training. Generic is Python's manual, part of every Python; the
draft was schooled on text of that kind, the manual included. The other two answer the same short prompts, at T = 1, the
draft's own drawn with seed 1.

It is often said that a model does worse on its own text, which leads it where its teacher never goes (*exposure bias*).
So where do you expect the lowest $\alpha$?
"""

# %%
own_text = predict("alpha of the off-the-shelf draft on its own text (on the target's: about 0.4)", 0.35)

# %%
import pydoc_data.topics
from lessonlib.measure.offline import offline_alphas
from lessonlib.traffic.engine import TransformersEngine

pages = [tokenizer(" ".join(page.split()), add_special_tokens=False)["input_ids"] for _, page in sorted(pydoc_data.topics.topics.items())]
pages = [ids for ids in pages if len(ids) >= 32 + length]
random.Random(4).shuffle(pages)
short = [(number, row) for number, row in enumerate(runs["heldout"].rows) if len(row["prompt_ids"]) <= 80][:texts]
prompts = [(number, row["prompt_ids"]) for number, row in short]
own = dict(TransformersEngine(draft).answer(prompts, 1.0, length, 1, end))
writers = {"generic text": [(ids[:32], ids[32:32 + length]) for ids in pages[:texts]],
           "the target's": [(row["prompt_ids"], row["resp_ids"][:length]) for _, row in short],
           "the draft's own": [(ids, own[number]) for number, ids in prompts]}

# %%
found = {name: offline_alphas([draft], target, text)[0] for name, text in writers.items()}
print("text             alpha  95 % interval    top-1  KL(p || q), nats")
for name, result in found.items():
    alpha, top1, kl = result[:3]
    print(f"{name:<16} {measured(alpha, '.2f')}  {measured(alpha.low, '.2f')} to {measured(alpha.high, '.2f')}   "
          f"{measured(top1, '.2f')}  {measured(kl, '.2f')}")
explain(own_text, found["the draft's own"].alpha, reference=0.43, band=0.08 if tiny else 0.4, form=".2f", must_hold=tiny)
recorded = read_json(DATA / "reference" / "off_the_shelf.json")["before_distillation"]["heldout"]["alpha"]
print(f"recorded for the tiny pair, 500 of the target's answers, up to 64 tokens each: alpha {recorded['value']:.2f}, "
      f"{recorded['low']:.2f} to {recorded['high']:.2f}")

# %%
def verdict(lower, higher):
    """Does alpha lie lower on the one text than on the other? By the intervals."""
    low, high = found[lower].alpha, found[higher].alpha
    return ("it shows" if low.high < high.low else "not here, the other way round" if low.low > high.high
                else "not here, the intervals overlap")

first = [result.by_position(1)[0] for name, result in found.items() if name != "generic text"]
print("the draft does worse on the target's text than on generic text:", verdict("the target's", "generic text"))
print("the draft does worse on its own text than on the target's:     ", verdict("the draft's own", "the target's"))
print("at the first place both read the same, so alpha must be equal:", bool(abs(first[0] - first[1]) < 1e-4))

# %% [markdown]
r"""
Read the verdicts with care. They say how good this draft *is* on each text, not how good training on it makes it. That is on
record: the same draft, the same steps, as many tokens, once of generic text and once of the target's answers, both with the
target's odds; judged on 500 held-out answers, one training each (seed 0).
"""

# %%
taught = {"before training": record["untrained"]["A"], "trained on generic text": record["runs"]["A, kl on generic text"],
          "trained on the target's": record["runs"]["A, kl"]}
for words, run in taught.items():
    alpha = run["heldout"]["alpha"]
    print(f"{words:<24} alpha {alpha['value']:.3f} [{alpha['low']:.3f}, {alpha['high']:.3f}]")
ahead = recorded_gain(record, "A, kl", "A, kl on generic text")
print(f"the target's minus generic, redrawn by answers: {ahead:+.3f} {ahead.interval('+.3f')}")
before, generic = (taught[words]["heldout"]["alpha"]["value"] for words in ("before training", "trained on generic text"))
assert ahead.low > 0 and generic <= before

# %% [markdown]
r"""
The draft had read its fill of generic text before. More of it, even with the target's own odds, teaches it nothing of what
your server writes. What to keep in mind:

- Where generic text has the higher $\alpha$, that is the off-the-shelf draft's whole trouble: it does best on what it
  was schooled on, and your server never writes that. Acceptance is counted on the second row. So the labels of this course
  are asked for on the target's text.
- The course expects the draft's own text to be the hard one. A verdict of *not here* is no contradiction: exposure bias is said of
  drafts *trained on the target's text alone*, and this one has not been trained on any answer yet. Its own text consists of
  tokens that it found likely, and on such paths two models agree more easily.
- Eight short texts a row make wide intervals, and all of them are the beginnings of answers to short prompts: the
  recorded figure, of 500 answers of up to 64 tokens to all kinds of prompts, may well lie outside. Let `texts` and `length` at
  the top grow before you build on one.

Training on the draft's own text needs the target live, since that text changes as the draft learns. A later notebook does it.

## Recap

- Prompts like your traffic, split by prompt, repeats and near repeats out first. Three runs: train and held-out at T = 1, held-out
  greedily. A leak is found by comparing what prompts say, not how they are typed.
- The row at a position speaks of the next token. 388 bytes a position: 64 ids, 64 gaps, one log tail. Check the alignment against
  the target; nothing else will tell you.
- A student equal to the renormalised 64 has $\alpha$ = their mass, so the mass is roughly the ceiling; the tail bucket lets
  a draft rise above it.

## Explain it back

Say each answer aloud before you open it.

<details><summary>Why are answers drawn at T = 1 with the whole vocabulary, if the server runs at top-p 0.9?</summary>

Labels are odds at places, and the text decides which places. Drawn whole, it visits what the target might say in the right
proportions, and a tail once cut off is never visited. It is a default, not a law: $\alpha$ is counted on what your server
writes, so if that never leaves the top 0.9, draw the answers that way and compare.

</details>

<details><summary>A colleague stores the 64 probabilities, scaled to sum to 1, and saves the fp32 number. What is lost?</summary>

The tail. Such labels say that 49,088 tokens are impossible. A student that believes them perfectly has $\alpha$ = the mass and an
infinite forward KL from the target, and no loss on those labels can ever push it further.

</details>

<details><summary>Why does a shift by one row leave no trace in the loss?</summary>

A row of odds for the token after the next is a row of odds too: positive, sums to 1, learnable to a degree, since the text says
something about it. The loss compares student and label, and both are asked about the same wrong token. Only the target
itself can say that it never said that *there*.

</details>

<details><summary>Is the top-64 mass a hard ceiling for alpha?</summary>

No. It is exact for a student equal to the renormalised 64. One that keeps $p$ on the 64 and spreads the rest gets the mass plus
whatever it hits in the tail: you saw both. It is a ceiling for what the 64 *by name* can teach.

</details>

<details><summary>Why split by prompt, and why before the answers are drawn?</summary>

Answers to one prompt share its topic, its names and often whole sentences. If some are trained on and others held out, the
held-out ones are half known. Split afterwards, a repeat in the list of prompts puts its answers on both sides.

</details>

## Two things to change and rerun

1. In your `score_one`, take the rows from `len(prompt_ids)` on, up to the end, and skip the check that would replace it (put a `#`
   before `score_one = checks...`). Which of the numbers below say that something is wrong, and which look fine?
2. Set `LEAK` in the comparison of yours with lessonlib's to 0.3 and to 0.9 (`leaks` takes it as its third argument). Which twins
   appear, and which vanish? Where would you draw the line?

**Next**: [05 Measure without decoding](05_measure_without_decoding.ipynb) uses the held-out answers to tell how many guesses a
draft would keep, without decoding one. The map of the course is in the [README](../README.md).
"""
