"""Trees of proposals: the texts are the target's own, greedily token for token and sampled in distribution, whatever the tree."""

import pytest
import torch
from decode.test_sampling import EOS, N, PROMPT, V, chi_square_p, every_text

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import Block, Sampling
from lessonlib.decode.tree import accept_tree, accept_tree_greedy, typical
from lessonlib.errors import LessonError
from lessonlib.kernels.draw import draw
from lessonlib.pair.tree import Tree

CPU = torch.device("cpu")
SHAPES = {"two on each row": (0, 0, 1, 1, 2, 2), "three on the root": (0, 0, 0), "a chain": (0, 1, 2), "a comb": (0, 0, 1, 1, 3, 3), "wide and deep": (0, 0, 0, 1, 1, 2, 4, 4, 7)}


class Grown:
    """Proposes a tree of a fixed shape, each token by the draft's odds for its whole path: drawn without replacement, or the likeliest (`certain`)."""

    def __init__(self, draft, parents, certain=False):
        self.draft, self.parents, self.certain = draft, parents, certain

    def reset(self, prompt_ids, sampling):
        self.text, self.sampling = list(prompt_ids), sampling

    def observe(self, tokens):
        self.text += tokens

    def propose(self, K):
        tree = Tree(self.parents)
        parents = [parent for parent, depth in zip(self.parents, tree.depths[1:]) if depth <= K]
        tree = Tree(self.parents) if len(parents) == len(self.parents) else None
        if tree is None:  # near the end of the text: a chain does
            parents = list(range(K))
        rows, tokens, odds, left = {0: []}, [], {}, {}
        for place, parent in enumerate(parents):
            if parent not in odds:
                logits = self.draft(torch.tensor([self.text + rows[parent]])).logits[0, -1]
                odds[parent] = logits.softmax(-1) if self.sampling.greedy else self.sampling.probabilities(logits)
                left[parent] = odds[parent].clone()
            if self.sampling.greedy or self.certain:
                token = int(left[parent].argmax())
            else:
                token = int(draw(left[parent] if left[parent].sum() > 0 else 1 - torch.nn.functional.one_hot(torch.tensor(tokens), V).sum(0).clamp(max=1), self.sampling.uniforms(1, CPU)[0]))
            left[parent][token] = 0
            tokens.append(token)
            rows[place + 1] = rows[parent] + [token]
        probs = None
        if not (self.sampling.greedy or self.certain):
            probs = torch.zeros(len(tokens) + 1, V, dtype=next(iter(odds.values())).dtype)
            for row, each in odds.items():
                probs[row] = each
        return Block(torch.tensor(tokens), probs, tuple(parents))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("amount", [0.05, 0.3])
def test_greedy_texts_are_plain_decodings(tiny, shape, amount):
    target = tiny.llama()
    decoder, draft = Decoder(target), tiny.disturbed(target, amount)
    for prompt in ([1], [2, 3], [4, 5, 6, 7]):
        plain = decoder.decode(prompt, 0, 40).tokens
        found = decoder.decode(prompt, 4, 40, Grown(draft, SHAPES[shape]))
        assert found.tokens == plain and found.rounds < 40
        assert sum(found.accepted) + found.rounds - len(found.tokens) in (0, 1)  # a last round that is cut short writes no token of the target's own


def test_more_on_a_row_keep_more(tiny):
    target = tiny.llama(scale=2.0)
    decoder, draft = Decoder(target), tiny.disturbed(target, 0.3)
    rounds = {shape: sum(decoder.decode([a, b], 3, 40, Grown(draft, parents)).rounds for a in range(6) for b in range(4))
              for shape, parents in {"chain": (0, 1, 2), "tree": (0, 1, 2, 0, 0, 1, 4, 5)}.items()}
    assert rounds["tree"] < rounds["chain"]


SETTINGS = {"without replacement": ((0, 0, 1, 1, 2), {}), "three on the root": ((0, 0, 0), {}), "a chain": ((0, 1), {}), "cut to three tokens": ((0, 0, 1), {"top_k": 3}),
            "a nucleus, warm": ((0, 0, 1, 1), {"temperature": 1.4, "top_p": 0.9}), "the likeliest, no chance": ((0, 0, 1, 1, 2), {"certain": True})}


@pytest.mark.parametrize("name", SETTINGS)
def test_sampled_texts_have_the_targets_distribution(tiny, name):
    target = tiny.llama(vocabulary=V, layers=1, seed=2, positions=16, scale=1.2)
    parents, settings = SETTINGS[name]
    drafter, decoder = Grown(tiny.disturbed(target, 0.5), parents, settings.get("certain", False)), Decoder(target)
    settings = {"temperature": 1.0, "top_k": None, "top_p": None} | {key: value for key, value in settings.items() if key != "certain"}
    sampling = Sampling(**settings, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        results = [decoder.decode(PROMPT, 2, N, drafter, EOS, sampling) for _ in range(1_500)]
    assert chi_square_p(results, every_text(tiny, target, *settings.values())) > 1e-4
    assert 0.2 < sum(sum(result.accepted) for result in results) / sum(sum(result.tested) for result in results) < 0.95


def play(rule, p, q, shape, rounds, seed=0):
    """How often each first token is written over rounds whose proposals on the root are drawn without replacement from q, or are the likeliest where q is None."""
    chance, counts = torch.Generator().manual_seed(seed), torch.zeros(p.shape[-1], dtype=torch.float64)
    width = len(shape.parents)
    for _ in range(rounds):
        if q is None:
            tokens = p.new_tensor([3, 1, 0, 4][:width]).long()
        else:
            left, tokens = q[0].clone(), []
            for _ in range(width):
                tokens.append(int(draw(left, torch.rand((), generator=chance, dtype=torch.float64))))
                left[tokens[-1]] = 0
            tokens = torch.tensor(tokens)
        row, following = rule(p, q, tokens, shape, torch.rand(width + 1, generator=chance, dtype=torch.float64))
        counts[int(tokens[row - 1]) if row else int(following)] += 1
    return counts


def p_value(counts, p):
    expected = p.double() * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(p) - 1) / 2, dtype=torch.float64), statistic / 2).item()


P = torch.tensor([[0.35, 0.05, 0.25, 0.05, 0.3], *[[0.2] * 5] * 4])
Q = torch.tensor([[0.05, 0.4, 0.3, 0.2, 0.05], *[[0.2] * 5] * 4])


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("chance", [True, False])
def test_the_first_token_has_the_targets_odds(width, chance):
    shape = Tree((0,) * width).on(CPU)
    assert p_value(play(accept_tree, P[:width + 1], Q[:width + 1] if chance else None, shape, 6_000), P[0]) > 1e-4


def forgets_what_was_refused(p, q, tokens, shape, uniforms):
    """Judges every proposal by the target's first odds."""
    row = next((i + 1 for i, x in enumerate(tokens) if uniforms[i] * q[0, x] < p[0, x]), 0)
    return row, draw((p[0] - q[0]).clamp_min(0), uniforms[-1])


def keeps_the_drafts_odds(p, q, tokens, shape, uniforms):
    """Draws without replacement and judges as if with it: q does not lose what was refused."""
    ours = p[0].clone()
    for i, x in enumerate(tokens):
        if uniforms[i] * q[0, x] < ours[x]:
            return i + 1, 0
        ours = (ours - q[0]).clamp_min(0)
        ours = ours / ours.sum()
    return 0, draw(ours, uniforms[-1])


SURE = torch.tensor([[0.05, 0.05, 0.3, 0.3, 0.3]] * 4), torch.tensor([[0.9, 0.025, 0.025, 0.025, 0.025]] * 4)


@pytest.mark.parametrize("rule, p, q", [(forgets_what_was_refused, P[:4], Q[:4]), (keeps_the_drafts_odds, *SURE)])
def test_a_rule_that_is_slightly_wrong_is_caught(rule, p, q):
    assert p_value(play(accept_tree, p, q, Tree((0, 0, 0)).on(CPU), 3_000), p[0]) > 1e-4
    assert p_value(play(rule, p, q, Tree((0, 0, 0)).on(CPU), 3_000), p[0]) < 1e-6


def test_typical_acceptance_is_not_the_targets_distribution():
    shape = Tree((0, 0, 0)).on(CPU)
    counts = play(lambda p, q, tokens, shape, uniforms: typical(p, tokens, shape), P[:4], Q[:4], shape, 2_000)
    assert p_value(counts, P[0]) < 1e-12


def test_the_deepest_way_that_is_right_is_kept():
    shape = Tree((0, 0, 1, 2, 2, 5)).on(CPU)
    tokens = torch.tensor([10, 11, 12, 13, 14, 15])
    assert [int(x) for x in accept_tree_greedy(torch.tensor([11, 12, 14, 0, 0, 15, 99]), tokens, shape)] == [6, 99]
    assert [int(x) for x in accept_tree_greedy(torch.tensor([10, 7, 14, 0, 0, 15, 99]), tokens, shape)] == [1, 7]
    assert [int(x) for x in accept_tree_greedy(torch.tensor([9, 12, 14, 0, 0, 15, 99]), tokens, shape)] == [0, 9]


def test_a_tree_deeper_than_asked_for_is_refused(tiny):
    target = tiny.llama()

    class Deep(Grown):
        def propose(self, K):
            return Block(torch.tensor([1, 2, 3]), None, (0, 1, 2))

    with pytest.raises(LessonError, match="proposed 3 tokens, one after another, where 2 were asked for"):
        Decoder(target).decode([1], 2, 10, Deep(target, ()))
