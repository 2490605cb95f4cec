"""Asks llama.cpp for the likeliest next tokens: arguments are a GGUF file and JSON of prompts, texts or lists of ids.

It runs in an interpreter that has the package ``xllamacpp``, which contains llama.cpp. The last line of its output is
JSON: for each prompt the logarithms of the probabilities of its 20 likeliest next tokens, by id.
"""

from __future__ import annotations

import json
import sys

import xllamacpp


def main(path: str, prompts: list[str | list[int]]) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 64
    params.cpuparams.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    found = []
    for prompt in prompts:
        request = {"prompt": prompt, "n_predict": 1, "n_probs": 20, "temperature": 0.0, "cache_prompt": False}
        answer = server.handle_completions(request)
        [first] = answer["choices"][0]["logprobs"]["content"]
        found.append({each["id"]: each["logprob"] for each in first["top_logprobs"]})
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
