"""An adapter on Together: it fetches the files from S3 or the Hugging Face hub, by a job that is asked for and watched.

Source: docs.together.ai, "Upload a LoRA adapter" and "Upload a custom model or adapter" (POST /models, GET /jobs).
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
import zipfile
from typing import TYPE_CHECKING, Any

import httpx

from art_nb.utils.deployment.common import DeploymentConfig, adapter_files, key_from_environment

if TYPE_CHECKING:
    from art_nb.model import TrainableModel

URL = "https://api.together.xyz/v1"  # TOGETHER_BASE_URL of the environment names another
LINK_LASTS = 2 * 60 * 60  # seconds; Together asks for 100 minutes
PATIENCE = 300.0  # seconds for the job
PAUSE = 15.0  # between two looks


class TogetherDeploymentConfig(DeploymentConfig):
    """s3_bucket: where the adapter is put for Together to fetch, by boto3 with the keys that it finds; prefix: in there.

    hub_repository: instead, "OWNER/NAME" on the Hugging Face hub, where `art-nb export --push` has put it; private ones are
    read with HF_TOKEN, which Together is then given.
    wait_for_completion: until the model can be asked.
    """

    s3_bucket: str | None = None
    prefix: str | None = None
    wait_for_completion: bool = True
    hub_repository: str | None = None


async def deploy_together(
    model: TrainableModel, checkpoint_path: str, step: int, config: TogetherDeploymentConfig, verbose: bool = False
) -> str:
    """What `deploy_model` does for Together; returns the model's name there. A job for the same step is not begun twice."""
    headers = {"authorization": f"Bearer {key_from_environment('TOGETHER_API_KEY')}"}
    url = os.environ.get("TOGETHER_BASE_URL") or URL
    name = f"{model.project}-{model.name}-{step}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
        job = await _newest_job(http, name)
        if job is None or _failed(job):
            source = await asyncio.to_thread(_source, model, checkpoint_path, step, config)
            request = {
                "model_name": name, "model_type": "adapter", "base_model": model.base_model, **source,
                "description": f"{model.project}/{model.name}, step {step}, trained with art_nb",
            }  # fmt: skip
            number = (await _ask(http, "POST", "/models", request))["data"]["job_id"]
        else:
            number = job["job_id"]
        return await _finished(http, number, config.wait_for_completion, verbose)


def _source(model: TrainableModel, checkpoint_path: str, step: int, config: TogetherDeploymentConfig) -> dict[str, str]:
    if config.hub_repository:
        key = {"hf_token": os.environ["HF_TOKEN"]} if os.environ.get("HF_TOKEN") else {}
        return {"model_source": f"https://huggingface.co/{config.hub_repository}", **key}
    if not config.s3_bucket:
        raise ValueError("config: give s3_bucket or hub_repository, where Together can fetch the adapter")
    try:
        import boto3
    except ImportError:
        raise ImportError("s3_bucket needs boto3: python -m pip install boto3; or give hub_repository") from None
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path in adapter_files(checkpoint_path):
            file.write(path, path.name)
    name = "/".join(filter(None, [(config.prefix or "").strip("/"), model.project, model.name, f"{step:04d}.zip"]))
    s3 = boto3.client("s3")
    s3.put_object(Bucket=config.s3_bucket, Key=name, Body=archive.getvalue())
    parameters = {"Bucket": config.s3_bucket, "Key": name}
    return {"model_source": s3.generate_presigned_url("get_object", Params=parameters, ExpiresIn=LINK_LASTS)}


async def _newest_job(http: httpx.AsyncClient, name: str) -> dict[str, Any] | None:
    jobs = [job for job in (await _ask(http, "GET", "/jobs"))["data"] if job["args"]["modelName"].endswith(name)]
    return max(jobs, key=lambda job: job["updated_at"], default=None)


async def _finished(http: httpx.AsyncClient, number: str, wait: bool, verbose: bool) -> str:
    until = time.monotonic() + PATIENCE
    while True:
        job = await _ask(http, "GET", f"/jobs/{number}")
        if verbose:
            print(f"Together, job {number}: {job['status']}")
        if _failed(job):
            last = (job.get("status_updates") or [{}])[-1]
            raise RuntimeError(f"Together could not take the adapter (job {number}): {last.get('message') or job['status']}")
        if job["status"] == "Complete" or not wait:
            return job["args"]["modelName"]
        if time.monotonic() > until:
            raise TimeoutError(f"Together has not finished job {number} in {PATIENCE:g} s; call again later, it goes on")
        await asyncio.sleep(PAUSE)


def _failed(job: dict[str, Any]) -> bool:
    return job["status"] in ("Error", "Bad", "Failed")


async def _ask(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    response = await http.request(method, path.removeprefix("/"), json=body)
    if response.status_code in (401, 403):
        raise PermissionError(f"Together refuses the key in TOGETHER_API_KEY (status {response.status_code})")
    if not response.is_success:
        raise RuntimeError(f"Together refuses (status {response.status_code}): {response.text[:500]}")
    return json.loads(response.content)
