"""An object with its defaults: every line, where it was written, what is inherited; and that it reads back the same."""

import pytest

from llmgw.base.ids import Revision
from llmgw.catalog.addresses import NoSuchObject, locate
from llmgw.catalog.document import Document
from llmgw.catalog.effective import Branch, InCluster, effective, leaves, render_yaml, values
from llmgw.catalog.reader import read_document
from llmgw.catalog.source import SourceTree
from llmgw.catalog.validation import validate
from llmgw.spec.cluster import Cluster
from llmgw.spec.common import SpecModel
from llmgw.spec.kinds import KINDS

NODE = """\
apiVersion: llmgw/v1
kind: Node
name: box
ssh:
  host: box.lan
  host_key: ssh-ed25519 AAAA
labels: {zone: a}
"""
CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nname: home\nssh:\n  user: ops\n"
MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: m
weights: {path: /m.gguf}
min_life: 600s
profiles:
  - &base
    name: small
    engine: llamacpp
    args:
      - --ctx-size
      - "4096"
    env: {KEY: {secret: TOKEN}}
  - <<: *base
    name: "on"
"""


def read(text: str, path: str = "x.yaml") -> tuple[Document, SpecModel]:
    document = read_document(path, text.encode()).document
    assert document is not None
    spec, problems = validate(document, KINDS[document.kind])
    assert spec is not None, problems
    return document, spec


def shown(text: str, cluster: str = "") -> Branch:
    inherited = None
    if cluster:
        document, spec = read(cluster, "cluster.yaml")
        assert isinstance(spec, Cluster)
        inherited = InCluster(document, spec)
    return effective(*read(text), inherited)


def lines(text: str, *, impacts: bool = False, cluster: str = "") -> dict[str, str]:
    """Lines without their padding: the YAML and the comment."""
    rendered = render_yaml(shown(text, cluster), impacts=impacts)
    return {yaml.strip(): note.strip() for yaml, _, note in (line.partition(" # ") for line in rendered.splitlines())}


def test_a_node_line_by_line() -> None:
    assert render_yaml(shown(NODE, CLUSTER), impacts=False).startswith(
        """\
apiVersion: llmgw/v1          # x.yaml:1
kind: Node                    # x.yaml:2
name: box                     # x.yaml:3
local: false                  # default
ssh:                          # x.yaml:4
  host: box.lan               # x.yaml:5
  port: 22                    # default
  user: ops                   # cluster.yaml:5
  host_key: ssh-ed25519 AAAA  # x.yaml:6
  proxy_jump: []              # default
pool: default                 # default
labels:                       # x.yaml:7
  zone: a                     # x.yaml:7
"""
    )


def test_what_is_inherited_without_being_written_is_a_default() -> None:
    cluster = CLUSTER.replace("ssh:\n  user: ops\n", "")
    assert lines(NODE, cluster=cluster)["user: llmgw"] == "default"
    assert "user: llmgw" not in lines(NODE)
    own = NODE.replace("  host_key", "  user: me\n  host_key")
    assert lines(own, cluster=CLUSTER)["user: me"] == "x.yaml:6"
    router = CLUSTER + "router: {default_policy: fair, policies: [{name: fair, picker: random}]}\n"
    assert lines(MODEL, cluster=router)["policy: fair"] == "cluster.yaml:6"


def test_the_key_that_logs_in_is_shown_and_no_other() -> None:
    by_secret = CLUSTER + "  identity: {secret: ID}\n"
    assert lines(NODE, cluster=by_secret)["secret: ID"] == "cluster.yaml:6"
    own_file = NODE.replace("  host_key", "  identity_file: /mine\n  host_key")
    assert "secret: ID" not in lines(own_file, cluster=by_secret)
    assert lines(own_file, cluster=by_secret)["identity_file: /mine"] == "x.yaml:6"
    by_file = CLUSTER + "  identity_file: /id\n"
    assert lines(NODE, cluster=by_file)["identity_file: /id"] == "cluster.yaml:6"
    own_secret = NODE.replace("  host_key", "  identity: {secret: MINE}\n  host_key")
    assert "identity_file: /id" not in lines(own_secret, cluster=by_file)


def test_items_texts_and_aliases() -> None:
    found = lines(MODEL)
    assert found["- --ctx-size"] == "x.yaml:14", "the second profile says it through the alias"
    assert found['- "4096"'] == "x.yaml:14"
    assert found["- name: small"] == "x.yaml:8"
    assert found['- name: "on"'] == "x.yaml:15"
    assert found["min_life: 600s"] == "x.yaml:5", "as it was written"
    assert found["replicas: 1"] == "default"
    assert found["stall_after: 5m"] == "default"
    assert found["limits: {}"] == "default"
    assert not any("None" in line or "null" in line for line in found)


def test_impacts() -> None:
    found = lines(MODEL, impacts=True)
    assert found["replicas: 1"] == "default, live"
    assert found["path: /m.gguf"] == "x.yaml:4, redownload"
    assert found["- --ctx-size"] == "x.yaml:14, restart"


def test_replicas_are_not_shown_beside_scale() -> None:
    found = values(shown(MODEL + "scale: {max: 3}\n"))
    assert "replicas" not in found
    assert found["scale"] == {
        "min": 0, "max": 3, "target_inflight": 8, "idle_after": "15m", "hold": "1m", "schedule": [],
    }  # fmt: skip


@pytest.mark.parametrize("text", [NODE, CLUSTER, MODEL, MODEL + "scale: {max: 3}\n"])
def test_what_is_shown_reads_back_as_the_same_object(text: str) -> None:
    branch = shown(text)
    document, spec = read(render_yaml(branch, impacts=True))
    assert dict(document.body) == values(branch)
    assert spec == read(text)[1]


def test_leaves_have_paths_that_can_be_set() -> None:
    found = dict(leaves(shown(MODEL)))
    assert found["profiles[0].args[1]"].origin.line == 12
    assert found["profiles[1].args[1]"].origin.line == 14
    assert found["profiles[0].env.KEY.secret"].origin.line == 13
    assert values(found["limits"]) == {}


# addresses

TREE = SourceTree(
    Revision("r"),
    {
        "cluster.yaml": CLUSTER.encode(),
        "a/m.yaml": MODEL.encode(),
        "n1.yaml": NODE.encode(),
        "n2.yaml": NODE.encode(),
        ".hidden/m.yaml": MODEL.encode(),
        "broken.yaml": b"[",
    },
)
ADDRESSES = {
    "model/x": "there is no model 'x' in this directory (1 file(s) cannot be read, see `llmgw validate`); there are m",
    "model/": "'model/' names no object; write model/NAME",
    "model": "'model' names no object; write model/NAME",
    "modl/m": "there is no kind 'modl', did you mean 'model'?",
    "pod/m": "there is no kind 'pod'; write cluster/NAME, node/NAME, model/NAME, endpoint/NAME or tenant/NAME",
    "node/box": "node/box is defined more than once: n1.yaml, n2.yaml; keep one of them",
    "cluster/hom": "there is no cluster 'hom' in this directory (1 file(s) cannot be read, see `llmgw validate`), "
    "did you mean 'home'?",
    "tenant/x": "there is no tenant 'x' in this directory (1 file(s) cannot be read, see `llmgw validate`)",
}


def test_an_address_names_a_file() -> None:
    assert locate(TREE, "model/m").path == "a/m.yaml"
    assert locate(TREE, "Model/m").path == "a/m.yaml"
    assert locate(TREE, "cluster").path == "cluster.yaml"
    assert locate(TREE, "cluster/home").path == "cluster.yaml"


@pytest.mark.parametrize(("address", "message"), ADDRESSES.items())
def test_an_address_that_names_nothing(address: str, message: str) -> None:
    with pytest.raises(NoSuchObject) as refusal:
        locate(TREE, address)
    assert str(refusal.value) == message
