"""The prompt of a run: text, or content parts such as pictures and files."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from holdfast.core.errors import DefinitionError, PayloadError
from holdfast.core.json_value import JsonValue, to_json_value

#: Text, or content parts. The agent's loop defines which parts it accepts.
Prompt = str | Sequence[Any]


@runtime_checkable
class PromptEncoder(Protocol):
    """A loop whose agents accept content parts. Other loops accept text only."""

    def dump_prompt(self, parts: Sequence[Any]) -> list[JsonValue]:
        """Return the parts as plain data. The loop gets them in this form, as `StepContext.prompt`.

        Raises:
            DefinitionError: a part is not one that the loop accepts.
        """
        ...


@runtime_checkable
class InputChecker(Protocol):
    """A loop that knows which input its agent takes."""

    def check_input(self, prompt: str | list[JsonValue], inputs: Mapping[str, JsonValue]) -> None:
        """Refuse an input that does not fit, before anything is stored.

        Raises:
            DefinitionError: it does not fit.
        """
        ...


def dump_prompt(agent_name: str, loop: object | None, prompt: Any) -> str | list[JsonValue]:
    """Return a prompt as plain data: text, or a list of content parts.

    Args:
        loop: the agent's; `None` is the native loop.

    Raises:
        DefinitionError: it is neither, or the agent does not accept these parts.
    """
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray) or not prompt:
        raise DefinitionError(f"the prompt is {prompt!r:.80}: give text, or a list of content parts")
    try:
        if loop is None:
            return dump_json_parts(prompt)
        if isinstance(loop, PromptEncoder):
            return loop.dump_prompt(prompt)
    except DefinitionError as exc:
        raise DefinitionError(f"agent {agent_name}: {exc}") from exc
    raise DefinitionError(f"agent {agent_name} accepts text only: its loop has no dump_prompt for content parts")


def dump_json_parts(parts: Sequence[Any]) -> list[JsonValue]:
    """Return the content parts of the native loop: text, and objects of plain data in the form of the provider.

    Raises:
        DefinitionError: a part is neither, or has no JSON form.
    """
    for part in parts:
        if not isinstance(part, str | dict):
            raise DefinitionError(
                f"the content part {part!r:.80} cannot be used: the native loop accepts text, and dicts of plain data "
                "that its model understands"
            )
    try:
        return list(to_json_value(list(parts), "the prompt"))
    except PayloadError as exc:
        raise DefinitionError(str(exc)) from exc


def dump_inputs(inputs: Any) -> dict[str, JsonValue]:
    """Return a copy of the inputs of a run as plain data.

    Raises:
        DefinitionError: they are not a mapping from names to values with a JSON form, or one of them is named `prompt`.
    """
    if inputs is None:
        return {}
    if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in inputs):
        raise DefinitionError(f"inputs is {inputs!r:.80}: give a mapping from names to plain data")
    if "prompt" in inputs:
        raise DefinitionError("an input cannot be named prompt: that is the name of the prompt itself")
    try:
        return dict(to_json_value(dict(inputs), "the inputs"))
    except PayloadError as exc:
        raise DefinitionError(str(exc)) from exc


def check_input(loop: object | None, prompt: str | list[JsonValue], inputs: Mapping[str, JsonValue]) -> None:
    """Refuse an input that the agent's loop does not take.

    Raises:
        DefinitionError: it does not fit.
    """
    if isinstance(loop, InputChecker):
        loop.check_input(prompt, inputs)


def summarize_prompt(prompt: str | Sequence[JsonValue]) -> str:
    """Return the text of a prompt, with a short note such as `[binary image/png]` for each other part."""
    return prompt if isinstance(prompt, str) else " ".join(map(_summarize_part, prompt))


def _summarize_part(part: JsonValue) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = next((part[name] for name in ("text", "content") if isinstance(part.get(name), str)), None)
        if text is not None:
            return str(text)
        words = [part[name] for name in ("kind", "type", "media_type") if isinstance(part.get(name), str)]
        if words:
            return f"[{' '.join(words)}]"
    return "[part]"


def make_request_digest(prompt: str | Sequence[JsonValue], inputs: Mapping[str, JsonValue]) -> str:
    """Return a digest of the input of a run: two runs with the same digest have the same input."""
    text = json.dumps([prompt, inputs], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
