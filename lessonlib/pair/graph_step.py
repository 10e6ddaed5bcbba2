"""A decoding step on a GPU as one CUDA graph: everything between a row of ids and its logits is launched at once, at the speed of the weights.

A step of one token reads every weight once and computes next to nothing, so its floor is the time of reading them. transformers' forward takes
ten times as long, nearly all of it for launching a thousand small operations. Here a layer is five kernels, and the graph that replays them is
captured once: the number of rows, up to 16, and the length of the text are numbers in the GPU's memory, so plain steps and verifying passes
of every K are the same graph, and taking tokens back costs nothing. Passes of up to 64 rows, such as a large tree's, are a second one.
"""

from contextlib import nullcontext
from time import perf_counter

import torch

from lessonlib.kernels.backend import why_torch
from lessonlib.kernels.capture import captured, places
from lessonlib.kernels.copies import to_device
from lessonlib.pair.llama import why_not
from lessonlib.pair.llama_step import LlamaStep

SIZES = (16, 64)  # rows of the graphs, the smallest first: as few as the matrix units take, and as many as an int64 has bits
NOBODY_KNOWS = (None, None)
ROOM = 1024  # tokens the cache has room for at first; when they are used up it doubles, and the graph is captured anew


def why_no_graph(model):
    """Why a GraphStep cannot run this model, in a few words, or None where it can."""
    weight = model.get_output_embeddings().weight
    why = why_torch(weight.device) or why_not(model)
    if why is None and weight.dtype not in (torch.float32, torch.bfloat16):  # rows times a norm's weight may leave the range of float16
        why = f"its weights are {str(weight.dtype).removeprefix('torch.')}"
    if why is None and not all(p.is_contiguous() for p in model.parameters()):
        why = "a weight of its does not lie in one piece"
    return why


def shape_of(tree, rows):
    """int64 [2, rows] on the CPU: the depth of each row of a Tree, or of a chain where it is None, and the rows it sees, a bit each."""
    paths = [range(row + 1) for row in range(rows)] if tree is None else tree.path
    shape = torch.zeros(2, rows, dtype=torch.int64)
    for row, path in enumerate(paths):
        bits = sum(1 << seen for seen in path)
        shape[0, row], shape[1, row] = len(path) - 1, bits - (bits >> 63 << 64)  # bit 63 is the sign
    return shape


class Pass:
    """What a graph of up to `rows` rows reads and writes: tensors that stay where they are, and of which Tree `shape` tells."""

    def __init__(self, rows, step):
        from lessonlib.kernels.few_rows_triton import NormedRows  # Triton is there where this class is
        config, weight = step.model.config, step.model.lm_head.weight
        new = lambda *shape, dtype=weight.dtype: torch.zeros(rows, *shape, dtype=dtype, device=step.device)  # noqa: E731
        queries = config.num_attention_heads * step.width
        self.ids, self.qkv, self.mixed = new(dtype=torch.long), new(queries + 2 * step.heads * step.width), new(queries)
        self.inner, self.logits, self.tapped = new(config.intermediate_size), new(len(weight)), new(len(step.taps) * config.hidden_size)
        self.hidden, self.between = (NormedRows(rows, config.hidden_size, weight.dtype, step.device) for _ in range(2))
        self.shape, self.shaped = torch.zeros(2, rows, dtype=torch.int64, device=step.device), NOBODY_KNOWS
        self.graph = None


class GraphStep(LlamaStep):
    """LlamaStep with up to 64 tokens at a time read by a captured graph; longer pieces, such as prompts, by LlamaStep's own pass.

    The weights are the model's own, read where they lie. seconds_to_capture: what compiling (once a process) and the last capture took.
    """

    room = ROOM
    name = "one CUDA graph a step"

    def __init__(self, model):
        from lessonlib.kernels.few_rows_triton import Scratch  # Triton is there where this class is
        super().__init__(model)
        self.passes, self.scratch, self.seconds_to_capture = {}, Scratch(self.device), 0.0
        self.start, self.count = (torch.zeros(1, dtype=torch.int32, device=self.device) for _ in range(2))
        self.told = NOBODY_KNOWS  # the length and the number of rows that the device will find after the last graph

    def tap(self, layers):
        """Leave the hidden states behind these layers in `features` after each pass; other layers than before are another graph."""
        if tuple(layers) != self.taps:
            super().tap(layers)
            self.passes = {}

    def _reserve(self, length):
        before = self.cache
        super()._reserve(length)
        if self.cache is not before:
            self.passes, self.told = {}, NOBODY_KNOWS

    @torch.inference_mode()
    def run(self, tokens, last=None, tree=None):
        """Read more tokens (a list or a 1-D tensor); returns logits [n, V], one row a token, or [last, V] of the last ones only; tree as in LlamaStep."""
        ids = tokens if isinstance(tokens, torch.Tensor) else to_device(torch.tensor(tokens), self.device)
        n = len(ids)
        size = next((rows for rows in SIZES if n <= rows), None)
        if size is None:
            return super().run(ids, last, tree)
        self._reserve(max(1, self.length + n))
        self.before = self.length
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            if size not in self.passes:
                self._capture(size)
            made = self.passes[size]
            if n:
                self._replay(made, ids, n, tree)
        self.features = made.tapped[:n] if self.taps else None
        return made.logits[0 if last is None else max(0, n - last):n].clone()

    def _replay(self, made, ids, n, tree):
        (length, rows), shaped = self.told, made.shaped
        self.told = made.shaped = NOBODY_KNOWS  # what the device holds after an interruption from here on
        made.ids[:n].copy_(ids)
        if length != self.length:
            self.start.fill_(self.length)
        if rows != n:
            self.count.fill_(n)
        if shaped is not tree:
            made.shape.copy_(to_device(shape_of(tree, len(made.ids)), self.device))
        made.graph.replay()
        self.length += n
        self.told, made.shaped = (self.length, n), tree

    def reset(self):
        """Forget the text; weights that were replaced since the graph was captured (not changed in place) are captured anew."""
        super().reset()
        if self.passes and self.places != places(self.model.parameters()):
            self.passes = {}

    def _capture(self, rows):
        """Make the Pass of so many rows and its graph."""
        begin, made = perf_counter(), Pass(rows, self)
        self.start.fill_(0)
        self.count.fill_(0)  # no row is live, so what runs here writes nothing
        self.told = NOBODY_KNOWS
        made.graph = self._graph(made)
        self.passes[rows], self.places = made, places(self.model.parameters())
        self.seconds_to_capture = perf_counter() - begin

    def _graph(self, made):
        graph, _ = captured(lambda: self._launch(made), self.device)
        torch.cuda.synchronize(self.device)
        return graph

    def _launch(self, made):
        """All kernels of a step, from the ids of a Pass to its logits."""
        from lessonlib.kernels.cached_attention_triton import cached_attention
        from lessonlib.kernels.few_rows_triton import few_rows, look_up
        body, head = self.model.model, self.model.lm_head
        layers = body.layers[:self.model.config.num_hidden_layers]

        def product(x, modules, out, norm=None, **options):
            biases = [module.bias for module in modules] if modules[0].bias is not None else None
            few_rows(x, [module.weight for module in modules], out, self.count, self.scratch, biases=biases, norm=norm and norm.weight, **options)

        look_up(made.ids, body.embed_tokens.weight, made.hidden, self.count, layers[0].input_layernorm.weight)
        afterwards = [*(layer.input_layernorm for layer in layers[1:]), body.norm]
        for place, (layer, after, cache) in enumerate(zip(layers, afterwards, self.cache), 1):
            attention, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
            norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else None
            product(made.hidden, (attention.q_proj, attention.k_proj, attention.v_proj), made.qkv, eps=layer.input_layernorm.variance_epsilon)
            cached_attention(made.qkv, self.cos, self.sin, cache, self.start, self.count, made.shape, attention.scaling, self.groups, made.mixed, self.scratch, norms,
                             attention.q_norm.variance_epsilon if norms else 0.0)
            product(made.mixed, (attention.o_proj,), made.between, norm, residual=made.hidden.rows)
            product(made.between, (mlp.gate_proj, mlp.up_proj), made.inner, eps=norm.variance_epsilon, gated=True)
            product(made.inner, (mlp.down_proj,), made.hidden, after, residual=made.between.rows)
            if place in self.taps:
                made.tapped.chunk(len(self.taps), -1)[self.taps.index(place)].copy_(made.hidden.rows)
        product(made.hidden, (head,), made.logits, eps=body.norm.variance_epsilon)
        self.start += self.count  # where the next rows go, unless tokens are taken back first
