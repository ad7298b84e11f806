from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from embedlib.embedder import Embedder
from embedlib.models.files import load_spec
from embedlib.models.tiny import write_tiny_model
from embedlib.models.tiny_variants import VARIANTS

Run = Callable[..., Result]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def table(output: str) -> dict[str, str]:
    """Rows by name; what is indented belongs to the row above it."""
    rows: dict[str, str] = {}
    name = ""
    for line in output.splitlines():
        if line.startswith(" "):
            rows[name] += "\n" + line.strip()
        else:
            name = line[:14].strip()
            rows[name] = line[14:].strip()
    return rows


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_model(variant: str, run: Run, tmp_path: Path) -> None:
    spec = load_spec(write_tiny_model(tmp_path, variant))
    done = run("inspect", tmp_path)
    assert done.exit_code == 0, done.output

    rows = table(done.stdout)
    assert rows["folder"] == str(tmp_path)
    assert "revision" not in rows
    assert rows["family"] == spec.encoder.family
    assert rows["layers"].startswith(f"{spec.encoder.num_layers}, ")
    limit = f"{spec.max_seq_tokens} tokens, from {spec.max_seq_tokens_source}"
    assert rows["length limit"] == limit
    assert rows["embedding"].startswith(f"{spec.embedding_dim} numbers")
    assert ("unit length" in rows["embedding"]) is spec.is_normalized
    assert rows["similarity"] == spec.similarity
    assert len(rows["after it"].splitlines()) == len(spec.modules)
    assert f"pooling: {' + '.join(spec.pooling.modes)}" in rows["after it"]
    for name, prompt in spec.prompts.items():
        assert f"{name}: {json.dumps(prompt, ensure_ascii=False)}" in rows["prompts"]
    assert ("rotary" in rows["positions"]) is (spec.encoder.rope is not None)
    assert ("only what is before it" in rows["a token sees"]) is spec.encoder.is_causal


@pytest.mark.parametrize("variant", VARIANTS)
def test_json_holds_the_whole_spec(variant: str, run: Run, tmp_path: Path) -> None:
    spec = load_spec(write_tiny_model(tmp_path, variant))
    done = run("inspect", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["folder"] == str(tmp_path)
    assert content["revision"] is None
    assert content["encoder"]["num_heads"] == spec.encoder.num_heads
    assert tuple(content["encoder"]["windows"]) == spec.encoder.windows
    assert content["max_seq_tokens_source"] == spec.max_seq_tokens_source
    assert content["prompts"] == spec.prompts
    kinds = [type(module).__name__ for module in spec.modules]
    assert [module["kind"] for module in content["modules"]] == kinds


def test_the_weights_are_read_only_for_the_fingerprint(run: Run, tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "bert")
    with_weights = run("inspect", tmp_path, "--fingerprint")
    assert with_weights.exit_code == 0, with_weights.output
    with Embedder(tmp_path) as embedder:
        assert table(with_weights.stdout)["fingerprint"] == embedder.fingerprint
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    assert run("inspect", tmp_path).stdout in with_weights.stdout
    without_weights = run("inspect", tmp_path, "--fingerprint")
    assert without_weights.exit_code == 1
    assert without_weights.stderr.startswith("Error: ")


def test_a_hub_model_shows_its_commit(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "models--owner--model"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    write_tiny_model(root / "snapshots" / COMMIT, "bert")
    options = ("--cache-folder", tmp_path, "--local-files-only")
    assert table(run("inspect", "owner/model", *options).stdout)["revision"] == COMMIT
    content = json.loads(run("inspect", "owner/model", "--json", *options).stdout)
    assert (content["model"], content["revision"]) == ("owner/model", COMMIT)


def test_what_is_not_understood_is_one_line(run: Run, tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "bert")
    for file in tmp_path.rglob("config.json"):
        file.write_text(file.read_text().replace('"bert"', '"abacus"'))
    done = run("inspect", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert "abacus" in done.stderr
    assert done.stderr.count("\n") == 1
