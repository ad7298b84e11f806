"""The URL of a server's collection, and the sink that it means."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from embedlib.errors import SinkError
from embedlib.indexing import SinkUrl, host_of
from embedlib_qdrant.collection_options import OPTION_NAMES, parse_options
from embedlib_qdrant.connection import Connection
from embedlib_qdrant.generations import GenerationSink
from embedlib_qdrant.load_requests import NAMES, parse_requests
from embedlib_qdrant.names import check_collection_name

API_KEY = "QDRANT_API_KEY"
DEFAULT_PORT = 6334
"""Source: `service.grpc_port` of Qdrant's config/config.yaml."""


def open_sink(url: SinkUrl) -> GenerationSink:
    """Make the sink of `qdrant://host:port/collection` or `qdrant+https://...`."""
    if "@" in url.location:
        # The message does not quote the URL: it contains a secret.
        raise SinkError(
            f"{url.scheme}: a URL takes no user, password or API key; set the environment "
            f"variable {API_KEY} instead, and write an @ in a collection's name as %40"
        )
    options = url.take(*OPTION_NAMES, *NAMES)
    given = parse_options({key: options[key] for key in options if key not in NAMES})
    requests = parse_requests(options)
    example = f"{url.scheme}://localhost:{DEFAULT_PORT}/documents"
    try:
        parts = urlsplit(url.location, allow_fragments=False)  # a name may have a #
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise SinkError(f"{url.scheme}:{url.location}: {error}; such as {example}") from error
    collection = unquote(parts.path.strip("/"))
    if not host or not collection or "/" in collection:
        raise SinkError(
            f"{url.scheme}:{url.location} needs a host and a collection, such as {example}"
        )
    check_collection_name(collection)
    connection = Connection(
        f"[{host}]" if ":" in host else host,  # of IPv6, without which the port is a part of it
        port,
        is_encrypted=url.scheme == "qdrant+https",
        api_key=os.environ.get(API_KEY) or None,
    )
    name = f"{url.scheme}://{host_of(url.location)}/{collection}"
    return GenerationSink(name, connection, collection, given, requests)
