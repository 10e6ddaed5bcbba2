"""One switch, LESSON_PRESET: which pair, on which device, at which sizes."""

import os
from dataclasses import dataclass, replace

import torch

from lessonlib.errors import LessonError

SPARK_GB = 40  # the 8B in bf16 beside the 1B with its fp32 masters, gradients and AdamW moments


@dataclass(frozen=True)
class Preset:
    """A pair, where it runs, and the sizes of every step; printing it says which, where and why in one line."""

    name: str
    target: str  # a name `load.locate` knows, a folder, or a hub id
    draft: str  # the separate draft (shape A), likewise
    prompts: str | None = None  # None: the course's own; a JSONL file; a hub data set
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    reason: str = ""
    seed: int = 0
    train_prompts: int = 400
    heldout_prompts: int = 64
    max_new_tokens: int = 64
    k: int = 64  # logits stored a position
    train_steps: int = 120  # of the truncated draft, which starts from nothing
    separate_steps: int = 40  # of the separate draft, which can write already
    batch_size: int = 8  # sequences a step
    learning_rate: float = 3e-4  # of the separate draft: it can write already, large steps would make it forget how
    truncated_layers: int = 4
    truncated_learning_rate: float = 2e-3
    sweep_prompts: int = 8
    sweep_tokens: int = 48
    sweep_k: tuple = (1, 2, 3, 4)

    def __str__(self):
        """One line: the preset, its pair, device and dtype, and the reason."""
        return (f"preset {self.name}: {self.target} with draft {self.draft}, "
                f"on {self.device} in {str(self.dtype).removeprefix('torch.')} ({self.reason})")


TINY = Preset("tiny", "SmolLM2-135M-Instruct", "off-the-shelf")
# 10,000 answers of some 200 tokens, 16 a step: 1,250 steps see every answer twice.
SPARK = Preset("spark", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct",
               prompts="HuggingFaceH4/ultrachat_200k", train_prompts=10_000, heldout_prompts=500, max_new_tokens=256,
               train_steps=1_250, separate_steps=1_250, batch_size=16, learning_rate=1e-5, truncated_learning_rate=1e-4,
               sweep_prompts=20, sweep_tokens=256, sweep_k=(1, 2, 3, 4, 5, 6, 7, 8))
PRESETS = {"tiny": TINY, "spark": SPARK,
           "spark-open": replace(SPARK, name="spark-open", target="Qwen/Qwen3-8B", draft="Qwen/Qwen3-0.6B"),
           "custom": replace(SPARK, name="custom", target="", draft="", prompts=None)}


def preset(name=None, target=None, draft=None, prompts=None):
    """The preset `name`, or the one LESSON_PRESET names, or the largest one this machine can run.

    `custom` needs `target`, `draft` and `prompts`, as arguments or in LESSON_TARGET, LESSON_DRAFT and LESSON_PROMPTS; the
    others let them be replaced, the pair of `tiny` excepted. Raises LessonError for an unknown name and for what this
    machine cannot do.
    """
    memory = gpu_gb()
    chosen = name or os.environ.get("LESSON_PRESET")
    found = PRESETS.get(chosen or ("spark" if memory >= SPARK_GB else "tiny"))
    if found is None:
        raise LessonError(f"There is no preset {chosen!r}; choose one of {', '.join(PRESETS)}.")
    machine = f"a CUDA GPU with {memory:.0f} GB" if memory else "no CUDA GPU"
    if found.name in ("spark", "spark-open") and memory < SPARK_GB:
        raise LessonError(f"The preset {found.name} needs a CUDA GPU with {SPARK_GB} GB and this machine has {machine}; "
                          "set LESSON_PRESET=tiny, or custom and a smaller pair.")
    given = {"target": target or os.environ.get("LESSON_TARGET"), "draft": draft or os.environ.get("LESSON_DRAFT"),
             "prompts": prompts or os.environ.get("LESSON_PROMPTS")}
    given = {field: str(value) for field, value in given.items() if value}
    if found.name == "tiny" and given.keys() & {"target", "draft"}:
        raise LessonError("The preset tiny has its own pair; set LESSON_PRESET=custom to use another, "
                          "or unset LESSON_TARGET and LESSON_DRAFT.")
    if found.name == "custom" and (missing := {"target", "draft", "prompts"} - given.keys()):
        raise LessonError("The preset custom needs two models and a JSONL file of prompts; set "
                          f"{', '.join(f'LESSON_{field.upper()}' for field in sorted(missing))}.")
    # The tiny pair stays in fp32 on a GPU too: it is small, and in fp32 greedy decoding is exact to the token.
    dtype = torch.float32 if found.name == "tiny" or not memory else torch.bfloat16
    reason = f"{'asked for' if name else 'LESSON_PRESET' if chosen else 'LESSON_PRESET is unset'}; {machine}"
    return replace(found, device="cuda" if memory else "cpu", dtype=dtype, reason=reason, **given)


def gpu_gb():
    """The memory of the CUDA GPU in GB (1e9 bytes), 0.0 where there is none."""
    return torch.cuda.get_device_properties(0).total_memory / 1e9 if torch.cuda.is_available() else 0.0
