"""The program of the README is killed at every step, and started again until it is done."""

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
CITIES = ["Lisbon", "Porto", "Faro"]

#: The pause that gives a reader the time to kill the program.
PAUSE = "    time.sleep(2)\n"
#: The end of a booking.
END = '    return "booked"\n'


def write_program(folder: Path, stop_at: str = "", *, moment: str = "before") -> None:
    """Write the program without its pauses. It stops before or after the booking of the city `stop_at`."""
    assert PROGRAM.count(PAUSE) == 1
    assert PROGRAM.count(END) == 1
    stop = f"    if city == {stop_at!r}:\n        print(city, flush=True)\n        time.sleep(1000)\n"
    text = PROGRAM.replace(PAUSE, stop) if moment == "before" else PROGRAM.replace(PAUSE, "").replace(END, stop + END)
    (folder / "trip.py").write_text(text)


def kill_at_stop(folder: Path) -> None:
    """Start the program and kill it where it stops."""
    with subprocess.Popen([sys.executable, "trip.py"], cwd=folder, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().decode().strip() in CITIES
        process.kill()
        assert process.wait() == -signal.SIGKILL


def run_to_end(folder: Path) -> str:
    command = [sys.executable, "-W", "error", "trip.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_program_is_killed_at_every_booking_and_books_three_nights(moment: str, tmp_path: Path) -> None:
    for city in CITIES:
        write_program(tmp_path, city, moment=moment)
        kill_at_stop(tmp_path)
    write_program(tmp_path)
    assert run_to_end(tmp_path) == "3 nights are booked.\n"
    assert (tmp_path / "bookings.txt").read_text().split() == CITIES


def test_the_program_books_three_nights_when_it_is_started_twice(tmp_path: Path) -> None:
    write_program(tmp_path)
    assert [run_to_end(tmp_path), run_to_end(tmp_path)] == ["3 nights are booked.\n"] * 2
    assert (tmp_path / "bookings.txt").read_text().split() == CITIES


def test_importing_the_program_books_nothing(tmp_path: Path) -> None:
    write_program(tmp_path)
    done = subprocess.run([sys.executable, "-c", "import trip"], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [file.name for file in tmp_path.iterdir() if file.suffix != ".py" and file.name != "__pycache__"] == []


def test_the_first_commands_work_for_a_user_of_pip() -> None:
    block = re.findall(r"^## Try it\n\n```\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    commands = [line.partition("#")[0].split() for line in block.splitlines()]
    assert commands[0] == ["pip", "install", '"holdfast[cli,web]"']
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cli", "web"} <= project["optional-dependencies"].keys()
    for command in commands[1:]:
        assert command[0] in project["scripts"]
        shown = subprocess.run([sys.executable, "-m", *command[:2], "--help"], capture_output=True, text=True)
        assert all(option in shown.stdout for option in command[2:]), shown.stderr


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_every_link_leads_to_a_file_or_a_heading_of_this_repository(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", (ROOT / name).read_text())
    assert links or name == "SECURITY.md"
    for link in links:
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]
