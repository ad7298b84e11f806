"""Options of other servers' commands, and what to give `embedlib serve` in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTHER_SERVERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("--auto-truncate", "--batch-size", "--bettertransformer", "--compile"),
            *("--convert", "--enforce-eager", "--hf-overrides", "--max-client-batch-size"),
            *("--max-num-seqs", "--model-warmup", "--pooler-config", "--pooling"),
            *("--json-output", "--pooling-method", "--prometheus-port", "--root-path"),
            *("--runner", "--task", "--tokenization-workers", "--trust-remote-code"),
            "--url-prefix",
        ),
        "leave it out",
    ),
    **dict.fromkeys(
        ("--allowed-origins", "--cors-allow-origin"),
        "let a proxy in front send the headers of CORS",
    ),
    **dict.fromkeys(("--dtype", "--quantization"), "give --precision, or leave it out"),
    **dict.fromkeys(("--download-dir", "--huggingface-hub-cache"), "give --cache-folder"),
    **dict.fromkeys(("--device-id", "--tensor-parallel-size"), "give --device cuda:0,cuda:1"),
    **dict.fromkeys(("--hf-api-token", "--hf-token"), "set HF_TOKEN, or give --token"),
    "--api-key": "set EMBEDLIB_API_KEYS, or give --api-keys-file",
    "--gpu-memory-utilization": "give --gpu-memory-fraction",
    "--hostname": "give --host",
    "--max-concurrent-requests": "give --max-waiting-requests",
    "--max-model-len": "give --max-seq-tokens",
    "--max-num-batched-tokens": "give --max-batch-tokens",
    "--otlp-service-name": "set OTEL_SERVICE_NAME",
    "--otlp-traces-endpoint": "give --otlp-endpoint",
    "--payload-limit": "give --max-body-mb",
    "--served-model-name": "give --name NAME=MODEL",
    "--ssl-certfile": "give --tls-certificate",
    "--ssl-keyfile": "give --tls-key",
    "--uds-path": "give --uds",
}
"""Of text-embeddings-inference, vLLM and Infinity."""
