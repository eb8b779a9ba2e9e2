"""What `art-nb serve` may be told: on the command line, by ART_NB_... in the environment, or in a file `.env`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

DATA = Path(__file__).resolve().parents[2] / "data"


def course_models() -> dict[str, str]:
    """The base models of the course, by name; none where the package is installed without its data."""
    return {path.parent.name: str(path.parent) for path in sorted(DATA.glob("*/config.json"))}


class Settings(BaseSettings):
    """Serve models: an OpenAI-compatible endpoint, training, work for workers, and a live page.

    A setting comes from the command line, else from ART_NB_{NAME} in the environment, else from `.env`.
    """

    model_config = SettingsConfigDict(
        env_prefix="ART_NB_", env_file=".env", env_file_encoding="utf-8", extra="ignore", cli_prog_name="art-nb serve",
        cli_kebab_case=True, cli_avoid_json=True, cli_hide_none_type=True, env_ignore_empty=True,
    )  # fmt: skip

    host: str = Field("127.0.0.1", description="address to listen at; 0.0.0.0 lets other machines in")
    port: int = Field(8000, ge=0, le=65535, description="0 takes a free one")
    path: Path = Field(Path(".art-server"), description="folder of everything that is kept")
    token: SecretStr | None = Field(None, description="what clients must show; without it one is made at the first start")
    base_models: dict[str, str] = Field(default_factory=course_models, description="NAME=FOLDER of what may be trained")
    engine: str = Field("auto", description="auto, unsloth or transformers")
    seed: int = Field(0, description="of adapters and of all sampling")
    slots: int = Field(128, ge=1, description="conversations decoded at once")
    origins: list[str] = Field([], description="pages besides its own that a browser may ask from, as http://host:port")
    max_body: int = Field(256 * 2**20, ge=1, description="bytes of a request")
    rate: float = Field(500, gt=0, description="requests a second that one address may make for long; twice that at once")
    concurrency: int = Field(256, ge=1, description="requests of one address that are answered at once")
    lease: float = Field(60.0, gt=0, description="seconds that a worker has for an episode, or to say that it goes on")
    patience: float = Field(2.0, ge=0, description="seconds that sampling waits for a client that was just answered")


def faults(error: ValidationError) -> str:
    """What is wrong with settings, a line each; without what was given, for it may be a secret."""
    return "\n".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_input=False))
