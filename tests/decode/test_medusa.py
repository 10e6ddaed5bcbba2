"""Medusa heads: C31, the drafter's chains and trees, and that every text is the target's own."""

import pytest
import torch
from decode.test_eagle import TEXT, _Prefixed
from decode.test_sampling import EOS, N, PROMPT, V, chi_square_p, every_text
from support import ways_of

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import Sampling
from lessonlib.decode.medusa import MedusaDrafter
from lessonlib.decode.sparse_tree import sparse_tree
from lessonlib.drafts.medusa import MedusaHead, MedusaHeads
from lessonlib.errors import LessonError
from lessonlib.pair.tree import Tree


def heads_of(target, count=3):
    torch.manual_seed(1)
    heads = MedusaHeads(target, count).double().eval().requires_grad_(False)
    for weight in heads.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.3)
    return heads


def test_a_head_begins_as_the_identity(tiny):
    h = torch.randn(5, 32)
    torch.testing.assert_close(MedusaHead(32)(h), h)
    heads = MedusaHeads(tiny.llama(), 2)
    assert heads(h).shape == (5, 2, 32) and heads(h, 1).shape == (5, 1, 32)
    assert sum(p.numel() for p in MedusaHead(4096).parameters()) == 16_781_312  # the 17 M a head of the 8B


def test_the_chain_is_each_heads_favourite_of_the_last_state(tiny):
    target = tiny.llama(layers=2)
    heads, step = heads_of(target), Decoder(target).step
    step.tap((2,))
    step.read(TEXT)
    drafter = MedusaDrafter(heads, target)
    drafter.reset(TEXT + [0], Sampling(), step.features)
    hidden = target.model(torch.tensor([TEXT])).last_hidden_state[0, -1]
    expected = [int(target.lm_head(head(hidden)).argmax()) for head in heads.heads]
    assert drafter.propose(3).tokens.tolist() == expected and drafter.propose(2).tokens.tolist() == expected[:2] and len(drafter.propose(9).tokens) == 3


def test_the_sparse_tree_takes_the_likeliest_ways():
    parents, ranks = sparse_tree(ways_of([[0.5, 0.2, 0.1], [0.4, 0.3], [0.3]]), 6)
    # .5, then .2 (the same as .5 * .4), .15, .1, ...: by hand
    ways = {0: ()}
    for place, (parent, rank) in enumerate(zip(parents, ranks), 1):
        ways[place] = (*ways[parent], rank)
    assert set(ways.values()) == {(), (0,), (1,), (0, 0), (0, 1), (2,), (1, 0)}
    assert len(Tree(sparse_tree(ways_of([[0.5] * 4] * 3), 40)[0])) == 40 and len(sparse_tree(ways_of([[0.5, 0.1]]), 40)[0]) == 2
    for ways, budget in (([], 5), (ways_of([[0.5]]), 0)):
        with pytest.raises(LessonError, match="there is no tree"):
            sparse_tree(ways, budget)


TREE = sparse_tree(ways_of([[0.5, 0.3, 0.1], [0.4, 0.3], [0.3, 0.2]]), 10)


@pytest.mark.parametrize("tree, vocabulary", [(None, None), (TREE, None), (TREE, range(0, 64, 2))], ids=["chain", "tree", "half the vocabulary"])
def test_greedy_texts_are_plain_decodings(tiny, tree, vocabulary):
    target = tiny.llama(layers=3)
    decoder, drafter = Decoder(target), MedusaDrafter(heads_of(target), target, tree, vocabulary)
    for prompt in ([1], [2, 3], TEXT):
        for K in (1, 2, 3, 5):
            found = decoder.decode(prompt, K, 30, drafter)
            assert found.tokens == decoder.decode(prompt, 0, 30).tokens and sum(found.proposed[3:]) == 0


@pytest.mark.parametrize("tree, vocabulary", [(None, None), (sparse_tree(ways_of([[0.5, 0.3], [0.4, 0.3]]), 5), None), (None, [0, 2, 3, 5])], ids=["chain", "tree", "some of the vocabulary"])
def test_sampled_texts_have_the_targets_distribution(tiny, tree, vocabulary):
    target = tiny.llama(vocabulary=V, layers=1, seed=2, positions=16, scale=1.2)
    decoder, drafter = Decoder(target), MedusaDrafter(heads_of(target, 2), target, tree, vocabulary)
    sampling = Sampling(1.0, generator=torch.Generator().manual_seed(0))
    results = [decoder.decode([1, *PROMPT], 2, N, drafter, EOS, sampling) for _ in range(1_500)]
    assert chi_square_p(results, every_text(_Prefixed(tiny, [1]), target, 1.0, None, None)) > 1e-4


def test_a_tree_deeper_than_there_are_heads_is_refused(tiny):
    target = tiny.llama()
    with pytest.raises(LessonError, match="a tree 3 deep needs as many Medusa heads, and there are 2"):
        MedusaDrafter(heads_of(target, 2), target, TREE)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_number_of_heads_that_is_none_is_refused(tiny, count):
    with pytest.raises(LessonError, match="Medusa heads"):
        MedusaHeads(tiny.llama(), count)
