"""Downloads the pickles of a hub model, of which a load takes safetensors alone."""

from __future__ import annotations

import glob
from dataclasses import replace
from pathlib import PurePosixPath

from embedlib.config import Config
from embedlib.models.hub import WEIGHTS, ModelFolder, find_on_hub
from embedlib.models.hub_cache import hub_name
from embedlib.models.weights.token_heads import HEAD_STEMS


def resolve_pickled(name: str, config: Config) -> ModelFolder:
    """Return the folder of a hub model in the cache, with pickles of weights that lack safetensors.

    Args:
        name: on the hub, for which `may_be_on_hub` holds.
        config: the options, as of `resolve`.

    Raises:
        ModelNotFoundError: as `resolve`.
    """
    from huggingface_hub import HfApi, constants

    found = find_on_hub(name, config, [])
    if config.local_files_only:
        return found
    repo = hub_name(found.path.parent.parent)
    try:
        info = HfApi(token=config.token).model_info(
            repo, revision=found.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
    except Exception:  # also offline; the hub's client raises errors of its HTTP library, too
        return found
    files = {PurePosixPath(file.rfilename) for file in info.siblings or ()}
    converted = {path.parent for path in files if path.match("model*.safetensors")}
    heads = {f"{stem}.pt" for stem in HEAD_STEMS.values()}
    pickles = [
        glob.escape(str(path))
        for path in sorted(files)
        if (path.match("pytorch_model*.bin") and path.parent not in converted)
        or (path.name in heads and path.with_suffix(".safetensors") not in files)
    ]
    if not pickles:
        return found
    pinned = replace(config, revision=found.revision)
    return replace(find_on_hub(repo, pinned, [WEIGHTS, *pickles]), name=name)
