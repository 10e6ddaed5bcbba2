"""The EAGLE drafter drafts what its head was trained to: pass n of the unrolled head is its n-th token; and every text is the target's own."""

from copy import deepcopy

import pytest
import torch
from decode.test_sampling import EOS, N, PROMPT, V, chi_square_p, every_text
from support import ways_of

from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import Sampling
from lessonlib.decode.eagle import EagleDrafter
from lessonlib.decode.medusa import MedusaDrafter
from lessonlib.decode.sparse_tree import sparse_tree, up_to
from lessonlib.drafts.eagle import EagleHead
from lessonlib.drafts.medusa import MedusaHeads
from lessonlib.errors import LessonError
from lessonlib.pair.llama_step import LlamaStep
from lessonlib.pair.tree import tree_of

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def head_of(target, taps=None):
    torch.manual_seed(1)
    head = EagleHead(target, taps).double().eval().requires_grad_(False)
    for weight in head.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.05)
    return head


def features_of(target, head, text):
    step = LlamaStep(target)
    step.tap(head.taps)
    step.read(text)
    return step.features


def read(drafter):
    """(the state behind the drafter's text, where the pairs of a draft begin)."""
    ids, features = drafter.fresh
    drafter._reserve(64)
    out = drafter._read(torch.tensor([drafter.pairs, len(ids), *ids]), features)
    return out[-1:], torch.tensor([drafter.pairs + len(ids)])


@pytest.mark.parametrize("taps", [None, (1, 2, 3)])
@torch.inference_mode()
def test_the_nth_token_drafted_is_the_nth_pass_of_training(tiny, taps):
    target = tiny.llama(layers=3)
    head, n = head_of(target, taps), 6
    features = features_of(target, head, TEXT)
    passes = head.unrolled(torch.tensor([TEXT]), features[None], 4)
    drafter = EagleDrafter(head)
    drafter.reset(TEXT[:n], Sampling(), features[:n - 1])
    out, start = read(drafter)
    torch.testing.assert_close(drafter._logits(out)[0], target.lm_head(passes[0][0, n - 2]))
    for number in range(1, 4):  # on the text's own tokens, as in training
        place = n - 2 + number
        out = drafter._run(start, out, torch.tensor(TEXT[place + 1:place + 2]), *[torch.tensor([number - 1])] * 2, torch.ones(1, number, dtype=torch.bool))
        torch.testing.assert_close(drafter._logits(out)[0], target.lm_head(passes[number][0, place]))


@torch.inference_mode()
def test_what_was_drafted_leaves_no_trace(tiny):
    target = tiny.llama(layers=3)
    head = head_of(target)
    features, drafters = features_of(target, head, TEXT), [EagleDrafter(head), EagleDrafter(head), EagleDrafter(head, 9, 3), EagleDrafter(head, tree=TREE)]
    for drafter in drafters:
        drafter.reset(TEXT[:4], Sampling(), features[:3])
    for drafter in drafters[1:]:
        assert drafter.propose(5).tokens.tolist() == drafter.propose(5).tokens.tolist()
    for drafter in drafters:  # the first is told of everything at once, without a round between
        drafter.observe(TEXT[4:7], features[3:6])
    states = [read(drafter) for drafter in drafters]
    for state, start in states[1:]:
        torch.testing.assert_close(state, states[0][0])
        assert start == states[0][1]


TREE = sparse_tree(ways_of([[0.7, 0.2, 0.1], [0.7, 0.2], [0.7, 0.2], [0.7]]), 14)


@torch.inference_mode()
def test_a_tree_of_fixed_shape_holds_the_tokens_of_its_ranks(tiny):
    """Each proposal against a chain that takes the tokens before it, one after another."""
    target = tiny.llama(layers=3)
    head = head_of(target)
    features = features_of(target, head, TEXT)
    drafter = EagleDrafter(head, tree=TREE)
    drafter.reset(TEXT, Sampling(), features[:-1])
    for K in (1, 2, 4):
        block, (parents, ranks) = drafter.propose(K), up_to(TREE, K)
        assert block.parents == parents and len(block.tokens) == len(ranks) and tree_of(parents).deepest == K
        for row, path in enumerate(tree_of(parents).path):
            below = [i for i, parent in enumerate(parents) if parent == row]
            if not below:
                continue
            out, start = read(drafter)
            for number, step in enumerate(path[1:]):
                out = drafter._run(start, out, block.tokens[step - 1:step], *[torch.tensor([number])] * 2, torch.ones(1, number + 1, dtype=torch.bool))
            best = drafter._logits(out)[0].topk(5).indices
            assert [block.tokens[i] for i in below] == [best[ranks[i]] for i in below]


@torch.inference_mode()
def test_rows_that_stand_for_nothing_change_nothing(tiny):
    """On a GPU as many rows are read whatever is new: what stands in those beyond is never seen."""
    target = tiny.llama(layers=3)
    for make in (EagleDrafter, lambda head: EagleDrafter(head, 9, 3), lambda head: EagleDrafter(head, tree=TREE)):
        drafters = [make(head_of(target)) for _ in range(2)]
        drafters[1].rows = 5
        features = features_of(target, drafters[0].module, TEXT)
        for drafter in drafters:
            drafter.reset(TEXT[:3], Sampling(), features[:2])
        for first, last in ((3, 4), (4, 6), (6, 12)):
            blocks = [drafter.propose(4) for drafter in drafters]
            assert blocks[0].tokens.tolist() == blocks[1].tokens.tolist() and blocks[0].parents == blocks[1].parents
            for drafter in drafters:
                drafter.observe(TEXT[first:last], features[first - 1:last - 1])
        assert drafters[0].propose(4).tokens.tolist() == drafters[1].propose(4).tokens.tolist()


def test_a_tree_of_width_one_is_the_chain(tiny):
    target = tiny.llama(layers=3)
    head = head_of(target)
    features = features_of(target, head, TEXT)
    chain, tree = EagleDrafter(head), EagleDrafter(head, 5, 1)
    for drafter in (chain, tree):
        drafter.reset(TEXT, Sampling(), features[:-1])
    assert tree.propose(5).tokens.tolist() == chain.propose(5).tokens.tolist() and tree.propose(5).parents == (0, 1, 2, 3, 4)


@torch.inference_mode()
def test_a_tree_holds_the_likeliest_ways(tiny):
    """Against every way of three tokens there is, by the chain's own arithmetic."""
    target = tiny.llama(layers=2, vocabulary=8, scale=2.0)
    head = head_of(target)
    features = features_of(target, head, [1, 2, 3])
    drafter = EagleDrafter(head, 12, 8)
    drafter.reset([1, 2, 3], Sampling(), features[:-1])
    block = drafter.propose(3)
    ways, at = [], {0: ()}
    for place, (token, parent) in enumerate(zip(block.tokens.tolist(), block.parents), 1):
        at[place] = (*at[parent], token)
        ways.append(at[place])
    chain, odds = EagleDrafter(head), {}
    chain.reset([1, 2, 3], Sampling(), features[:-1])
    out, start = read(chain)

    def grow(way, state, logits, sure):
        for token, log in enumerate(logits[0].log_softmax(-1).tolist()):
            odds[(*way, token)] = sure + log
            if len(way) < 2:
                depth = len(way)
                out = chain._run(start, state, torch.tensor([token]), *[torch.tensor([depth])] * 2, torch.ones(1, depth + 1, dtype=torch.bool))
                grow((*way, token), out, chain._logits(out), sure + log)

    grow((), out, chain._logits(out), 0.0)
    assert set(ways) == set(sorted(odds, key=odds.get, reverse=True)[:12])


@pytest.mark.parametrize("make", [EagleDrafter, lambda head: EagleDrafter(head, 10, 3), lambda head: EagleDrafter(head, tree=TREE), lambda head: EagleDrafter(head, vocabulary=range(0, 64, 2))],
                         ids=["chain", "growing tree", "fixed tree", "half the vocabulary"])
def test_greedy_texts_are_plain_decodings(tiny, make):
    target = tiny.llama(layers=3)
    decoder, drafter = Decoder(target), make(head_of(target))
    for prompt in ([1], [2, 3], TEXT):
        for K in (1, 4):
            assert decoder.decode(prompt, K, 30, drafter).tokens == decoder.decode(prompt, 0, 30).tokens
    with torch.no_grad():
        assert decoder.decode(TEXT, 3, 20, drafter).tokens == decoder.decode(TEXT, 0, 20).tokens


@pytest.mark.parametrize("make", [EagleDrafter, lambda head: EagleDrafter(head, 5, 2), lambda head: EagleDrafter(head, tree=sparse_tree(ways_of([[0.5, 0.3], [0.4, 0.3]]), 5)),
                                  lambda head: EagleDrafter(head, vocabulary=[0, 2, 3, 5])], ids=["chain", "growing tree", "fixed tree", "some of the vocabulary"])
def test_sampled_texts_have_the_targets_distribution(tiny, make):
    target = tiny.llama(vocabulary=V, layers=1, seed=2, positions=16, scale=1.2)
    decoder, drafter, sampling = Decoder(target), make(head_of(target)), Sampling(1.0, generator=torch.Generator().manual_seed(0))
    prompt = [1, *PROMPT]
    results = [decoder.decode(prompt, 2, N, drafter, EOS, sampling) for _ in range(1_500)]

    texts = every_text(_Prefixed(tiny, prompt[:1]), target, 1.0, None, None)
    assert chi_square_p(results, texts) > 1e-4


class _Prefixed:
    """The helpers of `tiny` with some tokens before every text."""

    def __init__(self, tiny, before):
        self.tiny, self.before = tiny, before

    def logits_without_cache(self, model, texts):
        return self.tiny.logits_without_cache(model, [self.before + text for text in texts])


@pytest.mark.parametrize("taps", [(0,), (4,), (2, 1), (1, 1)])
def test_layers_that_are_not_there_are_refused(tiny, taps):
    with pytest.raises(LessonError, match="name layers from 1 to 3"):
        EagleHead(tiny.llama(layers=3), taps)


@pytest.mark.parametrize("ids", [[], [64], [-1], [1, 1], [[1]]])
def test_a_vocabulary_that_is_none_is_refused(tiny, ids):
    with pytest.raises(LessonError, match="each once"):
        EagleDrafter(EagleHead(tiny.llama()), vocabulary=ids)


@torch.inference_mode()
def test_a_text_that_was_no_numbers_leaves_nothing_to_the_next(tiny):
    target = tiny.llama(layers=3)
    drafter, features = EagleDrafter(head_of(target)), features_of(target, EagleHead(target), TEXT)
    drafter.reset(TEXT[:4], Sampling(), features[:3])
    expected = drafter.propose(4).tokens.tolist()
    drafter.reset(TEXT, Sampling(), features[:-1] * torch.nan)
    drafter.propose(4)
    drafter.reset(TEXT[:4], Sampling(), features[:3])
    assert drafter.propose(4).tokens.tolist() == expected


@pytest.mark.parametrize("tree", [(), 15, ([0, 0], [1]), ([0], [-1]), ([0], [64]), ([0, 5], [0, 0])])
def test_a_tree_that_is_none_is_refused_at_once(tiny, tree):
    target = tiny.llama()
    for make in (lambda: EagleDrafter(EagleHead(target), tree=tree), lambda: MedusaDrafter(MedusaHeads(target, 2), target, tree)):
        with pytest.raises(LessonError):
            make()


def test_a_growing_tree_of_any_size(tiny):
    target = tiny.llama()
    decoder = Decoder(target)
    assert decoder.decode(TEXT, 5, 12, EagleDrafter(head_of(target), budget=600, width=16)).tokens == decoder.decode(TEXT, 0, 12).tokens


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a GPU a round of drafting is a captured graph


@pytest.mark.parametrize("make", [lambda head, target: EagleDrafter(head), lambda head, target: EagleDrafter(head, 10, 3), lambda head, target: EagleDrafter(head, tree=TREE),
                                  lambda head, target: EagleDrafter(head, vocabulary=range(0, 64, 2)), lambda head, target: MedusaDrafter(MedusaHeads(target, 4), target, TREE),
                                  lambda head, target: MedusaDrafter(MedusaHeads(target, 4), target)],
                         ids=["chain", "growing tree", "fixed tree", "half the vocabulary", "Medusa tree", "Medusa chain"])
@torch.inference_mode()
def test_a_round_drafts_the_same_wherever_it_runs(tiny, make):
    """Of several lengths, in turns of several K, drawn and greedy, over more pairs than a graph reads at once and than the cache has room for at first."""
    text = [(7 * i) % 64 for i in range(700)]
    target, drafters = tiny.llama(layers=3, positions=1024), []
    features = features_of(target, EagleHead(target), text)
    for device in (DEVICE, torch.device("cpu")):
        here = deepcopy(target).float().to(device)
        torch.manual_seed(1)
        head = EagleHead(here).float().eval().requires_grad_(False)
        for weight in head.parameters():
            weight.add_(0.05 * torch.randn(weight.shape).to(device))
        torch.manual_seed(2)
        drafters.append((device, make(head, here)))
    if DEVICE.type == "cpu":
        drafters[0][1].rows = 16  # as many rows as a graph reads, so that this is a test without a GPU too
    for T in (0.0, 1.0, 0.5):
        blocks, place = [[], []], 30
        for number, (device, drafter) in enumerate(drafters):
            sampling = Sampling(T, generator=torch.Generator().manual_seed(0))
            drafter.reset(text[:30], sampling, features[:29].float().to(device))
            for K, more in ((4, 1), (2, 3), (4, 5), (3, 1), (4, 40), (4, 600), (2, 2), (4, 1)):
                blocks[number].append(drafter.propose(K))
                drafter.observe(text[place:place + more], features[place - 1:place + more - 1].float().to(device))
                place += more
            place = 30
        for ours, theirs in zip(*blocks):
            assert ours.tokens.tolist() == theirs.tokens.tolist() and ours.parents == theirs.parents
            if ours.probs is not None:
                torch.testing.assert_close(ours.probs.cpu(), theirs.probs, rtol=1e-3, atol=1e-5)
