"""Asks llama.cpp for the likeliest next tokens.

The arguments are a GGUF file, JSON of prompts (texts or lists of ids), and the id of the token of an ordinary
character, which it then chooses. It runs in an interpreter that has the package ``xllamacpp``, which contains
llama.cpp. The last line of its output is JSON: for each prompt the logarithms of the probabilities of its 20 likeliest
next tokens, by id.
"""

from __future__ import annotations

import json
import sys

import xllamacpp


def main(path: str, prompts: list[str | list[int]], forced: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 64
    params.cpuparams.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    # the answer shows no probabilities of a token that ends the text or is a part of a character
    common = {"n_predict": 1, "n_probs": 20, "logit_bias": [[forced, 100]], "temperature": 0.0, "cache_prompt": False}
    found = []
    for prompt in prompts:
        answer = server.handle_completions({"prompt": prompt, **common})
        [first] = answer["choices"][0]["logprobs"]["content"]
        found.append({each["id"]: each["logprob"] for each in first["top_logprobs"]})
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
