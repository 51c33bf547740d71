"""An operation of the API: its path, its scope and the types of its bodies. Routes and OpenAPI are made of them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request

from holdfast.app import App
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.errors import DefinitionError
from holdfast.web.auth import Principal, Scope


@dataclass(frozen=True, slots=True)
class Context:
    """One request: who sent it, and what it says."""

    app: App
    principal: Principal
    request: Request
    #: Decoded; `None` if the operation has no body.
    body: Any

    @property
    def run_id(self) -> str:
        """The run in the path."""
        return str(self.request.path_params["run_id"])

    @property
    def store(self) -> CheckpointStore:
        if self.app.store is None:
            raise DefinitionError("this App has no store: give it one to serve its runs")
        return self.app.store

    async def find_run(self) -> RunRecord:
        """Return the record of the run in the path.

        Raises:
            RunNotFound: there is none, or the principal may not see it.
        """
        return await self.find_visible(self.run_id)

    async def find_visible(self, run_id: str) -> RunRecord:
        """Return the record of a run that the principal may see. Raises `RunNotFound`."""
        record = await self.store.get_record(run_id)
        if not self.principal.can_see(run_id, record.caller_id):
            raise RunNotFound(run_id)
        return record


#: Returns a struct, which is sent as JSON, or a response.
Handler = Callable[[Context], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A query parameter or a header."""

    name: str
    description: str
    place: Literal["query", "header"] = "query"
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Handler
    #: What the principal needs. `None`: the path has a secret, which is the credential.
    scope: Scope | None
    summary: str
    #: The type of the request's body. `None`: it has none.
    request: Any = None
    #: The type of the response's body. `None`: it has none.
    response: Any = None
    status: int = 200
    media_type: str = "application/json"
    parameters: tuple[Parameter, ...] = ()
