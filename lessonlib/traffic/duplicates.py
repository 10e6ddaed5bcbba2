"""Finding prompts that say the same: exact after normalising, or near by the Jaccard similarity of their word 3-shingles.

The search is the prefix filter of Chaudhuri, Ganti and Kaushik (2006): two sets with a Jaccard of t or more share one of the
|x| - ceil(t |x|) + 1 rarest shingles of each, so only those are indexed and every candidate is then compared exactly.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from math import ceil

NEAR = 0.7   # two prompts of one set at or above this are the same prompt
LEAK = 0.5   # a train prompt this close to a held-out or benchmark prompt gives it away


def normalise(text):
    """`text` as one line of lower-case words without punctuation; a text without words stays as it is."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", text)) or text.strip()


def shingles(text):
    """The set of runs of three words in `text` after normalising; a shorter text is one run."""
    words = normalise(text).split()
    return {" ".join(words[i:i + 3]) for i in range(max(1, len(words) - 2))}


def jaccard(first, second):
    """The similarity of two sets: size of what they share over size of both together."""
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)


class Index:
    """Finds, among the texts added so far, one at or above `threshold` (exact); `texts` are all that will ever come."""

    def __init__(self, texts, threshold):
        self.threshold = threshold
        self.sets = [shingles(text) for text in texts]
        counts = Counter(shingle for each in self.sets for shingle in each)
        rarest_first = sorted(counts, key=lambda shingle: (counts[shingle], shingle))
        self.rank = {shingle: place for place, shingle in enumerate(rarest_first)}
        self.places = defaultdict(list)

    def prefix(self, number):
        """The rarest shingles of text `number`: enough that any set close to it has one of them among its own rarest."""
        ranks = sorted(self.rank[shingle] for shingle in self.sets[number])
        shared = ceil(self.threshold * len(ranks) - 1e-9)  # the least that a like set shares; rounding may only lower it
        return ranks[:len(ranks) - shared + 1]

    def add(self, number):
        """Make text `number` findable."""
        for rank in self.prefix(number):
            self.places[rank].append(number)

    def find(self, number):
        """A text added that is at or above the threshold to text `number`, or None."""
        seen = set()
        for rank in self.prefix(number):
            for other in self.places.get(rank, ()):
                if other not in seen:
                    seen.add(other)
                    if jaccard(self.sets[number], self.sets[other]) >= self.threshold:
                        return other
        return None


def deduplicate(rows, threshold=NEAR):
    """Keep the first of each group of like rows ({"prompt": ...}); returns (kept, exact, near), the last two dropped.

    Near means a Jaccard of `threshold` or more on word 3-shingles to a row that was kept.
    """
    rows = list(rows)
    first, exact, unique = set(), [], []
    for row in rows:
        key = normalise(row["prompt"])
        (exact if key in first else unique).append(row)
        first.add(key)
    index, kept, near = Index([row["prompt"] for row in unique], threshold), [], []
    for number, row in enumerate(unique):
        if index.find(number) is None:
            index.add(number)
            kept.append(row)
        else:
            near.append(row)
    return kept, exact, near


def leaks(train, heldout, threshold=LEAK):
    """Split the rows of `train` into (clean, leaking); a leaking one is at or above `threshold` to a row of `heldout`."""
    train, heldout = list(train), list(heldout)
    index = Index([row["prompt"] for row in heldout + train], threshold)
    for number in range(len(heldout)):
        index.add(number)
    clean, leaking = [], []
    for number, row in enumerate(train, len(heldout)):
        (clean if index.find(number) is None else leaking).append(row)
    return clean, leaking
