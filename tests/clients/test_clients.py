"""The clients that people have: each with its real package, and the rows of `encode`.

They are installed by `.ci/clients`; one that is not is skipped.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
import urllib.request
from typing import Any

import numpy as np
import pytest

from embedlib.testing.models.tokenizers import WORDS
from tests.clients.conftest import KEY, Served

TEXTS = ["a cat", "two dogs and a cat", "nothing at all"]


def same(rows: Any, right: Any) -> bool:
    """Whether rows are the same float32."""
    return bool((np.array(rows, np.float32) == right).all())


def rows_of(served: Served, **options: Any) -> Any:
    return served.embedder.encode(TEXTS, **options)


# OpenAI.


def test_openai(served: Served) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY)
    for encoding in (openai.NOT_GIVEN, "float", "base64"):
        answer = client.embeddings.create(model="embed", input=TEXTS, encoding_format=encoding)
        if encoding == "base64":
            rows = [np.frombuffer(base64.b64decode(e.embedding), "<f4") for e in answer.data]
        else:
            rows = [entry.embedding for entry in answer.data]
        assert same(rows, rows_of(served))
    assert answer.usage.prompt_tokens > 0
    assert [model.id for model in client.models.list()] == ["embed", "rank", "label"]
    assert client.models.retrieve("embed").id == "embed"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError, match="dimensions") as caught:
        client.embeddings.create(model="embed", input=TEXTS, dimensions=10_000)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_openai_async(served: Served) -> None:
    openai = pytest.importorskip("openai")

    async def work() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY) as client:
            calls = [client.embeddings.create(model="embed", input=text) for text in TEXTS * 5]
            answers = await asyncio.gather(*calls)
        rows = [answer.data[0].embedding for answer in answers]
        assert np.allclose(rows, np.concatenate([rows_of(served)] * 5), atol=1e-6)

    asyncio.run(work())


def test_openai_batches(served: Served) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY)
    lines = [
        {
            "custom_id": f"r{place}",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": "embed", "input": text, "encoding_format": "base64"},
        }
        for place, text in enumerate([*TEXTS, ""])
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.bytes, file.purpose, file.filename) == (len(content), "batch", "in.jsonl")
    assert client.files.content(file.id).content == content
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/embeddings",
        completion_window="24h",
        metadata={"of": "tests"},
    )
    until = time.monotonic() + 60
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < until, batch
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.total) == (4, 4)
    assert batch.metadata == {"of": "tests"}
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).iter_lines()]
    assert [answer["custom_id"] for answer in answers] == ["r0", "r1", "r2", "r3"]
    bodies = [answer["response"]["body"] for answer in answers[: len(TEXTS)]]
    rows = [np.frombuffer(base64.b64decode(body["data"][0]["embedding"]), "<f4") for body in bodies]
    assert np.allclose(rows, rows_of(served), atol=1e-6)
    lines = [{**lines[0], "custom_id": f"m{place}"} for place in range(4000)]
    content = "\n".join(map(json.dumps, lines)).encode()
    many = client.files.create(file=("many.jsonl", content), purpose="batch")
    others = [
        client.batches.create(
            input_file_id=each.id, endpoint="/v1/embeddings", completion_window="24h"
        )
        for each in (file, file, many)  # the last is not done before it is cancelled
    ]
    listed = [each.id for each in client.batches.list(limit=2)]  # page after page
    assert listed[:4] == [*(each.id for each in others[::-1]), batch.id]
    assert client.batches.cancel(others[2].id).status in ("cancelling", "cancelled")
    assert file.id in [each.id for each in client.files.list(purpose="batch")]
    assert client.files.delete(batch.output_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.output_file_id)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("in.jsonl", content), purpose="fine-tune")


def test_openai_for_node(served: Served, tmp_path: Any) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    made = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "openai@6"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"npm cannot install the package openai: {made.stderr:.200}")
    script = f"""
import OpenAI from "openai";
const client = new OpenAI({{baseURL: "{served.url}/v1", apiKey: "{KEY}"}});
const answer = await client.embeddings.create({{model: "embed", input: {json.dumps(TEXTS)}}});
console.log(JSON.stringify(answer.data.map((entry) => entry.embedding)));
"""
    (tmp_path / "run.mjs").write_text(script)
    found = subprocess.run(
        ["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert same(json.loads(found.stdout), rows_of(served))


# Baseten.


def test_baseten(served: Served) -> None:
    baseten = pytest.importorskip("baseten_performance_client")
    client = baseten.PerformanceClient(base_url=served.url, api_key=KEY)
    assert same(client.embed(input=TEXTS, model="embed").numpy(), rows_of(served))
    ranked = client.rerank(query="cat", texts=TEXTS, raw_scores=True, return_text=True)
    right = served.reranker.predict([("cat", text) for text in TEXTS], raw_scores=True)
    for entry in ranked.data:
        assert entry.score == pytest.approx(float(right[entry.index]), abs=1e-6)
        assert entry.text == TEXTS[entry.index]
    labelled = client.classify(inputs=TEXTS)
    for found, text in zip(labelled.data, TEXTS, strict=True):
        [best, *_] = served.classifier.predict(text)
        assert found[0].label == best["label"]
        assert found[0].score == pytest.approx(best["score"], abs=1e-6)
    answers = client.batch_post("/embed", [{"inputs": text} for text in TEXTS])
    rows = [answer[0] for answer in answers.data]
    assert np.allclose(rows, rows_of(served, normalize_embeddings=True), atol=1e-6)


def test_baseten_async(served: Served) -> None:
    baseten = pytest.importorskip("baseten_performance_client")
    client = baseten.PerformanceClient(base_url=served.url, api_key=KEY)
    preference = baseten.RequestProcessingPreference(batch_size=1, max_concurrent_requests=8)

    async def work() -> None:
        answer = await client.async_embed(input=TEXTS, model="embed", preference=preference)
        assert np.allclose(answer.numpy(), rows_of(served), atol=1e-6)
        ranked = await client.async_rerank(query="cat", texts=TEXTS)
        assert len(ranked.data) == len(TEXTS)
        assert len((await client.async_classify(inputs=TEXTS)).data) == len(TEXTS)

    asyncio.run(work())


def test_baseten_hedges(served: Served) -> None:
    baseten = pytest.importorskip("baseten_performance_client")
    client = baseten.PerformanceClient(base_url=served.url, api_key=KEY)
    hedging = baseten.RequestProcessingPreference(hedge_delay=0.2, batch_size=1)
    answer = client.embed(input=TEXTS * 20, model="embed", preference=hedging)
    assert np.allclose(answer.numpy(), np.concatenate([rows_of(served)] * 20), atol=1e-6)


def test_baseten_endpoint_pool(served: Served) -> None:
    baseten = pytest.importorskip("baseten_performance_client")
    wrapper = baseten.HttpClientWrapper()
    endpoint = baseten.Endpoint(base_url=served.url, api_key=KEY, client_wrapper=wrapper)
    client = baseten.PerformanceClient(
        base_url=served.url, api_key=KEY, endpoint_pool=baseten.EndpointPool([endpoint])
    )
    assert same(client.embed(input=TEXTS, model="embed").numpy(), rows_of(served))


def test_the_end_of_long_texts_is_kept_where_clients_ask_for_it(served: Served) -> None:
    baseten = pytest.importorskip("baseten_performance_client")
    cohere = pytest.importorskip("cohere")
    hub = pytest.importorskip("huggingface_hub")
    words = WORDS * 20
    text = " ".join(words)

    def end_for(model: Any) -> str:
        end = " ".join(words[2 - model.max_seq_length :])  # two special tokens
        assert len(model.tokenizer.encode(end).ids) == model.max_seq_length
        return end

    right = served.embedder.encode([end_for(served.embedder), text])
    assert not np.allclose(right[0], right[1], atol=1e-3)  # the beginning has other words
    left = cohere.ClientV2(base_url=served.url, api_key=KEY).embed(
        model="embed",
        input_type="classification",
        texts=[text],
        embedding_types=["float"],
        truncate="START",
    )
    assert np.allclose(left.embeddings.float_[0], right[0], atol=1e-6)
    found = hub.InferenceClient(served.url, token=KEY).feature_extraction(
        text, normalize=False, truncation_direction="left"
    )
    assert np.allclose(found.reshape(-1), right[0], atol=1e-6)
    client = baseten.PerformanceClient(base_url=served.url, api_key=KEY)
    for direction in ("Left", "Right"):
        [[first, *_]] = client.classify(
            inputs=[text], truncate=True, truncation_direction=direction
        ).data
        kept = end_for(served.classifier) if direction == "Left" else text
        [best, *_] = served.classifier.predict(kept)
        assert (first.label, first.score) == (best["label"], pytest.approx(best["score"], abs=1e-6))


def test_baseten_requests_that_are_answered_later(served: Served) -> None:
    baseten = pytest.importorskip("baseten_performance_client")
    client = baseten.PerformanceClient(base_url=served.url, api_key=KEY)
    payloads = [{"model_input": {"input": text, "model": "embed"}} for text in TEXTS]
    accepted = client.batch_post("/async_predict", payloads)
    ids = [answer["request_id"] for answer in accepted.data]

    def get(path: str) -> Any:
        asked = urllib.request.Request(f"{served.url}{path}", headers={"authorization": KEY})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    until = time.monotonic() + 60
    while not all(get(f"/async_request/{each}")["status"] == "SUCCEEDED" for each in ids):
        assert time.monotonic() < until
    rows = [get(f"/async_request/{each}/result")["data"][0]["embedding"] for each in ids]
    assert np.allclose(rows, rows_of(served), atol=1e-6)


# Frameworks.


def test_langchain_openai(served: Served) -> None:
    langchain = pytest.importorskip("langchain_openai")
    embeddings = langchain.OpenAIEmbeddings(
        base_url=f"{served.url}/v1",
        api_key=KEY,
        model="embed",
        check_embedding_ctx_length=False,
    )
    assert np.allclose(embeddings.embed_documents(TEXTS), rows_of(served), atol=1e-6)
    assert np.allclose(embeddings.embed_query(TEXTS[0]), rows_of(served)[0], atol=1e-6)


def test_langchain_huggingface(served: Served) -> None:
    langchain = pytest.importorskip("langchain_huggingface")
    hub = pytest.importorskip("huggingface_hub")
    embeddings = langchain.HuggingFaceEndpointEmbeddings.model_construct(
        client=hub.InferenceClient(served.url, token=KEY), model_kwargs=None, model="embed"
    )
    found = embeddings.embed_documents(TEXTS)
    right = rows_of(served, normalize_embeddings=True)
    assert np.allclose(np.array(found).reshape(len(TEXTS), -1), right, atol=1e-6)


def test_huggingface_hub(served: Served) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(served.url, token=KEY)
    found = client.feature_extraction(TEXTS[0])
    right = rows_of(served, normalize_embeddings=True)
    assert np.allclose(np.array(found).reshape(-1), right[0], atol=1e-6)
    similarity = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    assert similarity == pytest.approx((right[:1] @ right.T)[0].tolist(), abs=1e-5)


def test_llama_index(served: Served) -> None:
    tei = pytest.importorskip("llama_index.embeddings.text_embeddings_inference")
    model = tei.TextEmbeddingsInference(
        model_name="embed", base_url=served.url, auth_token=f"Bearer {KEY}"
    )
    right = rows_of(served, normalize_embeddings=True)
    assert np.allclose(model.get_text_embedding_batch(TEXTS), right, atol=1e-6)


def test_llama_index_openai_like(served: Served) -> None:
    like = pytest.importorskip("llama_index.embeddings.openai_like")
    model = like.OpenAILikeEmbedding(model_name="embed", api_base=f"{served.url}/v1", api_key=KEY)
    assert np.allclose(model.get_text_embedding_batch(TEXTS), rows_of(served), atol=1e-6)


def test_llama_index_rerank(served: Served) -> None:
    rerank = pytest.importorskip("llama_index.postprocessor.tei_rerank")
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    ranker = rerank.TextEmbeddingInference(
        model_name="rank", base_url=served.url, top_n=2, auth_token=f"Bearer {KEY}"
    )
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    found = ranker.postprocess_nodes(nodes, QueryBundle("cat"))
    right = [entry["corpus_id"] for entry in served.reranker.rank("cat", TEXTS, top_k=2)]
    assert [node.text for node in found] == [TEXTS[place] for place in right]


def test_haystack(served: Served) -> None:
    embedders = pytest.importorskip("haystack.components.embedders")
    utils = pytest.importorskip("haystack.utils")
    embedder = embedders.OpenAITextEmbedder(
        api_key=utils.Secret.from_token(KEY), model="embed", api_base_url=f"{served.url}/v1"
    )
    assert np.allclose(embedder.run(TEXTS[0])["embedding"], rows_of(served)[0], atol=1e-6)


@pytest.mark.parametrize("provider", ["openai", "openai_like", "hosted_vllm", "infinity"])
def test_litellm(served: Served, provider: str) -> None:
    litellm = pytest.importorskip("litellm")
    base = served.url if provider == "infinity" else f"{served.url}/v1"
    answer = litellm.embedding(model=f"{provider}/embed", input=TEXTS, api_base=base, api_key=KEY)
    rows = [entry["embedding"] for entry in answer.data]
    assert np.allclose(rows, rows_of(served), atol=1e-6)


@pytest.mark.parametrize(
    "provider", ["cohere", "jina_ai", "hosted_vllm", "infinity", "huggingface", "voyage"]
)
def test_litellm_rerank(served: Served, provider: str) -> None:
    litellm = pytest.importorskip("litellm")
    answer = litellm.rerank(
        model=f"{provider}/rank",
        query="cat",
        documents=TEXTS,
        api_base=served.url,
        api_key=KEY,
        return_documents=provider != "infinity",  # there a str, an object for all others
    )
    right = [entry["corpus_id"] for entry in served.reranker.rank("cat", TEXTS)]
    assert [entry["index"] for entry in answer.results] == right


# Other services.


def test_cohere(served: Served) -> None:
    cohere = pytest.importorskip("cohere")
    client = cohere.ClientV2(base_url=served.url, api_key=KEY)
    answer = client.embed(
        model="embed",
        input_type="search_document",
        texts=TEXTS,
        embedding_types=["float"],
    )
    assert same(answer.embeddings.float_, served.embedder.encode_document(TEXTS))
    ranked = client.rerank(model="rank", query="cat", documents=TEXTS, top_n=2)
    right = [entry["corpus_id"] for entry in served.reranker.rank("cat", TEXTS, top_k=2)]
    assert [entry.index for entry in ranked.results] == right
    older = cohere.Client(base_url=served.url, api_key=KEY)
    asked = {"model": "embed", "input_type": "search_document", "texts": TEXTS}
    documents = served.embedder.encode_document(TEXTS)
    assert same(older.embed(**asked).embeddings, documents)
    typed = older.embed(**asked, embedding_types=["float"])
    assert same(typed.embeddings.float_, documents)


def test_voyage(served: Served) -> None:
    voyageai = pytest.importorskip("voyageai")
    client = voyageai.Client(api_key=KEY, base_url=f"{served.url}/v1")
    answer = client.embed(TEXTS, model="embed", input_type="document")
    assert np.allclose(answer.embeddings, served.embedder.encode_document(TEXTS), atol=1e-6)
    for kind in ("binary", "ubinary"):
        packed = client.embed(TEXTS, model="embed", input_type="document", output_dtype=kind)
        bits = served.embedder.encode_document(TEXTS, precision=kind)
        assert np.array_equal(packed.embeddings, bits)
    ranked = client.rerank("cat", TEXTS, model="rank")
    right = [entry["corpus_id"] for entry in served.reranker.rank("cat", TEXTS)]
    assert [entry.index for entry in ranked.results] == right


def test_errors_of_voyage(served: Served) -> None:
    voyageai = pytest.importorskip("voyageai")
    client = voyageai.Client(api_key="wrong", base_url=f"{served.url}/v1")
    with pytest.raises(voyageai.error.AuthenticationError, match="the API key is wrong"):
        client.embed(TEXTS, model="embed")
    client = voyageai.Client(api_key=KEY, base_url=f"{served.url}/v1")
    with pytest.raises(voyageai.error.InvalidRequestError, match="cannot embed"):
        client.embed(TEXTS, model="rank")


def test_curl(served: Served) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    found = subprocess.run(
        [
            *("curl", "-s", f"{served.url}/v1/embeddings", "-H", f"Authorization: Bearer {KEY}"),
            *("-d", json.dumps({"input": TEXTS, "model": "embed"})),
        ],
        capture_output=True,
        check=True,
    )
    rows = [entry["embedding"] for entry in json.loads(found.stdout)["data"]]
    assert same(rows, rows_of(served))
