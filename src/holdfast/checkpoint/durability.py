"""What acknowledged writes survive."""

from typing import Literal

#: `full`: what was acknowledged survives a power cut. `process`: it survives the process, and is faster.
Durability = Literal["full", "process"]
