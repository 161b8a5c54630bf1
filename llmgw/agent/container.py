"""A shard's container as an argument list, and which processes are in it. What stands for it on the node is `tender`.

The container is as much like a process of the node as it can be. It has the host's network, so that ports mean what they mean
everywhere, and /proc says who listens. Weights are mounted at their own paths, read-only: the whole weights directory, and
every directory that a link in them leads through, since a hub's cache is links, and one directory of it alone is broken ones.
/dev/shm is the container's own and as large as the host's: engines that spread over cards pass tensors through it, and 64 MiB,
what docker gives, end them. Their handbooks name `--ipc=host` or `--shm-size`; not the host's, because what a killed engine
leaves in there would stay, and two engines would meet in it. The image's health check is off: that of llama.cpp asks the
host's port 8080 for ever. `--init` is there since what is process 1 ignores SIGTERM unless it handles it, and reaps nobody.

The environment is what the order says; nothing of the host's own, whose paths are not the image's. Values of secrets are passed
by name alone, so that they are in no argument list; docker and podman take them from the environment of their client.

Cards go in by UUID (`--gpus` to docker, CDI names to podman), and inside they count from 0, so no index of the host may be
said. Not verified, for want of such machines: cards in a container at all; CDI names by UUID, which `nvidia-ctk cdi generate`
makes by itself only in newer releases; AMD's cards, given as /dev/kfd and their render nodes, with the group and the system
calls that ROCm's handbook asks for. Not done: devices for InfiniBand (a gang in containers talks over TCP), and caches that
outlive the container.
"""

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent import procfs
from llmgw.agent.cards import Maker
from llmgw.base.ids import ShardId
from llmgw.engines.shard import WEIGHTS, ShardSpec
from llmgw.fleet.report import Gpu, Reason

LABEL_AGENT = "llmgw.agent"
LABEL_SHARD = "llmgw.shard"
LABEL_ATTEMPT = "llmgw.attempt"
SHARES_OF_A_CPU = 1024
"""Docker's weight of one core."""
MOST_SHARES = 262_144
FILES_AT_MOST = 10_000
"""Files of one model whose links are followed."""
LONGEST_CHAIN = 40
"""Links from one file on, as the kernel has it."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only its size is looked at
CLIENT = (
    "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINER_HOST", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_CERT_PATH",
    "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG",
    "LOGNAME", "NO_PROXY", "PATH", "REGISTRY_AUTH_FILE", "TMPDIR", "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
    "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""What docker and podman themselves read of the agent's environment; it does not enter the container."""

_ID = re.compile(r"/(?:docker-|libpod-)?([0-9a-f]{64})(?:\.scope)?(?=/|$)", re.MULTILINE)
"""In a cgroup's path. That of podman's monitor, `libpod-conmon-ID.scope`, is not the container's."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What gives a container its cards: flags, and variables inside it."""

    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a container is made of besides its shard's spec."""

    name: str
    program: str
    """Path of docker or podman."""
    id_file: Path
    """Where its id is to be written."""
    weights: Path
    mounts: tuple[Path, ...]
    env: Mapping[str, str]
    """Variables with their values, which everybody may see."""
    secrets: tuple[str, ...]
    """Variables whose values the client has in its environment."""
    labels: Mapping[str, str]
    devices: Devices
    shared_memory: int
    """Bytes of its /dev/shm."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container that runs: its id, and its main process as this host sees it."""

    id: str
    pid: int
    start_ticks: int

    def holds(self, pid: int) -> bool:
        """Whether a process is in it: by its cgroup, which bears the id, or by the session of its proven main process."""
        if id_of(pid) == self.id:
            return True
        stat = procfs.stat_of(pid)
        if stat is None or stat.session != self.pid:
            return False
        main = procfs.stat_of(self.pid)
        return main is not None and main.start_ticks == self.start_ticks


def name_of(agent_id: str, shard: ShardId, attempt: int) -> str:
    """Return the container's name: no two agents of a host have the same, nor two attempts."""
    return f"llmgw-{shard}.{attempt}-{agent_id[:12]}"


def id_of(pid: int) -> str:
    """Return the id of the container that a process is in; empty if it is in none, or gone."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError as error:
        procfs.absent(error)
        return ""
    return id_in(text)


def id_in(cgroups: str) -> str:
    """Return the id of the container in the text of a /proc/PID/cgroup; the innermost, for one within another."""
    found = _ID.findall(cgroups)
    return str(found[-1]) if found else ""


def noted(path: Path) -> Container | None:
    """Return what a tender wrote of the container it stands for; None as long as that does not run."""
    try:
        fields = path.read_text().split()
    except OSError as error:
        procfs.absent(error)
        return None
    if len(fields) != 3 or not fields[1].isdigit() or not fields[2].isdigit():
        return None
    return Container(fields[0], int(fields[1]), int(fields[2]))


def arguments(spec: ShardSpec, wanted: Wanted) -> list[str]:
    """Return the whole command line that creates and starts the container, its client attached to its output."""
    first, *more = spec.programs[0] if spec.programs else ("",)
    limits = ("--memory", str(spec.memory), "--memory-swap", str(spec.memory)) if spec.memory is not None else ()
    weight = ("--cpu-shares", str(min(MOST_SHARES, spec.cpus * SHARES_OF_A_CPU))) if spec.cpus is not None else ()
    # podman hands the proxies on that it needs itself for the image
    own = ("--http-proxy=false",) if spec.runtime == "podman" else ()
    return [
        *(wanted.program, "run", "--name", wanted.name, "--cidfile", str(wanted.id_file)),
        *(part for name, value in wanted.labels.items() for part in ("--label", f"{name}={value}")),
        # its output goes through the client into the attempt's log, and is kept nowhere else
        *("--log-driver", "none", "--network", "host", "--init", "--no-healthcheck"),
        *("--shm-size", str(wanted.shared_memory)),
        *own,
        *limits,
        *weight,
        *wanted.devices.flags,
        *(part for path in wanted.mounts for part in ("--mount", _mount(path))),
        *(part for name, value in sorted(wanted.env.items()) for part in ("--env", f"{name}={value}")),
        *(part for name in sorted(wanted.secrets) for part in ("--env", name)),
        *(("--entrypoint", first) if first else ()),
        spec.image,
        *more,
        *(str(wanted.weights) if arg == WEIGHTS else arg for arg in spec.args),
    ]


def _mount(path: Path) -> str:
    """Return a read-only mount of a path at itself. Both programs read the value as a line of CSV."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(("type=bind", f"source={path}", f"target={path}", "readonly"))
    return line.getvalue()


def mounts_for(weights: Path, weights_dir: Path | None) -> tuple[Path, ...]:
    """Return the directories that a container must see to read these weights at their own paths; none below another.

    Blocks, for as long as the disk takes.
    """
    weights = Path(os.path.normpath(weights))
    below = weights_dir is not None and weights.is_relative_to(weights_dir)
    own = weights if weights.is_dir() else weights.parent
    found = {weights_dir if below and weights_dir is not None else own}
    for path in _files(weights):
        found.update(_passed(path))
    return tuple(path for path in sorted(found) if not any(other in path.parents for other in found))


def _files(weights: Path) -> Iterator[Path]:
    yield weights
    if not weights.is_dir():  # a model in several files names its first
        yield from sorted(weights.parent.glob(f"*{weights.suffix}"))[:FILES_AT_MOST]
        return
    left = FILES_AT_MOST
    for directory, names, files in os.walk(weights):
        for name in (*names, *files):
            left -= 1
            if left < 0:
                return
            yield Path(directory) / name


def _passed(path: Path) -> Iterator[Path]:
    """Yield the directory of each link and of the file at the end, for a path that is a link."""
    for _ in range(LONGEST_CHAIN):
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))
        yield path if path.is_dir() and not path.is_symlink() else path.parent


def devices(runtime: str, maker: Maker | None, gpus: Sequence[Gpu], sysfs: Path = Path("/sys")) -> Devices | Reason:
    """Return what gives a container these cards, and no others; without a maker, none at all."""
    if maker is None:
        # images with CUDA ask for all cards by a variable, which docker heeds where NVIDIA's runtime is its default
        return Devices(env=(("NVIDIA_VISIBLE_DEVICES", "void"),))
    if maker is Maker.NVIDIA:
        order = (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),)
        if runtime == "podman":
            return Devices(tuple(part for gpu in gpus for part in ("--device", f"nvidia.com/gpu={gpu.uuid}")), order)
        # in quotes of its own: the value is CSV, and a comma without them would end the list
        return Devices(("--gpus", f'"device={",".join(gpu.uuid for gpu in gpus)}"'), order)
    flags = ["--device", "/dev/kfd", "--group-add", "video", "--security-opt", "seccomp=unconfined"]
    for gpu in gpus:
        nodes = sorted((sysfs / "bus/pci/devices" / gpu.bus.lower() / "drm").glob("renderD*"))
        if not nodes:
            return Reason("gpu_missing", f"GPU {gpu.index} ({gpu.uuid}) has no render node to give to a container")
        flags += ["--device", f"/dev/dri/{nodes[0].name}"]
    return Devices(tuple(flags))


def shared_memory() -> int:
    """Return how many bytes the host's own /dev/shm may hold, which is what a process of the node gets."""
    found = os.statvfs(SHARED_MEMORY)
    return found.f_blocks * found.f_frsize
