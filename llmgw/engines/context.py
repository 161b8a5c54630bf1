"""How many tokens a model takes, as far as its profiles say it by an engine's own flag."""

from llmgw.spec.model import Model

FLAGS = {
    "vllm": ("--max-model-len",),
    "sglang": ("--context-length",),
    "llamacpp": ("--ctx-size", "-c"),
}
"""Each engine's flags for it. vLLM also reads `32k`; such a value is left to the engine to explain."""
SLOTS = ("--parallel", "-np")
"""llama.cpp's flags for how many requests share the context."""


def max_model_len(model: Model) -> int | None:
    """Return the smallest length that its profiles set; None if one of them leaves it to the weights."""
    found: list[int] = []
    for profile in model.profiles:
        length = _of(FLAGS.get(profile.engine, ()), profile.args)
        if length is None:
            return None
        slots = _of(SLOTS, profile.args) if profile.engine == "llamacpp" else None
        found.append(length // (slots or 1))
    return min(found)


def _of(flags: tuple[str, ...], args: list[str]) -> int | None:
    last = None
    for place, word in enumerate(args):
        flag, equals, value = word.partition("=")
        if flag in flags:
            text = value if equals else "".join(args[place + 1 : place + 2])
            last = int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None
    return last
