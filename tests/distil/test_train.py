"""The training loop by itself: what it refuses, what it does to a weight, and how it is gone on with."""

import errno
import math
import os
from dataclasses import dataclass

import pytest
import torch

from lessonlib.distil import train as train_module
from lessonlib.distil.train import Recipe, fit
from lessonlib.errors import LessonError


class Line(torch.nn.Module):
    """Predicts a number from two: the smallest thing that can be trained."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.frozen = torch.nn.Parameter(torch.randn(2, dtype=dtype)), torch.nn.Parameter(torch.ones(3), requires_grad=False)


@dataclass
class Points:
    x: torch.Tensor
    y: torch.Tensor

    @property
    def rows(self):
        return len(self.x)


def points(step, sizes=(5,)):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(sum(sizes), 2, generator=generator)
    y = x @ torch.tensor([3.0, -2.0])
    return [Points(*part) for part in zip(x.split(sizes), y.split(sizes))]


def squares(model, batch, scale):
    loss = (batch.x @ model.weight - batch.y).square().sum()
    (loss * scale).backward()
    return loss.detach()


def train(model, recipe, checkpoint=None, **more):
    return fit(model, more.pop("batches", points), more.pop("backward", squares), recipe, checkpoint, show=False, **more)


RECIPE = Recipe(steps=10, lr=.1, save_every=3)


def test_a_line_is_learnt():
    model = Line()
    losses = train(model, Recipe(steps=300, lr=.1))
    assert len(losses) == 300 and losses[-1] < 1e-3 < losses[0]
    torch.testing.assert_close(model.weight.data, torch.tensor([3.0, -2.0]), rtol=0, atol=.02)
    assert torch.equal(model.frozen, torch.ones(3)) and model.weight.grad is None


def test_losses_are_means_over_all_labels_whatever_the_micro_batches():
    whole, cut = Line(), Line()
    a = train(whole, RECIPE, batches=lambda step: points(step, (8,)))
    b = train(cut, RECIPE, batches=lambda step: points(step, (1, 5, 2)))  # a mean of three means would weigh the first most
    torch.testing.assert_close(torch.tensor(a), torch.tensor(b))
    torch.testing.assert_close(whole.weight, cut.weight)
    x, y = points(0, (8,))[0].x, points(0, (8,))[0].y
    assert a[0] == pytest.approx((x @ Line().weight - y).square().mean().item())


def test_the_rate_rises_in_a_line_and_falls_in_half_a_cosine():
    recipe = Recipe(steps=100, lr=2.0, warmup=.1)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([.2 * i for i in range(1, 11)])
    assert rates[10:] == pytest.approx([1 + math.cos(math.pi * i / 90) for i in range(90)])
    assert Recipe(steps=1, lr=1.0).rate(0) == 1.0 and Recipe(steps=10, lr=1.0, warmup=0.0).rate(0) == 1.0


def pull(model, batch, scale):
    """A gradient of exactly 1 in every weight."""
    loss = model.weight.sum()
    loss.backward()
    return loss.detach()


def test_what_trains_is_fp32_since_bf16_would_not_move():
    # the fact: 100 AdamW steps of unit gradient at 1e-4 leave a bf16 0.5 where it was
    for dtype, after in ((torch.bfloat16, .5), (torch.float32, .49)):
        weight = torch.nn.Parameter(torch.full((2,), .5, dtype=dtype))
        optimizer = torch.optim.AdamW([weight], lr=1e-4, weight_decay=0.0)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        assert weight.detach().float().tolist() == pytest.approx([after] * 2, abs=1e-5)
    # the rule: bf16 is refused, and fp32 moves by the sum of the rates
    model, low = Line(), Line(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(.5)
    recipe = Recipe(steps=100, lr=1e-4, clip=10.0)
    train(model, recipe, backward=pull)
    assert model.weight.tolist() == pytest.approx([.5 - sum(map(recipe.rate, range(100)))] * 2, abs=1e-6)
    assert .4940 < .5 - sum(map(recipe.rate, range(100))) < .4960
    with pytest.raises(LessonError, match=r"weight is torch.bfloat16.*fp32 copy"):
        train(low, recipe, backward=pull)
    assert torch.equal(low.weight, Line(torch.bfloat16).weight)


def test_a_gradient_is_clipped_as_a_whole(monkeypatch):
    model, norms = Line(), []

    class Spy(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            super().step(*args, **kwargs)
            norms.append(model.weight.grad.norm().item())  # the fused update leaves the gradients as it used them

    monkeypatch.setattr(torch.optim, "AdamW", Spy)
    train(model, Recipe(steps=3, lr=.1, clip=.25))
    assert norms == pytest.approx([.25] * 3, rel=1e-4)


def test_nothing_to_train_is_refused():
    model = Line()
    model.weight.requires_grad_(False)
    with pytest.raises(LessonError, match="nothing in this draft is trainable"):
        train(model, RECIPE)


@pytest.mark.parametrize("settings", [dict(steps=0), dict(batch_size=0), dict(lr=0.0), dict(lr=-1.0), dict(lr=math.nan), dict(lr=math.inf), dict(micro_batch=0), dict(steps=1.5),
                                      dict(save_every=0), dict(clip=0.0), dict(warmup=-1.0), dict(weight_decay=-1.0), dict(seed=1.5), dict(seed=2**40)])
def test_a_recipe_that_cannot_work_is_refused(settings):
    with pytest.raises(LessonError, match="recipe needs"):
        Recipe(**{"steps": 1, "lr": 1.0} | settings)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_the_mode_it_came_in(training):
    model, seen = Line().train(training), []
    train(model, RECIPE, on_step=lambda step, loss: seen.append(model.training))
    assert seen == [True] * 10 and model.training is training


# --- going on -------------------------------------------------------------------------------------------------------------

def reference():
    model = Line()
    return train(model, RECIPE), model.weight.detach()


def stop_after(step, error=KeyboardInterrupt):
    def on_step(done, loss):
        if done + 1 == step:
            raise error
    return on_step


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("stop", [1, 5, 6, 9])
def test_a_stopped_run_ends_in_the_same_bits(tmp_path, stop, error):
    losses, weight = reference()
    first = Line()
    with pytest.raises(error):
        train(first, RECIPE, tmp_path / "run", on_step=stop_after(stop, error))
    steps = []
    again = Line()
    assert train(again, RECIPE, tmp_path / "run", on_step=lambda step, loss: steps.append(step)) == losses
    assert torch.equal(again.weight, weight)
    # Ctrl-C saves where it stands; anything else goes on from the last save, every three steps
    assert steps[0] == (stop if error is KeyboardInterrupt else (stop - 1) // 3 * 3)
    finished = Line()
    assert train(finished, RECIPE, tmp_path / "run", on_step=stop_after(10)) == losses  # nothing left to do
    assert torch.equal(finished.weight, weight)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interruption_inside_an_update_goes_on_from_the_last_save(tmp_path, monkeypatch, moment):
    losses, weight = reference()

    class Interrupted(torch.optim.AdamW):
        steps = 0

        def step(self, *args, **kwargs):
            self.steps += 1
            if self.steps == 6 and moment == "before":
                with torch.no_grad():  # half of the weights have moved
                    self.param_groups[0]["params"][0][0] += 1
                raise KeyboardInterrupt
            super().step(*args, **kwargs)
            if self.steps == 6:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch.optim, "AdamW", Interrupted)
        train(Line(), RECIPE, tmp_path / "run")
    again = Line()
    assert train(again, RECIPE, tmp_path / "run") == losses
    assert torch.equal(again.weight, weight)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    train(Line(), RECIPE, tmp_path / "run", identity=["these labels", 3])
    before = (tmp_path / "run").read_bytes()
    larger = Line()
    larger.weight = torch.nn.Parameter(torch.zeros(3))
    other = Line()
    other.frozen.requires_grad_(True)
    for model, recipe, identity in ((Line(), Recipe(steps=11, lr=.1, save_every=3), ["these labels", 3]), (Line(), RECIPE, ["those", 3]),
                                    (Line(), RECIPE, None), (larger, RECIPE, ["these labels", 3]), (other, RECIPE, ["these labels", 3])):
        weights = [p.clone() for p in model.parameters()]
        with pytest.raises(LessonError, match="another run"):
            train(model, recipe, tmp_path / "run", identity=identity)
        assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters()))
    assert (tmp_path / "run").read_bytes() == before
    assert len(train(Line(), RECIPE, tmp_path / "run", identity=["these labels", 3])) == 10


@pytest.mark.parametrize("damage, said", [
    (lambda path: os.truncate(path, path.stat().st_size // 2), "cannot be read"), (lambda path: path.write_bytes(b"hello"), "cannot be read"),
    (lambda path: path.write_bytes(b""), "cannot be read"), (lambda path: torch.save({"weight": torch.ones(2)}, path), "another run"),
    (lambda path: torch.save(torch.ones(2), path), "another run")])
def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path, damage, said):
    train(Line(), RECIPE, tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(LessonError, match=said):
        train(Line(), RECIPE, tmp_path / "run")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_stops_before_the_weights_are_touched(tmp_path, value, what):
    kept, model = [], Line()

    def backward(model, batch, scale):
        loss = squares(model, batch, scale)
        if len(kept) == 7:  # the eighth step
            if what == "gradient":
                model.weight.grad[0] = value
                return loss
            return loss * value
        return loss

    def on_step(step, loss):
        kept.append(model.weight.detach().clone())

    with pytest.raises(LessonError, match=r"stopped at step 8: .*learning rate \(now 0.1\).*last good weights") as caught:
        train(model, RECIPE, tmp_path / "run", backward=backward, on_step=on_step)
    assert "\n" not in str(caught.value)
    assert torch.equal(model.weight, kept[6]) and torch.isfinite(model.weight).all()
    state = torch.load(tmp_path / "run", weights_only=True)  # as saved after step 6
    assert torch.equal(state["weights"]["weight"], kept[5]) and len(state["losses"]) == 6
    with pytest.raises(LessonError, match="in the data.$"):
        train(Line(), RECIPE, backward=lambda model, batch, scale: squares(model, batch, scale) * value)


def test_an_interruption_while_a_bad_step_is_not_known_yet_saves_the_steps_before_it(tmp_path, monkeypatch):
    """On a GPU a step's loss is waited for once its update is queued; that wait is where Ctrl-C nearly always falls."""
    seen = []

    def to_cpu(tensors):
        def arrived():
            seen.append(1)
            if len(seen) == 5:
                raise KeyboardInterrupt
        return tensors, arrived

    def backward(model, batch, scale):
        loss = squares(model, batch, scale)
        return loss * (math.nan if len(seen) == 4 else 1)  # the fifth step

    monkeypatch.setattr(train_module, "to_cpu", to_cpu)
    with pytest.raises(KeyboardInterrupt):
        train(Line(), RECIPE, tmp_path / "run", backward=backward)
    assert len(torch.load(tmp_path / "run", weights_only=True)["losses"]) == 4
    losses, weight = reference()
    again = Line()
    assert train(again, RECIPE, tmp_path / "run") == losses and torch.equal(again.weight, weight)


def test_weights_that_nothing_depends_on_are_not_trained_in_silence():
    model = Line()
    with pytest.raises(LessonError, match="no trainable weight of this draft has a gradient"):
        train(model, RECIPE, backward=lambda model, batch, scale: torch.tensor(1.0))


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RuntimeError):
        train(Line(), RECIPE, path, on_step=stop_after(5, RuntimeError))
    before = path.read_bytes()
    (tmp_path / f".run.{os.getpid()}.tmp").symlink_to("/dev/full")  # a device on which every write finds no space left
    with pytest.raises(LessonError, match="disk is full") as caught:
        train(Line(), RECIPE, path)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    losses, weight = reference()
    again = Line()
    assert train(again, RECIPE, path) == losses and torch.equal(again.weight, weight)


def test_an_update_that_ends_in_weights_that_are_not_finite_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: self.param_groups[0]["params"][0].data.fill_(math.inf))
    with pytest.raises(LessonError, match="a weight that is not finite"):
        train(Line(), Recipe(steps=1, lr=0.1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_next_steps_batch_is_made_before_this_steps_update_is_waited_for(monkeypatch):
    events = []

    class Spy(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            events.append("update")
            return super().step(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "AdamW", Spy)
    train(Line(), Recipe(steps=3, lr=.1), batches=lambda step: events.append(step) or points(step))
    assert events == [0, 1, "update", 2, "update", "update"]


def test_a_gradient_below_the_clip_is_left_as_it_is(monkeypatch):
    seen = []

    class Spy(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            seen.append(self.param_groups[0]["params"][0].grad.clone())

    monkeypatch.setattr(torch.optim, "AdamW", Spy)
    train(Line(), Recipe(steps=1, lr=.1, clip=2.0), backward=pull)
    assert torch.equal(seen[0], torch.ones(2))
