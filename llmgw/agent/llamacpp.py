"""llama.cpp's own HTTP server from the `xllamacpp` wheel, behind `llama-server`'s command line.

For nodes without `llama-server`: `python -m llmgw.agent.llamacpp --model FILE --port N`. The flags that the adapter and
common profiles use are understood, with llama-server's names and meaning; any other is refused by name, as it would be
there. Exit status: 0 after SIGTERM, 1 if the model cannot be loaded or the port is taken, 2 for a wrong command line.
"""

import argparse
import os
import signal
import sys
import threading
from typing import Any


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmgw.agent.llamacpp", allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-a", "--alias", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-c", "--ctx-size", type=int, default=0)
    parser.add_argument("-np", "--parallel", type=int, default=4)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-tb", "--threads-batch", type=int)
    parser.add_argument("--threads-http", type=int)
    parser.add_argument("-b", "--batch-size", type=int)
    parser.add_argument("-ub", "--ubatch-size", type=int)
    parser.add_argument("-ngl", "--n-gpu-layers", type=int)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--embeddings", "--embedding", action="store_true")
    parser.add_argument("--sse-ping-interval", type=int)
    parser.add_argument("--timeout", type=int)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--no-ui", "--no-webui", action="store_true")
    parser.add_argument("-lv", "--verbosity", type=int)
    return parser


def _params(options: argparse.Namespace) -> Any:
    import xllamacpp  # noqa: PLC0415 - the wheel is 100 MB; --help and usage errors need none of it

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.model_alias = {name for name in options.alias.split(",") if name} or {os.path.basename(options.model)}  # noqa: PTH119
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.kv_unified = True  # as llama-server does where -np is not given: a long request may use all of the context
    params.endpoint_metrics = options.metrics
    params.embedding = options.embeddings
    params.offline = options.offline
    params.ui = not options.no_ui
    if options.threads:
        params.cpuparams.n_threads = options.threads
        params.cpuparams_batch.n_threads = options.threads_batch or options.threads
    if options.api_key:
        params.api_keys = options.api_key.split(",")
    given = {
        "n_threads_http": options.threads_http,
        "n_batch": options.batch_size,
        "n_ubatch": options.ubatch_size,
        "n_gpu_layers": options.n_gpu_layers,
        "sse_ping_interval": options.sse_ping_interval,
        "timeout_read": options.timeout,
        "timeout_write": options.timeout,
        "verbosity": options.verbosity,
    }
    for name, value in given.items():
        if value is not None:
            setattr(params, name, value)
    return params


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # before the load: a handler that is there at once lets a loading engine be stopped too
        signal.signal(number, lambda *_: os._exit(0) if stop.is_set() else stop.set())
    import xllamacpp  # noqa: PLC0415 - see above

    try:
        server = xllamacpp.Server(_params(options))
    except (RuntimeError, OSError) as error:
        sys.exit(f"error: {error}")
    stop.wait()
    # the C++ server has no drain and its destructor waits for open streams; the gateway has drained before
    sys.stdout.flush()
    del server
    os._exit(0)


if __name__ == "__main__":
    main()
