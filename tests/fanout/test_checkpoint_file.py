"""The checkpoint file of one prompt on many models, as programs of the original use it."""

import json
import math
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fanout.strategies import PARTIALS, RESPONSES, TEXT, untimed

from holdfast.fanout.checkpoint_file import (
    Checkpoint,
    IncrementalSaver,
    _open_temporary,
    build,
    clear,
    load,
    save,
)
from holdfast.fanout.errors import CorruptCheckpoint, FanoutError
from holdfast.fanout.responses import ModelResponse, PartialResponse, ResponseSnapshot
from holdfast.fanout.workspace import WriteSnapshot

DONE_A = ResponseSnapshot(model_id="a", text="because", completed=True)
FAILED_B = ResponseSnapshot(model_id="b", error="no")
LEFT_B = ResponseSnapshot(model_id="b", text="hm", interrupted=True)


def load_existing(path: Path) -> Checkpoint:
    loaded = load(path)
    assert loaded is not None
    return loaded


def read_responses(path: Path) -> Any:
    return json.loads(path.read_text())["responses"]


# -- build, save, load, clear ------------------------------------------------------------------------------------------


def test_there_is_none_when_nothing_is_interrupted() -> None:
    assert build("why?", ["a", "b"], [DONE_A, FAILED_B]) is None
    assert build("why?", ["a", "b"], []) is None
    built = build("why?", ["a", "b"], [DONE_A, LEFT_B], True)
    assert built is not None
    assert (built.prompt, built.adapter_ids, built.responses, built.verbose) == (
        "why?",
        ("a", "b"),
        (DONE_A, LEFT_B),
        True,
    )


def test_build_takes_responses_as_well() -> None:
    built = build("why?", ["a", "b"], [ModelResponse(model_id="a", text="because"), LEFT_B.to_response()])
    assert built is not None
    assert built.responses == (DONE_A, LEFT_B)


def test_the_json_is_that_of_the_original(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    full = ResponseSnapshot(
        model_id="b",
        text="hm",
        latency_ms=12,
        input_tokens=3,
        output_tokens=4,
        reasoning_tokens=5,
        cost_usd=0.5,
        proposed_writes=(WriteSnapshot(path="a"), WriteSnapshot(path="b", delete=True)),
        tool_calls={"search": 2},
        error="stopped",
        interrupted=True,
    )
    built = build("why?", ["a", "b"], [ResponseSnapshot(model_id="a"), full])
    assert built is not None
    save(path, built)
    stored = json.loads(path.read_text())
    assert list(stored) == ["prompt", "timestamp", "adapter_ids", "responses", "verbose"]
    assert stored["verbose"] is False
    empty = {"latency_ms": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    assert stored["responses"][0] == {"model_id": "a", **empty, "interrupted": False, "completed": False}
    assert stored["responses"][1] == {
        "model_id": "b",
        "text": "hm",
        "latency_ms": 12,
        "input_tokens": 3,
        "output_tokens": 4,
        "reasoning_tokens": 5,
        "cost_usd": 0.5,
        "proposed_writes": [{"path": "a", "content": ""}, {"path": "b", "content": "", "delete": True}],
        "tool_calls": {"search": 2},
        "error": "stopped",
        "interrupted": True,
        "completed": False,
    }


def test_a_file_of_the_original_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text(
        '{"prompt":"why?","timestamp":"2026-02-24T10:00:00.123456789+01:00","adapter_ids":["a","b","c"],"responses":['
        '{"model_id":"a","text":"because","latency_ms":12,"input_tokens":3,"output_tokens":4,"cache_read_tokens":1,'
        '"cost_usd":0.5,"proposed_writes":[{"path":"x.txt","content":"x"}],"interrupted":false,"completed":true},'
        '{"model_id":"c","latency_ms":1,"input_tokens":1,"output_tokens":0,"cost_usd":0,"interrupted":true,'
        '"completed":false}],"verbose":true}'
    )
    loaded = load_existing(path)
    assert [(each.model_id, each.completed) for each in loaded.responses] == [("a", True), ("c", False)]
    assert (loaded.verbose, loaded.responses[0].proposed_writes[0].path) == (True, "x.txt")


@untimed
@given(TEXT, st.lists(RESPONSES, min_size=1, max_size=5, unique_by=lambda each: each.model_id), st.booleans())
def test_what_is_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, prompt: str, responses: list[ModelResponse], verbose: bool
) -> None:
    path = tmp_path_factory.mktemp("saved") / "deep" / "checkpoint.json"
    built = build(prompt, [response.model_id for response in responses], responses, verbose)
    if built is None:
        assert not any(response.interrupted for response in responses)
        return
    save(path, built)
    assert load(path) == built
    assert [each.name for each in path.parent.iterdir()] == ["checkpoint.json"]


@untimed
@given(RESPONSES)
def test_a_response_comes_back_from_its_snapshot(response: ModelResponse) -> None:
    snapshot = ResponseSnapshot.from_response(response)
    assert snapshot.to_response() == response
    assert snapshot.completed == (response.status == "completed")


@untimed
@given(PARTIALS)
def test_what_is_in_progress_is_interrupted(partial: PartialResponse) -> None:
    snapshot = ResponseSnapshot.from_partial("a", partial)
    assert (snapshot.model_id, snapshot.text, snapshot.tool_calls) == ("a", partial.text, partial.tool_calls)
    assert (snapshot.interrupted, snapshot.completed) == (True, False)
    assert snapshot.to_response().status == "interrupted"


def test_the_file_and_its_folder_are_for_one_user(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept.json"
    built = build("why?", ["a", "b"], [DONE_A, LEFT_B])
    assert built is not None
    save(path, built)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_no_file_is_no_checkpoint_and_clear_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    assert load(path) is None
    IncrementalSaver(path, "why?", ["a"]).update("a", ResponseSnapshot(model_id="a"))
    clear(path)
    clear(path)
    clear(tmp_path / "no such folder" / "checkpoint.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b'{"prompt":"wh', "truncated"),
        (b"\xff\xfe not JSON", "malformed"),
        (b"{}", "missing required field"),
        (b'{"prompt":"x","timestamp":"2026-01-01T00:00:00Z","adapter_ids":["a"]}', "missing required field"),
        (
            b'{"prompt":"x","timestamp":"2026-01-01T00:00:00Z","adapter_ids":["a"],"responses":[{"model_id":"b"}]}',
            "responses do not match",
        ),
        (
            b'{"prompt":"x","timestamp":"2026-01-01T00:00:00Z","adapter_ids":["a"],'
            b'"responses":[{"model_id":"a"},{"model_id":"a"}]}',
            "responses do not match",
        ),
    ],
)
def test_a_corrupt_file_is_reported_and_kept(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=why):
        load(path)
    with pytest.raises(CorruptCheckpoint, match=why):
        IncrementalSaver(path, "why?", ["a"])
    assert path.read_bytes() == content


def test_a_failed_write_leaves_the_previous_file_and_the_next_one_includes_the_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    saver = IncrementalSaver(path, "why?", ["a", "b"])
    saver.update("a", ResponseSnapshot(model_id="a", text="before"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            saver.update("a", ResponseSnapshot(model_id="a", text="x" * 10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each["text"] for each in read_responses(path)] == ["before"]
    assert list(tmp_path.iterdir()) == [path]
    saver.update("b", FAILED_B)
    assert [len(each.get("text", "")) for each in read_responses(path)] == [10_000, 0]


def test_the_folders_it_creates_are_synced_in_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    path = tmp_path / "one" / "two" / "checkpoint.json"
    IncrementalSaver(path, "why?", ["a"]).update("a", DONE_A)
    for folder in (tmp_path, tmp_path / "one", tmp_path / "one" / "two", path):
        assert folder.stat().st_ino in synced, folder
    synced.clear()
    clear(path)
    assert synced == {path.parent.stat().st_ino}


# -- the incremental saver ---------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from holdfast.fanout.checkpoint_file import IncrementalSaver
from holdfast.fanout.responses import PartialResponse, ResponseSnapshot
saver = IncrementalSaver(sys.argv[1], "why?", ["a", "b"])
saver.update("b", ResponseSnapshot.from_partial("b", PartialResponse(text="hm")))
saver.mark_completed("a", ResponseSnapshot(model_id="a", text="because"))
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("raise RuntimeError('oops')", 1), ("sys.exit(3)", 3), ("import os; os._exit(4)", 4)],
)
def test_the_file_is_there_however_the_process_ends(tmp_path: Path, end: str, code: int) -> None:
    path = tmp_path / "checkpoint.json"
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + end, str(path)], check=False, timeout=60, stderr=subprocess.PIPE
    )
    assert ended.returncode == code, ended.stderr
    assert load_existing(path).responses == (DONE_A, LEFT_B)
    assert list(tmp_path.iterdir()) == [path]


def test_the_last_completed_model_keeps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    saver = IncrementalSaver(path, "why?", ["b", "a"], True)
    saver.mark_completed("a", ResponseSnapshot(model_id="a", text="because", interrupted=True))
    saver.mark_completed("b", ResponseSnapshot(model_id="b", error="no"))
    kept = load_existing(path)
    assert (kept.prompt, kept.adapter_ids, kept.verbose) == ("why?", ("b", "a"), True)
    assert kept.responses == (FAILED_B, DONE_A)


@pytest.mark.parametrize(
    "bad",
    [
        ResponseSnapshot(model_id="a", text="\ud800"),
        ResponseSnapshot(model_id="a", cost_usd=math.nan),
        ResponseSnapshot(model_id="a", tool_calls={"x": object()}),  # type: ignore[dict-item]
    ],
)
def test_a_response_that_json_cannot_hold_fails_alone(tmp_path: Path, bad: ResponseSnapshot) -> None:
    path = tmp_path / "checkpoint.json"
    saver = IncrementalSaver(path, "why?", ["a", "b"])
    saver.update("a", DONE_A)
    with pytest.raises(FanoutError, match="'a' cannot be stored as JSON"):
        saver.update("a", bad)
    saver.mark_completed("b", FAILED_B)
    assert load_existing(path).responses == (DONE_A, FAILED_B)
    with pytest.raises(FanoutError, match="'a' cannot be stored as JSON"):
        save(path, Checkpoint("why?", load_existing(path).timestamp, ("a",), (bad,)))
    assert load_existing(path).responses == (DONE_A, FAILED_B)


def test_a_model_that_is_not_among_them_is_refused(tmp_path: Path) -> None:
    saver = IncrementalSaver(tmp_path / "checkpoint.json", "why?", ["a"])
    with pytest.raises(FanoutError, match="not a model of this fan-out"):
        saver.update("b", LEFT_B)
    with pytest.raises(FanoutError, match="is of 'b', not of 'a'"):
        saver.update("a", LEFT_B)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_same_prompt_and_models_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    IncrementalSaver(path, "why?", ["a", "b"]).update("a", DONE_A)
    began = load_existing(path).timestamp
    IncrementalSaver(path, "why?", ["a", "b"]).update("b", LEFT_B)
    assert (load_existing(path).responses, load_existing(path).timestamp) == ((DONE_A, LEFT_B), began)
    IncrementalSaver(path, "why not?", ["a", "b"]).update("b", LEFT_B)
    assert load_existing(path).responses == (LEFT_B,)


def test_concurrent_callers_share_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.json"
    ids = [f"m{number}" for number in range(16)]
    saver = IncrementalSaver(path, "why?", ids)
    renames, first, go_on = [], threading.Event(), threading.Event()
    replace = os.replace

    def hold(source: Path, target: Path) -> None:
        renames.append(target)
        first.set()
        assert go_on.wait(60)
        replace(source, target)

    monkeypatch.setattr(os, "replace", hold)

    def report(model: str) -> None:
        saver.update(model, ResponseSnapshot(model_id=model, text="hm", interrupted=True))

    threads = [threading.Thread(target=report, args=(model,)) for model in ids]
    threads[0].start()
    assert first.wait(60)
    for thread in threads[1:]:
        thread.start()
    while saver._recorded < len(ids):
        pass
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert [each["model_id"] for each in read_responses(path)] == ids
    assert len(renames) == 2


@pytest.mark.parametrize("name", ["compare", "c[1]"])
def test_temporary_files_of_dead_processes_are_removed_and_of_live_ones_not(tmp_path: Path, name: str) -> None:
    path, other = tmp_path / name, tmp_path / f"{name}.json"
    tag = "0123456789abcdef"
    mine, others = (tmp_path / f".{each.name}.{tag}.tmp" for each in (path, other))
    live = tmp_path / f".{name}.fedcba9876543210.tmp"
    for each in (mine, others, live):
        each.touch()
    program = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print('locked', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(live)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "locked\n"
        IncrementalSaver(path, "why?", ["a"]).update("a", DONE_A)
        assert sorted(tmp_path.iterdir()) == sorted([path, others, live])
        writer.communicate("end\n", timeout=60)
    clear(path)
    assert list(tmp_path.iterdir()) == [others]


def test_a_save_removes_what_dead_processes_have_left_and_spares_a_file_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "compare"
    (tmp_path / ".compare.0123456789abcdef.tmp").touch()
    temporary, fd = _open_temporary(path)
    checkpoint = build("why?", ["b"], [LEFT_B])
    assert checkpoint is not None
    save(path, checkpoint)
    assert sorted(tmp_path.iterdir()) == sorted([path, temporary])
    os.close(fd)
    save(path, checkpoint)
    assert list(tmp_path.iterdir()) == [path]
