"""The losses as they are used, from stored odds: against definitions in float64, numerical gradients, and every awkward row."""

import math

import numpy as np
import pytest
import torch
from definitions import DEFINITIONS, buckets, kl, softmax
from support import naive_logits, sequences, store_of, tiny

from lessonlib.distil.losses import DIVERGENCES, Labels, Objective, ce_loss, kl_loss
from lessonlib.errors import LessonError
from lessonlib.kernels.topk_lse import topk_lse
from lessonlib.labels.scorer import Scored
from lessonlib.labels.store import LabelStore, StoreWriter

NAMES = ["ce", *DIVERGENCES]


def rows(count=20, vocabulary=15, spread=3.0, seed=0, dtype=torch.float64):
    """(teacher logits, student logits) [count, vocabulary]."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, vocabulary, generator=generator, dtype=dtype) * spread for _ in range(2)]


def labels_of(teacher, k, T=1.0):
    """Labels with exact odds at temperature T and some token each row."""
    values, ids = teacher.topk(k)
    return Labels(torch.arange(len(teacher)) % teacher.shape[1], ids, values, (teacher / T).logsumexp(-1))


def stored(folder, teacher, k, temperatures=()):
    """The labels of rows of logits after they went through a store."""
    writer = StoreWriter(folder, k, {}, temperatures)
    writer.add([0], [0] * len(teacher), Scored(*topk_lse(teacher, k), {T: topk_lse(teacher / T, k)[3] for T in temperatures}))
    writer.close()
    return LabelStore(folder).kl_inputs(0)


def test_the_worked_value_with_its_tail_and_without():
    p, q = torch.tensor([[.5, .3, .2]]), torch.tensor([[.6, .35, .05]])
    with_tail = kl_loss(q.log(), torch.tensor([[0, 1]]), p.log()[:, :2], torch.zeros(1))
    assert with_tail.item() == pytest.approx(.1399, abs=5e-5)
    without = sum(a * math.log(a / b) for a, b in ((.5, .6), (.3, .35)))
    assert without == pytest.approx(-.1374, abs=5e-5)  # a "divergence" below 0: the tail is what is missing
    assert with_tail.item() == pytest.approx(without + .2 * math.log(.2 / .05), abs=1e-6)


@pytest.mark.parametrize("name, value", [("kl", .3601), ("reverse_kl", .3948), ("jsd", .0906), ("tv", .4000)])
def test_worked_values_from_stored_odds(name, value, tmp_path):
    p = torch.tensor([[.5, .3, .1, .06, .04]])
    found = Objective(name)(torch.zeros(1, 5), Labels(torch.tensor([0]), *stored(tmp_path, p.log(), 2)))
    assert found.item() == pytest.approx(value, abs=2e-4)


@pytest.mark.parametrize("T", [.5, 1.0, 2.0])
@pytest.mark.parametrize("k", [1, 4, 14, 15])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_equals_its_definition_on_buckets(name, k, T):
    teacher, student = rows(spread=2.0)
    labels = labels_of(teacher, k, T)
    p, q = (buckets(softmax(z.numpy(), T), labels.ids.numpy()) for z in (teacher, student))
    expected = [DEFINITIONS[name](a, b) * T**2 for a, b in zip(p, q)]
    np.testing.assert_allclose(Objective(name, T)(student, labels).numpy(), expected, rtol=1e-6, atol=1e-10)
    wide = Objective(name, T)(student.float(), labels)
    assert wide.dtype == torch.float32
    np.testing.assert_allclose(wide.numpy(), expected, rtol=1e-4, atol=1e-5)
    full = [DEFINITIONS[name](a, b) * T**2 for a, b in zip(softmax(teacher.numpy(), T), softmax(student.numpy(), T))]
    assert (np.array(expected) <= np.array(full) + 1e-12).all()


@pytest.mark.parametrize("name", DIVERGENCES)
def test_where_all_tokens_are_stored_rounding_makes_no_tail(name):
    teacher, _ = rows()
    labels = labels_of(teacher, 15)
    rounded = Labels(labels.resp_ids, labels.ids, labels.logits.half(), labels.lse + 1e-3)  # the fifteen sum to .999
    assert Objective(name)(teacher, rounded).max() < 3e-3


def test_kl_loss_is_the_mean_over_rows_of_forward_kl():
    teacher, student = rows(dtype=torch.float32)
    labels = labels_of(teacher, 4, 2.0)
    loss = kl_loss(student, labels.ids.int(), labels.logits.half(), labels.lse, T=2.0)
    torch.testing.assert_close(loss, Objective("kl", 2.0)(student, labels).mean(), rtol=1e-3, atol=1e-3)
    assert loss.shape == ()


@pytest.mark.parametrize("T", [1.0, 3.0])
def test_without_a_normaliser_the_k_are_renormalised_and_the_rest_is_forbidden(T):
    teacher, student = rows()
    values, ids = teacher.topk(4)
    found = kl_loss(student, ids, values, None, T)
    p, q = softmax(values.numpy(), T), np.take_along_axis(softmax(student.numpy(), T), ids.numpy(), -1)
    assert found.item() == pytest.approx(np.mean([kl(a, b) for a, b in zip(p, q)]) * T**2, rel=1e-9)
    labels = Labels(ids[:, 0], ids, values, (teacher / T).logsumexp(-1))
    assert Objective("kl", T, renormalise=True)(student, labels).mean().item() == pytest.approx(found.item(), rel=1e-12)
    itself = teacher.log_softmax(-1)
    assert kl_loss(itself, ids, values, None) > 1e-3  # not zero at equality: what it costs


def test_ce_loss_is_the_mean_of_minus_log_probability():
    _, student = rows()
    ids = torch.arange(20) % 15
    expected = np.mean([-np.log(row[i]) for row, i in zip(softmax(student.numpy()), ids.tolist())])
    assert ce_loss(student, ids).item() == pytest.approx(expected, rel=1e-9)
    assert ce_loss(student, ids.int()).item() == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(Objective("ce")(student, Labels(ids)).mean(), ce_loss(student, ids))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_weight_of_cross_entropy_is_added(name):
    teacher, student = rows()
    labels = labels_of(teacher, 4, 2.0)
    plain, both = (Objective(name, 2.0, ce_weight=weight)(student, labels) for weight in (0, .25))
    torch.testing.assert_close(both, plain + .25 * Objective("ce")(student, labels))


@pytest.mark.parametrize("options", [dict(), dict(T=2.0), dict(T=.5, ce_weight=.3), dict(renormalise=True)])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "lk"])
def test_gradients_equal_differences(name, options):
    teacher, student = rows(4, 7, spread=1.5)
    labels = labels_of(teacher, 3, options.get("T", 1.0))
    assert torch.autograd.gradcheck(lambda logits: Objective(name, **options)(logits, labels), student.requires_grad_(True))


@pytest.mark.parametrize("beta", [.1, .9])
def test_gradients_of_jsd_equal_differences_at_every_beta(beta):
    teacher, student = rows(4, 7, spread=1.5)
    labels = labels_of(teacher, 3)
    assert torch.autograd.gradcheck(lambda logits: Objective("jsd", beta=beta)(logits, labels), student.requires_grad_(True))
    assert not torch.allclose(Objective("jsd", beta=beta)(student, labels), Objective("jsd")(student, labels))


def grad(objective, student, labels):
    student = student.detach().clone().requires_grad_(True)
    objective(student, labels).sum().backward()
    return student.grad


def test_the_gradient_of_lk_holds_its_weight_constant():
    teacher, student = rows()
    labels = labels_of(teacher, 4)
    w = torch.exp(-3 * (1 - Objective("tv")(student, labels)))[:, None]
    expected = w * grad(Objective("kl"), student, labels) + (1 - w) * grad(Objective("tv"), student, labels)
    torch.testing.assert_close(grad(Objective("lk"), student, labels), expected)


@pytest.mark.parametrize("T", [1.0, 2.0])
def test_forward_kl_spreads_the_teachers_tail_over_the_students_own(T):
    teacher, student = rows()
    labels = labels_of(teacher, 4, T)
    p, q = (teacher / T).softmax(-1), (student / T).softmax(-1)
    inside = torch.zeros_like(p).scatter(-1, labels.ids, 1.0)
    own = q * (1 - inside)
    wanted = p * inside + (p * (1 - inside)).sum(-1, keepdim=True) * own / own.sum(-1, keepdim=True)
    torch.testing.assert_close(grad(Objective("kl", T), student, labels), T * (q - wanted))  # T squared over T


@pytest.mark.parametrize("T", [.5, 1.0, 4.0])
@pytest.mark.parametrize("k", [1, 4, 15])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_zero_when_student_and_teacher_are_equal_and_no_gradient_then(name, k, T):
    teacher, _ = rows()
    labels = labels_of(teacher, k, T)
    shifted = teacher + torch.arange(20.0, dtype=torch.float64)[:, None]  # logits matter up to a constant a row
    assert Objective(name, T)(shifted, labels).abs().max() < 1e-9
    if name not in ("tv", "lk"):  # these have a kink there
        assert grad(Objective(name, T), shifted, labels).abs().max() < 1e-9


def settled(name, student, labels, T=1.0):
    """The rows' losses, after checking that they and their gradients are finite."""
    student = student.detach().clone().requires_grad_(True)
    losses = Objective(name, T)(student, labels)
    losses.sum().backward()
    assert torch.isfinite(losses).all() and torch.isfinite(student.grad).all() and (losses >= -1e-5).all(), name
    return losses.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_awkward_rows_are_finite_with_finite_gradients(name, dtype):
    teacher, student = rows(dtype=dtype)
    masked = student.clone()
    masked[:, [0, 3, 7]] = -torch.inf
    masked_teacher = teacher.clone()
    masked_teacher[:, [0, 3, 7]] = -torch.inf
    for z in (student, masked, student * 1000, torch.zeros_like(student)):
        for t in (teacher, masked_teacher, teacher * 1000):
            for k in (1, 3, 13, 15):
                labels = labels_of(t, k)
                settled(name, z, labels)
                no_tail = Labels(labels.resp_ids, labels.ids, labels.logits, labels.logits.logsumexp(-1))
                settled(name, z, no_tail)
                settled(name, z, Labels(labels.resp_ids, labels.ids, labels.logits, labels.lse - .01))  # past 1
    only = torch.full_like(student, -torch.inf).scatter(-1, teacher.topk(3).indices, 1.0)  # the student's tail is exactly 0
    settled(name, only, labels_of(teacher, 3))


def test_a_token_masked_on_both_sides_adds_nothing():
    teacher, student = rows()
    labels = labels_of(teacher, 4)
    value = Objective("kl")(student, labels)
    wider = [torch.cat([z, torch.full((20, 1), -torch.inf, dtype=z.dtype)], -1) for z in (teacher, student)]
    masked = Labels(labels.resp_ids, torch.cat([labels.ids, torch.full((20, 1), 15)], -1),
                    torch.cat([labels.logits, torch.full((20, 1), -torch.inf, dtype=torch.float64)], -1), labels.lse)
    for name in DIVERGENCES:
        torch.testing.assert_close(settled(name, wider[1], masked), Objective(name)(student, labels))
    # masked by the teacher alone: the sum over the rest
    one_sided = settled("kl", torch.cat([student, torch.zeros(20, 1, dtype=torch.float64)], -1), masked)
    q = torch.cat([student, torch.zeros(20, 1, dtype=torch.float64)], -1).softmax(-1).numpy()
    p = np.concatenate([softmax(teacher.numpy()), np.zeros((20, 1))], -1)
    ids = masked.ids.numpy()
    np.testing.assert_allclose(one_sided, [kl(a, b) for a, b in zip(buckets(p, ids), buckets(q, ids))], rtol=1e-8)
    assert (value > 0).all()


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_sharp_student_at_a_small_temperature(name, k):
    student, teacher = torch.tensor([[50.0, 0, -50]]), torch.tensor([[0.0, 1, 2]])
    losses = settled(name, student, labels_of(teacher, k, .05), T=.05)
    if name == "reverse_kl" and k == 3:  # all of q is on the first token, 40 nats below the teacher's best
        assert losses.item() == pytest.approx(40 * .05**2, rel=1e-4)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_peaky_rows_of_a_large_vocabulary(name, tmp_path):
    generator = torch.Generator().manual_seed(0)
    teacher = torch.randn(12, 151_936, generator=generator) * 2
    favourites = torch.stack([torch.randperm(151_936, generator=generator)[:64] for _ in range(12)])
    teacher = teacher.scatter(-1, favourites, torch.linspace(30, 12, 64) + torch.rand(12, 1, generator=generator))
    student = torch.randn(12, 151_936, generator=generator) * 3
    student[:4] = teacher[:4] + student[:4]
    ids, values, lse, _ = topk_lse(teacher, 64)
    tokens = ids[:, 3]
    raw = settled(name, student, Labels(tokens, ids.int(), values.half(), lse))  # as `score_one` gives them
    gaps = settled(name, student, Labels(tokens, *stored(tmp_path, teacher, 64)))
    p, q = (buckets(softmax(z.numpy()), ids.numpy()) for z in (teacher, student))
    expected = [DEFINITIONS[name](a, b) for a, b in zip(p, q)]
    np.testing.assert_allclose(gaps, expected, rtol=1e-3, atol=1e-3)
    if name != "reverse_kl":  # which no rounded tail can give: where the tail drowns, the student's costs what FLOOR says
        np.testing.assert_allclose(raw, expected, rtol=3e-2, atol=5e-2)


def test_a_tail_of_1e_9_reaches_reverse_kl_through_the_store(tmp_path):
    teacher = torch.cat([torch.arange(7.0, -1, -1), torch.full((1000,), -21.0)])[None]
    student = torch.cat([torch.arange(7.0, -1, -1), torch.full((1000,), -9.0)])[None]
    labels = Labels(torch.tensor([0]), *stored(tmp_path, teacher, 8))
    p, q = (buckets(softmax(z.numpy()), labels.ids.numpy()) for z in (teacher, student))
    assert p[0, 8] < 1e-9 and q[0, 8] > 5e-5
    for name in DIVERGENCES:
        assert Objective(name)(student, labels).item() == pytest.approx(DEFINITIONS[name](p[0], q[0]), rel=2e-2, abs=2e-6)


@pytest.mark.parametrize("sharp", [.3, 1, 4, 10])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_the_target_is_its_own_perfect_student(kind, sharp, tmp_path):
    target = tiny(kind, sharp=sharp, vocab=300)
    store = store_of(target, sequences(12, vocab=300), tmp_path, k=64, temperatures=(2.0,))
    for i in range(len(store)):
        prompt, resp = store.sequence(i)
        logits = naive_logits(target, prompt, resp)
        for T in (1.0, 2.0):
            labels = Labels(torch.tensor(resp), *store.kl_inputs(i, T))
            assert Objective("kl", T)(logits, labels).abs().max() < 1e-6 * T**2
            if len(resp) > 1:
                moved = Labels(labels.resp_ids, *(part.roll(1, 0) for part in (labels.ids, labels.logits, labels.lse)))
                assert Objective("kl", T)(logits, moved).max() > 1e-3


def test_stored_labels_at_another_temperature_equal_the_whole_vocabulary(tmp_path):
    target, draft = tiny(vocab=300, sharp=2), tiny(seed=1, vocab=300)
    store = store_of(target, sequences(8, vocab=300), tmp_path, k=16, temperatures=(2.0,))
    for i in range(len(store)):
        prompt, resp = store.sequence(i)
        p, q = (naive_logits(model, prompt, resp) for model in (target, draft))
        ids, gaps, lse = store.kl_inputs(i, 2.0)
        expected = np.mean([kl(a, b) for a, b in zip(*(buckets(softmax(z.numpy(), 2.0), ids.numpy()) for z in (p, q)))]) * 4
        assert kl_loss(q, ids, gaps, lse, T=2.0).item() == pytest.approx(expected, rel=1e-3)


def test_bf16_logits_of_the_student_are_read_in_fp32():
    teacher, student = rows(dtype=torch.float32)
    labels, low = labels_of(teacher, 4), student.bfloat16()
    for name in NAMES:
        assert torch.equal(Objective(name)(low, labels), Objective(name)(low.float(), labels))
    assert ce_loss(low, labels.resp_ids).dtype == kl_loss(low, labels.ids, labels.logits, labels.lse).dtype == torch.float32


@pytest.mark.parametrize("settings, said", [
    (dict(name="fkl"), "choose one of ce, kl, reverse_kl, jsd, tv, lk"), (dict(T=0.0), "temperature"), (dict(T=-1.0), "temperature"),
    (dict(T=math.inf), "temperature"), (dict(T=math.nan), "temperature"), (dict(beta=0.0), "beta"), (dict(beta=1.0), "reverse_kl by name"),
    (dict(beta=math.nan), "beta"), (dict(ce_weight=-1.0), "ce_weight"), (dict(ce_weight=math.inf), "ce_weight")])
def test_an_objective_that_means_nothing_is_refused(settings, said):
    with pytest.raises(LessonError, match=said):
        Objective(**settings)


def test_labels_can_be_cut_and_moved():
    teacher, _ = rows()
    labels = labels_of(teacher, 4)
    cut = labels.rows(slice(3, 5)).to("cpu")
    assert torch.equal(cut.ids, labels.ids[3:5]) and torch.equal(cut.lse, labels.lse[3:5]) and cut.resp_ids.tolist() == [3, 4]
    assert Labels(labels.resp_ids).rows(slice(2)).ids is None


ROW = torch.zeros(2, 5)
IDS, VALUES, LSE = torch.tensor([[0, 1], [2, 3]]), torch.zeros(2, 2), torch.ones(2)


@pytest.mark.parametrize("t_ids, t_logits, t_lse, T", [
    (IDS[:1], VALUES, LSE, 1.0), (IDS, VALUES[:1], LSE, 1.0), (IDS, VALUES, LSE[:1], 1.0), (IDS[:1], VALUES[:1], LSE[:1], 1.0), (IDS, VALUES[:, :1], LSE, 1.0),
    (IDS.float(), VALUES, LSE, 1.0), (IDS, VALUES, LSE, 0.0), (IDS, VALUES, LSE, -1.0), (IDS, VALUES, LSE, math.nan)])
def test_labels_of_other_rows_are_refused_and_not_stretched(t_ids, t_logits, t_lse, T):
    kl_loss(ROW, IDS, VALUES, LSE)
    with pytest.raises(LessonError, match="labels do not fit|temperature cannot be"):
        kl_loss(ROW, t_ids, t_logits, t_lse, T)


def test_a_normaliser_divided_by_t_is_refused():
    """It gives a tail of less than nothing: the logsumexp of logits / T is not that of the logits, divided by T."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    arguments = torch.zeros(1, 4), torch.tensor([[0, 1, 2]]), logits[:, :3]
    kl_loss(*arguments, (logits / 2).logsumexp(-1), T=2.0)
    with pytest.raises(LessonError, match="sum to more than 1"):
        kl_loss(*arguments, logits.logsumexp(-1) / 2, T=2.0)
