"""The checkpoint of a whole fan-out, in its file."""

import json
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fanout.strategies import RESPONSES, TEXT, untimed

from holdfast.fanout import CorruptCheckpoint, IncrementalSaver, build, clear, load, save
from holdfast.fanout.snapshot import ModelResponse, PartialResponse, Snapshot


def checkpoint_of(*snapshots: Snapshot) -> object:
    return build("why?", ["a", "b"], snapshots)


DONE_A = Snapshot(model_id="a", text="because", completed=True)
FAILED_B = Snapshot(model_id="b", error="no")
LEFT_B = Snapshot(model_id="b", interrupted=True)


def test_there_is_none_when_nothing_is_interrupted() -> None:
    assert checkpoint_of(DONE_A, FAILED_B) is None
    assert checkpoint_of(DONE_A, LEFT_B) is not None


def test_a_model_that_has_not_begun_counts_as_interrupted() -> None:
    built = build("why?", ["a", "b"], [DONE_A])
    assert built is not None
    assert built.snapshots == (DONE_A, LEFT_B)
    assert (built.snapshot("a"), built.snapshot("b"), built.snapshot("c")) == (DONE_A, LEFT_B, None)


def test_a_response_is_stored_as_its_snapshot() -> None:
    answered, failed = ModelResponse(model_id="a", text="because"), ModelResponse(model_id="b", error="no")
    built = build("why?", ["a", "b", "c"], [answered, failed, PartialResponse(model_id="c", text="hm")])
    assert built is not None
    assert built.snapshots == (DONE_A, FAILED_B, Snapshot(model_id="c", text="hm", interrupted=True))
    assert build("why?", ["a", "b"], [answered, failed]) is None


def test_the_json_has_the_documented_keys(tmp_path: Path) -> None:
    built = build("why?", ["a", "b"], [DONE_A], fanout_id="f")
    assert built is not None
    save(tmp_path / "checkpoint.json", built)
    stored = json.loads((tmp_path / "checkpoint.json").read_text())
    assert list(stored) == ["version", "fanout_id", "prompt", "timestamp", "adapter_ids", "verbose", "responses"]
    assert [(each["model_id"], each["completed"]) for each in stored["responses"]] == [("a", True), ("b", False)]


@pytest.mark.parametrize("version", ['"version":1,', ""])
@pytest.mark.parametrize("key", ["responses", "snapshots"])
def test_files_of_earlier_versions_are_loaded(tmp_path: Path, version: str, key: str) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text(
        f'{{{version}"prompt":"why?","timestamp":"2026-01-01T00:00:00Z","adapter_ids":["a","b"],'
        f'"{key}":[{{"model_id":"a","text":"because","completed":true}},{{"model_id":"b","interrupted":true}}]}}'
    )
    loaded = load(path)
    assert loaded is not None
    assert (loaded.version, loaded.prompt, loaded.snapshots) == (1, "why?", (DONE_A, LEFT_B))


def test_a_file_of_errata_is_loaded(tmp_path: Path) -> None:
    """It has no version, and no response of a model that has not begun."""
    path = tmp_path / "checkpoint.json"
    path.write_text(
        '{"prompt":"why?","timestamp":"2026-02-24T10:00:00.123456789+01:00","adapter_ids":["a","b","c"],"responses":['
        '{"model_id":"a","text":"because","latency_ms":12,"input_tokens":3,"output_tokens":4,"cache_read_tokens":1,'
        '"cost_usd":0.5,"proposed_writes":[{"path":"x.txt","content":"x"}],"interrupted":false,"completed":true},'
        '{"model_id":"c","latency_ms":1,"input_tokens":1,"output_tokens":0,"cost_usd":0,"interrupted":true,'
        '"completed":false}],"verbose":true}'
    )
    loaded = load(path)
    assert loaded is not None
    assert [(each.model_id, each.status) for each in loaded.snapshots] == [
        ("a", "completed"),
        ("b", "interrupted"),
        ("c", "interrupted"),
    ]
    assert (loaded.verbose, loaded.snapshots[0].proposed_writes[0].path) == (True, "x.txt")


@untimed
@given(TEXT, st.lists(RESPONSES, min_size=1, max_size=5, unique_by=lambda each: each.model_id), st.booleans())
def test_what_is_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, prompt: str, responses: list[ModelResponse], verbose: bool
) -> None:
    path = tmp_path_factory.mktemp("saved") / "deep" / "checkpoint.json"
    ids = [response.model_id for response in reversed(responses)]
    built = build(prompt, ids, map(Snapshot.from_response, responses), verbose=verbose)
    if built is None:
        assert not any(response.interrupted for response in responses)
        return
    assert [each.model_id for each in built.snapshots] == ids
    assert (built.prompt, built.verbose) == (prompt, verbose)
    save(path, built)
    assert load(path) == built
    assert [each.name for each in path.parent.iterdir()] == ["checkpoint.json"]


def test_no_file_is_no_checkpoint_and_to_clear_it_again_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    assert load(path) is None
    built = build("why?", ["a"], [])
    assert built is not None
    save(path, built)
    (tmp_path / ".checkpoint.json.0123456789abcdef.tmp").write_text("of a process that died")
    clear(path)
    clear(path)
    clear(tmp_path / "no such folder" / "checkpoint.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b'{"version":1,"prompt":"wh', "truncated"),
        (b"\xff\xfe not JSON", "malformed"),
        (b'{"version":1}', "missing required field"),
        (b'{"version":99,"prompt":"x"}', "version is 99"),
        (b'{"prompt":"x","timestamp":"2026-01-01T00:00:00Z","adapter_ids":["a"]}', "missing required field"),
        (b'{"version":1,"responses":[]}', "missing required field"),
        (
            b'{"prompt":"x","timestamp":"2026-01-01T00:00:00Z","adapter_ids":["a"],"responses":[{"model_id":"b"}]}',
            "responses do not match",
        ),
        (
            b'{"prompt":"x","timestamp":"2026-01-01T00:00:00Z","adapter_ids":["a"],'
            b'"snapshots":[{"model_id":"a"},{"model_id":"a"}]}',
            "responses do not match",
        ),
    ],
)
def test_a_corrupt_file_is_told_and_kept(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=why):
        load(path)
    with pytest.raises(CorruptCheckpoint, match=why):
        IncrementalSaver(path, "why?", ["a"])
    assert path.read_bytes() == content


def test_a_failed_save_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    built = build("why?", ["a"], [])
    larger = build("why?" * 10_000, ["a"], [])
    assert built is not None
    assert larger is not None
    save(path, built)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(path, larger)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load(path) == built
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["compare", "c[1]"])
def test_what_is_swept_are_unfinished_writes_of_this_file_alone(tmp_path: Path, name: str) -> None:
    path, other = tmp_path / name, tmp_path / f"{name}.json"
    tag = "0123456789abcdef"
    mine, theirs = (tmp_path / f".{each.name}.{tag}.tmp" for each in (path, other))
    mine.touch()
    theirs.touch()
    clear(path)
    assert list(tmp_path.iterdir()) == [theirs]
