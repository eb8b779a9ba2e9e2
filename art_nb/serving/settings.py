"""Settings of `art-nb serve` and `art-nb worker`, from the command line, ART_NB_... variables or a `.env` file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from art_nb.storage.checkpoints import holds_model

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
Origin = Annotated[str, Field(pattern=r"^https?://[^/\s]+$")]
LISTS = ("--base-models", "--origins", "--proxies")  # options with several values
EXAMPLE = "qwen=Qwen/Qwen3-0.6B nano=data/nano"


class CommandSettings(BaseSettings):
    """Settings of a command. The command line overrides the environment, which overrides `.env`."""

    model_config = SettingsConfigDict(
        env_prefix="ART_NB_", env_file=".env", env_file_encoding="utf-8", extra="ignore", env_ignore_empty=True,
        cli_kebab_case=True, cli_avoid_json=True, cli_hide_none_type=True,
    )  # fmt: skip


class Settings(CommandSettings):
    """Serve models: an OpenAI-compatible API, training, episodes for workers, and a live page.

    The command line overrides ART_NB_{NAME} in the environment, which overrides the file `.env`.
    """

    model_config = SettingsConfigDict(cli_prog_name="art-nb serve")

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 accepts other machines")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 chooses a free one")
    path: Path = Field(Path(".art-server"), description="folder for models, the work queue and the token's digest")
    token: SecretStr | None = Field(None, description="access token for clients; by default created at the first start")
    base_models: Annotated[dict[str, str], NoDecode] = Field(
        {}, validate_default=True, description=f"required: models to train, NAME=FOLDER_OR_HUB_NAME ..., e.g. {EXAMPLE}"
    )
    engine: Literal["auto", "unsloth", "transformers"] = Field("auto", description="loader of the models")
    seed: int = Field(0, description="seed of new adapters and of sampling")
    slots: int = Field(128, ge=1, description="conversations decoded at once, per model")
    cache_tokens: int = Field(2**19, ge=1, description="limit on slots times longest conversation; allocates up to 9/4")
    origins: list[Origin] = Field([], description="further origins that may send browser requests: http://HOST:PORT ...")
    proxies: list[str] = Field([], description="proxies whose X-Forwarded-For and -Proto are trusted: ADDRESS ...")
    models: int = Field(32, ge=1, description="maximum number of models loaded at once")
    max_body: int = Field(64 * 2**20, ge=1, description="maximum bytes of a request body; twice that for all in flight")
    rate: float = Field(500, gt=0, description="requests per second per address, with or without the token; bursts: twice")
    concurrency: int = Field(256, ge=1, description="maximum requests in flight per address")
    lease: float = Field(60.0, gt=0, description="seconds until a worker's lease of an episode expires unless renewed")
    lockstep_patience: float = Field(2.0, ge=0, description="seconds that sampling waits for a lockstep client")

    @field_validator("base_models", mode="before")
    @classmethod
    def _parse_base_models(cls, given: Any) -> Any:
        """Parse NAME=SOURCE pairs, separated by spaces or commas, or a JSON object."""
        if not isinstance(given, str) or given.lstrip().startswith("{"):
            return json.loads(given) if isinstance(given, str) else given
        pairs = re.split(r"[,\s]+(?=[^\s,=]+=)", given.strip())
        return {name: source for name, _, source in (pair.partition("=") for pair in pairs)}

    @field_validator("base_models")
    @classmethod
    def _check_base_models(cls, given: dict[str, str]) -> dict[str, str]:
        if not given:
            raise ValueError(f"no base model to serve; name at least one: --base-models {EXAMPLE} (or ART_NB_BASE_MODELS)")
        for name, source in given.items():
            folder = Path(source)
            if not name or not source or not (folder.is_dir() or HUB_NAME.fullmatch(source)):
                found = f"{name}={source}" if source else name
                raise ValueError(f"{found}: expected NAME=FOLDER, an existing folder, or NAME=HUB_NAME, e.g. {EXAMPLE}")
            if folder.is_dir() and not holds_model(folder):
                raise ValueError(f"{name}={source}: the folder has neither config.json (a model) nor adapter_config.json")
        return given


def repeat_options(options: Sequence[str]) -> list[str]:
    """Rewrite `OPTION a b`, for each option in LISTS, as `OPTION a OPTION b`, the form that pydantic-settings parses."""
    repeated: list[str] = []
    option = ""
    for given in options:
        if given.startswith("-"):
            option = given.split("=")[0]
        elif option in LISTS and repeated[-1] != option:
            repeated.append(option)
        repeated.append(given)
    return repeated


def describe_error(error: Exception) -> str:
    """Return the message of an error. Invalid settings get one line each, without the input, which may be secret."""
    if not isinstance(error, ValidationError):
        return f"{error}: expected a JSON list of strings" if isinstance(error, SettingsError) else str(error)
    lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_input=False)]
    return "\n".join(lines).replace(": Value error, ", ": ").replace("Field required", "missing: see --help")
