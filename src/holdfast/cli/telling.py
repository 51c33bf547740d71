"""The items of a transcript, as lines."""

from datetime import datetime

from holdfast.cli import amounts
from holdfast.cli.output import STYLES, Paper, one_of, text_of
from holdfast.cli.transcript import Call, Item

_LONG = 2_000
_SHORT = 160


class Teller:
    """Writes a transcript down, item by item, in the order they come."""

    def __init__(self, paper: Paper, *, full: bool = False) -> None:
        """Tell it on `paper`; long texts are cut short unless `full`."""
        self._paper, self._full = paper, full
        self._before: datetime | None = None
        self._tokens = 0

    def tell(self, item: Item) -> None:
        match item.kind:
            case "begin":
                return
            case "step":
                self._step(item)
            case "phase":
                self._paper.line(f"phase {item.text} gave: {self._cut(text_of(item.content))}", "bold")
            case "reply":
                self._reply(item)
            case "result":
                state = "error" if item.error else "done"
                name = f"{item.tool} " if item.tool else ""
                self._paper.line(f"  {name}{item.call_id} {state}: {self._short(item.content)}", STYLES[state])
            case "outcome":
                told = f"failed: {item.text}" if item.error else f"answer: {self._cut(text_of(item.content))}"
                self._paper.line(told, "red" if item.error else "bold green")
            case "message":
                self._paper.line(self._cut(text_of(item.content)))
            case _:
                self._paper.line(f"{item.kind}: {self._cut(item.text)}", "cyan" if item.kind == "user" else "dim")

    def _step(self, item: Item) -> None:
        assert item.at is not None
        took = f", {amounts.duration(item.at - self._before)}" if self._before is not None else ""
        used = f", {amounts.number(item.tokens - self._tokens)} tokens" if item.tokens > self._tokens else ""
        spent = f", {amounts.cost(item.cost_usd)} so far" if item.cost_usd else ""
        self._before, self._tokens = item.at, item.tokens
        self._paper.line(f"--- step {item.step} finished at {clock(item.at)}{took}{used}{spent}", "dim")

    def _reply(self, item: Item) -> None:
        if item.text or not item.calls:
            self._paper.line(f"model: {self._cut(item.text)}")
        for call in item.calls:
            self._paper.line(f"  {call_text(call)}", "blue")

    def _cut(self, text: str) -> str:
        return text if self._full or len(text) <= _LONG else f"{text[:_LONG]}… ({len(text)} characters: --full)"

    def _short(self, content: object) -> str:
        return text_of(content) if self._full else one_of(text_of(content), _SHORT)


def call_text(call: Call) -> str:
    """`pay(amount=3) once c7`."""
    if isinstance(call.arguments, dict):
        arguments = ", ".join(f"{name}={one_of(text_of(value), 60)}" for name, value in call.arguments.items())
    else:
        arguments = one_of(text_of(call.arguments), _SHORT)
    return f"{call.tool}({arguments}) {call.effect + ' ' if call.effect else ''}{call.call_id}"


def clock(at: datetime) -> str:
    """A time as people here write it, to the second."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
