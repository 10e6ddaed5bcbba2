"""Several texts at once: each as if it were alone, whatever the others do."""

import pytest
import torch

from lessonlib.decode.batch import decode_batch
from lessonlib.decode.decoder import Decoder
from lessonlib.decode.drafter import ModelDrafter, Sampling
from lessonlib.errors import LessonError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a GPU the passes are captured graphs
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13], [1, 2, 3]]


@pytest.fixture(scope="module")
def pair(tiny):
    target = tiny.llama(layers=3, scale=3.0)
    drafts = {"good": tiny.disturbed(target, 0.1), "poor": tiny.cut(target), "itself": target}
    return target.to(DEVICE), {name: draft.to(DEVICE) for name, draft in drafts.items()}


def alone(target, draft, K, new, eos, samplings):
    return [Decoder(target).decode(prompt, K, new, ModelDrafter(draft) if K else None, eos, sampling) for prompt, sampling in zip(PROMPTS, samplings)]


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a.tokens, a.rounds, a.proposed, a.tested, a.accepted) == (b.tokens, b.rounds, b.proposed, b.tested, b.accepted)


@pytest.mark.parametrize("eos", [(), (3, 17, 40)])
@pytest.mark.parametrize("quality", ["good", "poor", "itself"])
@pytest.mark.parametrize("K", [0, 1, 2, 5])
def test_each_text_is_its_own_single_run(pair, K, quality, eos):
    target, drafts = pair
    greedy = [Sampling() for _ in PROMPTS]
    found = decode_batch(target, drafts[quality], PROMPTS, K, 40, eos)
    same(found, alone(target, drafts[quality], K, 40, eos, greedy))
    if quality == "good" and K > 1 and not eos:
        assert len({tuple(row.accepted) for row in found}) > 1  # ragged


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 8}, {"temperature": 1.4, "top_p": 0.8}])
@pytest.mark.parametrize("K", [0, 3])
def test_so_it_is_where_it_is_sampled(pair, K, settings):
    target, drafts = pair

    def samplings():
        return [Sampling(**{"temperature": 1.0, **settings}, generator=torch.Generator().manual_seed(i)) for i in range(len(PROMPTS))]

    found = decode_batch(target, drafts["good"], PROMPTS, K, 30, (3, 17), samplings())
    same(found, alone(target, drafts["good"], K, 30, (3, 17), samplings()))
    assert found[0].tokens != found[4].tokens  # one prompt, two generators


def test_texts_end_at_the_last_position(tiny):
    target = tiny.llama(layers=2, scale=3.0, positions=40)
    found = decode_batch(target, tiny.disturbed(target, 0.1), [[1] * 20, [2] * 10], 5, 20)
    assert [row.tokens for row in found] == [Decoder(target).decode(prompt, 0, 20).tokens for prompt in ([1] * 20, [2] * 10)]


def test_a_long_text_outgrows_the_cache(tiny, monkeypatch):
    monkeypatch.setattr("lessonlib.pair.batch_step.ROOM", 8)
    target = tiny.llama(layers=2, scale=3.0).to(DEVICE)
    found = decode_batch(target, tiny.disturbed(target, 0.1).to(DEVICE), [[1, 2], [3] * 30], 3, 50)
    assert [row.tokens for row in found] == [Decoder(target).decode(prompt, 0, 50).tokens for prompt in ([1, 2], [3] * 30)]


@pytest.mark.parametrize("settings, said", [
    (dict(K=-1), "cannot be -1"), (dict(K=2, draft=None), "needs a draft"), (dict(prompts=[[1], []]), "prompt is empty"), (dict(prompts=[[1], [99]]), "token id 99"),
    (dict(samplings=[]), "as many samplings"), (dict(draft=ModelDrafter), "a draft that is a model"),
    (dict(samplings=[Sampling()]), "as many samplings"), (dict(samplings=[Sampling(), Sampling(1.0)]), "all greedy or none"), (dict(max_new_tokens=200), "do not fit")])
def test_what_cannot_be_decoded_is_refused(pair, settings, said):
    target, drafts = pair
    with pytest.raises(LessonError, match=said):
        decode_batch(**{"target": target, "draft": drafts["good"], "prompts": [[1], [2]], "K": 2} | settings)


def test_nothing_to_do_is_done(pair):
    target, drafts = pair
    assert decode_batch(target, drafts["good"], [], 2) == []
    assert [row.tokens for row in decode_batch(target, drafts["good"], PROMPTS, 2, 0)] == [[]] * len(PROMPTS)
