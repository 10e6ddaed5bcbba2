"""Progress as plain lines of text: rate and time left, a few lines a minute, the same in a terminal, a log and a notebook."""

from time import perf_counter


class Progress:
    """Prints `label  done / total unit (rate, time left)` at most every `every` seconds, and once at the end."""

    def __init__(self, label, total, unit, every=10.0, show=True):
        self.label, self.total, self.unit, self.every, self.show = label, total, unit, every, show
        self.done, self.start = 0, perf_counter()
        self.last = self.start

    def add(self, n=1, note=""):
        """Count `n` more units; `note` is shown at the end of the line."""
        self.done += n
        now = perf_counter()
        if self.show and now - self.last >= self.every and self.done < self.total:
            self.last = now
            rate = self.done / (now - self.start)
            print(f"  {self.label}: {self.done:,} of {self.total:,} {self.unit} "
                  f"({per_second(rate)}, {duration((self.total - self.done) / rate)} left){'  ' + note if note else ''}", flush=True)

    def finish(self, note=""):
        """Print the closing line; returns the seconds that the work took."""
        seconds = perf_counter() - self.start
        if self.show:
            print(f"  {self.label}: {self.done:,} {self.unit} in {duration(seconds)} "
                  f"({per_second(self.done / max(seconds, 1e-9))}){'  ' + note if note else ''}", flush=True)
        return seconds


def per_second(rate):
    """A rate with the digits that tell something: `0.42/s`, `4.2/s`, `420/s`."""
    return f"{rate:,.{0 if rate >= 10 else 1 if rate >= 1 else 2}f}/s"


def duration(seconds):
    """Seconds as a person says them: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
