"""A decoding step's kernels compile for GPUs that are not here, in the shared memory that those have. They are not run there."""

import json
import os
import subprocess
import sys

import pytest

LIMITS = {80: 166_912, 90: 232_448, 121: 101_376}  # bytes a program may have: A100, H100 and H200, the DGX Spark's GB10
COMPILE = r"""
import json, sys
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from lessonlib.kernels import cached_attention_triton as attention, few_rows_triton as few
from lessonlib.pair.graph_step import SIZES

capability, limit = map(int, sys.argv[1:])
device = torch.device("cpu")
few.processors, few.memory, attention.memory = (lambda device: 132), (lambda device: limit), (lambda device: limit)
TYPES = dict(eps="fp32", scale="fp32", start="*i32", count="*i32", shape="*i64", arrived="*i32", sums="*fp32", squares="*fp32", out_squares="*fp32", plane="i64",
             **dict.fromkeys(("heads", "groups", "N0", "N1", "N2", "stride", "parts"), "i32"))


def shared(kernel, dtype, **constants):
    constants["EARLY"] = capability >= 90
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "*" + dtype) for name in names}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    return compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4}).metadata.shared


found = {}
for dtype, itemsize, room in ((*each, room) for each in (("bf16", 2), ("fp32", 4)) for room in SIZES):
    found[f"{dtype} attention, {room} rows"] = shared(attention._attend, dtype, GROUPS=4, WIDTH=128, HALF=64, ROWS=16, ROOM=room, KEYS=attention.KEYS * 2 // itemsize,
                                                      PIECES=attention.PIECES, NORM=True, STAGES=attention._stages(device))
    for name, sizes, width, gated in (("queries, keys, values", (4096, 1024, 1024), 4096, False), ("gate and up", (14336,), 4096, True), ("down", (2048,), 8192, False)):
        inputs, splits, stages = few._planned(device, sizes, room, width, itemsize, gated)
        found[f"{dtype} {name}, {room} rows"] = shared(few._few_rows, dtype, K=width, PARTS=64, SPLITS=splits, NORMED=True, BIAS=False, RESIDUAL=False, GATED=gated, LEAVES=False,
                                          ROWS=room, BN=few.OUTPUTS, BK=inputs, STAGES=stages)
print(json.dumps(found))
"""


@pytest.mark.parametrize("capability", LIMITS)
def test_the_step_compiles_for_a_gpu_that_is_not_here(capability, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", COMPILE, str(capability), str(LIMITS[capability])], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert len(found) == 16 and max(found.values()) <= LIMITS[capability], found
