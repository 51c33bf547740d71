"""A run as a file: JSON, or one HTML page that needs nothing else."""

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import StoredRun
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.runtime.reading.transcript import Transcript, get_loop_name
from holdfast.web.sse import encode_json
from holdfast.web.ui.run_view.run_steps import build_steps
from holdfast.web.ui.site import Site

_STYLE = Path(__file__).parent.parent / "static" / "style.css"


async def export_json(site: Site, request: Request) -> Response:
    """Return the record and the whole transcript."""
    record = await site.get_record(request)
    stored = await site.store.load(record.run_id)
    return Response(await asyncio.to_thread(_encode, stored), media_type="application/json")


def _encode(stored: StoredRun) -> bytes:
    transcript = Transcript(get_loop_name(stored.record))
    items = transcript.read(stored.entries)
    transcript.close(stored.record)
    document = {"run": summarize_run(stored.record), "transcript": items}
    return msgspec.json.format(encode_json(document), indent=2)


async def export_html(site: Site, request: Request) -> Response:
    """Return the run as one HTML file, with nothing folded and without a script."""
    record = await site.get_record(request)
    stored = await site.store.load(record.run_id)
    page = await asyncio.to_thread(_render, site, request, stored)
    headers = {"content-disposition": f'attachment; filename="{record.run_id.replace(":", "-")}.html"'}
    return Response(page, media_type="text/html", headers=headers)


def _render(site: Site, request: Request, stored: StoredRun) -> str:
    finished = decode(stored.record.progress, Progress).steps
    steps = build_steps(
        stored.entries, stored.record, is_end=True, finished_steps=finished, fold=2**62, with_images=False
    )
    style = _STYLE.read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    context: dict[str, Any] = {
        "run": summarize_run(stored.record),
        "steps": steps.steps,
        "style": style,
        "style_digest": digest,
        "can_fork": False,
        "can_request": False,
        "notes": {},
    }
    return site.render_text(request, "export.html", **context)
