"""Names and ids, one `NewType` each, so that a replica's id cannot be passed where a shard's belongs.

A replica's id is `MODEL-N` with the smallest free N, and a shard's is `REPLICA.sRANK`: both are derived, never drawn,
so that the same snapshot always gives the same plan. Random ids (a boot, a lease owner) come from an `IdSource`.
"""

from typing import NewType, Protocol

NodeName = NewType("NodeName", str)
ModelName = NewType("ModelName", str)
ReplicaId = NewType("ReplicaId", str)
ShardId = NewType("ShardId", str)
Revision = NewType("Revision", str)
BootId = NewType("BootId", str)
OwnerId = NewType("OwnerId", str)
Epoch = NewType("Epoch", int)
Generation = NewType("Generation", int)
RestartHash = NewType("RestartHash", str)


class IdSource(Protocol):
    """Where random ids come from; a test passes a counter."""

    def new(self) -> str:
        """Return an id of 16 hexadecimal digits that was never returned before."""
        ...


def replica_id(model: ModelName, ordinal: int) -> ReplicaId:
    """Name the replica: `MODEL-N`."""
    return ReplicaId(f"{model}-{ordinal}")


def shard_id(replica: ReplicaId, rank: int) -> ShardId:
    """Name the part of the replica with this rank: `REPLICA.sRANK`."""
    return ShardId(f"{replica}.s{rank}")


def ordinal_of(replica: ReplicaId) -> int:
    """Return the N of `MODEL-N`; -1 for an id that was not made by `replica_id`."""
    tail = replica.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1


def short(revision: Revision) -> str:
    """Return what a person reads of a revision: 10 characters of a commit id."""
    return revision[:10]
