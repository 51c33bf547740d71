"""Help, completion, and the reference page."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.cli.shell import Shell, environment

from holdfast.cli.commands.admin import LIMIT_COMMANDS
from holdfast.cli.commands.scheduling import SCHEDULE_COMMANDS
from holdfast.cli.options import CodeStoreOption, JsonOption, StoreOption
from holdfast.cli.program import COMMANDS, build_program, name_command

NAMES = [name_command(command) for command in COMMANDS]
LIMITS = [f"limits {name}" for name in LIMIT_COMMANDS]
JOBS = [f"schedule {name}" for name in SCHEDULE_COMMANDS]
ALL = [*NAMES, *LIMITS, *JOBS]
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"

#: The options that the page describes once for all commands, by their help.
COMMON_HELP = {get_args(option)[1].help for option in (StoreOption, CodeStoreOption, JsonOption)}

#: What costs time to load and is of no use for a page of help.
HEAVY = {"rich", "apsw", "sqlite3", "psycopg", "pydantic", "pydantic_ai", "starlette", "jinja2", "markdown_it"}


def test_every_command_has_help(shell: Shell) -> None:
    help_text = shell.ok("--help")
    commands = re.findall(r"^  (\w[\w-]*)  ", help_text, re.MULTILINE)
    assert commands == [*NAMES, "limits", "schedule"]
    for command in (*COMMANDS, *LIMIT_COMMANDS.values(), *SCHEDULE_COMMANDS.values()):
        assert command.__doc__, command.__name__


@pytest.mark.parametrize("name", ALL)
def test_the_reference_has_every_command_with_all_its_options(name: str) -> None:
    sections = re.split(r"^## holdfast ([\w -]+)$", PAGE.read_text(), flags=re.MULTILINE)
    assert sections[1::2] == ALL
    rows = re.findall(r"^\| `(.*?)` \| (.*) \|$", sections[sections.index(name) + 1], re.MULTILINE)
    command = find_command(name)
    own = [parameter for parameter in command.params if parameter.help not in COMMON_HELP]
    assert rows == [(describe_parameter(parameter), parameter.help) for parameter in own]


def test_the_head_of_the_reference_names_the_commands_without_a_common_option() -> None:
    head = PAGE.read_text().partition("## ")[0]
    without_store = re.search(r"Every command but (.*?) takes `--store URL`", head, re.DOTALL)
    without_json = re.search(r"every command takes it but (.*?)\. ", head, re.DOTALL)
    assert without_store
    assert without_json
    assert re.findall(r"`([\w -]+)`", without_store[1]) == [name for name in ALL if not takes(name, "--store")]
    assert re.findall(r"`([\w -]+)`", without_json[1]) == [name for name in ALL if not takes(name, "--json")]


def find_command(name: str) -> Any:
    command = build_program()
    for word in name.split():
        command = command.commands[word]
    return command


def takes(name: str, option: str) -> bool:
    return any(option in parameter.opts for parameter in find_command(name).params)


def describe_parameter(parameter: Any) -> str:
    """`RUN` for an argument, `--store URL` for an option."""
    value = f" {parameter.metavar}" if parameter.metavar else ""
    return f"{max(parameter.opts, key=len)}{value}" if parameter.param_type_name == "option" else parameter.metavar


def test_help_loads_nothing_heavy() -> None:
    look = """
import sys
from holdfast.cli.main import main
sys.argv = ["holdfast", "--help"]
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", look], env=environment({}), capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert {"holdfast", "typer"} <= loaded
    assert loaded & HEAVY == set()


def complete(shell: Shell, *words: str) -> list[str]:
    """What bash would offer for the last of `words`."""
    line = " ".join(("holdfast", *words))
    done = shell.run(_HOLDFAST_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    return done.stdout.split()


def test_the_shell_completes_commands_runs_and_states(shell: Shell) -> None:
    assert complete(shell, "re") == ["resume", "recover", "results"]
    assert complete(shell, "show", "r") == []  # no store yet, and no error
    for run_id in ("red", "rot", "blue"):
        shell.ok("submit", "sampler", "note", "--run-id", run_id)
    assert complete(shell, "show", "r") == ["red", "rot"]
    assert complete(shell, "ls", "--status", "in") == ["interrupted"]


def test_the_version(shell: Shell) -> None:
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", shell.ok("--version"))


def test_without_its_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('No module named typer', name='typer')\n")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "ls"], env=environment({"PYTHONPATH": str(tmp_path)}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == 'holdfast: the command line needs its extra: pip install "holdfast[cli]"\n'
