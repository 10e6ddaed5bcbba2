"""Choosing K while decoding, from what has been kept lately: more proposals where a text is easy, none where they do not pay."""

from lessonlib.errors import LessonError
from lessonlib.measure.speedup import speedup

BEGIN = (2.0, 1.0)  # proposals tested and kept before the first one: an opinion that a few rounds outweigh
MEMORY = 0.98  # of each earlier test when one more is counted: the last fifty or so decide
REST, LONGEST_REST = 256, 4096  # rounds without a proposal before some are tried again; twice as many after each try in vain
TRIES = 4  # proposals tested a try: with what the draft has to read first, a hundredth of the time of such a rest


class AdaptiveK:
    """A policy for `Decoder.decode` in the place of a fixed K: before each round the K of `Ks` that the speed-up formula says is fastest, or 0.

    c and v as in `speedup` (such as `step_costs` measures them); v must be known at each of Ks. The acceptance it goes by is the share kept of the
    proposals tested lately. Where no K pays it decodes plainly, and tries again now and then. It learns from one text to the next.
    Raises LessonError for no Ks, a K below 1, or a c or v that mean nothing.
    """

    def __init__(self, c, v=1.0, Ks=(1, 2, 3, 4, 6, 8)):
        self.Ks, self.c, self.v = tuple(sorted(set(Ks))), c, v
        if not self.Ks or self.Ks[0] < 1:
            raise LessonError(f"an adaptive K needs numbers of proposals to choose from, each 1 or more, not {list(Ks)}.")
        self.most = self.Ks[-1]
        self._tested, self._kept = BEGIN
        self._rest, self._resting, self._trying = REST, 0, 0
        self._best(0.5)  # says now what is wrong with c or v

    @property
    def alpha(self):
        """The share kept of the proposals that were tested lately."""
        return self._kept / self._tested

    def choose(self):
        """K for the next round."""
        if self._resting:
            self._resting -= 1
            self._trying = TRIES if not self._resting else 0
            return 0
        best = self._best(self.alpha)
        if best == 0 and self._trying <= 0:
            self._resting, self._rest = self._rest - 1, min(2 * self._rest, LONGEST_REST)
            return 0
        if best:
            self._rest = REST
        return best or self.Ks[0]

    def learn(self, tested, kept):
        """What became of a round's proposals: how many were reached with all before them kept, and how many were kept."""
        forget = MEMORY ** tested
        self._tested, self._kept = self._tested * forget + tested, self._kept * forget + kept
        self._trying -= tested

    def _best(self, alpha):
        return max((0, *self.Ks), key=lambda K: speedup(alpha, K, self.c, self.v))
