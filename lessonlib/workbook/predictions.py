"""Predict, run, explain: the reader's guess before, and one line with guess, measurement, reference and band after."""

from numbers import Real

from lessonlib.workbook.printing import measured as marked


class Prediction(float):
    """The reader's number, with its unit."""

    def __new__(cls, value, unit=""):
        prediction = super().__new__(cls, value)
        prediction.unit = unit
        return prediction


def said(x, unit="", form=None):
    """A number that is the same on every machine, with its unit."""
    return f"{format(float(x), form or 'g')}{' ' + unit if unit else ''}"


def predict(question, default, unit=""):
    """Ask for a number before the run: the reader types another in place of `default`, which lets Run All pass."""
    if isinstance(default, bool) or not isinstance(default, Real):
        raise TypeError(f"Your prediction must be a number such as 0.5, not {default!r}.")
    print(f"{question}\nYour prediction: {said(default, unit)}. (Another? Change the number above and run this cell again.)")
    return Prediction(default, unit)


def explain(prediction, measured, reference=None, band=None, unit=None, form=None, exact=False, must_hold=False):
    """Print prediction, measurement, the course's reference and its band in one line with a verdict.

    `band` is (low, high), or a half-width around `reference`. `exact` says that the number is the same on every machine, so
    that it is printed and compared as it is. `must_hold` raises AssertionError outside the band.
    """
    unit = getattr(prediction, "unit", "") if unit is None else unit
    if band is not None and not isinstance(band, (tuple, list)):
        band = (reference - band, reference + band)
    parts = [] if prediction is None else [f"you predicted {said(prediction, unit)}"]
    parts.append(f"measured {said(measured, unit, form) if exact else marked(measured, form, unit)}")
    if reference is not None:
        parts.append(f"reference {said(reference, unit, form)}")
    inside = band is None or band[0] <= float(measured) <= band[1]
    if band is not None:
        parts.append(
            f"band {said(band[0], '', form)} to {said(band[1], unit, form)}: {'inside the band' if inside else 'not here'}"
        )
    line = " | ".join(parts)
    if must_hold and not inside:
        raise AssertionError(f"outside its band: {line}")
    print(line)
