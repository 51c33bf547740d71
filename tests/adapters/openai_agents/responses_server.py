"""A loopback server that speaks the Responses API of OpenAI, so that the provider code of the SDK runs."""

import json
from typing import Any

from tests.adapters.openai_server import OpenAIServer, Turn


class ResponsesServer(OpenAIServer):
    """Gives its n-th reply to a conversation with n replies in it."""
