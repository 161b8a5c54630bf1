"""Any program that speaks the OpenAI API: what it is and what it is given is the profile's word.

In `command`, `args` and `env` the words `{host}`, `{port}` and `{model}` stand for what the planner chose, and an argument
`{weights}` for the path of the weights. It is ready when `/v1/models` names the model, which is all that can be asked of a
program that nothing is known of. Its metrics are known only by the cluster's `engines[].metrics`; without them a stall
is not seen. In a container without `command` it is what the image starts by itself.
"""

from dataclasses import replace

from llmgw.engines.assembly import Kind, Launch, command_of, shard
from llmgw.engines.placed import Placed
from llmgw.engines.shard import ShardSpec

KIND = Kind(programs=(), in_image=(), ports=1, stop_grace=30.0, patterns=(), metrics=None, ready_path="/v1/models")


class Command:
    """The adapter of a program of the operator's own."""

    name = "command"
    ports = KIND.ports

    def shards(self, placed: Placed) -> tuple[ShardSpec, ...]:
        """Return the single shard."""
        command = command_of(placed) or ()
        assert command or placed.profile.image, "the catalog refuses a process without one"
        args = tuple(_filled(placed, arg) for arg in (*command[1:], *placed.profile.args))
        spec = shard(placed, 0, KIND, Launch(args, {}))
        env = {name: _filled(placed, value) for name, value in spec.env.items()}
        return (replace(spec, programs=(command[:1],) if command else (), env=env),)


def _filled(placed: Placed, text: str) -> str:
    seat = placed.head
    for word, value in (("{host}", seat.host), ("{port}", str(seat.port)), ("{model}", placed.model.name)):
        text = text.replace(word, value)
    return text
