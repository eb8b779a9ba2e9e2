"""An export on the Hugging Face hub, in one commit: there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

from art_nb.utils.deployment.common import key_from_environment


def push_to_hub(folder: str | os.PathLike, repository: str, *, private: bool = True) -> str:
    """Upload the folder of an export (`art-nb export`); returns the repository's address.

    Args:
        repository: "OWNER/NAME"; made if it is not there, private unless asked otherwise.

    The key is HF_TOKEN of the environment; HF_ENDPOINT names another hub than huggingface.co.

    Raises: ValueError: no key, or an adapter whose base model nobody else has. PermissionError: the hub refuses the key.
    RuntimeError: it refuses the upload; it says why. ConnectionError: it can't be reached.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    folder, key = Path(folder), key_from_environment("HF_TOKEN")
    settings = folder / "adapter_config.json"
    if settings.exists():
        base = json.loads(settings.read_text(encoding="utf-8"))["base_model_name_or_path"]
        if Path(base).exists() or base.count("/") != 1:
            raise ValueError(f"the adapter belongs to {base!r}, which is not on the hub: export it with --base OWNER/NAME")
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    hub = HfApi(endpoint=endpoint, token=key)
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Exported by art-nb")
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise PermissionError(f"the hub refuses the key in HF_TOKEN for {repository} (status {status})") from None
        said = error.server_message or error.response.reason_phrase
        raise RuntimeError(f"the hub refuses {repository} (status {status}): {said}") from None
    except (httpx.TransportError, OSError) as error:
        raise ConnectionError(f"{endpoint} was not reached, or broke off: {error}. Nothing was committed there.") from None
    return f"{endpoint}/{repository}"
