"""Several texts at once: each as if it were alone, whatever the others do."""

import pytest
import torch

from lessonlib.decode.batch import decode_batch
from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import ModelDrafter, Sampling
from lessonlib.errors import LessonError
from lessonlib.measure.adaptive import AdaptiveK
from lessonlib.pair.batch_step import BatchStep

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a GPU the passes are captured graphs
SHARED = Sampling(1.0, generator=torch.Generator())
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13], [1, 2, 3]]


@pytest.fixture(scope="module")
def pair(tiny):
    target = tiny.llama(layers=3, scale=3.0)
    drafts = {"good": tiny.disturbed(target, 0.1), "poor": tiny.cut(target), "itself": target}
    return target.to(DEVICE), {name: draft.to(DEVICE) for name, draft in drafts.items()}


@pytest.fixture(params=["as this device has it", "as captured graphs have it"])
def passes(request, monkeypatch):
    """Where passes are captured, texts that have ended stay, K never changes and all of the cache is looked at; the same without a GPU."""
    if request.param == "as captured graphs have it" and DEVICE.type == "cpu":
        begin = BatchStep.__init__

        def init(self, *args):
            begin(self, *args)
            self.captures = True

        monkeypatch.setattr(BatchStep, "__init__", init)
        monkeypatch.setattr(BatchStep, "_capture", lambda self, ids, starts, last: (self, last))
        monkeypatch.setattr(BatchStep, "_replay", lambda self, captured, ids, starts: self._read(ids, starts, self.cache.shape[3], captured[1]))


def alone(target, draft, K, new, eos, samplings):
    return [Decoder(target).decode(prompt, K, new, ModelDrafter(draft) if K else None, eos, sampling) for prompt, sampling in zip(PROMPTS, samplings)]


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a.tokens, a.rounds, a.proposed, a.tested, a.accepted) == (b.tokens, b.rounds, b.proposed, b.tested, b.accepted)


@pytest.mark.parametrize("eos", [(), (3, 17, 40)])
@pytest.mark.parametrize("quality", ["good", "poor", "itself"])
@pytest.mark.parametrize("K", [0, 1, 2, 5])
def test_each_text_is_its_own_single_run(passes, pair, K, quality, eos):
    target, drafts = pair
    greedy = [Sampling() for _ in PROMPTS]
    found = decode_batch(target, drafts[quality], PROMPTS, K, 40, eos)
    same(found, alone(target, drafts[quality], K, 40, eos, greedy))
    if quality == "good" and K > 1 and not eos:
        assert len({tuple(row.accepted) for row in found}) > 1  # ragged


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 8}, {"temperature": 1.4, "top_p": 0.8}])
@pytest.mark.parametrize("K", [0, 3])
def test_so_it_is_where_it_is_sampled(passes, pair, K, settings):
    target, drafts = pair

    def samplings():
        return [Sampling(**{"temperature": 1.0, **settings}, generator=torch.Generator().manual_seed(i)) for i in range(len(PROMPTS))]

    found = decode_batch(target, drafts["good"], PROMPTS, K, 30, (3, 17), samplings())
    same(found, alone(target, drafts["good"], K, 30, (3, 17), samplings()))
    assert found[0].tokens != found[4].tokens  # one prompt, two generators


def test_texts_end_at_the_last_position(passes, tiny):
    target = tiny.llama(layers=2, scale=3.0, positions=40).to(DEVICE)
    found = decode_batch(target, tiny.disturbed(target, 0.1).to(DEVICE), [[1] * 20, [2] * 10], 5, 20)
    assert [row.tokens for row in found] == [Decoder(target).decode(prompt, 0, 20).tokens for prompt in ([1] * 20, [2] * 10)]


@pytest.mark.parametrize("K, new", [(10**6, 3), (5, 1)])
def test_no_more_is_proposed_than_tokens_are_wanted(passes, pair, K, new):
    target, drafts = pair
    found = decode_batch(target, drafts["good"], PROMPTS[:2], K, new)
    same(found, [Decoder(target).decode(prompt, K, new, ModelDrafter(drafts["good"])) for prompt in PROMPTS[:2]])
    assert all(sum(row.proposed) <= row.rounds * new for row in found)


def test_numbers_that_are_none_are_refused(pair, tiny):
    target, drafts = pair
    broken = tiny.disturbed(target, 0.1).to(DEVICE)
    broken.model.norm.weight.fill_(torch.nan)
    for one, other, settings in ((broken, drafts["good"], {}), (broken, drafts["good"], {"temperature": 1.0}), (target, broken, {"temperature": 1.0})):
        with pytest.raises(LessonError, match="not numbers"):
            decode_batch(one, other, PROMPTS, 2, 8, samplings=[Sampling(**settings) for _ in PROMPTS])
        with pytest.raises(LessonError, match="not numbers"):
            Decoder(one).decode(PROMPTS[0], 2, 8, ModelDrafter(other), sampling=Sampling(**settings))


def test_a_broken_token_of_one_text_is_nothing_to_another(tiny):
    target = tiny.llama(layers=2, scale=3.0).to(DEVICE)
    target.model.embed_tokens.weight[0] = torch.nan
    assert decode_batch(target, None, [[5], [1, 2, 3, 4, 5, 6]], 0, 6)[0].tokens == Decoder(target).decode([5], 0, 6).tokens


def test_texts_of_very_different_lengths(passes, tiny):
    target = tiny.llama(layers=2, scale=3.0).to(DEVICE)
    found = decode_batch(target, tiny.disturbed(target, 0.1).to(DEVICE), [[1, 2], [3] * 30], 3, 50)
    assert [row.tokens for row in found] == [Decoder(target).decode(prompt, 0, 50).tokens for prompt in ([1, 2], [3] * 30)]


@pytest.mark.parametrize("settings, said", [
    (dict(K=-1), "cannot be -1"), (dict(K=2, draft=None), "needs a draft"), (dict(prompts=[[1], []]), "prompt is empty"), (dict(prompts=[[1], [99]]), "token id 99"),
    (dict(samplings=[]), "as many samplings"), (dict(draft=ModelDrafter), "a draft that is a model"),
    (dict(samplings=[SHARED, SHARED]), "from one generator"), (dict(K=AdaptiveK(0.1)), "one K for all"), (dict(eos_token_ids=[1.5]), "ids that end a text"),
    (dict(samplings=[Sampling()]), "as many samplings"), (dict(samplings=[Sampling(), Sampling(1.0)]), "all greedy or none"), (dict(max_new_tokens=200), "do not fit")])
def test_what_cannot_be_decoded_is_refused(pair, settings, said):
    target, drafts = pair
    with pytest.raises(LessonError, match=said):
        decode_batch(**{"target": target, "draft": drafts["good"], "prompts": [[1], [2]], "K": 2} | settings)


def test_nothing_to_do_is_done(pair):
    target, drafts = pair
    assert decode_batch(target, drafts["good"], [], 2) == []
    assert [row.tokens for row in decode_batch(target, drafts["good"], PROMPTS, 2, 0)] == [[]] * len(PROMPTS)
