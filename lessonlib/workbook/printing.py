"""Numbers and words that differ from machine to machine, marked for the reader and for the test that reruns notebooks."""

import math


def significant(x, digits=3):
    """A number to `digits` significant digits without an exponent: 1,234 or 0.0123."""
    x = float(x)
    if x == 0 or not math.isfinite(x):
        return f"{x:.0f}"
    return f"{x:,.{max(0, digits - 1 - math.floor(math.log10(abs(x))))}f}"


def measured(x, form=None, unit=""):
    """`≈0.453`: a number trained, timed or sampled here; `form` is a format such as ".3f" or ".0%" (default: 3 digits).

    The notebook test compares everything around the sign and not the number itself (notebooks/sanitize.cfg).
    """
    return f"≈{significant(x) if form is None else format(float(x), form)}{' ' + unit if unit else ''}"


def here(text):
    """`⟨text⟩`: words that name this machine, a device or a version; the notebook test does not compare what is inside."""
    return f"⟨{str(text).replace('⟩', ')')}⟩"
