"""Write the schemas of KubeRay's RayJob and RayService, for `.ci/manifests`.

Run by hand with PyYAML, from the repository's root, for a checkout of
github.com/ray-project/kuberay (stored are the schemas of commit feeaf72f, after 1.7.0):

    python tests/goldens/make_kuberay.py ../kuberay

Pods are left out, which kubernetes-validate checks, and descriptions. Unknown fields are errors, as
they are for the API server with strict validation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent / "kuberay"
FOLDER = "ray-operator/config/crd/bases"


def strict(schema: Any) -> Any:
    """Return a schema without pods and descriptions, and with unknown fields refused."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: {} if name == "template" else strict(each)
        for name, each in schema.items()
        if name != "description" or not isinstance(each, str)
    }
    is_open = kept.pop("x-kubernetes-preserve-unknown-fields", False)
    if kept.pop("x-kubernetes-int-or-string", False):
        kept.pop("anyOf", None)
    if "properties" in kept and not is_open:
        kept.setdefault("additionalProperties", False)
    return kept


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for kind in ("rayjob", "rayservice"):
        text = (Path(sys.argv[1]) / FOLDER / f"ray.io_{kind}s.yaml").read_text(encoding="utf-8")
        versions = yaml.load(text, yaml.CSafeLoader)["spec"]["versions"]
        [schema] = [each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1"]
        found = strict(schema)
        found["properties"]["metadata"] = {"type": "object"}
        found["properties"].pop("status", None)
        path = HERE / f"{kind}.json"
        path.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
