"""The names of temporary files: they say which process makes the file, so that nothing stays of one that died."""

import os
import re
import secrets
from functools import cache
from zlib import crc32

from holdfast.checkpoint.liveness import ProcessIdentity, process_with, this_process

#: How such a name ends. An older holdfast put less into it.
_TAGGED = re.compile(r"\.(?P<tag>(?P<pid>\d+)-(?P<host>[0-9a-f]{8})-[0-9a-f]{8})\.[0-9a-f]+\.tmp$")


def temporary_name(name: str) -> str:
    """A name for a file that will become `name`, which nobody else uses."""
    return f"{name}.{_tag_of_this_process(os.getpid())}.{secrets.token_hex(8)}.tmp"


def maker_is_dead(temporary: str) -> bool:
    """Whether it is known here that nobody makes this file any more. Of another host's processes nothing is known."""
    found = _TAGGED.search(temporary)
    if found is None or found["host"] != _sum(this_process().host):
        return False
    maker = process_with(int(found["pid"]))
    return maker is None or _tag(maker) != found["tag"]


@cache
def _tag_of_this_process(pid: int) -> str:  # by pid, which changes in a forked process
    return _tag(this_process())


def _tag(process: ProcessIdentity) -> str:
    return f"{process.pid}-{_sum(process.host)}-{_sum(process.started)}"


def _sum(text: str) -> str:
    return f"{crc32(text.encode(errors='surrogateescape')):08x}"
