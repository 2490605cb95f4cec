"""Asks a chat model in a GGUF file by llama.cpp's own server, with nothing said about its template or its end.

The arguments are the file and a message of the user. It runs in an interpreter that has the package ``xllamacpp``. The
last line of its output is JSON: the text of the reply and the reason for its end.
"""

from __future__ import annotations

import json
import sys

import xllamacpp


def main(path: str, message: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 256
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.use_jinja = True
    server = xllamacpp.Server(params)
    asked = {"messages": [{"role": "user", "content": message}], "max_tokens": 60, "temperature": 0.0}
    [choice] = server.handle_chat_completions(asked)["choices"]
    sys.stdout.write("\n" + json.dumps([choice["message"]["content"], choice["finish_reason"]]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
