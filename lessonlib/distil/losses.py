"""What a draft is trained on: cross-entropy on the target's tokens, or a divergence from its stored odds."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from lessonlib.distil.divergences import FLOOR, forward_kl, jsd, lk, reverse_kl, student_buckets, teacher_buckets, total_variation
from lessonlib.errors import LessonError
from lessonlib.kernels.backend import why_torch
from lessonlib.kernels.copies import to_device

MOST = 0.2  # nats that stored probabilities may sum past 1: fp16 logits round by some hundredths
# One line adds a divergence: a function of (log_p, log_q, **options) that returns one value a row.
DIVERGENCES = {"kl": forward_kl, "reverse_kl": reverse_kl, "jsd": jsd, "tv": total_variation, "lk": lk}


def ce_loss(student_logits, resp_ids):
    """Sequence-level distillation: the ordinary next-token cross-entropy on the text that the target wrote, in nats a token.

    student_logits [R, V]: row j predicts response token j; resp_ids [R]. Source: Kim and Rush 2016. Built in notebook 06.
    """
    return F.cross_entropy(_wide(student_logits), resp_ids.long())


def kl_loss(student_logits, t_ids, t_logits, t_lse, T=1.0):
    """Token-level distillation: forward KL(p || q) over the target's stored top k and one bucket for all the rest, times T squared.

    student_logits [R, V]; t_ids [R, k]; t_logits [R, k], the target's logits at T = 1; t_lse [R], the logsumexp of the target's
    logits / T: at T != 1 it must have been computed for that T (dividing the one for T = 1 by T is not it: the tail would come out
    negative). t_lse=None renormalises over the k ids and drops the tail: the draft is then taught that the rest of the vocabulary is
    impossible, which costs acceptance. Returns the mean over rows, in nats. Raises LessonError for labels of other shapes,
    and where the stored probabilities sum far past 1. Source: Hinton et al. 2015. Built in notebook 06.
    """
    if t_lse is not None and ((t_logits.double() / T).logsumexp(-1) - t_lse.double() > MOST).any():
        raise LessonError("the target's stored probabilities sum to more than 1: t_lse must be the logsumexp of its logits / T, computed at this T; "
                          "score the answers with this temperature kept, or pass t_lse=None.")
    return _divergence(forward_kl, student_logits, t_ids, t_logits, t_lse, T).mean()


@dataclass(frozen=True)
class Labels:
    """What the target said at R response positions: the token it wrote and its stored odds (`kl_loss` says what each is)."""

    resp_ids: torch.Tensor
    ids: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    lse: torch.Tensor | None = None

    def to(self, device):
        """The same labels on another device."""
        return self._each(lambda tensor: to_device(tensor, device))

    def rows(self, rows):
        """The labels of some rows (a slice or an index)."""
        return self._each(lambda tensor: tensor[rows])

    def _each(self, change):
        return Labels(*(None if tensor is None else change(tensor) for tensor in (self.resp_ids, self.ids, self.logits, self.lse)))


@dataclass(frozen=True)
class Objective:
    """A training objective by name: "ce" or a key of DIVERGENCES, at temperature T (times T squared), plus ce_weight times cross-entropy.

    beta is the weight of p in "jsd". renormalise drops the tail bucket, as with t_lse=None in `kl_loss`. Calling it gives one value a row.
    """

    name: str = "kl"
    T: float = 1.0
    beta: float = 0.5
    ce_weight: float = 0.0
    renormalise: bool = False

    def __post_init__(self):
        if self.name != "ce" and self.name not in DIVERGENCES:
            raise LessonError(f'there is no objective "{self.name}"; choose one of ce, {", ".join(DIVERGENCES)}.')
        _check_temperature(self.T)
        if not 0 < self.beta < 1:
            raise LessonError(f"beta cannot be {self.beta}: it must lie between 0 and 1; at the ends use kl or reverse_kl by name.")
        if not 0 <= self.ce_weight < float("inf"):
            raise LessonError(f"ce_weight cannot be {self.ce_weight}; give 0 or a positive number.")

    @property
    def needs_odds(self):
        """Whether the target's stored odds are needed, not only its text."""
        return self.name != "ce"

    def __call__(self, student_logits, labels):
        """One loss a row [R] for student_logits [R, V]."""
        student_logits = _wide(student_logits)
        cross_entropy = F.cross_entropy(student_logits, labels.resp_ids.long(), reduction="none") if self.name == "ce" or self.ce_weight else 0.0
        if self.name == "ce":
            return cross_entropy
        options = {"beta": self.beta} if self.name == "jsd" else {}
        rows = _divergence(DIVERGENCES[self.name], student_logits, labels.ids, labels.logits,
                           None if self.renormalise else labels.lse, self.T, **options)
        return rows + self.ce_weight * cross_entropy

    def why_not_in_place(self, device):
        """None where `in_place` serves this objective on `device`; else the reason why `__call__` and autograd do."""
        if self.name != "ce" and self.ce_weight and self.T != 1:
            return "cross-entropy at T = 1 beside a divergence at another T needs two softmaxes"
        return why_torch(device)

    def in_place(self, labels, vocabulary, scale=1.0):
        """A function (student_logits [R', V], rows) of some rows (a slice) of the labels: one loss a row, as `__call__` gives, while the logits
        become scale times the gradient of their sum; no second tensor of that size.
        """
        from lessonlib.kernels.sparse_divergence_triton import divergence_and_gradient
        written = labels.resp_ids.long()
        name, ids, options = self.name, labels.ids, {"T": self.T, "beta": self.beta}
        if name == "ce":  # forward KL from one stored token that has all of the probability
            name, ids, options = "kl", written[:, None], {}
        else:
            _check_labels(len(written), ids, labels.logits, None if self.renormalise else labels.lse)
            ids = ids.long()

        @cache  # not before the first call: a GPU that is given its first product first works on that meanwhile
        def log_p():
            if self.name == "ce":
                return torch.tensor([0.0, FLOOR], device=written.device).repeat(len(written), 1)
            return teacher_buckets(labels.logits, None if self.renormalise else labels.lse, self.T, ids.shape[-1] < vocabulary).float()

        def loss_and_gradient(logits, rows):
            beside = {"resp_ids": written[rows], "ce_weight": self.ce_weight} if self.ce_weight and self.name != "ce" else {}
            return divergence_and_gradient(logits, ids[rows], log_p()[rows], name, scale, **options, **beside)

        return loss_and_gradient


def _check_temperature(T):
    if not 1e-3 <= T <= 1e3:
        raise LessonError(f"a distillation temperature cannot be {T}; give a number from 0.001 to 1000 (1 copies what is served).")


def _wide(logits):
    return logits if logits.dtype == torch.float64 else logits.float()


def _divergence(divergence, student_logits, t_ids, t_logits, t_lse, T, **options):
    _check_temperature(T)
    _check_labels(len(student_logits), t_ids, t_logits, t_lse)
    student_logits = _wide(student_logits)
    t_ids = t_ids.long()
    log_p = teacher_buckets(t_logits, t_lse, T, tail_exists=t_ids.shape[-1] < student_logits.shape[-1])
    return divergence(log_p.to(student_logits.dtype), student_buckets(student_logits, t_ids, T), **options) * T**2


def _check_labels(rows, t_ids, t_logits, t_lse):
    if t_ids.shape != t_logits.shape or len(t_ids) != rows or (t_lse is not None and t_lse.shape != (rows,)) or t_ids.is_floating_point():
        lse = "" if t_lse is None else f", t_lse {list(t_lse.shape)}"
        raise LessonError(f"the labels do not fit the draft's {rows} rows (t_ids {list(t_ids.shape)} {t_ids.dtype}, t_logits {list(t_logits.shape)}{lse}); "
                          "give one row of ids and logits and one logsumexp a row.")
