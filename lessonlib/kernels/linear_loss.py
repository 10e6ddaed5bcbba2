"""A head and its loss together: from hidden states and head weights to the loss and both gradients, a chunk of logits at a time."""

import torch

CHUNK = 2048  # rows of logits held at once, 0.49 GiB of bf16 at a vocabulary of 128,256: fewer would leave the products below the matrix units' full rate


def why_not_linear(head):
    """None where a head is a plain product with its weights, which is what `linear_loss` takes; else what it is."""
    return None if type(head) is torch.nn.Linear and head.bias is None else f"the head is a {type(head).__name__} with more than weights"


def linear_loss(hidden, weight, loss_and_gradient, chunk=CHUNK):
    """The summed loss; hidden [R, D] becomes its gradient, and the gradient in weight [V, D] is added to weight.grad if it trains.

    loss_and_gradient(logits [R', V], rows) gives one loss a row and overwrites the logits of those rows (a slice) with their gradient, which
    is why no more than a chunk of logits, in hidden's number format, ever exists: three matrix products a chunk, as many as without chunks.
    """
    operand, losses = weight.detach().to(hidden.dtype), []
    buffer = hidden.new_empty(min(chunk, len(hidden)), len(weight))
    for start in range(0, len(hidden), chunk):
        rows = slice(start, start + chunk)
        some = hidden[rows]
        logits = torch.mm(some, operand.T, out=buffer[:len(some)])
        losses.append(loss_and_gradient(logits, rows))
        if weight.requires_grad:
            _add_product(weight, logits.T, some)
        torch.mm(logits, operand, out=some)
    return torch.cat(losses).sum()


def _add_product(weight, a, b):
    """weight.grad += a @ b, summed in fp32 and without a second tensor of its size where the device can do that."""
    format = {} if a.dtype == weight.dtype else {"out_dtype": weight.dtype}
    if format and not a.is_cuda:
        product = (a @ b).to(weight.dtype)
        weight.grad = product if weight.grad is None else weight.grad.add_(product)
    elif weight.grad is None:
        weight.grad = torch.mm(a, b, **format)
    else:
        torch.addmm(weight.grad, a, b, **format, out=weight.grad)
