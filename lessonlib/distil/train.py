"""The training loop: whatever the loss, one loop with fp32 masters, a token mean over the whole batch, and exact resume."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from lessonlib.errors import LessonError, causes
from lessonlib.files import atomic_path, fingerprint, shown
from lessonlib.kernels.copies import to_cpu
from lessonlib.progress import Progress


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train. batch_size counts sequences an optimizer step; micro_batch how many of them run at once."""

    steps: int
    lr: float
    batch_size: int = 8
    micro_batch: int | None = None
    warmup: float = 0.05
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    save_every: int = 200

    def __post_init__(self):
        counts = [self.steps, self.batch_size, self.save_every, *([] if self.micro_batch is None else [self.micro_batch])]
        if any(not isinstance(count, int) or count < 1 for count in counts) or not 0 < self.lr <= 10:
            raise LessonError(f"a recipe needs at least one step, one sequence a batch and a learning rate above 0, up to 10 (got {self}); mend that number.")
        if not (0 <= self.warmup <= 1 and self.weight_decay >= 0 and self.clip > 0 and isinstance(self.seed, int) and 0 <= self.seed < 2**32):
            raise LessonError(f"a recipe needs a warmup from 0 to 1, a weight decay of 0 or more, a clip above 0 and a seed from 0 to 2**32 - 1 (got {self}); "
                              "mend that number.")

    def rate(self, step):
        """The learning rate of a step: a linear warm-up over the first share `warmup` of the steps, then half a cosine down to 0."""
        warm = max(1, round(self.warmup * self.steps))
        if step < warm:
            return self.lr * (step + 1) / warm
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))


def fit(draft, micro_batches, backward, recipe, checkpoint=None, identity=None, on_step=None, label="training", show=True):
    """Train the parameters of `draft` that require gradients; returns the mean loss of each step (list of floats, resumed ones included).

    micro_batches(step) gives the step's micro-batches, each with `.rows`, the number of labels in it, and depends on nothing but the
    step, so that a resumed run sees the same ones. backward(draft, micro_batch, scale) runs one of them forward and backward with its
    loss times scale, and returns the sum of its unscaled losses: every label counts the same, however the batch is cut.
    checkpoint: a file to save to and resume from, every recipe.save_every steps and on Ctrl-C; identity: any JSON value that says what
    is trained on, so that a checkpoint of something else is refused.
    on_step(step, loss), if given, is called after each step. Raises LessonError for trainable weights that are not fp32 (at a small
    learning rate a bf16 weight would not move), and for a loss or gradient that is not finite, before the weights are touched.
    """
    trained = {name: p for name, p in draft.named_parameters() if p.requires_grad}
    if not trained:
        raise LessonError("nothing in this draft is trainable; unfreeze its layers (requires_grad) before training.")
    low = [name for name, p in trained.items() if p.dtype not in (torch.float32, torch.float64)]
    if low:
        raise LessonError(f"{low[0]} is {trained[low[0]].dtype}: small updates would be rounded away; train an fp32 copy (draft.float()).")
    optimizer = torch.optim.AdamW(trained.values(), lr=recipe.lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=True)
    run = fingerprint([asdict(recipe), identity])
    losses = _resume(checkpoint, run, trained, optimizer) if checkpoint else []
    progress = Progress(label, recipe.steps - len(losses), "steps", show=show)
    was_training, whole = draft.training, True  # whole: weights, optimizer and losses are of the same step
    draft.train()
    try:
        batch = list(micro_batches(len(losses))) if len(losses) < recipe.steps else []
        for step in range(len(losses), recipe.steps):
            optimizer.param_groups[0]["lr"] = recipe.rate(step)
            optimizer.zero_grad(set_to_none=True)
            rows = sum(micro.rows for micro in batch)
            loss = sum(backward(draft, micro, 1.0 / rows) for micro in batch) / rows
            batch = list(micro_batches(step + 1)) if step + 1 < recipe.steps else []  # made while a GPU still works on this step's
            gradients = [weight.grad for weight in trained.values() if weight.grad is not None]
            if not gradients:
                raise LessonError(f"{label} stopped at step {step + 1}: no trainable weight of this draft has a gradient; train weights that its logits depend on.")
            total = torch.nn.utils.get_total_norm(gradients)
            (values,), arrived = to_cpu([torch.stack([loss.detach().to(total.dtype), total])])
            # Both are decided on the device, which need not wait for us. The fused update divides gradients by grad_scale as it reads them, where
            # `clip_grad_norm_` would read and write all of them once more; where found_inf is 1, it changes nothing.
            optimizer.grad_scale = (total / recipe.clip).clamp_min(1).float()
            optimizer.found_inf = (~torch.isfinite(loss + total)).float()
            whole = False
            optimizer.step()
            losses.append(None)
            whole = True
            arrived()
            losses[-1], norm = values.tolist()
            if not (math.isfinite(losses[-1]) and math.isfinite(norm)):
                saved = f" The last good weights are in {shown(checkpoint)}." if checkpoint and Path(checkpoint).exists() else ""
                raise LessonError(f"{label} stopped at step {step + 1}: the loss is {losses[-1]} and the gradient's norm {norm}; "
                                  f"lower the learning rate (now {recipe.lr:g}) or look for bad labels in the data.{saved}")
            progress.add(note=f"loss {losses[-1]:.4f}")
            if on_step is not None:
                on_step(step, losses[-1])
            due = (step + 1) % recipe.save_every == 0 or step + 1 == recipe.steps
            if due and not all(torch.isfinite(weight).all() for weight in trained.values()):
                raise LessonError(f"{label} stopped at step {step + 1}: its update made a weight that is not finite; lower the learning rate (now {recipe.lr:g}).")
            if checkpoint and due:
                _save(checkpoint, run, trained, optimizer, losses)
    except KeyboardInterrupt:
        if checkpoint and losses and whole:  # stopped inside an update: the last saved step is gone on from instead
            if losses[-1] is None:
                arrived()
                losses[-1:] = values[:1].tolist() if torch.isfinite(values).all() else []  # of a step that changed nothing
            _save(checkpoint, run, trained, optimizer, losses)
            print(f"  {label}: stopped after step {len(losses)}; the same command goes on from there.", flush=True)
        raise
    finally:
        draft.train(was_training)
        optimizer.zero_grad(set_to_none=True)
    if progress.done:
        progress.finish(note=f"loss {losses[-1]:.4f}")
    return losses


def _save(path, run, trained, optimizer, losses):
    with atomic_path(path) as temporary:
        try:
            with open(temporary, "wb") as file:
                torch.save({"run": run, "losses": losses, "weights": {n: p.detach() for n, p in trained.items()},
                            "optimizer": optimizer.state_dict()}, file)
        except RuntimeError as error:  # torch's writer covers up what the file said, such as that the disk is full
            raise next((cause for cause in causes(error) if isinstance(cause, OSError)), error) from None


def _resume(path, run, trained, optimizer):
    """Load a checkpoint into the weights and the optimizer; returns the losses of the steps it has behind it."""
    if not Path(path).exists():
        return []
    try:
        state = torch.load(path, map_location=next(iter(trained.values())).device, weights_only=True)
    except Exception as error:  # torch names no single exception for a damaged file
        raise LessonError(f"the checkpoint {shown(path)} cannot be read ({type(error).__name__}); delete it to train from the start.") from None
    shapes = {name: weight.shape for name, weight in trained.items()}
    ours = isinstance(state, dict) and {"run", "losses", "weights", "optimizer"} <= state.keys() and state["run"] == run
    if not ours or {name: weight.shape for name, weight in state["weights"].items()} != shapes:
        raise LessonError(f"the checkpoint {shown(path)} belongs to another run (its recipe, labels or draft differ); delete it to train from the start.")
    with torch.no_grad():
        for name, weight in state["weights"].items():
            trained[name].copy_(weight)
    optimizer.load_state_dict(state["optimizer"])
    return state["losses"]
