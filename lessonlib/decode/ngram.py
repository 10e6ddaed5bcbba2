"""Proposing without a model: what followed the last time the text said the same few words."""

import torch

from lessonlib.decode.drafter import Block
from lessonlib.decode.warp import is_whole
from lessonlib.errors import LessonError


class NgramDrafter:
    """Looks for the text's last tokens further up in it (prompt and answer), the longest of `longest_match` to `shortest_match` that occurs, and proposes
    what followed there the last time. Proposes nothing where none occurs.

    What it costs is a look-up, whatever the target. Raises LessonError for lengths below 1 or the wrong way round.
    Source: prompt lookup decoding (Saxena 2023).
    """

    def __init__(self, longest_match=4, shortest_match=2):
        if not (is_whole(longest_match) and is_whole(shortest_match)) or not 1 <= shortest_match <= longest_match:
            raise LessonError(f"matches of {shortest_match} to {longest_match} tokens cannot be looked up; give whole numbers of 1 or more, the shortest first in size.")
        self.lengths = range(longest_match, shortest_match - 1, -1)

    def reset(self, prompt_ids, sampling):
        """Start a new text."""
        self.text, self.places = [], {}
        self.observe(prompt_ids)

    def propose(self, K):
        """What followed the last occurrence, at most K tokens; where that runs into the text's end, it goes on with what it has proposed itself."""
        n = len(self.text)
        for length in self.lengths:
            place = self.places.get(tuple(self.text[n - length:])) if n >= length else None
            if place is not None:
                found = self.text[place:place + K]
                while len(found) < K:  # the text repeats itself with a period shorter than K
                    found += found[:K - len(found)]
                return Block(torch.tensor(found))
        return Block(torch.empty(0, dtype=torch.long))

    def observe(self, tokens):
        """Remember where each few tokens were last followed by another one; the last of the text still are not."""
        for token in tokens:
            n = len(self.text)
            for length in self.lengths:
                if n >= length:
                    self.places[tuple(self.text[n - length:])] = n
            self.text.append(int(token))
