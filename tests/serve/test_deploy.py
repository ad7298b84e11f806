"""The files of examples/deploy name only what the server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from embedlib.cli.index import index as index_command
from embedlib.cli.serve import serve
from embedlib.serve.routes import ROUTES
from tests.serve.conftest import Client, MakeClient

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
OPTIONS = {flag for option in serve.params for flag in (*option.opts, *option.secondary_opts)}


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def documents(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML, which huggingface-hub brings, is missing")
    return list(yaml.safe_load_all(read(name)))


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\bembedlib_[a-z_]+\b", text))


def exported(client: Client) -> set[str]:
    return metrics_in(client.send("GET", "/metrics").text)


@pytest.mark.parametrize(
    "name", ["grafana.json", "keda.yaml", "alerts.yaml", "../../docs/deploy.md"]
)
def test_every_metric_is_exported(name: str, make_client: MakeClient, tmp_path: Path) -> None:
    named = metrics_in(read(name)) - {"embedlib_qdrant"}  # a package
    assert named
    assert named <= exported(make_client(data_dir=str(tmp_path / "data")))


def test_the_dashboard_reads_labels_that_metrics_have(client: Client) -> None:
    dashboard = json.loads(read("grafana.json"))
    page = client.send("GET", "/metrics").text
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(embedlib_\w+)\{(.*)\} ", page, re.MULTILINE):
        found.setdefault(name, {"instance"}).update(re.findall(r'(\w+)="', labels))
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name, labels in re.findall(r"(embedlib_\w+)\{([^}]*)\}", target["expr"]):
                wanted = set(re.findall(r"(\w+)=", labels))
                assert wanted <= found.get(name, {"instance"}), (panel["title"], name)
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            by = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            assert legend <= (by or {"version"}), panel["title"]


@pytest.mark.parametrize("name", ["Dockerfile", "embedlib.service"])
def test_options_and_paths_are_the_servers(name: str) -> None:
    command = re.search(r"^(?:ENTRYPOINT|ExecStart).*", read(name), re.MULTILINE)
    assert command is not None
    flags = set(re.findall(r"--[a-z-]+", command.group()))
    assert flags
    assert flags <= OPTIONS


def test_the_probes_ask_routes_that_need_no_key() -> None:
    deployment = documents("kubernetes.yaml")[0]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    open_paths = {route.path for route in ROUTES if not route.needs_key}
    probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    assert [probe["httpGet"]["path"] for probe in probes] == ["/ready", "/ready", "/health"]
    assert {probe["httpGet"]["path"] for probe in probes} <= open_paths
    assert "'http://127.0.0.1:8080/health'" in read("Dockerfile")
    assert container["env"][0]["name"] == "EMBEDLIB_API_KEYS"
    [scaled] = documents("keda.yaml")
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_the_unit_is_one(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "embedlib.service"
    unit.write_text(read("embedlib.service").replace("/opt/embedlib/bin/embedlib", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["ray-load.yaml", "ray-serve.yaml"])
def test_a_cluster_of_ray_asks_for_a_token_and_runs_our_image(name: str) -> None:
    [found] = documents(name)
    spec = found["spec"].get("rayClusterSpec") or found["spec"]["rayClusterConfig"]
    assert spec["authOptions"] == {"mode": "token", "secretName": "ray-token"}
    pods = [
        group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    ]
    assert {pod["containers"][0]["image"] for pod in pods} == {"embedlib-ray:latest"}
    assert f"ray:{spec['rayVersion']}-" in read("Dockerfile.ray")


def test_the_command_of_the_load_is_one() -> None:
    [found] = documents("ray-load.yaml")
    options = re.findall(r"--[a-z-]+", found["spec"]["entrypoint"])
    known = {option for parameter in index_command.params for option in parameter.opts}
    assert options
    assert set(options) <= known
