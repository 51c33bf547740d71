"""Which responses people preferred, kept as lines of JSON, and who wins how often."""

import logging
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import msgspec

log = logging.getLogger("holdfast.fanout")


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody chose one response over others."""

    at: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    prompt: str
    winner: str
    losers: tuple[str, ...]


def append_preference(path: Path | str, preference: Preference) -> None:
    """Add a line. It survives a power cut once this returns; what was there before stays, whatever happens.

    Raises:
        OSError: it could not be done.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(fd).st_size
        # A line that a crash has cut off must not swallow this one.
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        rest = memoryview((b"\n" if torn else b"") + msgspec.json.encode(preference) + b"\n")
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def read_preferences(path: Path | str) -> list[Preference]:
    """All preferences that are kept there. A line that cannot be read is named in the log and left out."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found: list[Preference] = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found.append(msgspec.json.decode(line, type=Preference))
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            log.warning("%s, line %d is no preference: %s", path, number, exc)
    return found


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How often a model was chosen, and how often it was there to be chosen."""

    model_id: str
    wins: int
    comparisons: int


def compute_scores(path: Path | str) -> list[Score]:
    """Wins by model, the most successful first."""
    wins: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for preference in read_preferences(path):
        wins[preference.winner] += 1
        there.update({preference.winner, *preference.losers})
    found = [Score(model_id=model, wins=wins[model], comparisons=count) for model, count in there.items()]
    return sorted(found, key=lambda score: (-score.wins, score.comparisons, score.model_id))
