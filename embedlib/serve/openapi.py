"""`/openapi.json`: the routes as they are, from the types of their bodies.

Source: OpenAPI 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from embedlib.serve.dialects.dialect import Route
from embedlib.version import __version__

_ERRORS = {
    "400": "a field is wrong",
    "401": "the API key is missing or wrong",
    "404": "no such model, file, batch or request",
    "408": "the body came late",
    "413": "too many texts or bytes",
    "415": "the body is compressed",
    "422": "a field is wrong",
    "424": "the model cannot do this, or failed",
    "429": "overloaded; come again after Retry-After seconds",
    "500": "the engine failed",
    "503": "the model is not loaded",
    "504": "the deadline of the request has passed",
    "507": "the disk for jobs is full",
}


def describe_routes(routes: Iterable[Route], *, has_keys: bool) -> dict[str, Any]:
    """Return the description of routes; without keys none of them asks for one."""
    routes = list(routes)
    bodies = list(dict.fromkeys(route.body for route in routes if route.body is not None))
    schemas, components = msgspec.json.schema_components(
        bodies, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        is_below = route.is_open and route.path.endswith("/")
        path = f"{route.path}{{name}}" if is_below else route.path
        operation: dict[str, Any] = {
            "summary": route.summary,
            "operationId": f"{route.method.lower()}{path.replace('/', '_')}",
            "responses": {
                str(route.status): {"description": "the answer", "content": {}},
                **_errors(route, has_keys),
            },
        }
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in ("name", "id")
            if f"{{{name}}}" in path
        ] + [
            {"name": name, "in": "query", "schema": {"type": "string"}} for name in route.parameters
        ]
        if route.body is not None:
            kind = "multipart/form-data" if route.takes_parts else "application/json"
            content = {kind: {"schema": by_type[route.body]}}
            operation["requestBody"] = {"required": True, "content": content}
        operation["security"] = [{"key": []}] if route.needs_key and has_keys else []
        paths.setdefault(path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "embedlib", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _errors(route: Route, has_keys: bool) -> dict[str, Any]:
    found = {"503": {"description": _ERRORS["503"]}}
    if route.needs_key and has_keys:
        found["401"] = {"description": _ERRORS["401"]}
    if route.body is not None:
        found |= {
            status: {"description": what} for status, what in _ERRORS.items() if status != "401"
        }
    elif route.is_open:
        found["404"] = {"description": _ERRORS["404"]}
    if route.keeps_jobs:
        found |= {status: {"description": _ERRORS[status]} for status in ("400", "500", "507")}
    return dict(sorted(found.items()))
