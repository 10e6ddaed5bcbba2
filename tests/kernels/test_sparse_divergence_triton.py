"""The divergence kernel, against autograd through its definition in float64."""

import pytest
import torch

from lessonlib.distil.losses import DIVERGENCES, Labels, Objective

NAMES = ["ce", *DIVERGENCES]
# the interpreter computes with numpy, which warns of log(0), and of how Triton itself uses it
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning:triton")


def case(device, vocabulary=300, k=8, T=1.0, rows=5, spread=3.0):
    """(student logits fp32, Labels): the first row's token is its target's favourite, the others' are not stored."""
    generator = torch.Generator().manual_seed(vocabulary + k)
    teacher, student = (torch.randn(rows, vocabulary, generator=generator) * spread for _ in range(2))
    values, ids = teacher.topk(k)
    written = torch.cat([ids[:1, 0], teacher[1:].argmin(-1)])
    return student.to(device), Labels(written, ids, values, (teacher.double() / T).logsumexp(-1)).to(device)


def defined(objective, student, labels, scale=1.0):
    """(losses, scale times the gradient of their sum) in float64."""
    leaf = student.double().requires_grad_(True)
    losses = objective(leaf, labels)
    (losses.sum() * scale).backward()
    return losses.detach(), leaf.grad


def run(objective, student, labels, scale=1.0):
    """(losses, gradient) by the kernel; the student's logits stay."""
    logits = student.clone()
    losses = objective.in_place(labels, logits.shape[1], scale)(logits, slice(None))
    return losses, logits


def check(objective, student, labels, close=2e-6):
    (losses, gradient), (expected, exact) = (function(objective, student, labels, .25) for function in (run, defined))
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-6)
    assert (gradient - exact).norm() <= close * exact.norm() + 1e-7


@pytest.mark.parametrize("vocabulary, k", [(300, 8), (300, 1), (97, 64), (4096, 5), (9001, 64)])
@pytest.mark.parametrize("name", NAMES)
def test_equals_autograd_through_the_definition(name, vocabulary, k, device):
    check(Objective(name), *case(device, vocabulary, k))


@pytest.mark.parametrize("T", [.5, 2.0])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_at_a_temperature(name, T, device):
    check(Objective(name, T), *case(device, T=T))


@pytest.mark.parametrize("options", [dict(beta=.1), dict(beta=.9), dict(renormalise=True), dict(ce_weight=.3)])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_with_every_option(name, options, device):
    check(Objective(name, **options), *case(device))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_where_everything_is_stored_there_is_no_rest(name, device):
    check(Objective(name), *case(device, vocabulary=16, k=16))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_zero_at_equality(name, device):
    student, labels = case(device)
    own = Labels(labels.resp_ids, labels.ids, student.gather(-1, labels.ids), student.double().logsumexp(-1))
    losses, gradient = run(Objective(name), student, own)
    assert losses.abs().max() < 1e-6
    if name not in ("tv", "lk"):  # TV has a kink there, on one side of which rounding puts each token
        assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("what", ["a stored token", "all the others", "one of the others", "fifty apart"])
def test_awkward_rows_stay_finite_and_as_defined(name, what, device):
    student, labels = case(device)
    inside = torch.zeros_like(student, dtype=torch.bool).scatter(-1, labels.ids, True)
    if what == "a stored token":
        student.scatter_(-1, labels.ids[:, :1], -torch.inf)
    elif what == "all the others":
        student[~inside] = -torch.inf
    elif what == "one of the others":
        student[torch.arange(5), (~inside).int().argmax(-1)] = -torch.inf
    else:
        student *= 50 / student.abs().max()
    losses, gradient = run(Objective(name), student, labels)
    assert torch.isfinite(losses).all() and torch.isfinite(gradient).all()
    check(Objective(name), student, labels, close=1e-5)


def test_a_row_with_nan_says_so_and_no_other(device):
    student, labels = case(device)
    student[2, 100] = torch.nan
    assert torch.isnan(run(Objective("kl"), student, labels)[0]).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("name", NAMES)
def test_low_precision_logits_take_a_gradient_of_that_precision(name, device):
    student, labels = case(device)
    student = student.bfloat16()
    losses, gradient = run(Objective(name), student, labels)
    expected, exact = defined(Objective(name), student, labels)
    assert losses.dtype == torch.float32 and gradient.dtype == torch.bfloat16
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-6)
    assert (gradient.double() - exact).norm() < 4e-3 * exact.norm()


def test_rows_of_a_larger_tensor_and_no_rows(device):
    student, labels = case(device)
    loss_and_gradient = Objective("kl").in_place(labels, 300)
    whole, part = student.clone(), student.clone()
    losses = loss_and_gradient(whole, slice(None))
    assert torch.equal(loss_and_gradient(part[1:3], slice(1, 3)), losses[1:3])
    assert torch.equal(part[1:3], whole[1:3]) and torch.equal(part[3:], student[3:])
    assert loss_and_gradient(part[:0], slice(0, 0)).shape == (0,)


def test_what_the_kernel_does_not_serve_is_said():
    assert "two softmaxes" in Objective("kl", 2.0, ce_weight=.1).why_not_in_place("cuda")
    assert "no Triton for cpu" in Objective("kl").why_not_in_place("cpu")
