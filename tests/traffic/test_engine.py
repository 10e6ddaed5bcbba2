"""Answers by transformers: greedy and sampled exactly as said, each row by itself, whatever the model's own settings want."""

import numpy as np
import pytest
import torch
from support import sequences, tiny
from transformers import GenerationConfig

from lessonlib.traffic import engine as module
from lessonlib.pair.batch_step import BatchStep
from lessonlib.traffic.engine import BatchEngine, TransformersEngine, left_padded, row_uniforms

KINDS = [("llama", TransformersEngine), ("qwen2", TransformersEngine), ("gpt2", TransformersEngine), ("llama", BatchEngine), ("qwen2", BatchEngine)]
PROMPTS = list(enumerate(prompt for prompt, _ in sequences(13)))


def model_of(kind="llama", **settings):
    return tiny(kind, **{"sharp": 3} | settings).double()


def answers(model, temperature=1.0, prompts=PROMPTS, longest=12, seed=0, eos=(), batch_size=32, engine=TransformersEngine):
    return dict(engine(model, batch_size).answer(prompts, temperature, longest, seed, eos))


@torch.no_grad()
def plain(model, prompt, temperature, longest, seed, number, eos):
    """One prompt, the whole text read anew for every token, nothing shared with the library but the numbers drawn."""
    text, uniforms = list(prompt), np.random.Generator(np.random.Philox(key=[seed, number])).random(longest)
    for t in range(longest):
        logits = model(torch.tensor([text]), use_cache=False).logits[0, -1]
        if temperature == 0:
            token = int(logits.argmax())
        else:
            cdf = np.cumsum((logits / temperature).softmax(-1).numpy())
            token = int(np.searchsorted(cdf / cdf[-1], uniforms[t], side="right"))
        text.append(token)
        if token in eos:
            break
    return text[len(prompt):]


@pytest.mark.parametrize("temperature", [0, 1.0, .7, 2.0])
@pytest.mark.parametrize("kind, engine", KINDS)
def test_equals_a_plain_loop_over_whole_texts(kind, engine, temperature):
    model, eos = model_of(kind), (7, 30)
    found = answers(model, temperature, eos=eos, seed=5, engine=engine)
    assert found.keys() == dict(PROMPTS).keys()
    for number, prompt in PROMPTS:
        assert found[number] == plain(model, prompt, temperature, 12, 5, number, eos), number
    ended = [answer for answer in found.values() if answer[-1] in eos]
    assert all(len(answer) == 12 for answer in found.values() if answer not in ended)
    assert all(not set(answer[:-1]) & set(eos) for answer in found.values())


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("kind, engine", KINDS)
def test_a_row_does_not_depend_on_its_neighbours(kind, engine, temperature):
    model = model_of(kind)
    whole = answers(model, temperature, eos=(7, 30), engine=engine)
    for size in (1, 3, 5):
        assert answers(model, temperature, eos=(7, 30), batch_size=size, engine=engine) == whole
    assert answers(model, temperature, PROMPTS[4:6], eos=(7, 30), engine=engine) == {number: whole[number] for number in (4, 5)}
    shuffled = [PROMPTS[i] for i in (3, 9, 1, 12, 0)]
    assert answers(model, temperature, shuffled, eos=(7, 30), batch_size=2, engine=engine) == {number: whole[number] for number, _ in shuffled}


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_rows_that_have_ended_may_stay(temperature, monkeypatch):
    """As they do where a pass is a captured graph."""
    model = model_of()
    expected = answers(model, temperature, eos=(7, 30))
    monkeypatch.setattr(BatchStep, "prepare", lambda self, n, last=None: setattr(self, "captures", True))
    assert answers(model, temperature, eos=(7, 30), engine=BatchEngine) == expected


def test_numbers_belong_to_a_seed_and_a_row():
    assert (row_uniforms(0, 3, 5) == row_uniforms(0, 3, 9)[:5]).all()
    drawn = np.stack([row_uniforms(seed, number, 400) for seed in range(3) for number in range(20)])
    assert (0 <= drawn).all() and (drawn < 1).all() and abs(drawn.mean() - .5) < .01
    assert np.abs(np.corrcoef(drawn) - np.eye(60)).max() < .25 and len(np.unique(drawn)) == drawn.size
    one, other, again = answers(model_of(), seed=1), answers(model_of(), seed=2), answers(model_of(), seed=1)
    assert one == again != other
    assert len(set(map(tuple, answers(model_of(), prompts=[(i, [4, 5]) for i in range(20)]).values()))) == 20


def chi_square(counts, probabilities):
    """The statistic over its expected size: 1 on average, with standard deviation sqrt(2 / cells)."""
    expected = probabilities * counts.sum()
    used = expected > 5
    return (((counts - expected) ** 2 / expected)[used].sum() / used.sum()).item(), int(used.sum())


@pytest.mark.parametrize("temperature", [1.0, .6])
def test_frequencies_follow_the_models_own_distribution_at_every_place(temperature):
    model, prompt, count = tiny(vocab=8, sharp=2), [3, 1, 4], 20_000
    found = answers(model, temperature, [(i, prompt) for i in range(count)], longest=2, batch_size=4000)
    pairs = torch.tensor([found[i] for i in range(count)])
    with torch.no_grad():
        first = (model(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1)
        second = (model(torch.tensor([prompt + [token] for token in range(8)])).logits[:, -1] / temperature).softmax(-1)
    joint = (first[:, None] * second).flatten().double()
    statistic, cells = chi_square(torch.bincount(pairs[:, 0] * 8 + pairs[:, 1], minlength=64).double(), joint)
    assert cells > 30 and statistic < 1 + 4 * (2 / cells) ** .5
    # the test can tell: the same counts against another temperature
    other = ((first.log() * .8).softmax(-1)[:, None] * second).flatten().double()
    assert chi_square(torch.bincount(pairs[:, 0] * 8 + pairs[:, 1], minlength=64).double(), other)[0] > 3


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_the_models_own_generation_settings_change_nothing(temperature):
    plain_model, model = model_of(), model_of()
    model.generation_config = GenerationConfig(repetition_penalty=1.1, top_k=50, top_p=.5, temperature=.2, do_sample=True, num_beams=3,
                                               no_repeat_ngram_size=2, min_new_tokens=5, suppress_tokens=[3, 4], eos_token_id=9,
                                               max_new_tokens=2)
    found = answers(model, temperature, longest=20)
    assert found == answers(plain_model, temperature, longest=20)
    assert all(len(answer) == 20 for answer in found.values())
    # and such settings would have changed it
    with torch.no_grad():
        other = plain_model.generate(torch.tensor([PROMPTS[0][1]]), attention_mask=torch.ones(1, len(PROMPTS[0][1]), dtype=torch.long),
                                     max_new_tokens=20, do_sample=False, repetition_penalty=1.1, pad_token_id=0)
    assert other[0, len(PROMPTS[0][1]):].tolist() != answers(plain_model, 0, longest=20)[0]


def test_an_answer_ends_with_its_end_of_turn_or_at_its_length():
    model = model_of()
    free = answers(model, 0)
    eos = free[0][3]  # what the first row says at its fourth place
    found = answers(model, 0, eos=(eos,))
    for number, answer in free.items():
        cut = answer[:answer.index(eos) + 1] if eos in answer else answer
        assert found[number] == cut and cut.count(eos) == (eos in answer)
    assert len(found[0]) <= 4 and all(len(answer) == 1 for answer in answers(model, 0, longest=1).values())


def test_rows_that_have_ended_cost_nothing_more(monkeypatch):
    model, widths = model_of(), []
    free = answers(model, 1.0)
    eos = tuple({answer[2] for answer in free.values()})
    real = module.draw
    monkeypatch.setattr(module, "draw", lambda weights, uniforms: widths.append(len(weights)) or real(weights, uniforms))
    answers(model, 1.0, eos=eos)
    assert widths[0] == 13 and widths == sorted(widths, reverse=True) and len(widths) == 3 and widths[-1] < 13


def test_padding_stands_on_the_left_and_is_masked():
    ids, mask = left_padded([[5, 6, 7], [8]], "cpu")
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8]] and mask.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_positions_are_each_sequences_own():
    # with learned positions the padded logits move unless positions are counted from each sequence's own start
    model = model_of("gpt2")
    prompt = [5, 6, 7]
    ids, mask = left_padded([prompt, [1] * 40], "cpu")
    with torch.no_grad():
        alone = model(torch.tensor([prompt])).logits[0, -1]
        careless = model(ids, attention_mask=mask, position_ids=torch.arange(40).expand(2, -1)).logits[0, -1]
    assert (alone - careless).abs().max() > .1
    assert answers(model, 0, [(0, prompt), (1, [1] * 40)])[0] == answers(model, 0, [(0, prompt)])[0]
