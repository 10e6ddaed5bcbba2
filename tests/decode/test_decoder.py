"""The round: what is written, where it ends, what is counted, and what is refused."""

import math
import warnings

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lessonlib.decode.decoder import Decoded, Decoder, spec_greedy, spec_sample
from lessonlib.decode.drafter import Block, ModelDrafter, Sampling
from lessonlib.errors import LessonError

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def target(tiny):
    return tiny.llama(positions=600)


@pytest.fixture(scope="module")
def truth(tiny, target):
    """The target's greedy text after PROMPT, from full forward passes."""
    texts, gap = tiny.greedy_without_cache(target, [PROMPT], 60)
    assert gap > 1e-4
    return texts[0]


@pytest.fixture(scope="module")
def distinct(tiny, target):
    """A prompt, and its greedy text whose first 16 tokens all differ."""
    prompts = [[a, b] for a in range(64) for b in range(0, 64, 16)]
    texts, _ = tiny.greedy_without_cache(target, prompts, 24)
    return next((prompt, text) for prompt, text in zip(prompts, texts) if len(set(text[:16])) == 16)


def counts(result):
    return result.proposed, result.tested, result.accepted


def recount(K, rounds):
    """Counts by position, worked out anew from (proposals, how many the target agreed with, tokens written) a round."""
    proposed, tested, accepted = ([0] * K for _ in range(3))
    for proposals, kept, written in rounds:
        for i in range(proposals):
            proposed[i] += 1
        for i in range(min(proposals, kept + 1, written)):
            tested[i] += 1
        for i in range(min(kept, written)):
            accepted[i] += 1
    return proposed, tested, accepted


# Plain decoding and the simplest rounds

def test_plain_decoding_is_the_greedy_loop(target, truth):
    result = spec_greedy(target, None, PROMPT, 0, 60)
    assert result.tokens == truth
    assert (result.K, result.rounds, result.proposed, result.tested, result.accepted) == (0, 60, [], [], [])
    assert result.tokens_per_round == 1 and math.isnan(result.per_tested) and math.isnan(result.per_proposed)
    assert result.seconds > 0 and result.prefill_seconds > 0


def test_plain_decoding_leaves_a_drafter_alone(target, truth):
    assert spec_greedy(target, Untouchable(), PROMPT, 0, 10).tokens == truth[:10]


class Untouchable:
    def reset(self, *_):
        raise AssertionError("plain decoding needs no drafter")

    propose = observe = reset


def test_a_prompt_of_one_token_whose_first_round_is_wholly_rejected(tiny, target):
    for token in range(8):
        plain = tiny.greedy_without_cache(target, [[token]], 20)[0][0]
        result = spec_greedy(target, tiny.Script(plain, [0] * 20), [token], 3, 20)
        assert result.tokens == plain and result.rounds == 20
        assert result.accepted == [0, 0, 0] and result.tested == [20, 0, 0] and result.proposed == [20, 20, 20]


@pytest.mark.parametrize("K", range(1, 9))
def test_the_targets_own_copy_is_kept_whole_every_round(K):
    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)).eval()
    copy = LlamaForCausalLM(target.config).eval()
    copy.load_state_dict(target.state_dict())
    rounds = []
    result = Decoder(target).decode(PROMPT, K, 200, ModelDrafter(copy),
                                    on_round=lambda text, block, kept, written, logits: rounds.append((kept, len(written))))
    assert len(result.tokens) == 200 and len(set(result.tokens)) > 10
    assert rounds[:-1] == [(K, K + 1)] * (len(rounds) - 1)
    assert rounds[-1][0] == K and result.rounds == -(-200 // (K + 1))
    assert result.per_tested == 1 and result.accepted == result.tested


def test_a_decoder_lives_across_texts_and_proposes_exactly_k_in_every_one(tiny, target):
    decoder, drafter, sizes = Decoder(target), ModelDrafter(tiny.disturbed(target, 0.1)), []
    for prompt, n in ((PROMPT, 40), ([7], 33), (list(range(50)), 40), (PROMPT, 40)):
        sizes.append([])
        result = decoder.decode(prompt, 4, n, drafter, on_round=lambda text, block, *_: sizes[-1].append(len(block.tokens)))
        assert result.tokens == tiny.greedy_without_cache(target, [prompt], n)[0][0]
        assert sizes[-1] == [4] * result.rounds and result.proposed == [result.rounds] * 4
    assert sizes[0] == sizes[3]


def test_a_script_is_asked_for_exactly_k_each_round(tiny, target, truth):
    script = tiny.Script(truth, [2, 0, 3, 1, 2, 3, 0, 1] * 5)
    assert spec_greedy(target, script, PROMPT, 3, 60).tokens == truth
    assert set(script.asked) == {3}


def test_no_warning_of_any_kind(tiny):
    target = tiny.llama()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec_greedy(target, tiny.cut(target), PROMPT, 3, 30, eos_token_ids=(1,))
        spec_sample(target, tiny.cut(target), PROMPT, 3, 30, temperature=0.8, top_k=20, top_p=0.9)


# Where a text ends

@pytest.mark.parametrize("kept", range(5))
@pytest.mark.parametrize("end", range(11))
def test_an_end_of_turn_ends_the_text_at_every_place_of_a_block(tiny, target, distinct, end, kept):
    prompt, text = distinct
    rounds = []
    script = tiny.Script(text, [kept] * 30)
    result = Decoder(target).decode(prompt, 4, 24, script, {text[end], 64 + 7}, on_round=lambda *seen: rounds.append(seen))
    assert result.tokens == text[:end + 1]
    assert result.rounds == end // (kept + 1) + 1
    assert counts(result) == recount(4, [(4, kept, len(written)) for *_, written, _ in rounds])


@pytest.mark.parametrize("kept", range(5))
def test_max_new_tokens_is_met_and_never_overrun(tiny, target, truth, kept):
    for n in range(1, 12):
        rounds = []
        script = tiny.Script(truth, [kept] * 30)
        result = Decoder(target).decode(PROMPT, 4, n, script, on_round=lambda *seen: rounds.append(seen))
        assert result.tokens == truth[:n]
        assert result.rounds == -(-n // (kept + 1))
        assert counts(result) == recount(4, [(min(4, n), kept, len(written)) for *_, written, _ in rounds])


def test_an_end_of_turn_beyond_max_new_tokens_does_not_matter_and_one_in_the_prompt_neither(tiny, target, distinct):
    prompt, text = distinct
    for n in (3, 5, 6, 7):
        assert spec_greedy(target, tiny.Script(text, [4] * 9), prompt, 4, n, eos_token_ids=[text[6]]).tokens == text[:n]
    absent = next(token for token in range(64) if token not in text)
    assert spec_greedy(target, tiny.Script(text, [4] * 9), prompt, 4, 10, eos_token_ids=absent).tokens == text[:10]
    plain = spec_greedy(target, None, [*prompt, absent], 0, 10).tokens
    assert spec_greedy(target, tiny.Script(plain, [4] * 9), [*prompt, absent], 4, 10, eos_token_ids=absent).tokens == plain


@pytest.mark.parametrize("eos", [int, lambda token: (token,), lambda token: [1000, token], lambda token: {token}])
def test_ends_of_turn_come_as_one_id_or_many(target, distinct, eos):
    prompt, text = distinct
    assert spec_greedy(target, None, prompt, 0, 20, eos_token_ids=eos(text[4])).tokens == text[:5]


def test_no_new_tokens_are_no_rounds(tiny, target, truth):
    for K, draft in ((0, None), (3, tiny.Script(truth, []))):
        result = spec_greedy(target, draft, PROMPT, K, 0)
        assert result.tokens == [] and result.rounds == 0 and result.proposed == [0] * K


def test_a_text_may_fill_the_models_positions_to_the_last(tiny):
    target = tiny.llama(positions=32)
    plain = tiny.greedy_without_cache(target, [PROMPT], 27)[0][0]
    for draft in (target, tiny.disturbed(target, 0.1), tiny.llama(positions=40, layers=1, seed=3)):
        for K in (1, 4, 8):
            result = spec_greedy(target, draft, PROMPT, K, 27)
            assert result.tokens == plain
            assert result.proposed == sorted(result.proposed, reverse=True) and result.proposed[0] == result.rounds


def test_a_draft_with_fewer_positions_than_the_target_still_serves_texts_that_fit_it(tiny, target, truth):
    draft = tiny.llama(positions=32, layers=1, seed=3)
    assert spec_greedy(target, draft, PROMPT, 6, 27).tokens == truth[:27]
    with pytest.raises(LessonError, match="5 tokens and 28 new ones do not fit the draft's 32 positions"):
        spec_greedy(target, draft, PROMPT, 6, 28)
    assert spec_greedy(target, draft, PROMPT, 0, 28).tokens == truth[:28]


# What is counted

def test_an_alpha_of_four_fifths_has_three_readings(tiny, target):
    """Of 3,125 rounds of four proposals, each position keeps exactly four fifths of what reaches it."""
    kept = [0] * 625 + [1] * 500 + [2] * 400 + [3] * 320 + [4] * 1280
    order = torch.randperm(3125, generator=torch.Generator().manual_seed(0)).tolist()
    truth = spec_greedy(target, None, PROMPT, 0, 560).tokens
    total, decoder = Decoded(4), Decoder(target)
    for start in range(0, 3125, 125):
        script = [kept[i] for i in order[start:start + 125]]
        result = spec_greedy(decoder, tiny.Script(truth, script), PROMPT, 4, sum(script) + 125)
        assert result.tokens == truth[:len(result.tokens)]
        total.add(result)
    assert total.rounds == 3125 and counts(total) == ([3125] * 4, [3125, 2500, 2000, 1600], [2500, 2000, 1600, 1280])
    assert total.per_proposed == pytest.approx(0.5904, abs=1e-12)
    assert total.per_tested == pytest.approx(0.8, abs=1e-12)
    assert total.conditional == pytest.approx([0.8] * 4, abs=1e-12)
    assert total.tokens_per_round == pytest.approx(3.3616, abs=1e-12)


@pytest.mark.parametrize("sampling", [None, Sampling(1.0, 30, 0.95, torch.Generator().manual_seed(0))],
                         ids=["greedy", "sampling"])
def test_the_counts_are_those_of_the_rounds(tiny, target, sampling):
    decoder, drafter = Decoder(target), ModelDrafter(tiny.disturbed(target, 0.1))
    for K in (1, 2, 5):
        for prompt in ([1], [2, 3], PROMPT):
            rounds = []
            result = decoder.decode(prompt, K, 50, drafter, {9}, sampling, lambda *seen: rounds.append(seen))
            assert result.rounds == len(rounds) and sum((written for *_, written, _ in rounds), []) == result.tokens
            assert counts(result) == recount(K, [(len(block.tokens), kept, len(written))
                                                 for _, block, kept, written, _ in rounds])
            cut_short = len(rounds[-1][3]) <= rounds[-1][2]
            assert len(result.tokens) == sum(result.accepted) + result.rounds - cut_short
            assert all(after <= before for before, after in zip(result.accepted, result.tested[1:]))


def test_each_round_is_told_as_it_was(tiny, target, truth):
    rounds = []
    Decoder(target).decode(PROMPT, 3, 20, tiny.Script(truth, [1, 3, 0, 2] * 5), on_round=lambda *seen: rounds.append(seen))
    text = PROMPT
    for before, block, kept, written, logits in rounds:
        assert before == text and logits.shape == (4, 64)
        assert block.tokens[:kept].tolist() == written[:kept] or len(written) < kept
        assert logits.argmax(-1)[:len(written)].tolist() == written
        text = text + written
    assert text == PROMPT + truth[:20]


def test_counts_add_up_and_refuse_another_k(tiny, target, truth):
    one = spec_greedy(target, tiny.Script(truth, [1] * 40), PROMPT, 2, 10)
    two = spec_greedy(target, tiny.Script(truth, [0] * 40), PROMPT, 2, 7)
    both = Decoded(2).add(one).add(two)
    assert both.tokens == one.tokens + two.tokens and both.rounds == 12
    assert both.seconds == pytest.approx(one.seconds + two.seconds)
    assert both.accepted == [5, 0] and both.tested == [12, 5] and both.proposed == [12, 12]
    with pytest.raises(LessonError, match="K = 2 and K = 3"):
        both.add(Decoded(3))


# Sampling

def test_a_generator_makes_a_text_repeatable(tiny, target):
    draft = tiny.disturbed(target, 0.1)
    texts = [spec_sample(target, draft, PROMPT, 3, 40, temperature=2.0, generator=torch.Generator().manual_seed(seed)).tokens
             for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2] and len(texts[0]) == 40


def test_sampling_with_the_targets_own_copy_keeps_everything(target):
    result = spec_sample(target, target, PROMPT, 5, 90, temperature=1.3, top_k=20, top_p=0.9,
                         generator=torch.Generator().manual_seed(0))
    assert result.rounds == 15 and result.per_proposed == 1


def test_temperature_zero_and_top_k_one_are_greedy(tiny, target, truth):
    draft = tiny.disturbed(target, 0.1)
    assert spec_sample(target, draft, PROMPT, 3, 30, temperature=0.0).tokens == truth[:30]
    assert spec_sample(target, draft, PROMPT, 3, 30, temperature=1.0, top_k=1).tokens == truth[:30]
    assert spec_sample(target, draft, PROMPT, 3, 30, temperature=1.0, top_p=1e-9).tokens == truth[:30]


# What is refused

@pytest.mark.parametrize("changes, words", [
    (dict(K=-1), "K is .* cannot be -1; give"), (dict(K=1.5), "K is .* cannot be 1.5; give"),
    (dict(K=2.0), "K is .* cannot be 2.0; give"),
    (dict(K=None), "K is .* cannot be None; give"), (dict(K=True), "K is .* cannot be True; give"),
    (dict(max_new_tokens=-1), "max_new_tokens cannot be -1; give"),
    (dict(max_new_tokens=2.5), "max_new_tokens cannot be 2.5; give"),
    (dict(prompt_ids=[]), "prompt is empty; give"),
    (dict(prompt_ids=[1, 64]), "token id 64 is not .* vocabulary of 64; encode"),
    (dict(prompt_ids=[-1, 3]), "token id -1 is not"), (dict(prompt_ids=[[1, 2]]), "not a flat list of token ids; encode"),
    (dict(prompt_ids=torch.tensor([[1, 2]])), "not a flat list of token ids"),
    (dict(prompt_ids="Hello"), "not a flat list of token ids"),
    (dict(prompt_ids={"input_ids": [1]}), "not a flat list of token ids"),
    (dict(prompt_ids=[1] * 598, max_new_tokens=3), "598 tokens and 3 new .* the model's 600 positions; shorten"),
    (dict(prompt_ids=[1] * 601), "601 tokens"), (dict(temperature=-0.5), "temperature cannot be -0.5; give"),
    (dict(temperature=1.0, top_k=0), "top_k cannot be 0; give"),
    (dict(temperature=1.0, top_p=0.0), "top_p cannot be 0.0; give"),
    (dict(temperature=0.0, top_p=1.5), "top_p cannot be 1.5; give")])
def test_what_cannot_work_is_refused_in_one_sentence_that_names_the_fix(tiny, target, changes, words):
    decode = spec_sample if {"temperature"} & changes.keys() else spec_greedy
    for K in [changes["K"]] if "K" in changes else [0, 2]:
        with pytest.raises(LessonError, match=words) as caught:
            decode(target, target, **dict(prompt_ids=PROMPT, max_new_tokens=4) | changes | dict(K=K))
        assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_vocabularies_that_differ_are_refused(tiny, target):
    with pytest.raises(LessonError, match="target scores 64 tokens and the draft 65; take"):
        spec_greedy(target, tiny.llama(vocabulary=65), PROMPT, 2, 4)


def test_proposals_need_somebody_to_make_them(target):
    with pytest.raises(LessonError, match="K = 2 needs a draft"):
        spec_greedy(target, None, PROMPT, 2, 4)


class Eager:
    """Proposes some tokens fewer or more than it is asked for."""

    def __init__(self, truth, extra):
        self.truth, self.extra = truth, extra

    def reset(self, prompt_ids, sampling):
        self.written = 0

    def propose(self, K):
        return Block(torch.tensor(self.truth[self.written:self.written + K + self.extra], dtype=torch.long))

    def observe(self, tokens):
        self.written += len(tokens)


def test_a_drafter_that_proposes_too_much_is_refused(target, truth):
    with pytest.raises(LessonError, match="proposed 4 tokens, one after another, where 3 were asked"):
        spec_greedy(target, Eager(truth, 1), PROMPT, 3, 4)


@pytest.mark.parametrize("extra", [-1, -2, -3])
def test_one_that_proposes_less_or_nothing_is_not(target, truth, extra):
    result = spec_greedy(target, Eager(truth, extra), PROMPT, 3, 24)
    assert result.tokens == truth[:24] and result.rounds == 24 // (4 + extra)
    assert result.proposed == [result.rounds] * (3 + extra) + [0] * -extra


@pytest.mark.parametrize("block", [Block(torch.tensor([[1, 2, 3]])), Block(torch.tensor([1, 2]), torch.full((3, 64), 1 / 64)), Block(torch.tensor([1, 2]), None, (0,)),
                                   Block(torch.tensor([1, 2]), torch.full((2, 64), 1 / 64), (0, 0))])
def test_a_block_that_is_not_whole_is_refused(tiny, target, block):
    class Torn(Eager):
        def propose(self, K):
            return block

    with pytest.raises(LessonError, match="a whole Block"):
        spec_sample(target, Torn([], 0), PROMPT, 3, 4)


def test_a_model_in_training_mode_is_refused(tiny):
    for target, draft in ((tiny.llama().train(), None), (tiny.llama(), tiny.llama().train())):
        with pytest.raises(LessonError, match="in training mode"):
            spec_greedy(target, draft, PROMPT, 2 if draft else 0, 4)


@pytest.mark.parametrize("eos", [[1.5], "12", [None], [[2]]])
def test_ends_that_are_no_ids_are_refused(target, eos):
    with pytest.raises(LessonError, match="ids that end a text"):
        spec_greedy(target, None, PROMPT, 0, 4, eos_token_ids=eos)


@pytest.mark.parametrize("prompt", [{1, 2}, {1: 2}])
def test_prompts_without_an_order_are_refused(target, prompt):
    with pytest.raises(LessonError, match="not a flat list"):
        spec_greedy(target, None, prompt, 0, 4)


def test_a_refusal_leaves_the_decoder_fit_for_the_next_text(tiny, target, truth):
    decoder = Decoder(target)
    with pytest.raises(LessonError):
        decoder.decode([64])
    with pytest.raises(StopIteration):  # a drafter that breaks in the middle of a text
        decoder.decode(PROMPT, 3, 30, tiny.Script(truth, [1, 2]))
    assert decoder.decode(PROMPT, 3, 30, tiny.Script(truth, [1, 2, 3] * 9)).tokens == truth[:30]


def test_ids_and_numbers_may_be_tensors_and_numpys(target, truth):
    for prompt in (torch.tensor(PROMPT), np.array(PROMPT), tuple(PROMPT)):
        assert spec_greedy(target, target, prompt, np.int64(2), np.int64(8)).tokens == truth[:8]


def test_more_proposals_than_tokens_wanted_are_not_made(target):
    decoded = spec_greedy(target, target, PROMPT, 10**6, 3)
    assert decoded.rounds == 1 and sum(decoded.proposed) == 3 and len(decoded.tokens) == 3


@pytest.mark.parametrize("prompt", [[1.5, 2.0], "12", [torch.tensor(1.7)], [[1], [2]]])
def test_what_is_no_id_is_not_made_one(target, prompt):
    with pytest.raises(LessonError, match="flat list of token ids"):
        spec_greedy(target, target, prompt, 2, 4)


def test_the_models_own_generation_settings_change_nothing(tiny, target, truth):
    bent = tiny.llama(positions=600)
    bent.generation_config.update(repetition_penalty=1.3, top_k=1, temperature=0.1, do_sample=True)
    assert Decoder(bent).decode(PROMPT, 0, 30).tokens == truth[:30]


# Half precision

def test_in_bf16_the_first_difference_is_a_near_tie(tiny):
    """A verifying pass adds up in another order than a step: fp32 and float64 are exact, here the harm is bounded."""
    target = tiny.llama().bfloat16()
    draft, gaps = tiny.disturbed(target, 0.1), []
    for start in range(6):
        seen = []
        plain = Decoder(target).decode([start], 0, 60, on_round=lambda *found: seen.append(found[4][0].float()))
        text = spec_greedy(target, draft, [start], 4, 60).tokens
        first = next((i for i in range(60) if text[i] != plain.tokens[i]), None)
        if first is not None:
            best = seen[first].topk(2).values
            gaps.append((best[0] - best[1]).item())
    assert all(gap < 0.1 for gap in gaps), gaps


# Long lives

def test_an_interruption_at_any_moment_leaves_the_decoder_fit_for_the_next_text(tiny, target, truth, monkeypatch):
    """Ctrl-C in every call of either model's step, one run after the other, on the same objects."""
    draft = tiny.disturbed(target, 0.1)
    decoder, drafter = Decoder(target), ModelDrafter(draft)
    for step in (decoder.step, drafter.step):
        for moment in range(6):
            calls, run = [], type(step).run

            def interrupted(self, *args, **kwargs):
                result = run(self, *args, **kwargs)  # what it read stays in the cache
                if self is step:
                    calls.append(1)
                    if len(calls) > moment:
                        raise KeyboardInterrupt
                return result

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(type(step), "run", interrupted)
                decoder.decode(PROMPT, 3, 30, drafter)
            assert decoder.decode(PROMPT, 3, 30, drafter).tokens == truth[:30]


class Counting:
    """A step that only counts its tokens: the next one is always the last one plus one, and an erring one is wrong once in a while."""

    device, name, why = torch.device("cpu"), "counting", None

    def __init__(self, errs=None):
        self.length, self.errs, self.longest_read = 0, errs, 0

    def reset(self):
        self.length = 0

    def rollback(self, length):
        assert 0 <= length
        self.length = min(self.length, length)

    def read(self, tokens):
        self.length += len(tokens)

    def tap(self, layers):
        assert layers == ()

    def keep(self, rows):
        self.length = self.before + len(rows)

    def run(self, tokens, last=None, tree=None):
        self.before = self.length
        self.length += len(tokens)
        self.longest_read = max(self.longest_read, len(tokens))
        wrong = self.errs is not None and torch.rand((), generator=self.errs) < 0.3
        rows = (torch.as_tensor(tokens) + 1 + wrong) % 7
        return torch.nn.functional.one_hot(rows, 7).float()[-last if last else 0:]


def test_a_hundred_thousand_rounds_do_not_move_the_caches(tiny, monkeypatch):
    model = tiny.llama(layers=1, positions=10**6)
    decoder, drafter = Decoder(model), ModelDrafter(model)
    decoder.step, drafter.step = Counting(), Counting(torch.Generator().manual_seed(0))
    decoder.step.model = model
    rounds, written = 0, 0

    def look(text, block, kept, emitted, logits):
        nonlocal rounds, written
        assert decoder.step.length == len(text) + len(block.tokens)  # all of the text, and the block
        assert drafter.step.length == len(text) + len(block.tokens) - 1  # nobody has read the last proposal
        rounds, written = rounds + 1, written + len(emitted)

    while rounds < 100_000:
        found = decoder.decode([3], 2, 20_000, drafter, on_round=look)
        assert found.tokens == [(4 + i) % 7 for i in range(20_000)]
    assert drafter.step.longest_read == 2 and decoder.step.longest_read == 3 and 1.5 < written / rounds < 2.5
