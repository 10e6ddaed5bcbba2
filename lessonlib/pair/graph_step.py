"""A decoding step on a GPU as one CUDA graph: everything between a row of ids and its logits is launched at once, at the speed of the weights.

A step of one token reads every weight once and computes next to nothing, so its floor is the time of reading them. transformers' forward takes
ten times as long, nearly all of it for launching a thousand small operations. Here a layer is five kernels, and the graph that replays them is
captured once: the number of rows, up to ROWS, and the length of the text are numbers in the GPU's memory, so plain steps and verifying passes
of every K are the same graph, and taking tokens back costs nothing.
"""

from contextlib import nullcontext
from time import perf_counter

import torch

from lessonlib.kernels.backend import why_torch
from lessonlib.kernels.capture import captured, places
from lessonlib.kernels.copies import to_device
from lessonlib.pair.llama import why_not
from lessonlib.pair.llama_step import LlamaStep

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
    """int32 [2, rows] on the CPU: the depth of each row of a Tree, or of a chain where it is None, and the rows it sees, a bit each."""
    paths = [range(row + 1) for row in range(rows)] if tree is None else tree.path
    shape = torch.zeros(2, rows, dtype=torch.int32)
    for row, path in enumerate(paths):
        shape[0, row], shape[1, row] = len(path) - 1, sum(1 << seen for seen in path)
    return shape


class GraphStep(LlamaStep):
    """LlamaStep with up to ROWS tokens at a time read by a captured graph; longer pieces, such as prompts, by LlamaStep's own pass.

    The weights are the model's own, read where they lie. seconds_to_capture: what compiling (once a process) and the last capture took.
    """

    room = ROOM
    name = "one CUDA graph a step"

    def __init__(self, model):
        from lessonlib.kernels.few_rows_triton import ROWS, NormedRows, Scratch  # Triton is there where this class is
        super().__init__(model)
        config, weight = model.config, model.lm_head.weight
        self.rows, self.scratch, self.graph, self.seconds_to_capture = ROWS, Scratch(self.device), None, 0.0
        new = lambda *shape, dtype=weight.dtype: torch.zeros(ROWS, *shape, dtype=dtype, device=self.device)  # noqa: E731
        queries = config.num_attention_heads * self.width
        self.ids, self.qkv, self.mixed = new(dtype=torch.long), new(queries + 2 * self.heads * self.width), new(queries)
        self.inner, self.logits = new(config.intermediate_size), new(len(weight))
        self.hidden, self.between = (NormedRows(config.hidden_size, weight.dtype, self.device) for _ in range(2))
        self.start, self.count = (torch.zeros(1, dtype=torch.int32, device=self.device) for _ in range(2))
        self.told = None  # the length, the number of rows and their Tree that the device will find after the last graph
        self.shape, self.tapped = torch.zeros(2, ROWS, dtype=torch.int32, device=self.device), None

    def tap(self, layers):
        """Leave the hidden states behind these layers in `features` after each pass; other layers than before are another graph."""
        if tuple(layers) != self.taps:
            super().tap(layers)
            self.graph, self.tapped = None, self.hidden.rows.new_zeros(self.rows, len(self.taps) * self.hidden.rows.shape[1])

    def _reserve(self, length):
        before = self.cache
        super()._reserve(length)
        if self.cache is not before:
            self.graph, self.told = None, None

    @torch.inference_mode()
    def run(self, tokens, last=None, tree=None):
        """Read more tokens (a list or a 1-D tensor); returns logits [n, V], one row a token, or [last, V] of the last ones only; tree as in LlamaStep."""
        ids = tokens if isinstance(tokens, torch.Tensor) else to_device(torch.tensor(tokens), self.device)
        n = len(ids)
        if n > self.rows:
            return super().run(ids, last, tree)
        if n:
            self._reserve(self.length + n)
            self.before = self.length
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                self._replay(ids, n, tree)
        self.features = self.tapped[:n] if self.taps else None
        return self.logits[0 if last is None else max(0, n - last):n].clone()

    def _replay(self, ids, n, tree):
        if self.graph is None:
            self._capture()
        (length, rows, shape), self.told = self.told or (None, None, ()), None  # an interruption from here on leaves the device at nobody knows what
        self.ids[:n].copy_(ids)
        if length != self.length:
            self.start.fill_(self.length)
        if rows != n:
            self.count.fill_(n)
        if shape is not tree:
            self.shape.copy_(to_device(shape_of(tree, self.rows), self.device))
        self.graph.replay()
        self.length += n
        self.told = self.length, n, tree

    def reset(self):
        """Forget the text; weights that were replaced since the graph was captured (not changed in place) are captured anew."""
        super().reset()
        if self.graph is not None and self.places != places(self.model.parameters()):
            self.graph = None

    def _capture(self):
        begin = perf_counter()
        self.start.fill_(0)
        self.count.fill_(0)  # no row is live, so what runs here writes nothing
        self.graph, _ = captured(self._launch, self.device)
        torch.cuda.synchronize(self.device)
        self.told, self.places = None, places(self.model.parameters())
        self.seconds_to_capture = perf_counter() - begin

    def _launch(self):
        """All kernels of a step, from self.ids to self.logits."""
        from lessonlib.kernels.cached_attention_triton import cached_attention
        from lessonlib.kernels.few_rows_triton import few_rows, look_up
        body, head = self.model.model, self.model.lm_head
        layers = body.layers[:self.model.config.num_hidden_layers]

        def product(x, modules, out, norm=None, **options):
            biases = [module.bias for module in modules] if modules[0].bias is not None else None
            few_rows(x, [module.weight for module in modules], out, self.count, self.scratch, biases=biases, norm=norm and norm.weight, **options)

        look_up(self.ids, body.embed_tokens.weight, self.hidden, self.count, layers[0].input_layernorm.weight)
        afterwards = [*(layer.input_layernorm for layer in layers[1:]), body.norm]
        for place, (layer, after, cache) in enumerate(zip(layers, afterwards, self.cache), 1):
            attention, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
            norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else None
            product(self.hidden, (attention.q_proj, attention.k_proj, attention.v_proj), self.qkv, eps=layer.input_layernorm.variance_epsilon)
            cached_attention(self.qkv, self.cos, self.sin, cache, self.start, self.count, self.shape, attention.scaling, self.groups, self.mixed, self.scratch, norms,
                             attention.q_norm.variance_epsilon if norms else 0.0)
            product(self.mixed, (attention.o_proj,), self.between, norm, residual=self.hidden.rows)
            product(self.between, (mlp.gate_proj, mlp.up_proj), self.inner, eps=norm.variance_epsilon, gated=True)
            product(self.inner, (mlp.down_proj,), self.hidden, after, residual=self.between.rows)
            if place in self.taps:
                self.tapped.chunk(len(self.taps), -1)[self.taps.index(place)].copy_(self.hidden.rows)
        product(self.hidden, (head,), self.logits, eps=body.norm.variance_epsilon)
        self.start += self.count  # where the next rows go, unless tokens are taken back first
