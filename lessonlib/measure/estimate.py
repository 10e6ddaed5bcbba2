"""A measured mean with the interval that says how far to trust it."""

import math

import numpy as np

RESAMPLES = 2000


class Estimate(float):
    """A number that knows its 95 % interval: `.low` and `.high`."""

    def __new__(cls, value, low, high):
        self = super().__new__(cls, value)
        self.low, self.high = float(low), float(high)
        return self

    def interval(self, spec=".4f"):
        """The interval as text, its bounds formatted by `spec`; one that is not known (NaN) is a dash."""
        return f"[{', '.join('-' if math.isnan(bound) else format(bound, spec) for bound in (self.low, self.high))}]"

    def __repr__(self):
        return f"{float(self):.4f} {self.interval()}"

    __str__ = __repr__

    def signed(self):
        """The same with signs, for a difference."""
        return f"{float(self):+.4f} {self.interval('+.4f')}"


def ratio_estimate(numerators, denominators, seed=0):
    """Sum of numerators over sum of denominators, with a 95 % interval by resampling whole groups (sequences, prompts) with replacement.

    Positions of one sequence resemble each other, so resampling positions would give an interval that is too narrow. One group alone
    has no spread to resample: its interval is NaN. Source: Efron and Tibshirani 1993, the percentile bootstrap.
    """
    numerators, denominators = np.asarray(numerators, float), np.asarray(denominators, float)
    value = numerators.sum() / denominators.sum()
    if len(numerators) < 2:
        return Estimate(value, np.nan, np.nan)
    chosen = np.random.default_rng(seed).integers(0, len(numerators), (RESAMPLES, len(numerators)))
    totals = denominators[chosen].sum(1)
    ratios = numerators[chosen].sum(1)[totals > 0] / totals[totals > 0]
    return Estimate(value, *np.quantile(ratios, [0.025, 0.975]))
