"""A page whose commands a reader enters in order, as one script: its files, its changes of files, its commands."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

BLOCK = re.compile(r"^```(python|diff|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: The first line of a block that is a file.
FILE = re.compile(r"# (\w+\.py)$", re.MULTILINE)
#: What the environment of the tests has installed already.
INSTALL = re.compile(r"^pip install .*\n", re.MULTILINE)


def make_script(page: Path, *, replace: Mapping[str, str]) -> str:
    """Return the page as a script for bash. Each text of `replace` is on the page once."""
    script = "set -eu\n" + "".join(_make_steps(page.read_text()))
    for old, new in replace.items():
        assert script.count(old) == 1, f"{page.name} has {old!r} {script.count(old)} times"
        script = script.replace(old, new)
    return script


def _make_steps(text: str) -> Iterator[str]:
    files: dict[str, str] = {}
    for kind, block in BLOCK.findall(text):
        if kind == "sh":
            yield INSTALL.sub("", block)
            continue
        if kind == "diff":
            name, files[name] = _apply(block, files)
        elif found := FILE.match(block):
            name, files[name] = found[1], block
        else:
            continue
        yield f"cat > {name} <<'END OF FILE'\n{files[name]}END OF FILE\n"


def _apply(diff: str, files: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the text of the file that a unified diff changes."""
    head, *hunks = re.split(r"^@@.*@@\n", diff, flags=re.MULTILINE)
    name = re.findall(r"^\+\+\+ (\S+)$", head, re.MULTILINE)[0]
    text = files[name]
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(old) == 1, f"the diff does not fit:\n{hunk}"
        text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
    return name, text


async def play(script: str, folder: Path, env: Mapping[str, str]) -> str:
    """Run the script in `folder`, and return what it printed, which is in the file `output` meanwhile."""
    programs = Path(sys.executable).parent
    path = f"{programs}:{env.get('PATH', os.environ['PATH'])}"
    (folder / "script").write_text(script)
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *("bash", "script"),
            cwd=folder,
            env={**os.environ, **env, "PATH": path, "PYTHONWARNINGS": "error"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a script that failed has left running
    text = (folder / "output").read_text()
    assert code == 0, text
    return text
