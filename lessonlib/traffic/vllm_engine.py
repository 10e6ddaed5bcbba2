"""vLLM as an engine: the target answers, or reads its answers again, in a child process that gives all its memory back when it ends."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from lessonlib.errors import LessonError
from lessonlib.files import CHECKPOINTS, check_writable, shown
from lessonlib.pair.llama import why_not
from lessonlib.pair.load import HUB_ID
from lessonlib.pair.step import context_length
from lessonlib.traffic.engine import BatchEngine, TransformersEngine
from lessonlib.traffic.vllm_environment import vllm_python

CHILD = Path(__file__).with_name("vllm_child.py")
ENGINES = ("transformers", "lessonlib", "vllm")
NOT_INSTALLED = "vLLM is not installed"
BATCHED_TOKENS = 2048  # read at once: what bounds the memory of prompt log-probabilities, 1 GiB of fp32 logits at a vocabulary of 128,256
SHORTEST_MODEL_LENGTH = 2048  # so that a later job with somewhat longer rows needs no new start


def choose_engine(target, name=None, batch_size=None):
    """The engine of that name for `target`; by default LESSON_ENGINE's, or vLLM for a target in half precision on a GPU, lessonlib's for others there,
    and transformers on a CPU or for a target that lessonlib cannot run.

    Where vLLM is only the default and not installed, one line says so and another is taken. Raises LessonError for an unknown name, and for one that was
    asked for and is not installed or cannot run the target. batch_size: rows at once; vLLM makes its own batches.
    """
    asked = name or os.environ.get("LESSON_ENGINE")
    if asked not in (None, *ENGINES):
        raise LessonError(f"there is no engine {asked!r}; choose one of {', '.join(ENGINES)}.")
    if asked == "lessonlib" and (why := why_not(target)):
        raise LessonError(f"lessonlib's engine cannot run this target: {why}; take the engine transformers or vllm.")
    own = BatchEngine if asked == "lessonlib" or asked is None and target.device.type == "cuda" and why_not(target) is None else TransformersEngine
    if asked == "vllm" or asked is None and target.device.type == "cuda" and target.dtype != torch.float32:
        if asked or vllm_python() is not None:
            return VllmEngine(target)
        print(f"  {NOT_INSTALLED} (make vllm does that), so the slower {own.name} engine writes the answers", flush=True)
    return own(target, batch_size)


class VllmEngine:
    """Answers by vLLM, which reads the target anew from where it was loaded; its sampling is the whole distribution's, as every engine's.

    The child process lives as long as one call, or as long as a `with` block of this engine. A row's random numbers belong to the row and the
    seed; they meet other floating-point noise in other batches, so a row may differ between runs where two tokens all but tie. Raises
    LessonError where vLLM is not installed, or for a model that lies in no folder and on no hub.
    """

    name = "vllm"
    coldest = 0.01  # what is colder vLLM would warm up to this

    def __init__(self, target, log=CHECKPOINTS / "vllm.log", show=True):
        self.target, self.log, self.show = target, Path(log), show
        self.place, self._child, self._length, self._stays = str(target.name_or_path), None, 0, False
        if not self.place or not (Path(self.place).is_dir() or HUB_ID.fullmatch(self.place)):
            raise LessonError("vLLM reads a model from its folder or the hub, and this one was made in memory; save it and load it from there.")
        self.python = vllm_python()
        if self.python is None:
            raise LessonError(f"{NOT_INSTALLED}; run `make vllm`, or name a Python that has it in LESSON_VLLM_PYTHON, "
                              "or do without: --engine transformers.")

    def __enter__(self):
        self._stays = True
        return self

    def __exit__(self, *_):
        self._stays = False
        self.close()

    def answer(self, prompts, temperature, max_new_tokens, seed, eos_token_ids):
        """Yield (number, answer ids) as rows are finished."""
        # every other setting stays at its neutral default; vLLM's own ideas of an end are off, ours are on
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": 0, "max_tokens": max_new_tokens, "ignore_eos": True,
                    "stop_token_ids": list(eos_token_ids), "detokenize": False}
        rows = [{"prompt": ids, "seed": row_seed(seed, number) if temperature else None, "labels_from": None} for number, ids in prompts]
        for reply in self.run(sampling, rows):
            ids = reply["answer"]
            ends = [place for place, token in enumerate(ids, 1) if token in eos_token_ids]
            if ends != [len(ids)] and not (ends == [] and len(ids) == max_new_tokens):
                raise LessonError(f"vLLM broke an answer off after {len(ids)} tokens, with neither an end of turn nor its full length; see {shown(self.log)}.")
            yield prompts[reply["row"]][0], ids

    def labels(self, sequences, k):
        """Yield (place in `sequences`, labels) of (prompt_ids, resp_ids), in any order: a list of [id, log-probability] for each response token.

        What vLLM puts into such a list, in which order: `lessonlib.labels.vllm_scorer`.
        """
        sampling = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True, "prompt_logprobs": k, "detokenize": False}
        rows = [{"prompt": [*prompt, *resp], "seed": None, "labels_from": len(prompt)} for prompt, resp in sequences]
        for reply in self.run(sampling, rows):
            yield reply["row"], reply["labels"]

    def run(self, sampling, rows):
        """Yield the replies of `vllm_child` to one job; a job that is not read to its end takes the child down with it."""
        done = False
        try:
            self._start(max(len(row["prompt"]) for row in rows) + sampling["max_tokens"])
            self._send({"sampling": sampling, "rows": rows})
            while not (done := "done" in (reply := self._receive())):
                if reply["prompt"] != rows[reply["row"]]["prompt"]:
                    raise LessonError("vLLM read other ids than it was sent; its answers would be to other prompts.")
                yield reply
        finally:
            if not (done and self._stays):
                self.close()

    def close(self):
        """End the child, if there is one; its memory is free when this returns."""
        child, self._child = self._child, None
        if child is not None:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # its own process group: with all that vLLM may have started
            except ProcessLookupError:
                pass  # it has ended by itself
            child.communicate()

    def _start(self, length):
        """Have a child that takes `length` tokens a row."""
        if self._child is not None and length <= self._length:
            return
        self.close()
        self._length = min(max(length, SHORTEST_MODEL_LENGTH), context_length(self.target) or sys.maxsize)
        if self.show:
            print(f"  vLLM is starting, which takes a minute; its words go to {shown(self.log)}", flush=True)
        check_writable(self.log)
        # -P: the child's folder must not be searched for modules. A session of its own: Ctrl-C is answered here, not in two places.
        with open(self.log, "wb") as log:
            self._child = subprocess.Popen([self.python, "-P", str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                           encoding="utf-8", start_new_session=True, env={**os.environ, **self._environment()})
        self._send(self._settings())
        self._receive()

    def _environment(self):
        """Without multiprocessing the child is one process and its scheduling the same every time; nothing is reported to anyone."""
        found = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
        if self.target.device.type == "cpu":
            found["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB; it would take most of the memory
        return found

    def _settings(self):
        """vLLM's EngineArgs. No tokenizer: ids go in and out. generation_config: not the model's own, which may hold penalties and a top-k."""
        found = {"model": self.place, "dtype": str(self.target.dtype).removeprefix("torch."), "max_model_len": self._length, "skip_tokenizer_init": True,
                 "generation_config": "vllm", "max_logprobs": -1, "logprobs_mode": "raw_logprobs", "enable_prefix_caching": False,
                 "max_num_batched_tokens": BATCHED_TOKENS, "seed": 0}
        if self.target.device.type == "cpu":
            # no compiler run, which would take longer than the answers; and no prompt read in two halves: after the first, vLLM winds the row's
            # generator back, and a processor's cannot be
            return {**found, "enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": max(BATCHED_TOKENS, self._length)}
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.target.device)  # the target itself lies there too
        return {**found, "gpu_memory_utilization": round(0.9 * free / total, 3)}

    def _send(self, message):
        try:
            print(json.dumps(message, separators=(",", ":")), file=self._child.stdin, flush=True)
        except BrokenPipeError:
            self._explain()

    def _receive(self):
        line = self._child.stdout.readline()
        return json.loads(line) if line.endswith("\n") else self._explain()

    def _explain(self):
        """Say in one sentence why the child ended."""
        code = self._child.wait()
        found = re.findall(r"^(?:\[rank\d+\]: )?(?:[\w.]*\.)?(\w*(?:Error|Exception): .*)$", self.log.read_text(encoding="utf-8", errors="replace"), re.M)
        why = found[-1][:200] if found else f"signal {-code}, perhaps for want of memory" if code < 0 else f"exit code {code}"
        raise LessonError(f"vLLM stopped ({why}); {shown(self.log)} has the rest: mend that and run the same command again, what was finished is "
                          "kept, or do without vLLM: LESSON_ENGINE=transformers.")


def row_seed(seed, number):
    """The seed of row `number`'s own random numbers, below 2**63."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
