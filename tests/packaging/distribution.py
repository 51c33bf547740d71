"""Builds the sdist of this repository, and the wheel from the sdist, as a release does."""

import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: A module that needs what each extra installs.
MODULES_BY_EXTRA = {
    "postgres": "holdfast.stores.postgres",
    "pydantic-ai": "holdfast.adapters.pydantic_ai",
    "langgraph": "holdfast.adapters.langgraph",
    "openai-agents": "holdfast.adapters.openai_agents",
    "chat-completions": "holdfast.adapters.chat_completions",
    "cli": "holdfast.cli.program",
    "web": "holdfast.web.server",
    "client": "holdfast.client",
    "front-ends": "holdfast.web.protocols",
    "mcp": "holdfast.mcp.server",
    "otel": "holdfast.batteries.telemetry",
    "schedule": "holdfast.batteries.schedule",
    "persona": "holdfast.batteries.persona",
    "testing": "holdfast.testing.store_suite",
}


@dataclass(frozen=True)
class Distribution:
    """The two files of a release."""

    sdist: Path
    wheel: Path


def build_distribution(folder: Path) -> Distribution:
    """Build both files in `folder`. Needs hatchling in this environment, and no network."""
    sdist = _build("sdist", ROOT, folder)
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(folder / "unpacked")
    unpacked = folder / "unpacked" / sdist.name.removesuffix(".tar.gz")
    return Distribution(sdist, _build("wheel", unpacked, folder))


def _build(target: str, source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next(folder.glob("*.tar.gz" if target == "sdist" else "*.whl"))
