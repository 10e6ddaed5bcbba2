"""Choosing K while decoding, from what has been kept lately: more proposals where a text is easy, none where they do not pay."""

import math

from lessonlib.errors import LessonError
from lessonlib.measure.speedup import speedup

OPINION = 2.0  # proposals tested that a first opinion, and one that has rested, counts for: a few rounds outweigh it
MEMORY, LATELY = 0.998, 0.97  # of each earlier test when one more is counted: five hundred or so decide, since where all K are nearly as fast, few let chance pick
CHANGE = 3.0  # standard errors of a mean of as many as LATELY remembers, beyond which the text has changed and the last tests alone count
REST, LONGEST_REST = 256, 4096  # rounds without a proposal before some are tried again; twice as many after each try in vain
TRIES = 8  # proposals tested before it rests, so that one that was unlucky does not decide


class AdaptiveK:
    """A policy for `Decoder.decode` in the place of a fixed K: before each round the K of `Ks` that the speed-up formula says is fastest, or 0.

    c and v as in `speedup` (such as `step_costs` measures them); v must be known at each of Ks. The acceptance it goes by is the share kept of the
    proposals tested, the last of them alone where they differ clearly. Where no K pays it decodes plainly, and tries again now and then. It learns from one text to the next.
    Raises LessonError for no Ks, a K below 1, or a c or v that mean nothing.
    """

    def __init__(self, c, v=1.0, Ks=(1, 2, 3, 4, 6, 8)):
        self.Ks, self.c, self.v = tuple(sorted(set(Ks))), c, v
        if not self.Ks or self.Ks[0] < 1:
            raise LessonError(f"an adaptive K needs numbers of proposals to choose from, each 1 or more, not {list(Ks)}.")
        self.most = self.Ks[-1]
        self._tested, self._kept = self._lately = OPINION, OPINION / 2
        self._rest, self._resting, self._trying = REST, 0, TRIES
        self._hopeless = self._best(1.0) == 0  # no K pays even where all is kept

    @property
    def alpha(self):
        """The share kept of the last five hundred or so proposals tested, or of those since the text has changed."""
        return self._kept / self._tested

    def choose(self):
        """K for the next round."""
        if self._hopeless:
            return 0
        if self._resting:
            self._resting -= 1
            if not self._resting:  # what was seen so long ago is little more than an opinion
                self._trying, (self._tested, self._kept) = TRIES, (OPINION, OPINION * self.alpha)
                self._lately = self._tested, self._kept
            return 0
        alpha = self.alpha
        best = self._best(alpha)
        # a rest is long, so it must be clear that nothing pays: not even if alpha is one standard error higher
        if best == 0 and self._trying <= 0 and self._best(min(1.0, alpha + math.sqrt(alpha * (1 - alpha) / self._tested))) == 0:
            self._resting, self._rest = self._rest - 1, min(2 * self._rest, LONGEST_REST)
            return 0
        if best:
            self._rest = REST
        return best or self.Ks[0]

    def learn(self, tested, kept):
        """What became of a round's proposals: how many were reached with all before them kept, and how many were kept."""
        self._tested, self._kept = self._tested * MEMORY ** tested + tested, self._kept * MEMORY ** tested + kept
        lately = self._lately = tuple(old * LATELY ** tested + new for old, new in zip(self._lately, (tested, kept)))
        if abs(lately[1] / lately[0] - self.alpha) > CHANGE * math.sqrt(self.alpha * (1 - self.alpha) / lately[0]):
            self._tested, self._kept = lately
        self._trying -= tested

    def _best(self, alpha):
        return max((0, *self.Ks), key=lambda K: speedup(alpha, K, self.c, self.v))
