"""What heads guess, measured in batches: against one text after another, place by place, by the models' own forward."""

import pytest
import torch
from support import moved, sequences, tiny

from lessonlib.drafts.eagle import EagleHead
from lessonlib.drafts.medusa import MedusaHeads
from lessonlib.errors import LessonError
from lessonlib.measure.ahead import look_ahead_measured

SEQS = sequences(7, prompt=(2, 6), response=(6, 12))


@pytest.fixture(scope="module")
def target():
    return tiny(sharp=3, layers=3)


@torch.no_grad()
def by_hand(heads, target, sequences, count, ranks, allowed=None):
    """Of each distance: (alpha, top1, shares), each a mean over all places of all texts."""
    found = [[] for _ in range(count)]
    for prompt, resp in sequences:
        text = torch.tensor(prompt + resp)
        behind, hooks = {}, []
        for number, layer in enumerate(target.model.layers, 1):
            hooks.append(layer.register_forward_hook(lambda module, given, out, number=number: behind.update({number: out[0] if isinstance(out, tuple) else out})))
        logits, last = target(text[None]).logits[0], target.model(text[None]).last_hidden_state[0]
        for hook in hooks:
            hook.remove()
        if hasattr(heads, "taps"):
            features = torch.cat([behind[layer].reshape(len(text), -1) for layer in heads.taps], -1)
            passes = heads.unrolled(text[None], features[None], count)
        for n in range(count):
            for place in range(len(prompt), len(text)):  # of the token that is guessed
                if hasattr(heads, "taps"):
                    q = target.lm_head(passes[n][0, place - 2])
                else:
                    at = place - 2 - n
                    if at < len(prompt) - 1:
                        continue
                    q = target.lm_head(heads.heads[n](last[at]))
                if allowed is not None:
                    q = q.clone()
                    q[[token for token in range(len(q)) if token not in allowed]] = -torch.inf
                p, order = logits[place - 1], q.argsort(descending=True).tolist()
                order = order if allowed is None else order[:len(allowed)]
                token = int(text[place])
                rank = order.index(token) if token in order else ranks
                found[n].append((float(torch.minimum(p.softmax(-1), q.softmax(-1)).sum()), int(p.argmax()) == order[0], [rank == r for r in range(ranks)]))
    return [tuple(torch.tensor([place[i] for place in places], dtype=torch.float64).mean(0) for i in range(3)) for places in found]


@pytest.mark.parametrize("make", [lambda target: MedusaHeads(target, 3), lambda target: EagleHead(target, (1, 3))], ids=["medusa", "eagle"])
@pytest.mark.parametrize("allowed", [None, [0, 3, 5, 8, 13, 21, 34, 55]], ids=["whole", "short"])
def test_every_distance_is_what_it_is_by_hand(target, make, allowed):
    heads = moved(make(target)).eval()
    found = look_ahead_measured(heads, target, SEQS, 3, 10, batch_tokens=40, vocabulary=None if allowed is None else torch.tensor(allowed))
    for ours, (alpha, top1, shares) in zip(found, by_hand(heads, target, SEQS, 3, 10, allowed), strict=True):
        assert ours.alpha == pytest.approx(float(alpha), abs=1e-4) and ours.top1 == pytest.approx(float(top1)) and ours.alpha.low < ours.alpha < ours.alpha.high
        assert list(ours.shares) == pytest.approx(shares.tolist())


@pytest.mark.parametrize("bad, words", [([], "at least one"), ([([], [1, 2])], "at least one"), ([([1], [])], "at least one"), ([([1], [2] * 200)], "128 positions"),
                                        ([([1], [99])], "vocabulary"), ([([1, 2], [3])] * 3, "longer answers")])
def test_answers_that_cannot_be_measured_are_refused(target, bad, words):
    with pytest.raises(LessonError, match=words):
        look_ahead_measured(MedusaHeads(target, 2), target, bad)
