"""A label store seen through a mistake that is easily made: for notebook 09, and for the recorded runs that show what each one costs."""


class Mistaken:
    """A label store with one mistake in its odds; everything else is the store's own."""

    def __init__(self, store):
        self.store = store

    def __len__(self):
        return len(self.store)

    def __getattr__(self, name):
        return getattr(self.store, name)


class OneRowLate(Mistaken):
    """Every position is given the odds of the position after it, as if the target's logits had been cut one row late.

    The last row of an answer, which has none after it, keeps its own.
    """

    def kl_inputs(self, i, T=1.0):
        """As `LabelStore.kl_inputs`, one row late."""
        return tuple(part[[*range(1, len(part)), len(part) - 1]] for part in self.store.kl_inputs(i, T))


class FavouriteOnly(Mistaken):
    """Every position is given the target's favourite token with all of the odds: distillation becomes cross-entropy on the argmax."""

    def kl_inputs(self, i, T=1.0):
        """As `LabelStore.kl_inputs` with k = 1 and no tail."""
        ids, gaps, lse = self.store.kl_inputs(i, T)
        return ids[:, :1], gaps[:, :1], gaps[:, 0].to(lse.dtype) / T
