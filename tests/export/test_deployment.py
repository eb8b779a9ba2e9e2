"""Deployment through the providers' own clients, against local stand-in servers that check every request."""

import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import zipfile

import pytest
from safetensors.numpy import save_file
from stand_in import standing_in

import art_nb as art
from art_nb.export import deployment
from art_nb.utils.deploy_model import DeploymentResult, TogetherDeploymentConfig, WandbDeploymentConfig, deploy_model
from art_nb.utils.deployment import deploy_wandb, push_to_hub

KEY = "hf_secret_of_the_tests"


@pytest.fixture
def model():
    return art.TrainableModel(name="agent", project="mails", base_model="Qwen/Qwen2.5-14B-Instruct")


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint's files: the adapter, and files that are not deployed."""
    import numpy

    folder = tmp_path / "0007"
    folder.mkdir()
    save_file({"base_model.model.x.lora_A.weight": numpy.ones((2, 2), numpy.float32)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-14B-Instruct", "r": 2}))
    (folder / "optimizer.safetensors").write_bytes(b"moments")
    (folder / "state.json").write_text("{}")
    return folder


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def authorized(headers, key=KEY):
    return headers.get("authorization") == f"Bearer {key}"


def hub(key=KEY, refuse_commit=False):
    def answer(method, path, headers, body):
        if not authorized(headers, key):
            return 401, {"error": "Invalid credentials in Authorization header"}
        if path == "/api/repos/create":
            return 200, {"url": "https://huggingface.co/me/agent"}
        if "/preupload/" in path:
            payload = json.loads(body)["files"]
            return 200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None} for f in payload]}
        if "/commit/" in path:
            if refuse_commit:
                return 403, {"error": "storage quota exceeded"}
            return 200, {"success": True, "commitOid": "a" * 40, "commitUrl": "https://huggingface.co/me/agent/commit/a", "hookOutput": ""}
        return 404, {"error": f"no {method} {path}"}

    return answer


@pytest.fixture
def at_hub(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", KEY)

    def go(url):
        monkeypatch.setenv("HF_ENDPOINT", url)

    return go


def test_push_to_hub_uploads_all_files_in_one_private_commit(checkpoint, at_hub):
    with standing_in(hub()) as (url, requests):
        at_hub(url)
        assert push_to_hub(checkpoint, "me/agent") == f"{url}/me/agent"
    (made,) = [json.loads(body) for _, path, _, body in requests if path == "/api/repos/create"]
    assert made["visibility"] == "private" and made["name"] == "agent"
    (commit,) = [body for _, path, _, body in requests if "/commit/" in path]
    lines = [json.loads(line) for line in commit.splitlines()]
    sent = {line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"}
    assert sent == files(checkpoint)


@pytest.mark.parametrize(("options", "error", "words"), [({"key": "another"}, PermissionError, "HF_TOKEN"), ({"refuse_commit": True}, PermissionError, "403")])
def test_errors_of_the_hub(checkpoint, at_hub, options, error, words):
    before = files(checkpoint)
    with standing_in(hub(**options)) as (url, _):
        at_hub(url)
        with pytest.raises(error, match=words) as caught:
            push_to_hub(checkpoint, "me/agent")
    assert KEY not in str(caught.value) and files(checkpoint) == before


def test_an_unreachable_hub(checkpoint, at_hub):
    at_hub("http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match="commits all or nothing"):
        push_to_hub(checkpoint, "me/agent")


def test_push_to_hub_needs_a_key_and_a_base_model_on_the_hub(checkpoint, at_hub, monkeypatch):
    (checkpoint / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(checkpoint), "r": 2}))
    with pytest.raises(ValueError, match="--base"):
        push_to_hub(checkpoint, "me/agent")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match="HF_TOKEN is not set"):
        push_to_hub(checkpoint, "me/agent")


class Together:
    """Stand-in for its job API: a job is queued, then running, then ends with status `end`."""

    def __init__(self, end="Complete", key=KEY):
        self.jobs, self.end, self.key, self.looks = {}, end, key, 0

    def __call__(self, method, path, headers, body):
        if not authorized(headers, self.key):
            return 401, {"error": {"message": "Invalid API key provided"}}
        match method, path.removeprefix("/v1").split("/"):
            case "GET", ["", "jobs"]:
                return 200, {"data": list(self.jobs.values())}
            case "POST", ["", "models"]:
                payload = json.loads(body)
                if payload["base_model"].startswith("nobody/"):
                    return 400, {"error": {"message": "base model is not supported"}}
                number = f"job-{len(self.jobs)}"
                self.jobs[number] = {"job_id": number, "status": "Queued", "updated_at": f"2026-11-22T{len(self.jobs):02}",
                                     "args": {"modelName": f"me/{payload['model_name']}"}, "status_updates": [{"message": "files are unreadable"}]}  # fmt: skip
                return 200, {"data": {"job_id": number, "model_name": f"me/{payload['model_name']}"}, "message": "Job created."}
            case "GET", ["", "jobs", number]:
                self.looks += 1
                self.jobs[number]["status"] = ["Running", self.end][self.looks > 1]
                return 200, self.jobs[number]
        return 404, {}


@pytest.fixture
def at_together(monkeypatch):
    monkeypatch.setenv("TOGETHER_API_KEY", KEY)
    monkeypatch.setattr(deployment, "POLL_INTERVAL", 0.01)

    def go(url):
        monkeypatch.setenv("TOGETHER_BASE_URL", f"{url}/v1")

    return go


HUB = TogetherDeploymentConfig(hub_repository="me/agent")


def deployed(model, checkpoint, config=HUB, provider="together"):
    return asyncio.run(deploy_model(model=model, checkpoint_path=str(checkpoint), step=7, provider=provider, config=config))


def test_together_reuses_the_job_of_a_step(model, checkpoint, at_together):
    with standing_in(Together()) as (url, requests):
        at_together(url)
        assert deployed(model, checkpoint) == DeploymentResult(inference_model_name="me/mails-agent-7")
        assert deployed(model, checkpoint).inference_model_name == "me/mails-agent-7"
    (payload,) = [json.loads(body) for method, _, _, body in requests if method == "POST"]
    assert payload["base_model"] == "Qwen/Qwen2.5-14B-Instruct" and payload["model_type"] == "adapter"
    assert payload["model_source"] == "https://huggingface.co/me/agent"


def test_a_key_may_end_with_a_newline(model, checkpoint, at_together, monkeypatch):
    """As one read from a file does."""
    with standing_in(Together()) as (url, _):
        at_together(url)
        monkeypatch.setenv("TOGETHER_API_KEY", f"{KEY}\n")
        assert deployed(model, checkpoint).inference_model_name == "me/mails-agent-7"
        monkeypatch.setenv("TOGETHER_API_KEY", "\n")
        with pytest.raises(ValueError, match="TOGETHER_API_KEY is not set"):
            deployed(model, checkpoint)


def test_together_downloads_from_s3(model, checkpoint, at_together, monkeypatch):
    """boto3 uploads an archive of the two adapter files and signs its URL."""
    pytest.importorskip("boto3")
    together = Together()

    def answer(method, path, headers, body):
        return (200, b"") if path.startswith("/bucket/") else together(method, path, headers, body)

    with standing_in(answer) as (url, requests):
        at_together(url)
        for name, value in {"AWS_ENDPOINT_URL_S3": url, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "s3-secret", "AWS_DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(name, value)
        deployed(model, checkpoint, TogetherDeploymentConfig(s3_bucket="bucket", prefix="runs"))
    ((path, body),) = [(path, body) for method, path, _, body in requests if method == "PUT"]
    assert path == "/bucket/runs/mails/agent/0007.zip"
    (payload,) = [json.loads(body) for method, path, _, body in requests if (method, path) == ("POST", "/v1/models")]
    assert "bucket/runs/mails/agent/0007.zip" in payload["model_source"] and "s3-secret" not in str(requests)
    start, end = body.index(b"PK"), body.rindex(b"PK\x05\x06") + 22  # boto3 may add chunk headers and checksums
    assert sorted(zipfile.ZipFile(io.BytesIO(body[start:end])).namelist()) == ["adapter_config.json", "adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("together", "base", "error", "words"),
    [
        (Together(key="another"), None, PermissionError, "rejects the key in TOGETHER_API_KEY"),
        (Together(), "nobody/knows-it", RuntimeError, "base model is not supported"),
        (Together(end="Error"), None, RuntimeError, "files are unreadable"),
    ],
)
def test_errors_of_together(model, checkpoint, at_together, together, base, error, words):
    before, model.base_model = files(checkpoint), base or model.base_model
    with standing_in(together) as (url, _):
        at_together(url)
        with pytest.raises(error, match=words) as caught:
            deployed(model, checkpoint)
    assert KEY not in str(caught.value) and files(checkpoint) == before


class WeightsAndBiases:
    """Stand-in for the GraphQL operations that logging an artifact needs; files go to the URLs that it returns."""

    def __init__(self, key=KEY):
        self.key, self.created, self.files, self.url = key, None, {}, ""

    def __call__(self, method, path, headers, body):
        if path.startswith("/upload/"):
            self.files[path.removeprefix("/upload/")] = body
            return 200, {}
        if path != "/graphql":
            return 200, {}
        if base64.b64decode(headers.get("authorization", "Basic ").split(" ")[1]).decode() != f"api:{self.key}":
            return 401, {"errors": [{"message": "invalid api key"}]}
        payload = json.loads(body)
        given = (payload["variables"] or {}) if "variables" in payload else {}
        return 200, {"data": self.data(payload["operationName"], payload["query"], given)}

    def data(self, name, query, given):
        entity = {"id": "e", "name": "me"}
        match name:
            case "Viewer":
                return {"viewer": {"id": "u", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}}
            case "UpsertBucket":
                bucket = {"id": "r", "name": given["name"], "displayName": "", "config": "{}", "historyLineCount": 0}
                return {"upsertBucket": {"inserted": True, "bucket": bucket | {"project": {"id": "p", "name": given["project"], "entity": entity}}}}
            case "CreateArtifact":
                self.created = given["input"]
                return {"createArtifact": {"artifact": {"id": "a", "state": "PENDING", "artifactSequence": {"id": "s", "latestArtifact": None}}}}
            case "CreateArtifactManifest" | "UpdateArtifactManifest":
                file = {"id": "f", "uploadUrl": f"{self.url}/upload/manifest", "uploadHeaders": []}
                field = name[0].lower() + name[1:]
                return {field: {"artifactManifest": {"id": "m", "file": file}}}
            case "CreateArtifactFiles":
                wanted = [file["name"] for file in given["input"]["artifactFiles"]]
                nodes = [{"storagePath": f"x/{n}", "uploadUrl": f"{self.url}/upload/{n}", "uploadHeaders": [], "artifact": {"id": "a"}} for n in wanted]
                return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}
            case "CommitArtifact":
                return {"commitArtifact": {"artifact": {"id": "a", "digest": "d"}}}
            case "CreateRunFiles":
                files = [{"name": n, "uploadUrl": f"{self.url}/upload/run/{n}"} for n in given["files"]]
                return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        return {"project": {"artifact": None}} if "artifact(name" in query else {"artifact": None}


WANDB = """
import asyncio, os, sys
import art_nb as art
from art_nb.utils.deploy_model import WandbDeploymentConfig, deploy_model
model = art.TrainableModel(name="agent", project="mails", base_model="Qwen/Qwen2.5-14B-Instruct", entity="me")
config = WandbDeploymentConfig(provenance=["local-rl"])
if "RUN" in os.environ:
    import wandb
    run = wandb.init(mode=os.environ["RUN"], project="another")
try:
    print("DEPLOYED", asyncio.run(deploy_model(model, sys.argv[1], 7, "wandb", config)).inference_model_name)
except (PermissionError, RuntimeError) as error:
    print("REJECTED", type(error).__name__, error)
if "RUN" in os.environ:
    run.log({"reward": 1})
    print("ACTIVE", wandb.run is run, run.summary["reward"])
"""


def deploy_by_wandb(checkpoint, folder, at, **more):
    """Deploy in a subprocess: wandb's client keeps global state. more: environment variables; RUN: the mode of a run that is active."""
    with standing_in(at) as (at.url, requests):
        variables = {"WANDB_BASE_URL": at.url, "WANDB_API_KEY": KEY.ljust(40, "x"), "WANDB_DIR": str(folder), "HOME": str(folder), **more}
        command = [sys.executable, "-c", WANDB, str(checkpoint)]
        run = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, cwd=folder, timeout=300)
    return run.stdout + run.stderr, requests


def test_wandb_gets_an_artifact_with_the_adapter_only(checkpoint, tmp_path):
    pytest.importorskip("wandb")
    at = WeightsAndBiases(KEY.ljust(40, "x"))
    output, requests = deploy_by_wandb(checkpoint, tmp_path, at)
    assert "DEPLOYED wandb-artifact:///me/mails/agent:step7" in output
    assert at.created["artifactTypeName"] == "lora" and at.created["storageRegion"] == "coreweave-us"
    assert sorted(each["alias"] for each in at.created["aliases"]) == ["latest", "step7"]
    assert json.loads(at.created["metadata"]) == {"wandb.base_model": "Qwen/Qwen2.5-14B-Instruct", "wandb.provenance": ["local-rl"]}
    sent = {name: data for name, data in at.files.items() if name.startswith("adapter")}
    assert sent == {name: data for name, data in files(checkpoint).items() if name.startswith("adapter")}
    everything = str(requests) + output
    assert "optimizer" not in everything and KEY not in output
    assert "requirements.txt" not in everything and "wandb-metadata" not in everything, "it describes this machine"


def test_wandb_deploys_beside_the_users_runs(checkpoint, tmp_path):
    """One is active, and WANDB_MODE disables the others."""
    pytest.importorskip("wandb")
    at = WeightsAndBiases(KEY.ljust(40, "x"))
    output, _ = deploy_by_wandb(checkpoint, tmp_path, at, RUN="offline", WANDB_MODE="disabled")
    assert "DEPLOYED wandb-artifact:///me/mails/agent:step7" in output and "ACTIVE True 1" in output
    assert at.files["adapter_config.json"] == files(checkpoint)["adapter_config.json"]


def test_wandb_rejects_the_key(checkpoint, tmp_path):
    pytest.importorskip("wandb")
    before = files(checkpoint)
    output, _ = deploy_by_wandb(checkpoint, tmp_path, WeightsAndBiases("another"))
    assert "REJECTED PermissionError W&B rejects the key in WANDB_API_KEY" in output and KEY not in output and files(checkpoint) == before


def test_invalid_deployments_fail_before_any_request(model, checkpoint, tmp_path, monkeypatch):
    monkeypatch.delenv("TOGETHER_API_KEY", raising=False)
    for change, error, words in [
        ({}, ValueError, "TOGETHER_API_KEY is not set"),
        ({"config": None}, ValueError, "TogetherDeploymentConfig"),
        ({"config": WandbDeploymentConfig(provenance=[])}, TypeError, "takes a TogetherDeploymentConfig"),
        ({"provider": "openai"}, ValueError, "'together' or 'wandb'"),
        ({"checkpoint": tmp_path / "none"}, FileNotFoundError, "lacks adapter_config.json, adapter_model.safetensors"),
    ]:
        with pytest.raises(error, match=words):
            deployed(model, **{"checkpoint": checkpoint, **change})
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    for model.base_model in (str(checkpoint), "~/agent", "../agent"):
        for deploy in (deployed, lambda *given: deployed(*given, None, "wandb"), lambda *given: deploy_wandb(*given, 7)):
            with pytest.raises(ValueError, match="serve adapters on base models of the Hugging Face hub"):
                deploy(model, checkpoint)
