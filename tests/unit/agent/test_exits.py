"""Why an engine ended, from the words that engines were seen to say."""

import pytest

from llmgw.engines.exits import GENERAL, LLAMACPP, SGLANG, TEI, VLLM, classify

SAID = [
    (LLAMACPP, "port_taken", "srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 20000"),
    (LLAMACPP, "bad_arguments", "error: invalid argument: --bogus"),
    (LLAMACPP, "bad_arguments", "llmgw.agent.llamacpp: error: unrecognized arguments: --bogus"),
    (LLAMACPP, "weights_missing", """\
gguf_init_from_file: failed to open GGUF file '/w/none.gguf' (No such file or directory)
llama_model_load: error loading model: llama_model_loader: failed to load model from /w/none.gguf
srv          init: exiting due to model loading error"""),
    (LLAMACPP, "weights_bad", """\
gguf_init_from_reader: failed to read key-value pairs
llama_model_load: error loading model: llama_model_loader: failed to load model from /w/cut.gguf
srv          init: exiting due to model loading error
error: Failed to init server, please check the input params."""),
    (LLAMACPP, "weights_bad", "gguf_init_from_file_impl: invalid magic characters: '!!!!', expected 'GGUF'"),
    (LLAMACPP, "context_too_large", """\
llama_init_from_model: failed to initialize the context: std::bad_alloc
cmn  common_init_: failed to create context with model '/w/tiny.gguf'
srv    load_model: failed to create_context with model '/w/tiny.gguf'
srv          init: exiting due to model loading error"""),
    (LLAMACPP, "out_of_gpu_memory", """\
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8148.38 MiB on device 0: cudaMalloc failed: out of memory
llama_model_load: error loading model: unable to allocate CUDA0 buffer
srv          init: exiting due to model loading error"""),
    (LLAMACPP, "out_of_host_memory", """\
llama_model_load: error loading model: unable to allocate CPU buffer
srv          init: exiting due to model loading error"""),
    (LLAMACPP, "gpu_unusable", "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected"),
    (VLLM, "port_taken", "OSError: [Errno 98] Address already in use"),
    (VLLM, "weights_missing", "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'"),
    (VLLM, "weights_missing", "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files"),
    (VLLM, "bad_arguments", """\
usage: vllm serve [model_tag] [options]
vllm: error: unrecognized arguments: --bogus"""),
    (VLLM, "bad_arguments", "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"),
    (VLLM, "context_too_large", "ValueError: No available memory for the cache blocks. Try increasing the utilization"),
    (VLLM, "context_too_large", "ValueError: To serve at least one request with the model's max seq len (131072), (16.00"
     " GiB KV cache is needed, which is larger than the available KV cache memory (4.00 GiB)"),
    (VLLM, "out_of_gpu_memory", "ValueError: Free memory on device cuda:0 (1.2/80.0 GiB) on startup is less than desired"
     " GPU memory utilization (0.92, 73.6 GiB)"),
    (VLLM, "out_of_gpu_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    (VLLM, "engine_died", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."),
    (SGLANG, "context_too_large", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
    (SGLANG, "out_of_gpu_memory", "torch.OutOfMemoryError: CUDA out of memory."),
    (SGLANG, "port_taken", "[Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use"),
    (TEI, "port_taken", "Error: Could not bind TCP Listener on 127.0.0.1:3000"),
    ((), "driver_too_old", "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."),
    ((), "driver_too_old", "CUDA driver version is insufficient for CUDA runtime version"),
    ((), "gpu_unusable", "RuntimeError: No CUDA GPUs are available"),
    ((), "out_of_host_memory", "MemoryError"),
    ((), "weights_bad", "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),
    ((), "disk_full", "OSError: [Errno 28] No space left on device"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "code", "words"), SAID, ids=[f"{code}-{n}" for n, (_, code, _) in enumerate(SAID)]
)
def test_the_cause_is_told_from_the_last_words(patterns, code, words) -> None:
    lines = ("INFO all is well", *words.splitlines(), "a line that means nothing")
    found, text = classify(patterns, "exited", "exited with status 1", lines)
    assert found == code
    assert text.startswith("exited with status 1: ")


def test_an_engine_that_ends_with_status_0_is_told_by_its_words_all_the_same() -> None:
    words = ("EngineDeadError: EngineCore encountered an issue.",)
    code, text = classify(VLLM, "exited", "exited with status 0 without being asked to", words)
    assert code == "engine_died"
    assert text.startswith("exited with status 0 without being asked to: its engine process died (EngineDeadError")


def test_the_cause_wins_over_its_consequence_in_another_process() -> None:
    words = ("(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory.", "(APIServer pid=1) EngineDeadError: x")
    assert classify(VLLM, "exited", "exited with status 0", words)[0] == "out_of_gpu_memory"


def test_what_the_kernel_counted_wins_over_words() -> None:
    words = ("torch.OutOfMemoryError: CUDA out of memory.",)
    killed = classify(VLLM, "out_of_host_memory", "the kernel killed 1 of its processes for memory", words)
    assert killed == ("out_of_host_memory", "the kernel killed 1 of its processes for memory")


def test_words_that_say_nothing_leave_what_the_kernel_said() -> None:
    for patterns in (LLAMACPP, VLLM, SGLANG, TEI, GENERAL):
        assert classify(patterns, "killed", "killed by SIGKILL", ("loading", "half way")) == (
            "killed",
            "killed by SIGKILL",
        )
