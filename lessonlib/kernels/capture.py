"""Work on a GPU captured as a CUDA graph: launched as one thing, where Python would launch its operations one by one."""

import torch


def captured(work, device):
    """(a CUDA graph of work(), the tensors that work() returned, which every replay writes anew).

    `work` runs once before, so that what its first run sets up or compiles is not captured. It reads and writes tensors that stay where they are, and
    asks the device for nothing.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        returned = work()
    return graph, returned


def places(weights):
    """Where these weights lie: a graph reads them there, whatever takes their place later."""
    return [weight.data_ptr() for weight in weights]


class Replayed:
    """Functions of tensors, each captured as a graph when it is first called and replayed from then on; on a CPU they simply run.

    What such a function returns (a tuple of tensors) must depend on the tensors given, on memory that stays where it is, and on what `key` names.
    """

    def __init__(self):
        self.made, self.places = {}, None

    def forget_unless(self, weights):
        """Forget the graphs unless these weights lie where they lay; to be told before each text, since weights that were replaced are not in a graph."""
        if (found := places(weights)) != self.places:
            self.made, self.places = {}, found

    def __call__(self, key, work, *given):
        """work(*given): what it returns, in tensors of its own. Whoever calls it again with this key calls it with tensors of these shapes."""
        if given[0].device.type != "cuda":
            return work(*given)
        if key not in self.made:
            own = [tensor.clone() for tensor in given]
            self.made[key] = (own, *captured(lambda: work(*own), own[0].device))
        own, graph, returned = self.made[key]
        for mine, theirs in zip(own, given):
            mine.copy_(theirs)
        graph.replay()
        return tuple(tensor.clone() for tensor in returned)
