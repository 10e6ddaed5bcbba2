"""The program that runs vLLM, in a process and a Python of its own: it needs vLLM and nothing of lessonlib. `vllm_engine` starts it.

It speaks JSON Lines. The first line it reads is vLLM's EngineArgs, answered by {"vllm": version} once the engine is ready; every further
line is a job, {"sampling": SamplingParams, "rows": [{"prompt": ids, "seed": number or null, "labels_from": position or null}, ...]},
answered by a line a row as soon as that row is finished, in any order, and {"done": true}. It ends with its input.
"""

import json
import os
import sys


def main():
    """Serve jobs until the input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM prints as it likes, and what it prints must not end up among the replies
    settings = json.loads(sys.stdin.readline())

    import vllm

    engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**settings))
    say(replies, {"vllm": vllm.__version__})
    for line in sys.stdin:
        job = json.loads(line)
        for number, row in enumerate(job["rows"]):
            sampling = vllm.SamplingParams(**job["sampling"], seed=row["seed"], output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY)
            engine.add_request(str(number), vllm.TokensPrompt(prompt_token_ids=row["prompt"]), sampling)
        while engine.has_unfinished_requests():
            for found in engine.step():
                if found.finished:
                    number = int(found.request_id)
                    say(replies, reply(number, found, job["rows"][number]["labels_from"]))
        say(replies, {"done": True})


def reply(number, found, labels_from):
    """A finished row: the ids that vLLM read and wrote, and from position labels_from on its log-probabilities, [[id, value], ...] a position."""
    said = {"row": number, "prompt": list(found.prompt_token_ids), "answer": list(found.outputs[0].token_ids)}
    if labels_from is not None:
        said["labels"] = [[(token, entry.logprob) for token, entry in position.items()] for position in found.prompt_logprobs[labels_from:]]
    return said


def say(replies, message):
    """Write one line, at once."""
    print(json.dumps(message, separators=(",", ":")), file=replies, flush=True)


if __name__ == "__main__":
    main()
