"""An engine that spans nodes, as vLLM does: a stand-in of which only the simulation runs anything."""

from collections.abc import Mapping

from llmgw.base.ids import ModelName, shard_id
from llmgw.engines.adapter import ENGINES, Engine
from llmgw.engines.placed import Placed
from llmgw.engines.shard import RestartPolicy, ShardSpec


class Spanning:
    """An engine whose replicas have a shard on every seat, as vLLM does; it takes two ports a shard."""

    name = "vllm"
    ports = 2

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return one shard a seat."""
        model, profile = placed.model, placed.profile
        assert model.weights.path is not None
        return tuple(
            ShardSpec(
                shard=shard_id(placed.replica, rank),
                replica=placed.replica,
                model=ModelName(model.name),
                profile=profile.name,
                rank=rank,
                hash=placed.hash,
                programs=(("vllm",),),
                args=tuple(profile.args),
                env={},
                weights=model.weights.path,
                port=seat.port,
                served_name=model.name,
                ready_path="/health",
                models_path="/v1/models",
                cpus=profile.cpus,
                memory=profile.memory,
                start_timeout=profile.start_timeout,
                stop_grace=10.0,
                restarts=RestartPolicy(1.0, 1.0, 5, 1.0),
                exit_patterns=(),
                host=seat.host,
                ports=self.ports,
                gpus=seat.gpus,
                shards=len(placed.seats),
            )
            for rank, seat in enumerate(placed.seats)
        )


SIM_ENGINES: Mapping[str, Engine] = {"vllm": Spanning(), **ENGINES}
"""The real adapters, and a stand-in for vLLM where there is none yet."""
