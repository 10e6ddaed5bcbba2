"""The K sweep: plain decoding measures 1.00, counts are the decoder's, times are held against a clock that cannot lie."""

import math
import statistics
from time import perf_counter, sleep
from types import SimpleNamespace

import pytest
import torch
from support import ways_of
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lessonlib.decode import decoder as decoder_module
from lessonlib.decode.decoder import Decoder, spec_greedy
from lessonlib.decode.drafter import Block, ModelDrafter, Sampling
from lessonlib.decode.eagle import EagleDrafter
from lessonlib.decode.medusa import MedusaDrafter
from lessonlib.decode.ngram import NgramDrafter
from lessonlib.decode.sparse_tree import sparse_tree
from lessonlib.drafts.eagle import EagleHead
from lessonlib.drafts.medusa import MedusaHeads
from lessonlib.errors import LessonError
from lessonlib.measure import costs as costs_module
from lessonlib.measure.costs import step_costs
from lessonlib.measure.difference import Difference
from lessonlib.measure.speedup import speedup, speedup_by_position
from lessonlib.measure.sweep import Sweep, sweep
from lessonlib.pair.step import CachedModel, step_of

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
TARGET, DRAFT = 0.010, 0.003  # seconds a step on the false clock; each further token of a pass costs a tenth of a step more


def llama(seed=0, layers=2, vocabulary=64):
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2)
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def target():
    return llama()


@pytest.fixture
def timed(monkeypatch):
    """A target and its copy whose forward passes alone move the clock that decoder and costs read."""
    clock = SimpleNamespace(now=0.0)
    for module in (decoder_module, costs_module):
        monkeypatch.setattr(module, "perf_counter", lambda: clock.now)
    models = []
    for step, further in ((TARGET, TARGET / 10), (DRAFT, 0.0)):
        model = llama()
        model.register_forward_pre_hook(lambda model, args, step=step, further=further:
                                        setattr(clock, "now", clock.now + step + further * (args[0].shape[1] - 1)))
        models.append(model)
    return models


class AlwaysWrong:
    """A drafter that is no model and never right."""

    def __init__(self, target):
        self.target = Decoder(target)

    def reset(self, prompt_ids, sampling):
        self.text, self.written = self.target.decode(prompt_ids, 0, 40).tokens, 0

    def propose(self, K):
        return Block((torch.tensor(self.text[self.written:self.written + 1]) + 1).remainder(64).repeat(K))

    def observe(self, tokens):
        self.written += len(tokens)


class Silent(AlwaysWrong):
    """A drafter that has nothing to propose."""

    def propose(self, K):
        return Block(torch.empty(0, dtype=torch.long))


def test_measured_and_predicted_are_the_formula_when_nothing_else_takes_time(timed):
    found = sweep(*timed, PROMPTS, (1, 2, 4), 30, show=False)
    assert found.costs.target_seconds == pytest.approx(TARGET) and found.costs.draft_seconds == pytest.approx(DRAFT)
    assert found.costs.c == pytest.approx(0.3)
    assert found.costs.v == pytest.approx({0: 1.0, 1: 1.1, 2: 1.2, 4: 1.4})
    assert [row.K for row in found.rows] == [0, 1, 2, 4] and found.prompts == 3
    for row, formula in zip(found.rows, (1.0, 2 / 1.4, 3 / 1.8, 5 / 2.6)):
        assert (row.speedup, row.speedup.low, row.speedup.high) == pytest.approx((formula, formula, formula))
        assert row.predicted == pytest.approx(formula) and row.predicted_by_position == pytest.approx(formula)
        assert row.tokens_per_second == pytest.approx(formula / TARGET)
        assert row.identical == 3
    assert found.best.K == 4


def test_a_draft_that_is_never_right_measures_the_slow_down_that_is_predicted(timed):
    target, draft = timed
    other = llama(seed=7)
    draft.load_state_dict(other.state_dict())
    found = sweep(target, draft, PROMPTS, (3,), 40, show=False)
    row = found.rows[1]
    assert row.counts.per_tested < 0.1 and row.identical == 3
    assert row.speedup == pytest.approx(row.counts.tokens_per_round / (3 * 0.3 + 1.3), rel=1e-6)
    assert found.best is row  # the best of those with proposals, even where plain decoding is better
    assert row.speedup < 0.6 and row.speedup.low <= row.speedup <= row.speedup.high
    assert row.predicted == pytest.approx(row.speedup, rel=0.05)
    assert row.predicted_by_position == pytest.approx(row.speedup, rel=0.05)


def test_the_prompt_is_read_outside_the_time_of_the_rounds(timed):
    target, draft = timed
    short, long = (spec_greedy(target, draft, [1] * n, 2, 9) for n in (2, 50))
    assert short.seconds == pytest.approx(long.seconds) == pytest.approx(3 * (1.2 * TARGET + 2 * DRAFT))
    assert short.prefill_seconds == pytest.approx(TARGET + DRAFT)
    assert long.prefill_seconds == pytest.approx(TARGET * (1 + 4.8) + DRAFT)


def test_counts_are_those_of_the_decoder(target):
    draft, Ks = llama(layers=1), (3, 1, 3)
    found = sweep(target, draft, PROMPTS, Ks, 20, eos_token_ids=(11,), show=False)
    assert [row.K for row in found.rows] == [0, 1, 3]
    for row in found.rows:
        results = [spec_greedy(target, draft, prompt, row.K, 20, eos_token_ids=(11,)) for prompt in PROMPTS]
        assert row.counts.tokens == sum((result.tokens for result in results), [])
        assert row.counts.rounds == sum(result.rounds for result in results)
        assert row.counts.accepted == [sum(column) for column in zip(*(result.accepted for result in results))]
        assert row.identical == 3
        if row.K:
            assert row.predicted == speedup(row.counts.per_tested, row.K, found.costs.c, found.costs.v)
            reached = [0.0 if math.isnan(share) else share for share in row.counts.conditional]
            assert row.predicted_by_position == speedup_by_position(reached, found.costs.c_at, found.costs.v)


def test_the_plain_row_is_one_by_construction_and_stands_beside_every_sweep(target):
    row = sweep(target, llama(layers=1), PROMPTS, (2,), 10, show=False).rows[0]
    assert (row.K, row.speedup, row.speedup.low, row.speedup.high) == (0, 1, 1, 1)
    assert row.predicted == row.predicted_by_position == 1
    assert row.counts.rounds == len(row.counts.tokens) == 30 and row.counts.tokens_per_round == 1
    assert math.isnan(row.counts.per_tested)


def test_texts_too_short_for_a_proposal_to_count_have_no_prediction(target):
    found = sweep(target, Silent(target), PROMPTS, (2,), 1, show=False)
    assert math.isnan(found.rows[1].predicted) and found.rows[1].identical == 3 and "nan" not in found.table()


def test_more_tokens_than_the_model_has_positions_are_not_timed(target):
    with pytest.raises(LessonError, match="a pass over 301 tokens cannot be timed with a model of 256 positions"):
        sweep(target, target, PROMPTS, (300,), 8, show=False)


def test_one_prompt_alone_has_no_interval(target):
    row = sweep(target, target, PROMPTS[:1], (2,), 10, show=False).rows[1]
    assert row.speedup > 0 and math.isnan(row.speedup.low) and math.isnan(row.speedup.high)


class Clocked(AlwaysWrong):
    """Each of its proposals costs a forward pass of a model."""

    def __init__(self, target, model):
        super().__init__(target)
        self.model, self.lengths = model, []

    def reset(self, prompt_ids, sampling):
        super().reset(prompt_ids, sampling)
        self.length = len(prompt_ids)

    def propose(self, K):
        assert torch.is_inference_mode_enabled()
        for _ in range(K):
            self.model(torch.tensor([[1]]))
        self.lengths.append(self.length + K)
        return super().propose(K)

    def observe(self, tokens):
        super().observe(tokens)
        self.length += len(tokens)


def test_a_drafter_that_is_no_model_costs_what_its_proposals_take(timed):
    target, model = timed
    drafter = Clocked(target, model)
    found = sweep(target, drafter, PROMPTS, (2,), 15, show=False)
    assert found.costs.draft_seconds == pytest.approx(DRAFT) and found.costs.c == pytest.approx(0.3)
    row = found.rows[1]
    assert row.counts.accepted == [0, 0] and row.counts.tested == [45, 0] and row.identical == 3
    assert row.predicted == pytest.approx(1 / (2 * 0.3 + 1.2)) == row.speedup


def test_a_drafters_round_is_timed_whole_and_never_past_its_longest_text(timed):
    target, model = timed
    drafter = Clocked(target, model)
    drafter.longest = 40
    told = drafter.observe
    drafter.observe = lambda tokens: (model(torch.tensor([[1]])), told(tokens))  # being told takes as long as a proposal
    assert step_costs(target, drafter, (2,)).c == pytest.approx((2 * 0.3 + 0.3) / 2)
    assert max(drafter.lengths) <= 40 and len(drafter.lengths) == 12  # once for the shape of its proposal, and in eleven turns


@pytest.mark.parametrize("make", [lambda target: EagleDrafter(EagleHead(target)), lambda target: EagleDrafter(EagleHead(target), 6, 2), lambda target: MedusaDrafter(MedusaHeads(target), target),
                                  lambda target: MedusaDrafter(MedusaHeads(target), target, sparse_tree(ways_of([[0.5, 0.3], [0.4, 0.3]]), 5)), lambda target: NgramDrafter()],
                         ids=["EAGLE", "EAGLE's tree", "Medusa", "Medusa's tree", "look-up"])
def test_every_drafter_can_be_swept(target, make):
    drafter = make(target)
    with torch.no_grad():
        found = sweep(target, drafter, PROMPTS, (1, 2, 3), 12, show=False)
    assert all(row.identical == 3 for row in found.rows) and found.costs.c > 0
    assert {*found.costs.v} - {0} == {*found.costs.c_at} == {row.K for row in found.rows[1:]} == {min(K, getattr(drafter, "ahead", K)) for K in (1, 2, 3)}
    assert found.costs.paths["draft"] == type(drafter).__name__


def test_an_adaptive_k_has_a_row_of_its_own(target):
    found = sweep(target, target, PROMPTS, (1, 2), 20, show=False, adaptive=True)
    assert [row.K for row in found.rows] == [0, 1, 2] and found.adaptive.K == "auto" and found.adaptive.identical == len(PROMPTS)
    assert math.isnan(found.adaptive.predicted) and found.table().splitlines()[-1].split()[0] == "auto" and "nan" not in found.table()
    assert sweep(target, target, PROMPTS, (1, 2), 5, show=False).adaptive is None


def test_texts_that_part_from_plain_decodings_are_reported(target, monkeypatch):
    assert sweep(target, target, PROMPTS, (2,), 20, show=False).parted() == []
    decode = Decoder.decode

    def flipped(self, prompt, K=0, *rest):
        found = decode(self, prompt, K, *rest)
        if K:
            found.tokens[7] = (found.tokens[7] + 1) % 64
        return found

    monkeypatch.setattr(Decoder, "decode", flipped)
    line, = sweep(target, target, PROMPTS, (2,), 20, show=False).parted()
    assert line.startswith(f"  {len(PROMPTS)} texts part from plain decoding's, the first (K = 2) after 7 tokens; where they do") and "That is a fault" in line
    monkeypatch.setattr("lessonlib.measure.sweep.first_difference", lambda *_: Difference(7, (1, 2), 0.01, 0.02))
    assert "rounding settles" in sweep(target, target, PROMPTS, (2,), 20, show=False).parted()[0]


def test_sampled_sweeps_compare_time_a_token(target):
    sampling = Sampling(1.5, generator=torch.Generator().manual_seed(0))
    found = sweep(target, target, PROMPTS, (2,), 20, eos_token_ids=tuple(range(5)), sampling=sampling, show=False)
    row = found.rows[1]
    assert row.counts.per_tested > 0.99 and row.identical < 3 and row.speedup > 0
    assert len(row.counts.tokens) != len(found.rows[0].counts.tokens)


def test_the_table_has_a_line_for_every_row(target):
    lines = sweep(target, target, PROMPTS, (1, 2), 10, show=False).table().splitlines()
    assert len(lines) == 4 and "nan" not in "".join(lines)
    assert [line.split()[0] for line in lines] == ["K", "0", "1", "2"]
    assert lines[1].split()[2] == "1.00x" and lines[3].endswith("1.00 1.00")


def test_progress_is_shown_unless_told_otherwise(target, capsys):
    sweep(target, target, PROMPTS[:1], (1,), 4, show=False)
    assert capsys.readouterr() == ("", "")
    sweep(target, target, PROMPTS[:1], (1,), 4)
    shown = capsys.readouterr()
    assert "sweep" in shown.out + shown.err


def test_every_clock_is_read_after_the_device_has_finished(target, monkeypatch):
    """On a GPU a call returns before its work is done: between the work and the reading of a clock there must be a wait."""
    events = []

    class Recorded(CachedModel):
        def run(self, *arguments, **more):
            events.append("work")
            return super().run(*arguments, **more)

    for place in (costs_module, decoder_module):
        monkeypatch.setattr(place, "step_of", Recorded)
        monkeypatch.setattr(place, "perf_counter", lambda: events.append("clock") or len(events))
        monkeypatch.setattr(place, "synchronize", lambda device: events.append("wait"))
    step_costs(target, None, (1, 2), prefix=4, repeats=1)
    decoder_module.Decoder(target).decode(PROMPTS[0], 0, 1)
    *events, last_work, last_clock = events  # the last round's own wait is that for its tokens
    assert (last_work, last_clock) == ("work", "clock")
    for before, after in zip(events, events[1:]):
        assert not (before == "work" and after == "clock")
    assert events.count("wait") >= 2 * 3 * 3 and "clock" in events


@pytest.mark.parametrize("plain, step, warned", [(20.0, 0.05, False), (23.0, 0.05, False), (8.0, 0.05, True), (50.0, 0.05, True)])
def test_a_machine_that_another_program_used_is_named(plain, step, warned):
    found = Sweep([SimpleNamespace(tokens_per_second=plain)], SimpleNamespace(target_seconds=step), 1)
    assert bool(found.warnings()) is warned


# The real clock: wide bands, many turns

def plain_seconds(target, n=24):
    return Decoder(target).decode(PROMPTS[0], 0, n).seconds


def by_hand(target, n=24):
    """Plain decoding with nothing around it."""
    step, token = step_of(target), torch.tensor(PROMPTS[0][-1:])
    step.read(PROMPTS[0][:-1])
    start = perf_counter()
    for _ in range(n):
        token = step.run(token).argmax(-1)
        token.item()
    return perf_counter() - start


@pytest.mark.parametrize("other", [plain_seconds, by_hand])
def test_plain_decoding_takes_as_long_again_and_as_long_as_a_bare_loop(target, other):
    plain_seconds(target), other(target)
    ratios = []
    for _ in range(15):
        first, second = plain_seconds(target), other(target)
        ratios.append(first / second)
    assert 0.6 < statistics.median(ratios) < 1.6


def test_costs_are_ratios_to_one_step(target):
    found = step_costs(target, llama(layers=1), (1, 4), prefix=20, repeats=15)
    assert found.v[0] == 1 and set(found.v) == {0, 1, 4}
    assert found.c == found.draft_seconds / found.target_seconds
    # wide, for a busy machine: the false clock has shown them exact
    assert 0.05 < found.c < 5 and all(0.2 < v < 20 for v in found.v.values())
    alone = step_costs(target, None, (2,), prefix=20, repeats=3)
    assert alone.c == alone.draft_seconds == 0 and alone.v[0] == 1
    assert list(found.paths) == ["target", "draft"] and list(alone.paths) == ["target"] and "lean PyTorch" in found.paths["draft"]


def test_the_prefix_shrinks_to_the_models_positions():
    """GPT-2 has a learned vector for each position and breaks beyond the last."""
    small, large = (GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=n)).eval()
                    for n in (12, 200))
    for target, draft in ((small, None), (large, small), (small, large)):
        assert step_costs(target, draft, (3, 8), repeats=1).v[0] == 1


# What is refused

@pytest.mark.parametrize("Ks", [(), (0,), (0, 1), (-1,), (1.5,), (2.0,), (True,), (None,), ("2",)])
def test_numbers_of_proposals_that_mean_nothing_are_refused(target, Ks):
    with pytest.raises(LessonError, match="each 1 or more, not"):
        sweep(target, target, PROMPTS, Ks, 4, show=False)


def test_other_things_that_cannot_work_are_refused(target):
    for arguments, words in (
            ((target, target, [], (1,), 4), "at least one prompt"),
            ((target, target, PROMPTS, (1,), 0), "cannot time 0 new tokens"),
            ((target, None, PROMPTS, (1,), 4), "K = 1 needs a draft"), ((target, target, [[99]], (1,), 4), "id 99"),
            ((target, llama(vocabulary=65), PROMPTS, (1,), 4), "64 tokens and the draft 65"),
            ((target, target, [[1] * 250], (1,), 10), "do not fit")):
        with pytest.raises(LessonError, match=words):
            sweep(*arguments, show=False)


def test_a_round_without_a_proposal_is_predicted_as_a_plain_step(target):
    class EveryOther(ModelDrafter):
        turn = 0

        def propose(self, K):
            self.turn += 1
            return super().propose(K) if self.turn % 2 else Block(torch.empty(0, dtype=torch.long))

        def observe(self, tokens):
            self.text += tokens
            self.step.rollback(0)

    found = sweep(target, EveryOther(llama(layers=1)), PROMPTS, (3,), 20, show=False)
    row, costs = found.rows[1], found.costs
    asked = row.counts.proposed[0] / row.counts.rounds
    assert 0.3 < asked < 0.7
    first, *others = [0.0 if math.isnan(share) else share for share in row.counts.conditional]
    tokens, kept = 1.0, asked
    for share in (first, *others):
        kept *= share
        tokens += kept
    assert row.predicted_by_position == pytest.approx(tokens / (3 * costs.c_at[3] + asked * costs.v[3] + 1 - asked))


def test_a_round_that_costs_the_same_however_much_is_proposed_is_charged_whole(target):
    class Slow:
        def reset(self, prompt_ids, sampling):
            """Nothing to remember."""

        def observe(self, tokens):
            """Nothing to learn."""

        def propose(self, K):
            sleep(0.05)
            return Block(torch.zeros(K, dtype=torch.long))

    costs = step_costs(target, Slow(), (1, 4), repeats=5)
    assert costs.c_at[1] == pytest.approx(4 * costs.c_at[4], rel=0.2) and costs.c == costs.c_at[4]
    model = step_costs(target, llama(layers=1), (1, 4), repeats=3)
    assert model.c_at == {1: model.c, 4: model.c}
