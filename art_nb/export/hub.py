"""Upload an export to the Hugging Face hub in one commit."""

from __future__ import annotations

import json
import os
from pathlib import Path

from art_nb.export.checkpoint import is_hub_name
from art_nb.export.deployment import key_from_environment


def upload_key(adapter_base: str | None) -> str:
    """Return the key in HF_TOKEN. Raises: ValueError if it is not set, or an adapter's base model is not a hub name."""
    key = key_from_environment("HF_TOKEN")
    if adapter_base is not None and not is_hub_name(adapter_base):
        raise ValueError(f"the adapter's base model {adapter_base!r} is not on the hub: export it with --base OWNER/NAME")
    return key


def push_to_hub(folder: str | os.PathLike, repository: str, *, private: bool = True) -> str:
    """Upload the folder of an export (`art-nb export`); return the repository's URL.

    repository: "OWNER/NAME", created if missing. private: whether a repository that this call creates is private.
    Reads the key from HF_TOKEN, and the URL of a hub other than huggingface.co from HF_ENDPOINT.

    Raises: ValueError as `upload_key`. PermissionError: the hub rejects the key. RuntimeError: the hub rejects the upload;
    the message contains its reason. ConnectionError: the hub cannot be reached.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    settings = Path(folder) / "adapter_config.json"
    base = json.loads(settings.read_text(encoding="utf-8"))["base_model_name_or_path"] if settings.exists() else None
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    hub = HfApi(endpoint=endpoint, token=upload_key(base))
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=os.fspath(folder), commit_message="Exported by art-nb")
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise PermissionError(f"the hub rejects the key in HF_TOKEN for {repository} (status {status})") from None
        reason = error.server_message or error.response.reason_phrase
        raise RuntimeError(f"the hub rejects {repository} (status {status}): {reason}") from None
    except (httpx.TransportError, ConnectionError, TimeoutError) as error:
        raise ConnectionError(f"connection to {endpoint} failed: {error}. Retry: the hub commits all or nothing.") from None
    return f"{endpoint}/{repository}"
