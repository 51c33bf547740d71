"""The checkpoint of a fan-out: one small JSON document with a snapshot for each model."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.fanout import atomic_file
from holdfast.fanout.errors import CorruptCheckpoint
from holdfast.fanout.snapshot import ModelResponse, PartialResponse, Snapshot

VERSION = 1


class FanoutCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a fan-out. Together with the runs of its models it is enough to resume."""

    version: int = VERSION
    #: Prefix of the models' run ids.
    fanout_id: str = ""
    prompt: str
    #: When the fan-out started.
    timestamp: datetime
    #: In the order in which the models were given.
    adapter_ids: tuple[str, ...]
    #: Whether the models' steps are logged. A resumed fan-out logs them too.
    verbose: bool = False
    #: In the order of the adapter ids. The JSON key is `responses`.
    snapshots: tuple[Snapshot, ...] = msgspec.field(name="responses")

    def snapshot(self, model_id: str) -> Snapshot | None:
        return next((each for each in self.snapshots if each.model_id == model_id), None)


def build(
    prompt: str,
    adapter_ids: Sequence[str],
    snapshots: Iterable[Snapshot | ModelResponse | PartialResponse],
    *,
    verbose: bool = False,
    fanout_id: str = "",
    timestamp: datetime | None = None,
) -> FanoutCheckpoint | None:
    """Return the checkpoint of these snapshots, or `None` if none is interrupted.

    A response is stored as its snapshot. A model without a snapshot has not started, which counts as interrupted.
    """
    ordered = _order_snapshots(map(Snapshot.create, snapshots), adapter_ids)
    if not any(snapshot.interrupted for snapshot in ordered):
        return None
    return FanoutCheckpoint(
        fanout_id=fanout_id,
        prompt=prompt,
        timestamp=timestamp or datetime.now(UTC),
        adapter_ids=tuple(adapter_ids),
        verbose=verbose,
        snapshots=ordered,
    )


def save(path: Path | str, checkpoint: FanoutCheckpoint) -> None:
    """Write the checkpoint atomically. Once this returns it survives a power cut.

    Raises:
        OSError: the checkpoint could not be written. The previous one is unchanged.
    """
    atomic_file.write_atomically(Path(path), msgspec.json.encode(checkpoint))


def load(path: Path | str) -> FanoutCheckpoint | None:
    """Return the checkpoint in this file, or `None` if the file does not exist.

    Raises:
        CorruptCheckpoint: the file is not a checkpoint that this version can read. It was not changed.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise CorruptCheckpoint(str(path), str(exc)) from exc
    return decode(data, str(path))


def clear(path: Path | str) -> None:
    """Remove the checkpoint, if there is one."""
    atomic_file.remove_file(Path(path))


class _Header(msgspec.Struct):
    """The fields that differ between versions."""

    version: int = VERSION
    #: The former key of `responses`.
    snapshots: msgspec.Raw = msgspec.Raw()


class _FormerCheckpoint(FanoutCheckpoint, frozen=True, kw_only=True):
    """A checkpoint whose snapshots have their former key."""

    snapshots: tuple[Snapshot, ...] = msgspec.field(name="snapshots")


def decode(data: bytes | msgspec.Raw, location: str) -> FanoutCheckpoint:
    """Decode the checkpoint in `data`.

    Raises:
        CorruptCheckpoint: `data` is not a checkpoint, or a newer holdfast wrote it.
    """
    try:
        header = msgspec.json.decode(data, type=_Header)
        if header.version != VERSION:
            raise CorruptCheckpoint(location, f"its version is {header.version}, this holdfast reads {VERSION}")
        if bytes(header.snapshots):
            former = msgspec.json.decode(data, type=_FormerCheckpoint)
            checkpoint = FanoutCheckpoint(**{name: getattr(former, name) for name in former.__struct_fields__})
        else:
            checkpoint = msgspec.json.decode(data, type=FanoutCheckpoint)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CorruptCheckpoint(location, str(exc)) from exc
    models = [each.model_id for each in checkpoint.snapshots]
    if len(set(models)) < len(models) or not set(models) <= set(checkpoint.adapter_ids):
        raise CorruptCheckpoint(location, "its responses do not match its models")
    return msgspec.structs.replace(checkpoint, snapshots=_order_snapshots(checkpoint.snapshots, checkpoint.adapter_ids))


def _order_snapshots(snapshots: Iterable[Snapshot], adapter_ids: Sequence[str]) -> tuple[Snapshot, ...]:
    """Return a snapshot for every model. A model without one has not started."""
    known = {each.model_id: each for each in snapshots}
    return tuple(known.get(model) or Snapshot(model_id=model, interrupted=True) for model in adapter_ids)
