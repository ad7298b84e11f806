"""Optional packages, and the command that adds them to the embedlib that runs here."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from embedlib.errors import ConfigError, EmbedlibError, SinkError


def install_line(extras: str) -> str:
    """Return a command such as `pip install 'embedlib[qdrant]'` that works for this user.

    An embedlib from a checkout, a wheel or a repository gets its extras from there too: an index
    may not have it, or have another version.

    Args:
        extras: names of extras, with commas.

    Source: PEP 610, `direct_url.json`, which pip writes unless it installs from an index.
    """
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        recorded = distribution("embedlib").read_text("direct_url.json")
    except PackageNotFoundError:  # imported from a folder on the path
        checkout = Path(__file__).resolve().parents[2]
        is_one = (checkout / "pyproject.toml").is_file()
        recorded = json.dumps({"url": checkout.as_uri()}) if is_one else None
    origin: dict[str, Any] = json.loads(recorded) if recorded else {"url": ""}
    url, commit = origin["url"], origin.get("vcs_info")
    flag, place = "", f"embedlib[{extras}]"
    if url.startswith("file:") and commit is None:
        flag = "-e " if origin.get("dir_info", {}).get("editable") else ""
        place = f"{unquote(urlsplit(url).path)}[{extras}]"
    elif commit is not None:
        place += f" @ {commit['vcs']}+{url}@{commit['commit_id']}"
    elif url:
        place += f" @ {url}"
    return f"{installer()} {flag}{shlex.quote(place)}"


def installer() -> str:
    """Return `pip install`, or what installs into an environment that pipx or uv made.

    There is often no pip in these, and the one on the path would install elsewhere.

    Source: PEP 627, `INSTALLER`; pipx, which writes `pipx_metadata.json` into each environment.
    """
    import shlex
    import sys
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path

    environment = Path(sys.prefix)
    if (environment / "pipx_metadata.json").is_file():
        return f"pipx runpip {shlex.quote(environment.name)} install"
    try:
        made_by = distribution("embedlib").read_text("INSTALLER") or ""
    except PackageNotFoundError:  # imported from a folder on the path
        return "pip install"
    if made_by.strip() == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    return "pip install"


def import_extra(module: str, extra: str, error: type[EmbedlibError] = SinkError) -> Any:
    """Import a module of an optional package.

    Args:
        module: name of the module.
        extra: the extra of embedlib that installs it.
        error: class of the exception.

    Raises:
        EmbedlibError: of class `error`: the package is not installed; the message has the command
            that installs it.
    """
    try:
        return import_module(module)
    except ImportError as cause:
        raise error(f"{module} is not installed; {install_line(extra)} ({cause})") from cause


def load_offered(group: str, name: str, extras: str) -> Any:
    """Return what a package for clusters offers by an entry point.

    Args:
        group: of the entry point.
        name: of the entry point, which the user wrote.
        extras: what it needs, with commas.

    Raises:
        ConfigError: its package is not installed; the message has the command that installs it.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=group, name=name):
        try:
            return point.load()
        except ImportError as error:
            raise ConfigError(
                f"{name}: the package {error.name} is missing; {install_line(extras)}, here and on "
                "every machine of the cluster"
            ) from error
    raise ConfigError(f"{name}: no installed package offers {group}; reinstall embedlib")
