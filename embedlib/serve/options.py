"""ServeOptions: the bounds of a server, in one frozen object that checks itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from threading import TIMEOUT_MAX
from typing import Any

from embedlib.checks import SWITCH, is_count, is_number
from embedlib.errors import ConfigError, shown

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Bounds of a server; the defaults suit one machine behind a load balancer.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    api_keys: tuple[str, ...] = ()
    """A request must have one of them; empty: none is asked for."""
    max_body_bytes: int = 32 * MIB
    """Of one request."""
    max_held_bytes: int = 512 * MIB
    """Of all requests that are not answered yet."""
    max_unread_bytes: int = 1 << 30
    """Of answers that their clients have not read; then 429 for bulk requests."""
    max_texts: int = 65_536
    """Of one request."""
    token_ids: bool = False
    """Whether inputs may be token ids of the model's own tokenizer; False: they are refused, since
    clients send those of other tokenizers."""
    max_waiting_requests: int = 1024
    """Bulk requests that wait for their turn, per model; then 429. It is the most that Baseten's
    client sends at once."""
    max_bulk_texts: int = 8192
    """Bulk texts that a model works on; more requests wait for their turn."""
    max_queued_tokens: int = 1 << 21
    """Of the texts of a lane that a model works on, as estimated from their characters: that of
    8,192 texts of 256 tokens."""
    max_query_texts: int = 4096
    """Queries that a model works on; then 429. Four times what Baseten's client sends at once."""
    max_wait_seconds: float = 600.0
    """Time that a bulk request waits for its turn."""
    body_seconds: float = 30.0
    """Time between two parts of a body."""
    head_seconds: float = 10.0
    """Time in which the head of a request must arrive."""
    answer_seconds: float = 30.0
    """Time in which a client must read some of an answer that waits for it."""
    grace_seconds: float = 1.0
    """Time between "not ready" and refusing connections, for load balancers that poll."""
    drain_seconds: float = 30.0
    """Time for the requests that run when the server ends."""
    allowed_hosts: tuple[str, ...] | None = None
    """Names in the header Host; None: any, and on a loopback address its own."""

    data_dir: str | None = None
    """The folder of jobs, for this server alone; None: there are no jobs."""
    max_file_bytes: int = 200 * MIB
    """Of an uploaded file."""
    max_batch_requests: int = 50_000
    """Of one file."""
    keep_jobs_seconds: float = 7 * 86_400.0
    """Time that files and results are kept."""
    webhook_hosts: tuple[str, ...] = ()
    """Where webhooks may go: names of hosts; addresses and networks that are not public."""
    webhook_secrets: tuple[str, ...] = ()
    """Webhooks are signed with each of them."""

    def __post_init__(self) -> None:
        """Check every field."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name.startswith("max_") and item.name != "max_wait_seconds":
                if not is_count(value) or value < 1:
                    raise ConfigError(f"{item.name} = {shown(value)}; it must be 1 or more")
            elif item.name.endswith("_seconds") and not _is_time(value):
                wanted = f"it must be 0 to {TIMEOUT_MAX:,.0f} seconds"
                raise ConfigError(f"{item.name} = {shown(value)}; {wanted}")
        SWITCH.take("token_ids", self.token_ids)
        if not (self.data_dir is None or (isinstance(self.data_dir, str) and self.data_dir)):
            raise ConfigError(f"data_dir = {shown(self.data_dir)}; it must be a folder's path")
        for name in ("webhook_hosts", "webhook_secrets"):
            if getattr(self, name) and self.data_dir is None:
                raise ConfigError(f"{name}: webhooks are of jobs; give data_dir (--data-dir), too")
        for name in ("api_keys", "allowed_hosts", "webhook_hosts", "webhook_secrets"):
            value = getattr(self, name)
            is_texts = isinstance(value, tuple) and all(
                isinstance(text, str) and text for text in value
            )
            if not is_texts and not (name == "allowed_hosts" and value is None):
                raise ConfigError(f"{name}: it must be a tuple of str that are not empty")


def _is_time(value: Any) -> bool:
    """Whether timers and the database of jobs take these seconds; they take no infinity."""
    return is_number(value) and 0 <= value <= TIMEOUT_MAX
