"""The certificate of a server: checked before it starts, and read again when it was renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from embedlib.errors import ConfigError


def new_context(certificate: Path, private_key: Path) -> ssl.SSLContext:
    """Return the context of a server that offers a certificate.

    Raises:
        ConfigError: a file is none of PEM, the key needs a password, or is not the certificate's.
    """

    def refuse_password() -> str:
        raise ConfigError(
            f"the private key {private_key} needs a password; write it without one: "
            f"openssl pkey -in {private_key} -out NEW"
        )

    try:
        ssl.create_default_context(cafile=certificate)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{certificate} cannot be read as a PEM certificate: {error}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, private_key, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"the private key {private_key} is not that of the certificate {certificate}; give "
                "the two that were made together, the server's own certificate first in its file"
            ) from error
        raise ConfigError(f"{private_key} cannot be read as a PEM private key: {error}") from error
    except OSError as error:
        raise ConfigError(f"{private_key} cannot be read: {error}") from error
    return context


class Renewable:
    """The certificate of a server that listens, which may be read again."""

    def __init__(self, certificate: Path, private_key: Path) -> None:
        """Remember where it is."""
        self._files = certificate, private_key
        self._current: ssl.SSLContext | None = None

    def follow(self, context: ssl.SSLContext) -> None:
        """Let the context of the listening socket offer what was read last."""

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            # A new one: a context goes on to offer the old one beside a new one of another type.
            if self._current is not None:
                connection.context = self._current

        context.sni_callback = choose  # called without a name as well

    def renew(self) -> None:
        """Read the files again; if they are wrong the log says so, and the old ones stay."""
        log = logging.getLogger(__name__)
        try:
            self._current = new_context(*self._files)
        except ConfigError as error:
            log.error("the certificate stays as it was: %s", error)
        else:
            log.warning("the certificate %s was read again", self._files[0])
