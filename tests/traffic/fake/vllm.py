"""Stands in for vLLM where a test puts it on the path: the names that vllm_child uses, over a language of 61 tokens worked out by hand.

FAKE_VLLM in the environment makes it misbehave; FAKE_VLLM_RECORD names a file that gets every setting it was given.
"""

import json
import math
import os
import signal
import time
from types import SimpleNamespace

print("vLLM greets its users on standard output")
__version__ = "0"
VOCABULARY = 61
TROUBLE = os.environ.get("FAKE_VLLM", "")
sampling_params = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY="final only"))


def next_token(token, seed):
    return (7 * token + 3 + (seed or 0)) % VOCABULARY


def log_odds(previous):
    weights = [1 / (1 + (token - previous) % VOCABULARY) for token in range(VOCABULARY)]
    return [math.log(weight / sum(weights)) for weight in weights]


def record(what, settings):
    with open(os.environ["FAKE_VLLM_RECORD"], "a") as file:
        print(json.dumps({what: settings}), file=file)


def EngineArgs(**settings):
    record("engine", settings)
    return settings


def SamplingParams(**settings):
    record("sampling", settings)
    return SimpleNamespace(**{"prompt_logprobs": None, "stop_token_ids": []} | settings)


def TokensPrompt(prompt_token_ids):
    return prompt_token_ids


class LLMEngine:
    def __init__(self):
        self.waiting = []

    @classmethod
    def from_engine_args(cls, settings):
        if TROUBLE == "no memory":
            raise ValueError("No available memory for the cache blocks.")
        if TROUBLE == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return cls()

    def add_request(self, name, prompt, sampling):
        self.waiting.append((name, prompt, sampling))

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        if TROUBLE == "hangs" and len(self.waiting) == 1:
            time.sleep(600)
        print("a step")
        name, prompt, sampling = self.waiting.pop()  # the last comes first
        answer = [next_token(prompt[-1], sampling.seed)]
        while len(answer) < sampling.max_tokens and answer[-1] not in sampling.stop_token_ids:
            answer.append(next_token(answer[-1], sampling.seed))
        if TROUBLE == "breaks off":
            answer = answer[:-1]
        entries = None
        if sampling.prompt_logprobs:
            entries = [None, *(self.entry(before, token, sampling.prompt_logprobs) for before, token in zip(prompt, prompt[1:]))]
        if TROUBLE == "other ids":
            prompt = [0, *prompt]
        unfinished = SimpleNamespace(finished=False)
        return [unfinished, SimpleNamespace(finished=True, request_id=name, prompt_token_ids=prompt, prompt_logprobs=entries,
                                            outputs=[SimpleNamespace(token_ids=answer)])]

    def entry(self, before, token, k):
        odds = log_odds(before)
        ranked = sorted(range(VOCABULARY), key=lambda token: -odds[token])[:k]
        return {token: SimpleNamespace(logprob=odds[token]) for token in [token, *ranked]}
