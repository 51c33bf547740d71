"""The user's preferred responses as JSON lines, and the wins of each model."""

import logging
import os
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

log = logging.getLogger("holdfast.compare")


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choice of one response over the others."""

    at: datetime = msgspec.field(default_factory=partial(datetime.now, UTC))
    prompt: str
    winner: str
    losers: tuple[str, ...]


def append_preference(path: Path | str, preference: Preference) -> None:
    """Append a line. Once this returns it survives a power cut. The earlier lines are never changed.

    Raises:
        OSError: the line could not be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(fd).st_size
        # After a line that a crash cut off, start a new one.
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        rest = memoryview((b"\n" if torn else b"") + msgspec.json.encode(preference) + b"\n")
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def read_preferences(path: Path | str) -> list[Preference]:
    """Read all preferences. Lines that cannot be read are logged and skipped."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    preferences: list[Preference] = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                preferences.append(msgspec.json.decode(line, type=Preference))
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            log.warning("%s, line %d is not a preference: %s", path, number, exc)
    return preferences


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Wins and comparisons of one model."""

    model_id: str
    wins: int
    comparisons: int


def compute_scores(path: Path | str) -> list[Score]:
    """Return the score of every model: most wins first, then fewest comparisons."""
    wins: Counter[str] = Counter()
    comparisons: Counter[str] = Counter()
    for preference in read_preferences(path):
        wins[preference.winner] += 1
        comparisons.update({preference.winner, *preference.losers})
    return [
        Score(model_id=model, wins=wins[model], comparisons=count)
        for _, count, model in sorted((-wins[model], count, model) for model, count in comparisons.items())
    ]
