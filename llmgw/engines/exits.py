"""Why an engine ended, told by its last words: one table an engine, one for all, and the rule which of them wins.

What the kernel counted (a cgroup's out-of-memory kill) is evidence and wins over words. Then the engine's own table is
tried in its order, then the general one; within a pattern the newest line wins. The order of a table matters: one fault
says several things (a context that does not fit ends with llama.cpp's "exiting due to model loading error"), so the cause
comes before the consequence. Exit statuses say little and decide nothing: vLLM ends with 0 when its engine dies, SGLang
kills itself with SIGKILL, as if the kernel had done it.

The messages are those of vLLM 0.33, SGLang 0.5.23, llama.cpp b11434 and Text Embeddings Inference 1.9.3.
"""

import re
from collections.abc import Iterable

from llmgw.engines.shard import ExitPattern

OUT_OF_GPU_MEMORY = "out_of_gpu_memory"
OUT_OF_HOST_MEMORY = "out_of_host_memory"
PORT_TAKEN = "port_taken"
BAD_ARGUMENTS = "bad_arguments"
WEIGHTS_MISSING = "weights_missing"
WEIGHTS_BAD = "weights_bad"
DRIVER_TOO_OLD = "driver_too_old"
IMAGE_MISSING = "image_missing"
GPU_UNUSABLE = "gpu_unusable"
CONTEXT_TOO_LARGE = "context_too_large"
ENGINE_DIED = "engine_died"
KILLED = "killed"

_PROVEN = (OUT_OF_HOST_MEMORY,)
"""Codes that the agent gives by evidence of the kernel's own."""

LLAMACPP = (
    ExitPattern(r"couldn't bind HTTP server socket", PORT_TAKEN, "the port is taken by another process"),
    ExitPattern(r"error: invalid argument|unrecognized arguments|error: argument|error while handling argument",
                BAD_ARGUMENTS, "the engine refused its arguments"),
    ExitPattern(r"failed to open .*\(No such file or directory\)", WEIGHTS_MISSING, "the weights are not there"),
    ExitPattern(r"cudaMalloc failed|unable to allocate (CUDA|ROCm|Vulkan|Metal|SYCL)\w* ", OUT_OF_GPU_MEMORY,
                "the memory of the card is not enough"),
    ExitPattern(r"failed to create (llama_)?context|failed to initialize the context|failed to allocate buffer for kv cache",
                CONTEXT_TOO_LARGE, "the context does not fit in memory; give a smaller --ctx-size"),
    ExitPattern(r"unable to allocate \S+ buffer|failed to allocate (buffer|compute|memory|host)|std::bad_alloc",
                OUT_OF_HOST_MEMORY, "the memory of the node is not enough"),
    ExitPattern(r"invalid magic characters|is not within the file bounds|failed to read (key-value|tensor)|corrupted model"
                r"|error loading model|failed to load model|exiting due to model loading error",
                WEIGHTS_BAD, "the weights cannot be loaded"),
)  # fmt: skip

VLLM = (
    ExitPattern(r"\[Errno 98\] Address already in use", PORT_TAKEN, "the port is taken by another process"),
    ExitPattern(r"torch\.OutOfMemoryError|CUDA out of memory", OUT_OF_GPU_MEMORY, "the memory of the card is not enough"),
    ExitPattern(r"Free memory on device .* is less than desired GPU memory utilization", OUT_OF_GPU_MEMORY,
                "something else holds memory of the card"),
    ExitPattern(r"No available memory for the cache blocks", CONTEXT_TOO_LARGE,
                "the weights leave no room for the KV cache; raise --gpu-memory-utilization or use more cards"),
    ExitPattern(r"To serve at least one request with the model's max seq len", CONTEXT_TOO_LARGE,
                "the context does not fit; lower --max-model-len to what the message names"),
    ExitPattern(r"LocalEntryNotFoundError", WEIGHTS_MISSING, "the weights are not in the cache, and it runs offline"),
    ExitPattern(r"HFValidationError|Repo id must be in the form", WEIGHTS_MISSING, "there is no model at that path"),
    ExitPattern(r"ValidationError", BAD_ARGUMENTS, "the engine refused its configuration"),
    ExitPattern(r"^(vllm|usage: vllm).*(error: |\[-h\])|error: (unrecognized arguments|argument )", BAD_ARGUMENTS,
                "the engine refused its arguments"),
    ExitPattern(r"EngineDeadError", ENGINE_DIED, "its engine process died"),
)  # fmt: skip

SGLANG = (
    ExitPattern(r"[Aa]ddress already in use", PORT_TAKEN, "the port is taken by another process"),
    ExitPattern(r"Not enough memory\. Please try to increase --mem-fraction-static", CONTEXT_TOO_LARGE,
                "the weights leave no room for the KV cache; raise --mem-fraction-static or use more cards"),
    ExitPattern(r"CUDA out of memory|torch\.OutOfMemoryError", OUT_OF_GPU_MEMORY, "the memory of the card is not enough"),
    ExitPattern(r"LocalEntryNotFoundError", WEIGHTS_MISSING, "the weights are not in the cache, and it runs offline"),
    ExitPattern(r"HFValidationError|Repo id must be in the form", WEIGHTS_MISSING, "there is no model at that path"),
    ExitPattern(r"error: (unrecognized arguments|argument )", BAD_ARGUMENTS, "the engine refused its arguments"),
)  # fmt: skip

TEI = (
    ExitPattern(r"Could not bind TCP Listener", PORT_TAKEN, "the port is taken by another process"),
    ExitPattern(r"CUDA_ERROR_OUT_OF_MEMORY|out of memory", OUT_OF_GPU_MEMORY, "the memory of the card is not enough"),
    ExitPattern(r"error: (unexpected argument|invalid value|the argument|a value is required)", BAD_ARGUMENTS,
                "the engine refused its arguments"),
)  # fmt: skip

_START = r"^llmgw: \S+ run did not start it: .*"
CONTAINER = (
    ExitPattern(r"^llmgw: the container was killed for memory", OUT_OF_HOST_MEMORY, "its memory is not enough"),
    ExitPattern(r"^llmgw: the container was removed", "container_removed", "somebody else removed it"),
    ExitPattern(_START + r"(pull access denied|repository does not exist|manifest unknown|manifest for .* not found"
                r"|unauthorized|initializing source|no such image|[Ss]hort-name|failed to resolve reference)",
                IMAGE_MISSING, "the image cannot be had; look at its name, and at the node's login to its registry"),
    ExitPattern(_START + r"already in use", "container_name_taken", "another container has its name"),
    ExitPattern(_START + r"(could not select device driver|nvidia-container-cli|CDI device)", GPU_UNUSABLE,
                "containers get no cards here; set up the NVIDIA Container Toolkit, and CDI by UUID for podman"),
    ExitPattern(_START + r"(Cannot connect to the Docker daemon|failed to connect to the docker API|error during connect)",
                "runtime_away", "its daemon does not answer"),
    ExitPattern(_START + r"[Nn]o space left on device", "disk_full", "the disk is full"),
    ExitPattern(_START + r"(executable file|exec format error|no such file or directory|[Pp]ermission denied)",
                "not_executable", "the image has no such program; name its own with `command`"),
    ExitPattern(_START, "container_not_started", "the container was not started"),
)  # fmt: skip
"""What `llmgw.agent.tender` writes of a container, with the words of docker and podman. Tried first: no engine says it."""

GENERAL = (
    ExitPattern(r"[Aa]ddress already in use|EADDRINUSE", PORT_TAKEN, "the port is taken by another process"),
    ExitPattern(r"driver on your system is too old|driver version is insufficient|cudaErrorInsufficientDriver"
                r"|no kernel image is available", DRIVER_TOO_OLD,
                "the GPU driver is older than what the engine was built for; upgrade one or the other"),
    ExitPattern(r"CUDA out of memory|torch\.OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
                r"|CUDA error: out of memory|HIP out of memory", OUT_OF_GPU_MEMORY, "the memory of the card is not enough"),
    ExitPattern(r"failed to initialize CUDA|No CUDA GPUs are available|no CUDA-capable device|CUDA_ERROR_NO_DEVICE"
                r"|CUDA unknown error|Failed to initialize NVML", GPU_UNUSABLE,
                "the engine cannot use the card; look at nvidia-smi on the node"),
    ExitPattern(r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc", OUT_OF_HOST_MEMORY,
                "the memory of the node is not enough"),
    ExitPattern(r"SafetensorError|Error while deserializing header", WEIGHTS_BAD, "the weights are not whole"),
    ExitPattern(r"No space left on device", "disk_full", "the disk is full"),
)  # fmt: skip
"""What is tried for every engine after its own table."""


def classify(patterns: Iterable[ExitPattern], code: str, text: str, tail: tuple[str, ...]) -> tuple[str, str]:
    """Return (code, sentence) of an end that nobody asked for.

    `code` and `text` are what the kernel said of it; they stay where the log says nothing that is known.
    """
    if code in _PROVEN:
        return code, text
    for pattern in (*patterns, *GENERAL):
        for line in reversed(tail):
            if re.search(pattern.pattern, line):
                return pattern.code, f"{text}: {pattern.text} ({line.strip()[:200]})"
    return code, text
