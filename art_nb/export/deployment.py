"""`deploy_model`: have Together or Weights & Biases serve an adapter on a base model that they host.

Together downloads the adapter from S3 or the hub in an upload job; W&B Inference serves artifacts of type "lora".
Source: docs.together.ai, "Upload a LoRA adapter" and "Upload a custom model or adapter" (POST /models, GET /jobs).
"""

from __future__ import annotations

import asyncio
import io
import os
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import httpx
from pydantic import BaseModel

from art_nb.export.checkpoint import adapter_files, is_hub_name
from art_nb.monitoring.wandb_monitor import PRIVATE, import_wandb

if TYPE_CHECKING:
    from art_nb.model import TrainableModel

Provider = Literal["together", "wandb"]
TOGETHER_URL = "https://api.together.xyz/v1"  # TOGETHER_BASE_URL overrides it
LINK_EXPIRES = 2 * 60 * 60  # seconds; Together requires 100 minutes
TIMEOUT = 300.0  # seconds for Together's job
POLL_INTERVAL = 15.0  # seconds
WANDB_REGION = "coreweave-us"  # where W&B Inference runs


class DeploymentConfig(BaseModel):
    """Base class of the providers' configurations."""


class TogetherDeploymentConfig(DeploymentConfig):
    """Where Together downloads the adapter: from an S3 bucket or the Hugging Face hub.

    s3_bucket: the adapter is uploaded there by boto3, with the credentials that boto3 finds; prefix: of the object's name.
    hub_repository: "OWNER/NAME", uploaded by `art-nb export --push`. HF_TOKEN, if set, is always sent to Together.
    wait_for_completion: wait until the model is served.
    """

    s3_bucket: str | None = None
    prefix: str | None = None
    wait_for_completion: bool = True
    hub_repository: str | None = None


class WandbDeploymentConfig(DeploymentConfig):
    """provenance: the training stages of the adapter, in order, for example ["local-rl"]."""

    provenance: list[str]


class DeploymentResult(BaseModel):
    """inference_model_name: the `model` argument for an OpenAI client of the provider."""

    inference_model_name: str


def key_from_environment(name: str) -> str:
    """Return the variable's value. Raises: ValueError when it is not set."""
    if not (key := os.environ.get(name, "").strip()):  # a key read from a file may end with a newline
        raise ValueError(f"{name} is not set: expected a key in this environment variable")
    return key


async def deploy_model(
    model: TrainableModel,
    checkpoint_path: str,
    step: int,
    provider: Provider,
    config: DeploymentConfig | None = None,
    verbose: bool = False,
) -> DeploymentResult:
    """Upload a checkpoint's adapter to a provider that serves it. The checkpoint is only read.

    If Together already serves this project, model and step, nothing is uploaded.

    Args:
        checkpoint_path: a checkpoint's folder, or an export made with `--as adapter`.
        step: of the checkpoint; becomes part of the deployed model's name.
        provider: "together" (key: TOGETHER_API_KEY) or "wandb" (key: WANDB_API_KEY).
        config: a TogetherDeploymentConfig (required), or a WandbDeploymentConfig or None.
        verbose: print progress.

    Raises:
        FileNotFoundError: no adapter in checkpoint_path. ValueError: a key or setting is missing, or the base model is not
        on the hub. TypeError: the config of the other provider. PermissionError: the provider rejects the key.
        RuntimeError: it rejects the model. TimeoutError: it takes more than five minutes. ImportError: boto3 or wandb is
        missing. httpx.TransportError, or boto3's errors: the service cannot be reached, or the upload fails.
    """
    if provider not in get_args(Provider):
        raise ValueError(f"provider is {provider!r}: expected 'together' or 'wandb'")
    expected: Any = TogetherDeploymentConfig if provider == "together" else WandbDeploymentConfig
    if config is not None and not isinstance(config, expected):
        raise TypeError(f"config is a {type(config).__name__}: provider {provider!r} takes a {expected.__name__}")
    if provider == "wandb":
        name = await asyncio.to_thread(deploy_wandb, model, checkpoint_path, step, config, verbose)
        return DeploymentResult(inference_model_name=name)
    _files_to_deploy(model, checkpoint_path)
    if config is None:
        raise ValueError("config is None: Together needs a download source; pass TogetherDeploymentConfig(s3_bucket=...)")
    return DeploymentResult(inference_model_name=await _deploy_together(model, checkpoint_path, step, config, verbose))


def _files_to_deploy(model: TrainableModel, checkpoint_path: str) -> list[Path]:
    """Return the adapter's files. Raises: FileNotFoundError; ValueError if the base model is not on the hub."""
    if not is_hub_name(model.base_model):
        raise ValueError(
            f"Together and W&B serve adapters on base models of the Hugging Face hub, and {model.base_model!r} is not one. "
            "Export the model as `merged` and serve it yourself: art-nb export"
        )
    return adapter_files(checkpoint_path)


async def _deploy_together(
    model: TrainableModel, checkpoint_path: str, step: int, config: TogetherDeploymentConfig, verbose: bool
) -> str:
    """Return the model's name at Together. Reuses a job for the same step."""
    headers = {"authorization": f"Bearer {key_from_environment('TOGETHER_API_KEY')}"}
    url = os.environ.get("TOGETHER_BASE_URL") or TOGETHER_URL
    name = f"{model.project}-{model.name}-{step}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
        jobs = (await _request(http, "GET", "/jobs"))["data"]
        jobs = [job for job in jobs if job["args"]["modelName"].rpartition("/")[2] == name]  # a user's name may precede it
        job = max(jobs, key=lambda job: job["updated_at"], default=None)
        if job is None or _failed(job):
            source = await asyncio.to_thread(_source, model, checkpoint_path, step, config)
            request = {
                "model_name": name, "model_type": "adapter", "base_model": model.base_model, **source,
                "description": f"{model.project}/{model.name}, step {step}, trained with art_nb",
            }  # fmt: skip
            job = (await _request(http, "POST", "/models", request))["data"]
        return await _poll(http, job["job_id"], config.wait_for_completion, verbose)


def _source(model: TrainableModel, checkpoint_path: str, step: int, config: TogetherDeploymentConfig) -> dict[str, str]:
    if config.hub_repository:
        key = {"hf_token": os.environ["HF_TOKEN"]} if os.environ.get("HF_TOKEN") else {}
        return {"model_source": f"https://huggingface.co/{config.hub_repository}", **key}
    if not config.s3_bucket:
        raise ValueError("config names no source for Together to download from: give s3_bucket or hub_repository")
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
    return {"model_source": s3.generate_presigned_url("get_object", Params=parameters, ExpiresIn=LINK_EXPIRES)}


async def _poll(http: httpx.AsyncClient, job_id: str, wait: bool, verbose: bool) -> str:
    deadline = time.monotonic() + TIMEOUT
    while True:
        job = await _request(http, "GET", f"/jobs/{job_id}")
        if verbose:
            print(f"Together, job {job_id}: {job['status']}")
        if _failed(job):
            last = (job.get("status_updates") or [{}])[-1]
            raise RuntimeError(f"Together's job {job_id} failed: {last.get('message') or job['status']}")
        if job["status"] == "Complete" or not wait:
            return job["args"]["modelName"]
        if time.monotonic() > deadline:
            raise TimeoutError(f"Together's job {job_id} is still running after {TIMEOUT:g} s; call again to keep waiting")
        await asyncio.sleep(POLL_INTERVAL)


def _failed(job: dict[str, Any]) -> bool:
    return job["status"] in ("Error", "Bad", "Failed")


async def _request(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    response = await http.request(method, path, json=body)
    if response.status_code in (401, 403):
        raise PermissionError(f"Together rejects the key in TOGETHER_API_KEY (status {response.status_code})")
    if not response.is_success:
        raise RuntimeError(f"Together rejects the request (status {response.status_code}): {response.text[:500]}")
    return response.json()


def deploy_wandb(
    model: TrainableModel,
    checkpoint_path: str,
    step: int,
    config: WandbDeploymentConfig | None = None,
    verbose: bool = False,
) -> str:
    """Deploy to W&B as `deploy_model` does, with the same errors; return the model's name there."""
    try:
        wandb = import_wandb()
        from wandb.errors import AuthenticationError, CommError, UsageError
    except ImportError:
        raise ImportError("the package wandb is missing: python -m pip install wandb") from None

    files = _files_to_deploy(model, checkpoint_path)
    # Log online whatever WANDB_MODE is, and to a new run, apart from any other run of this process.
    options = {"mode": "online", "reinit": "create_new", "silent": not verbose, **PRIVATE}
    settings = wandb.Settings(api_key=key_from_environment("WANDB_API_KEY"), **options)
    metadata = {"wandb.base_model": model.base_model} | ({"wandb.provenance": config.provenance} if config else {})
    artifact = wandb.Artifact(model.name, type="lora", metadata=metadata, storage_region=WANDB_REGION)
    for path in files:
        artifact.add_file(str(path), name=path.name)
    title = f"{model.name} (deployment)"
    try:
        with wandb.init(name=title, entity=model.entity, project=model.project, settings=settings) as run:
            try:
                run.log_artifact(artifact, aliases=[f"step{step}", "latest"]).wait()
            except ValueError as error:
                if "Unable to fetch artifact" not in str(error):  # logged, but not readable yet
                    raise
            return f"wandb-artifact:///{run.entity}/{run.project}/{model.name}:step{step}"
    except (AuthenticationError, CommError, UsageError, ValueError) as error:
        if isinstance(error, AuthenticationError) or "api key" in str(error).lower():
            raise PermissionError("W&B rejects the key in WANDB_API_KEY") from None
        raise RuntimeError(f"W&B rejects {model.project}/{model.name}: {error}") from None
