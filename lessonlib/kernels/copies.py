"""Copies between a CPU and a GPU that neither waits for: they queue up behind the GPU's work, from and to memory that the GPU can reach."""

import torch


def to_device(tensor, device):
    """`tensor` on `device`; a GPU gets it when its queue comes to it."""
    device = torch.device(device)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # from ordinary memory the copy would first wait for all that is queued
    return tensor.to(device, non_blocking=True)


def to_cpu(tensors):
    """(the tensors' copies on the CPU, a function that returns once they are there)."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if tensors[0].device.type != "cuda":
        return copies, lambda: None
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(tensors[0].device))
    return copies, arrived.synchronize
