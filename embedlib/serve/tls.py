"""The certificate of a server: checked before it starts, and read again when it was renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from embedlib.errors import ConfigError


def load_certificate(context: ssl.SSLContext, certificate: Path, private_key: Path) -> None:
    """Let a context offer a certificate; connections that are open keep what they were offered.

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


def check_certificate(certificate: Path, private_key: Path) -> None:
    """Refuse a certificate that cannot be offered.

    Raises:
        ConfigError: says why.
    """
    load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, private_key)


def renew_certificate(context: ssl.SSLContext, certificate: Path, private_key: Path) -> None:
    """Read the files again; if they are wrong the log says so, and the old ones stay."""
    log = logging.getLogger(__name__)
    try:
        check_certificate(certificate, private_key)
        load_certificate(context, certificate, private_key)
    except ConfigError as error:
        log.error("the certificate stays as it was: %s", error)
    else:
        log.warning("the certificate %s was read again", certificate)
