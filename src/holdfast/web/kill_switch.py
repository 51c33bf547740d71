"""The button of `holdfast demo --ui` that kills a worker: what the page and the demo's processes share."""

import asyncio


class KillSwitch:
    """Asks for the kill of a worker, and holds the report of the last one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        #: What followed the last kill.
        self.report = ""
