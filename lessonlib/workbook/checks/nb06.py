"""Notebook 06: forward KL over the stored odds with a tail bucket (t6), one training step, and what training holds in memory (t5)."""

import torch
import torch.nn.functional as F

from lessonlib.workbook.checks.common import keeps_the_gradient, tensor
from lessonlib.workbook.exercise import Exercise, Mistake, Property

SMALLEST = 1e-12  # a tail below this counts as this: a logarithm of 0 would spoil the gradient


def kl_loss(student_logits, t_ids, t_logits, t_lse, T=1.0):
    """Forward KL(p || q) in nats over the stored k tokens and one tail bucket, mean over rows, times T squared.

    student_logits [R, V]; t_ids int64 [R, k]; t_logits [R, k] at T = 1; t_lse [R], the logsumexp of the target's logits / T.
    """
    return kl_with()(student_logits, t_ids, t_logits, t_lse, T)


def _body(log_p, log_q):
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _tail(p_tail, q_tail):
    p_tail, q_tail = p_tail.clamp_min(SMALLEST), q_tail.clamp_min(SMALLEST)
    return p_tail * (p_tail / q_tail).log()


def kl_with(body=_body, tail=_tail, mean=torch.mean, axis=-1, scale=lambda T: T**2, student_T=lambda T: T, target_T=lambda T: T, normalised=True):
    """The loss from its parts; each option but the defaults is a slip."""

    def loss(student_logits, t_ids, t_logits, t_lse, T=1.0):
        log_q = (student_logits.float() / student_T(T)).log_softmax(axis) if normalised else student_logits.float() / T
        log_q = log_q.gather(-1, t_ids)
        log_p = t_logits.float() / target_T(T) - t_lse[:, None]
        rows = body(log_p, log_q) + tail(1 - log_p.exp().sum(-1), 1 - log_q.exp().sum(-1))
        return mean(rows) * scale(T)

    return loss


def no_tail(p_tail, q_tail):
    """A tail that is left out."""
    return 0.0


def renormalised(student_logits, t_ids, t_logits, t_lse, T=1.0):
    """A wrong answer: the stored odds scaled to sum to 1, so that the tail gets nothing."""
    return kl_with(tail=no_tail)(student_logits, t_ids, t_logits, (t_logits / T).logsumexp(-1), T)


def _favourite_only(student_logits, t_ids, t_logits, t_lse, T=1.0):
    return F.cross_entropy(student_logits.float() / T, t_ids[:, 0]) * T**2


def labels_of(logits, k, T=1.0):
    """What a store would hold of the target's logits [R, V]: ids [R, k], logits [R, k], and the logsumexp of logits / T."""
    top = logits.topk(k)
    return top.indices, top.values, (logits / T).logsumexp(-1)


def _drawn(rng):
    V, k = int(rng.integers(4, 7)), int(rng.integers(2, 4))
    rows = V + int(rng.integers(1, 3))  # more rows than tokens, so that a softmax over the wrong axis shows
    student, target = (2 * torch.from_numpy(rng.standard_normal((rows, V))) for _ in range(2))
    T = float(rng.choice([1.0, 1.5, 2.0]))
    return (student, *labels_of(target, k, T), T)


WORKED = tensor(0.6, 0.35, 0.05).log()[None], *labels_of(tensor(0.5, 0.3, 0.2).log()[None], 2)


def _never_negative(fn, rng):
    return all(float(fn(*_drawn(rng))) > -1e-6 for _ in range(20))


def _survives_rounding(fn, rng):
    """Whether loss and gradient are finite where the stored probabilities sum to a little more than 1."""
    student, t_ids, t_logits, t_lse, _ = _drawn(rng)
    student.requires_grad_()
    loss = fn(student, t_ids, t_logits, t_logits.logsumexp(-1) - 1e-3)
    loss.backward()
    return bool(loss.isfinite() and student.grad.isfinite().all())


ex_6_1 = Exercise(
    "6.1",
    kl_loss,
    returns="one number: the mean over the rows, in nats",
    look="'Forward KL over what was stored' above: 64 terms and a tail, p_tail log(p_tail / q_tail), mean over rows, times T squared.",
    edges=[
        ("the worked example: 0.1399", WORKED),
        ("a draft that equals the target", (tensor([2, 1, 0, -1]), *labels_of(tensor([2, 1, 0, -1]), 2))),
        ("T = 2", (tensor([2, 1, 0, -1]), *labels_of(tensor([1, 2, 0, 0]), 2, 2.0), 2.0)),
        ("two positions", (tensor([2, 1, 0, -1], [0, 0.5, 3, 2]), *labels_of(tensor([1, 2, 0, 0], [3, 0, 0, 1]), 2))),
    ],
    draw=_drawn,
    mistakes=[
        Mistake("no tail", kl_with(tail=no_tail),
                "the tail is missing: without it the loss can fall below 0, as it pays the draft for taking odds from the rest"),
        Mistake("renormalised", renormalised,
                "the stored odds were scaled to sum to 1, which claims that the target never says anything else: t_lse gives them exactly"),
        Mistake("KL swapped", kl_with(lambda log_p, log_q: _body(log_q, log_p), lambda p, q: _tail(q, p)),
                "this is KL(q || p), the reverse: weigh log p - log q by the target's p"),
        Mistake("CE for KL", kl_with(lambda log_p, log_q: -(log_p.exp() * log_q).sum(-1),
                                     lambda p, q: -p.clamp_min(SMALLEST) * q.clamp_min(SMALLEST).log()),
                "this is the cross-entropy -sum p log q: the target's entropy is still in it, so equal models do not give 0"),
        Mistake("CE on the favourite", _favourite_only,
                "only the target's favourite is used, a one-hot label: all k odds and the tail belong into the sum"),
        Mistake("T squared missing", kl_with(scale=lambda T: 1.0),
                "the factor T squared is missing: it gives back what dividing both logits by T takes from the gradient"),
        Mistake("times T", kl_with(scale=lambda T: T), "multiplied by T once: the factor is T squared"),
        Mistake("softmax over the wrong axis", kl_with(axis=0),
                "the softmax runs over the positions: the vocabulary is the last dimension, dim=-1"),
        Mistake("temperature on the target only", kl_with(student_T=lambda T: 1.0),
                "only the target is divided by T: the draft would learn to be that flat at temperature 1"),
        Mistake("temperature on the draft only", kl_with(target_T=lambda T: 1.0),
                "only the draft is divided by T; the target's logits must be as well (t_lse was computed at T already)"),
        Mistake("no log_softmax", kl_with(normalised=False),
                "the draft's logits are taken for log-probabilities: log_softmax over the whole vocabulary comes first"),
        Mistake("summed over rows", kl_with(mean=torch.sum), "summed over the rows: a loss must not grow with the length of the text"),
        Mistake("mean over tokens too", kl_with(lambda log_p, log_q: (log_p.exp() * (log_p - log_q)).mean(-1)),
                "the k terms are averaged: sum over the tokens, then take the mean over the rows"),
        Mistake("tail upside down", kl_with(tail=lambda p, q: -_tail(p, q)),
                "the tail has its sign turned, or its fraction upside down: p_tail log(p_tail / q_tail) is added"),
    ],
    properties=[
        keeps_the_gradient(_drawn, place=0),
        Property("a divergence is never negative", _never_negative, "a term has the wrong sign or weight"),
        Property("loss and gradient stay finite where the rounded stored odds sum to a little over 1", _survives_rounding,
                 "1 minus the sum may come out at 0 or below it: clamp both tails to a tiny positive number before the logarithm"),
    ],
    tolerance=1e-5,
)


class ToyDraft(torch.nn.Module):
    """One weight for each of V tokens, and a gradient left over from the step before; `losses_of` gives its losses.

    The weight is a plain tensor, since a copy of a Parameter has lost its gradient.
    """

    def __init__(self, weight, left_over):
        super().__init__()
        self.weight = torch.tensor(weight, dtype=torch.float64, requires_grad=True)
        self.weight.grad = torch.full_like(self.weight, left_over)

    def named_parameters(self, *options, **named_options):
        """Its one tensor: parameters() and zero_grad() go by this."""
        yield "weight", self.weight

    def __repr__(self):
        return f"a draft with weights {[round(w, 2) for w in self.weight.tolist()]}"


class Descent(torch.optim.SGD):
    """Plain gradient descent, shown by its name."""

    def __repr__(self):
        return "plain descent"


def losses_of(draft, ids):
    """The toy's losses at every place of ids [B, S]: how far the weight of the token there is from 1, squared."""
    return (draft.weight[ids] - 1) ** 2


def train_step(draft, optimizer, micro_batches, losses_of):
    """One optimizer step over micro-batches [(inputs, counted), ...]; returns (mean loss of a counted token, gradient norm).

    losses_of(draft, inputs) gives losses [B, S]; counted, bool [B, S], is True at the answers' tokens. The gradient is that of the mean
    over all counted tokens of all micro-batches, clipped to norm 1.
    """
    return step_with()(draft, optimizer, micro_batches, losses_of)


def step_with(loss=lambda losses, counted, tokens, parts: losses[counted].sum() / tokens, zero=lambda i: i == 0, step=lambda last: last):
    """The step from its parts; each option but the defaults is a slip."""

    def train(draft, optimizer, micro_batches, losses_of):
        tokens, total = sum(int(counted.sum()) for _, counted in micro_batches), 0.0
        for i, (inputs, counted) in enumerate(micro_batches):
            if zero(i):
                optimizer.zero_grad()
            part = loss(losses_of(draft, inputs), counted, tokens, len(micro_batches))
            part.backward()
            total += part.item()
            last = i == len(micro_batches) - 1
            if last or step(last):
                norm = torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
                optimizer.step()
        return total, norm.item()

    return train


def toy(weight, micro_batches, left_over=0.0, lr=0.1):
    """Arguments for a step: micro-batches as (ids, counted) lists."""
    draft = ToyDraft(weight, left_over)
    read = [(torch.tensor(ids), torch.tensor(counted, dtype=torch.bool)) for ids, counted in micro_batches]
    return draft, Descent(draft.parameters(), lr), read, losses_of


def _toy_drawn(rng):
    batches = []
    for _ in range(int(rng.integers(2, 4))):
        B, S = (int(n) for n in rng.integers(1, 4, 2))
        counted = rng.random((B, S)) < 0.6
        counted[0, 0] = True
        batches.append((rng.integers(0, 3, (B, S)).tolist(), counted.tolist()))
    return toy(rng.uniform(-1, 3, 3).tolist(), batches, float(rng.choice([0.0, 0.5])))


def _moves_as_it_should(fn, rng):
    """Whether the weights end where one descent step on the clipped gradient of the token mean takes them."""
    for _ in range(5):
        draft, optimizer, batches, losses = _toy_drawn(rng)
        tokens = torch.cat([losses(draft, ids)[counted] for ids, counted in batches])
        (gradient,) = torch.autograd.grad(tokens.mean(), draft.weight)
        wanted = draft.weight.detach() - 0.1 * gradient / max(1.0, float(gradient.norm()))
        fn(draft, optimizer, batches, losses)
        if not torch.allclose(draft.weight.detach(), wanted, atol=1e-5):
            return False
    return True


ONE_LONG = [([[0, 1, 2, 2]], [[1, 1, 1, 1]]), ([[1, 0, 0, 0]], [[1, 0, 0, 0]])]
ex_6_2 = Exercise(
    "6.2",
    train_step,
    returns="two numbers: the mean loss of a counted token, and the gradient's norm before clipping",
    look="'One step, cut into pieces' above: count the tokens of all pieces first, then add up each piece's sum divided by that count.",
    edges=[
        ("one micro-batch, nothing to leave out", toy([3, 1, 0], [([[0, 1, 2]], [[1, 1, 1]])])),
        ("padding at the end", toy([3, 2, 0], [([[0, 1, 2, 2]], [[1, 1, 0, 0]])])),
        ("a long piece and a short one", toy([3, 1.5, 0], ONE_LONG)),
        ("a gradient left over from the step before", toy([3, 1.5, 0], ONE_LONG, left_over=2.0)),
    ],
    draw=_toy_drawn,
    mistakes=[
        Mistake("mean of means", step_with(lambda losses, counted, tokens, parts: losses[counted].mean() / parts),
                "each piece was averaged first, so a token of a short piece weighs more: divide sums by the tokens of the whole batch"),
        Mistake("not divided by the pieces", step_with(lambda losses, counted, tokens, parts: losses[counted].mean()),
                "the pieces' means are added up: the gradient grows with the number of pieces"),
        Mistake("padding counted", step_with(lambda losses, counted, tokens, parts: losses.sum() / tokens),
                "every place is in the sum, padding and prompt too: keep losses[counted] only"),
        Mistake("padding in the mean", step_with(lambda losses, counted, tokens, parts: losses.mean() / parts),
                "the mean runs over every place of the piece, padding and prompt too: keep losses[counted], divide by the counted tokens"),
        Mistake("zeros for padding, mean over all", step_with(lambda losses, counted, tokens, parts: (losses * counted).mean() / parts),
                "the padding's losses are 0 but still counted in the mean: divide by the number of counted tokens"),
        Mistake("summed", step_with(lambda losses, counted, tokens, parts: losses[counted].sum()),
                "the losses are summed and never divided: divide by the counted tokens of the whole batch"),
        Mistake("old gradient kept", step_with(zero=lambda i: False),
                "the gradient of the step before is still there: optimizer.zero_grad() once, before the first piece"),
        Mistake("zeroed at every piece", step_with(zero=lambda i: True),
                "zero_grad() runs at every piece, so only the last one is left: once, before the first"),
        Mistake("a step at every piece", step_with(zero=lambda i: True, step=lambda last: True),
                "the optimizer steps at every piece: that is a smaller batch with more steps; step once, after the last"),
        Mistake("a step at every piece, gradients kept", step_with(step=lambda last: True),
                "the optimizer steps at every piece; step once, after the last"),
    ],
    properties=[
        Property("the weights end where one step on the clipped gradient takes them", _moves_as_it_should,
                 "the optimizer did not step exactly once, or the gradient was not clipped to norm 1 before it")
    ],
)


def training_bytes(trained, frozen, frozen_bytes=4):
    """Bytes held while AdamW trains (weights, gradients, optimizer state, all of it): trained and frozen count parameters, trained in fp32."""
    return bytes_with()(trained, frozen, frozen_bytes)


def bytes_with(weights=lambda trained, frozen, size: 4 * trained + size * frozen, gradients=lambda trained, frozen: 4 * trained,
               state=lambda trained, frozen: 8 * trained):
    """The bytes from their parts; each option but the defaults is a slip."""

    def count(trained, frozen, frozen_bytes=4):
        parts = weights(trained, frozen, frozen_bytes), gradients(trained, frozen), state(trained, frozen)
        return *parts, sum(parts)

    return count


def _linear(fn, rng):
    a, b = (int(n) for n in rng.integers(1, 1000, 2))
    return list(fn(a + b, 0)) == [x + y for x, y in zip(fn(a, 0), fn(b, 0))]


ex_6_3 = Exercise(
    "6.3",
    training_bytes,
    returns="four numbers: bytes of the weights, of the gradients, of the optimiser's state, and their sum",
    look="'What training holds' above: 4 + 4 + 8 bytes for a parameter that trains, frozen_bytes for one that does not.",
    edges=[
        ("one parameter that trains: 16 bytes", (1, 0)),
        ("one frozen in fp32", (0, 1)),
        ("one of each, the frozen one in bf16", (1, 1, 2)),
    ],
    draw=lambda rng: (int(rng.integers(1, 10**6)), int(rng.integers(1, 10**6)), int(rng.choice([1, 2, 4]))),
    mistakes=[
        Mistake("one moment only", bytes_with(state=lambda trained, frozen: 4 * trained),
                "AdamW keeps two fp32 numbers a parameter, the mean of the gradient and of its square: 8 bytes"),
        Mistake("frozen counted as trained", bytes_with(lambda trained, frozen, size: 4 * (trained + frozen), lambda trained, frozen: 4 * (trained + frozen),
                                                        lambda trained, frozen: 8 * (trained + frozen)),
                "the frozen parameters are counted like the others: they have neither gradient nor optimizer state, only the weight"),
        Mistake("frozen has a gradient", bytes_with(gradients=lambda trained, frozen: 4 * (trained + frozen)),
                "a frozen parameter has no gradient"),
        Mistake("frozen forgotten", bytes_with(lambda trained, frozen, size: 4 * trained), "the frozen weights have to be held too"),
        Mistake("trained in frozen's format", bytes_with(lambda trained, frozen, size: size * (trained + frozen)),
                "what trains is held in fp32, 4 bytes, whatever the frozen weights are in"),
        Mistake("gradients forgotten", bytes_with(gradients=lambda trained, frozen: 0), "every trained parameter has a gradient in fp32: 4 bytes"),
    ],
    properties=[Property("twice the parameters take twice the bytes", _linear, "something is counted that does not depend on the parameters")],
)
