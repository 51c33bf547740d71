"""What a user can cause ends in one clear line and an exit code, never in a traceback."""

import sqlite3

import pytest
from tests.cli.shell import Shell


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("run sample note", 2, "'sample' is not an import path: write MODULE:ATTR, such as agents:app"),
        ("run nowhere:agent note", 2, "no module 'nowhere' in "),
        ("run sample:absent note", 2, "sample has no absent: it has helper, agent, other, phased, compacting, app"),
        ("run sample:not_an_agent note", 2, "sample:not_an_agent is neither an App nor an agent: its type is int"),
        ("run crooked:agent note", 1, "crooked cannot be imported: RuntimeError: no luck today (/"),
        ("run sample:agent", 2, "the prompt is missing"),
        ("run sample:agent note --model openai:gpt-5", 2, "give either MODULE:AGENT or --model, not both"),
        ("run sample:agent note --run-id a/b", 1, "'a/b' cannot be a run id"),
        ("run sample:agent note --label a", 2, "'a' is not valid: write --label NAME=VALUE"),
        ("run --model unheard-of:nothing hello", 1, "--model unheard-of:nothing: "),
        ("submit sampler note --store oracle:x", 1, "no store for 'oracle:x'"),
        ("submit sampler note --store sqlite:", 1, "'sqlite:' names no path"),
        ("ls --store sqlite:missing.db", 1, "there is no store at missing.db"),
        ("ls --store sqlite:missing", 1, "there is no store at missing"),
        ("ls --store sqlite:letter.txt", 1, "letter.txt"),
        ("ls --status lost", 2, "unknown status lost"),
        ("show absent", 1, "no run absent in this store"),
        ("tail absent", 1, "no run absent in this store"),
        ("export absent", 1, "no run absent in this store"),
        ("cancel absent", 1, "no run absent in this store"),
        ("unpark absent", 1, "no run absent in this store"),
        ("unpark there", 1, "run there is queued"),
        ("fork absent --at 1", 1, "no run absent in this store"),
        ("rm absent", 1, "no run absent in this store"),
        ("resume sample:agent absent", 1, "no run absent in this store"),
        ("resume sample:other there", 1, "no agent 'sampler'; known: other"),
    ],
)
def test_one_line_and_an_exit_code(shell: Shell, command: str, code: int, message: str) -> None:
    (shell.folder / "letter.txt").write_text("Dear all,\nthis is no database.\n" * 100)
    if "there" in command:
        shell.ok("submit", "sampler", "note", "--run-id", "there")
    elif "absent" in command:
        sqlite3.connect(shell.folder / "runs.db").close()
    done = shell.run(*command.split())
    last = done.stderr.splitlines()[-1]
    assert message in last
    assert last.startswith("holdfast: ")
    assert (done.returncode, done.stdout) == (code, "")
    said = [line for line in done.stderr.splitlines() if not line.startswith("run ")]
    assert said == [last]


def test_a_store_of_a_newer_holdfast_is_left_alone(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    with sqlite3.connect(shell.folder / "runs.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    before = (shell.folder / "runs.db").read_bytes()
    done = shell.run("ls")
    reason = "has schema version 99, this holdfast knows up to 2: upgrade holdfast to open it"
    assert (done.returncode, done.stderr) == (1, f"holdfast: {shell.folder / 'runs.db'} {reason} [SchemaTooNew]\n")
    assert (shell.folder / "runs.db").read_bytes() == before


def test_debug_shows_where(shell: Shell) -> None:
    quiet = shell.run("run", "crooked:agent", "note")
    loud = shell.run("--debug", "run", "crooked:agent", "note")
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert 'raise RuntimeError("no luck today")' in loud.stderr


def test_wrong_options_are_wrong_usage(shell: Shell) -> None:
    done = shell.run("ls", "--colour")
    assert done.returncode == 2
    assert "No such option" in done.stderr
    done = shell.run("lss")
    assert done.returncode == 2
    assert "Did you mean 'ls'" in done.stderr


def test_a_reader_that_leaves_is_no_error(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note " * 20_000, "--run-id", "r1")
    process = shell.start("export", "r1")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, stderr = process.communicate()
    assert stderr == ""


def test_a_terminal_without_unicode_is_no_error(shell: Shell) -> None:
    shell.ok("submit", "sampler", "Grüße " * 100, "--run-id", "r1")
    done = shell.run("show", "r1", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "Gr??e Gr??e" in done.stdout


def test_the_working_directory_is_looked_at_for_modules(shell: Shell) -> None:
    (shell.folder / "mine.py").write_text("from sample import agent\n")
    assert shell.ok("run", "mine:agent", "note", "-q") == "done: note\n"


def test_the_code_of_a_message_is_explained(shell: Shell) -> None:
    sqlite3.connect(shell.folder / "runs.db").close()
    refused = shell.run("show", "absent")
    assert refused.stderr.endswith(" [RunNotFound]\n")
    explanation = shell.ok("explain", "RunNotFound")
    assert explanation.startswith("No run with this id is in the store")
    assert "What to do: " in explanation
    assert shell.json("explain", "[runnotfound]") == {"code": "RunNotFound", "explanation": explanation.strip()}
    unknown = shell.run("explain", "RunMissing")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "there is no error 'RunMissing': did you mean RunWaiting, " in unknown.stderr
