"""The wheel, built from the sdist and installed elsewhere, is complete and works.

`make wheel-check` tries it in clean environments on every Python.
"""

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.packaging.distribution import MODULES_BY_EXTRA, ROOT, Distribution, build_distribution

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return build_distribution(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process that finds the wheel's package before that of the working copy."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(distribution.wheel)], check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(environment: Mapping[str, str], folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_has_every_file_of_the_package(distribution: Distribution) -> None:
    source = ROOT / "src"
    files = {path.relative_to(source) for path in (source / "holdfast").rglob("*") if path.is_file()}
    expected = {path.as_posix() for path in files if "__pycache__" not in path.parts}
    with zipfile.ZipFile(distribution.wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("holdfast/")} == expected
    assert "holdfast/py.typed" in expected


def test_each_extra_has_a_module_that_is_tried() -> None:
    assert MODULES_BY_EXTRA.keys() == PROJECT["optional-dependencies"].keys() - {"all"}


def test_the_modules_of_every_extra_come_from_the_wheel(installed: Mapping[str, str], tmp_path: Path) -> None:
    imports = "\n".join(f"import {module}" for module in MODULES_BY_EXTRA.values())
    where = run(installed, tmp_path, "-c", f"import holdfast\n{imports}\nprint(holdfast.__file__)")
    assert Path(where).is_relative_to(installed["PYTHONPATH"])


def test_a_run_of_the_wheel_is_killed_and_resumed(installed: Mapping[str, str], tmp_path: Path) -> None:
    lines = run(installed, tmp_path, "-m", "holdfast", "demo", "--fast", "--kills", "1").splitlines()
    assert lines[-1].endswith(" 0 lost, 0 repeated")
