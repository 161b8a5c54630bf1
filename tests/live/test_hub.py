"""Weights from a hub, the whole way: a repository at a commit, fetched by the node, verified, served by real llama.cpp."""

from pathlib import Path

from tests.fakes.hub import Hub, serving_hub
from tests.live.lab import Lab, model_yaml

COMMIT = "c0ffee" * 6 + "beef"
TOKEN = "hf_for_the_hub_alone"


def test_a_repository_at_a_commit_is_fetched_with_a_secret_token_and_served(lab: Lab) -> None:
    content = (lab.weights / "tiny.gguf").read_bytes()
    hub = Hub("Org/Tiny", COMMIT, {"q4/tiny.gguf": content, "config.json": b"{}"}, token=TOKEN)
    with serving_hub(hub):
        lab.environment["LLMGW_SECRET_HUB"] = "another"
        text = model_yaml("m", replicas=2)
        assert "  path: tiny.gguf" in text
        weights = f"  hf: Org/Tiny\n  revision: {COMMIT}\n  files: [q4/tiny.gguf]"
        text = text.replace("  path: tiny.gguf", weights)
        lab.write("models/m.yaml", f"{text}    env: {{HF_ENDPOINT: '{hub.url}', HF_TOKEN: {{secret: HUB}}}}\n")
        lab.commit()
        lab.agent = lab.start_agent()
        lab.server = lab.start_server()
        lab.until(
            lambda: lab.replicas("m") and lab.replicas("m")[0]["reason_code"] == "no_such_repository", "the reason"
        )
        assert "give the model's profile `env: {HF_TOKEN: {secret: NAME}}`" in lab.replicas("m")[0]["reason"]
        lab.server.terminate()
        lab.server.wait()
        lab.environment["LLMGW_SECRET_HUB"] = TOKEN
        lab.server = lab.start_server()
        lab.until(lambda: lab.ready("m", 2), "the model")
        assert lab.ask("m")
        kept = [path for path in lab.weights.rglob("*") if path.is_file()]
        assert {path.relative_to(lab.weights).parts[-2:] for path in kept} == {("tiny.gguf",), ("q4", "tiny.gguf")}
        assert len(hub.bytes_asked("q4/tiny.gguf")) == 1 + (len(content) >= 4096), "two replicas, one download"
        assert not told_of(lab.root, TOKEN), "the token is in no file of the agent's or the server's"


def told_of(root: Path, text: str) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
