"""What heads guess, measured in batches: against one text after another, place by place, by the models' own forward."""

from collections import Counter

import pytest
import torch
from support import moved, sequences, tiny

from lessonlib.decode.sparse_tree import sparse_tree
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
    """(of each distance: (alpha, top1, shares), each a mean over all places of all texts; {way: share of the places where a round can begin and go on so far})."""
    found, ranked = [[] for _ in range(count)], {}
    for which, (prompt, resp) in enumerate(sequences):
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
                    if place - n < max(2, len(prompt)):  # the chain would begin before the response, or before there is a pair
                        continue
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
                ranked.setdefault((which, place - n), []).append(rank)
                found[n].append((float(torch.minimum(p.softmax(-1), q.softmax(-1)).sum()), int(p.argmax()) == order[0], [rank == r for r in range(ranks)]))
    whole = [way for way in ranked.values() if len(way) == count]
    counts = Counter(tuple(way[:depth]) for way in whole for depth in range(1, count + 1) if max(way[:depth]) < ranks)
    return ([tuple(torch.tensor([place[i] for place in places], dtype=torch.float64).mean(0) for i in range(3)) for places in found],
            {way: times / len(whole) for way, times in counts.items()})


@pytest.mark.parametrize("make", [lambda target: MedusaHeads(target, 3), lambda target: EagleHead(target, (1, 3))], ids=["medusa", "eagle"])
@pytest.mark.parametrize("allowed", [None, [0, 3, 5, 8, 13, 21, 34, 55]], ids=["whole", "short"])
def test_every_distance_is_what_it_is_by_hand(target, make, allowed):
    heads = moved(make(target)).eval()
    found = look_ahead_measured(heads, target, SEQS, 3, 10, batch_tokens=40, vocabulary=None if allowed is None else torch.tensor(allowed))
    guesses, ways = by_hand(heads, target, SEQS, 3, 10, allowed)
    assert dict((way, share) for share, way in found.ways) == pytest.approx(ways) and len(ways) > 3
    assert [share for share, _ in found.ways] == sorted(ways.values(), reverse=True)
    parents, ranks = sparse_tree(found.ways, len(ways))
    assert len(ranks) == len(ways)
    for ours, (alpha, top1, shares) in zip(found.guesses, guesses, strict=True):
        assert ours.alpha == pytest.approx(float(alpha), abs=1e-4) and ours.top1 == pytest.approx(float(top1)) and ours.alpha.low < ours.alpha < ours.alpha.high
        assert list(ours.shares) == pytest.approx(shares.tolist())


@pytest.mark.parametrize("bad, words", [([], "at least one"), ([([], [1, 2])], "at least one"), ([([1], [])], "at least one"), ([([1], [2] * 200)], "128 positions"),
                                        ([([1], [99])], "vocabulary"), ([([1, 2], [3])] * 3, "longer answers")])
def test_answers_that_cannot_be_measured_are_refused(target, bad, words):
    with pytest.raises(LessonError, match=words):
        look_ahead_measured(MedusaHeads(target, 2), target, bad)
