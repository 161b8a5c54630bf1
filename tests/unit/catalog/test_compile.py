"""Whole directories: what is accepted, and for everything that is not, the exact place, code and sentence."""

from dataclasses import replace

import pytest

from llmgw.base.ids import Revision
from llmgw.catalog.compile import Accepted, Compiler, Rejected, compile_tree
from llmgw.catalog.digest import tree_digest
from llmgw.catalog.source import SourceTree
from llmgw.spec.kinds import KINDS
from llmgw.spec.node import Cordon

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nname: home\n"
NODE = "apiVersion: llmgw/v1\nkind: Node\nname: box\n"
SSH = NODE + "ssh:\n  host: box.lan\n  host_key: ssh-ed25519 AAAA\n"
MODEL = "apiVersion: llmgw/v1\nkind: Model\nname: qwen\nweights: {path: /m.gguf}\nprofiles:\n- engine: llamacpp\n"


def tree(**files: str) -> SourceTree:
    return SourceTree(Revision("r1"), {f"{name}.yaml": text.encode() for name, text in files.items()})


def told(outcome: Accepted | Rejected) -> list[str]:
    problems = outcome.problems if isinstance(outcome, Rejected) else outcome.warnings
    return [f"{problem} [{problem.code}]" for problem in problems]


def told_of(text: str) -> list[str]:
    """Return what is said of one file beside a cluster, without the file's name."""
    return [line.removeprefix("x.yaml:") for line in told(compile_tree(tree(cluster=CLUSTER, x=text)))]


def test_a_valid_directory_is_a_catalog() -> None:
    files = {
        "cluster.yml": CLUSTER,
        "models/z.yaml": MODEL.replace("qwen", "a"),
        "models/deep/er/a.yaml": MODEL.replace("qwen", "z") + "  memory: 1GiB\n  start_timeout: 5m\n",
        "nodes/box.yaml": SSH,
        "README.md": "# {{ not read }}",
        "models/x.yaml.bak": "}",
        ".github/workflows/ci.yaml": "}",
        "models/.hidden.yaml": "}",
    }
    outcome = compile_tree(SourceTree(Revision("r1"), {path: text.encode() for path, text in files.items()}))
    assert isinstance(outcome, Accepted)
    assert outcome.warnings == ()
    catalog = outcome.catalog
    assert catalog.revision == "r1"
    assert catalog.cluster.name == "home"
    assert list(catalog.models) == ["a", "z"]
    assert list(catalog.nodes) == ["box"]
    assert catalog.models["z"].profiles[0].memory == 1 << 30
    assert catalog.models["z"].profiles[0].start_timeout == 300.0
    assert dict(catalog.paths) == {
        ("Cluster", "home"): "cluster.yml",
        ("Model", "a"): "models/z.yaml",
        ("Model", "z"): "models/deep/er/a.yaml",
        ("Node", "box"): "nodes/box.yaml",
    }


*OTHERS, LAST = KINDS
KIND_LIST = f"{', '.join(OTHERS)} or {LAST}"
NAME_RULE = "use up to 63 lower-case letters, digits, `.`, `_`, `-`, with a letter or digit at both ends"
DURATION = "'start_timeout' expects a duration with a unit, as in 500ms, 30s, 5m or 1h"
SIZE = "'memory' expects a size with a binary unit, as in 512MiB or 16GiB"
BASE_60 = "numbers to base 60 are not read"
TWO_KEYS = "the private key is either `identity` (a secret) or `identity_file` (a path); keep one of them [identity]"
REACH = "a node has either `local: true` or an `ssh:` block, exactly one of them [local]"

WRONG = {
    # keys
    "unknown key": (MODEL + "replcas: 2\n", ["7:1 unknown key 'replcas', did you mean 'replicas'? [unknown-key]"]),
    "unknown key, other case": (
        MODEL + "  startTimeout: 1m\n",
        ["7:3 unknown key 'startTimeout', did you mean 'start_timeout'? [unknown-key]"],
    ),
    "unknown key, none close": (
        SSH + "cordoned: {reason: x, zzz: y}\n",
        [f"7:23 unknown key 'zzz'; known here: {', '.join(Cordon.model_fields)} [unknown-key]"],
    ),
    "invisible key": (
        MODEL + "\u00a0replicas: 2\n",
        ["7:1 unknown key '\\xa0replicas', did you mean 'replicas'? [unknown-key]"],
    ),
    "missing key": (
        MODEL.replace("name: qwen\n", ""),
        ["1:1 missing key 'name': name that clients ask for [missing-key]"],
    ),
    "missing key inside": (
        MODEL.replace("engine: llamacpp", "name: a"),
        ["6:3 missing key 'engine': which engine runs it [missing-key]"],
    ),
    "missing kind": (
        MODEL.replace("kind: Model\n", ""),
        [f"1:1 missing key 'kind': one of {KIND_LIST} [missing-key]"],
    ),
    "missing apiVersion": (
        "kind: Node\nname: box\nlocal: true\n",
        ["1:1 missing key 'apiVersion': always `llmgw/v1` [missing-key]"],
    ),
    "nothing": ("{}\n", [f"1:1 missing key 'kind': one of {KIND_LIST} [missing-key]"]),
    # kinds and versions
    "unknown kind": (
        MODEL.replace("Model", "Modle"),
        ["2:7 unknown kind 'Modle', did you mean 'Model'? [unknown-kind]"],
    ),
    "kind in lower case": (
        NODE.replace("Node", "node"),
        ["2:7 unknown kind 'node', did you mean 'Node'? [unknown-kind]"],
    ),
    "a stranger's kind": (
        MODEL.replace("Model", "Deployment"),
        [f"2:7 unknown kind 'Deployment'; write {KIND_LIST} [unknown-kind]"],
    ),
    "kind that is no text": (
        MODEL.replace("Model", "[Model]"),
        [f"2:7 unknown kind \"['Model']\"; write {KIND_LIST} [unknown-kind]"],
    ),
    "unknown version": (
        MODEL.replace("llmgw/v1", "apps/v1") + "foo: 1\n",
        ["1:13 unknown apiVersion 'apps/v1'; write llmgw/v1 [unknown-api-version]"],
    ),
    # YAML 1.1 and other habits
    "yes": (
        NODE + "local: yes\n",
        ["4:8 'local' expects true or false, found the text 'yes'; write true [wrong-type]"],
    ),
    "off": (
        NODE + "local: off\n",
        ["4:8 'local' expects true or false, found the text 'off'; write false [wrong-type]"],
    ),
    "N": (NODE + "local: N\n", ["4:8 'local' expects true or false, found the text 'N'; write false [wrong-type]"]),
    "1 for true": (
        NODE + "local: 1\n",
        ["4:8 'local' expects true or false, found the number 1; write true [wrong-type]"],
    ),
    "quoted true": (
        NODE + 'local: "true"\n',
        ["4:8 'local' expects true or false, found the text 'true'; write true [wrong-type]"],
    ),
    "octal": (
        MODEL + "replicas: 0644\n",
        [
            (
                "7:11 'replicas' is `0644`; write 644 without the leading zero, or 0o644 for the octal number, "
                'or "0644" in quotes if it is text [leading-zero]'
            )
        ],
    ),
    "no octal": (
        MODEL + "priority: -09\n",
        [
            (
                "7:11 'priority' is `-09`; write 9 without the leading zero, "
                'or "-09" in quotes if it is text [leading-zero]'
            )
        ],
    ),
    "octal as text": (
        MODEL + "aliases: [0644]\n",
        ["7:11 item 1 of 'aliases' expects text, found the number 0644; write \"0644\" in quotes [wrong-type]"],
    ),
    "base 60": (
        MODEL + "replicas: 22:22\n",
        [
            (
                "7:11 'replicas' expects a whole number, found the text '22:22'; "
                f"{BASE_60}; write the number in full [wrong-type]"
            )
        ],
    ),
    "underscores": (
        MODEL + "replicas: 1_0\n",
        ["7:11 'replicas' expects a whole number, found the text '1_0'; write 10 [wrong-type]"],
    ),
    "exponent": (
        MODEL + "replicas: 1e2\n",
        ["7:11 'replicas' expects a whole number, found the number 1e2; write 100 [wrong-type]"],
    ),
    "fraction": (
        MODEL + "replicas: 1.5\n",
        ["7:11 'replicas' expects a whole number, found the number 1.5 [wrong-type]"],
    ),
    "quoted number": (
        MODEL + "replicas: '2'\n",
        ["7:11 'replicas' expects a whole number, found the text '2'; write 2 without quotes [wrong-type]"],
    ),
    "true as number": (MODEL + "replicas: true\n", ["7:11 'replicas' expects a whole number, found true [wrong-type]"]),
    "lost zero": (
        MODEL + "aliases: [1.10]\n",
        ["7:11 item 1 of 'aliases' expects text, found the number 1.10; write \"1.10\" in quotes [wrong-type]"],
    ),
    "numbers in an environment": (
        MODEL + "  env: {A: 1, B: True, C: yes}\n",
        [
            "7:12 'A' expects text, found the number 1; write \"1\" in quotes [wrong-type]",
            "7:18 'B' expects text, found True; write \"True\" in quotes [wrong-type]",
        ],
    ),
    "bare duration": (
        MODEL + "  start_timeout: 30\n",
        [f"7:18 {DURATION}, found the number 30; write 30s if seconds are meant [wrong-type]"],
    ),
    "long unit": (
        MODEL + "  start_timeout: 5 minutes\n",
        [f"7:18 {DURATION}, found the text '5 minutes'; write 5m [wrong-type]"],
    ),
    "clock time": (
        MODEL + "  start_timeout: 1:30\n",
        [f"7:18 {DURATION}, found the text '1:30'; {BASE_60}; write 90m or 45s [wrong-type]"],
    ),
    "bare size": (
        MODEL + "  memory: 16\n",
        [f"7:11 {SIZE}, found the number 16; write the unit, as in 16GiB or 16MiB [wrong-type]"],
    ),
    "decimal size": (MODEL + "  memory: 16 GB\n", [f"7:11 {SIZE}, found the text '16 GB'; write 16GiB [wrong-type]"]),
    "no size": (MODEL + "  memory: lots\n", [f"7:11 {SIZE}, found the text 'lots' [wrong-type]"]),
    # types
    "text for a list": (
        MODEL + "  args: --ctx 5\n",
        ["7:9 'args' expects a list, found the text '--ctx 5'; write each item after a `- ` [wrong-type]"],
    ),
    "dashes without spaces": (
        MODEL + "aliases:\n  -a\n  -b\n",
        ["8:3 'aliases' expects a list, found the text '-a -b'; write a space after each `-` [wrong-type]"],
    ),
    "mapping for a list": (
        MODEL.replace("- engine", "  engine"),
        ["6:3 'profiles' expects a list, found a mapping; write each item after a `- ` [wrong-type]"],
    ),
    "list for a mapping": (
        MODEL + "  env:\n  - A: b\n",
        ["8:3 'env' expects a mapping, found a list; write `key: value`, without the `- ` [wrong-type]"],
    ),
    "text for a mapping": (
        MODEL.replace("{path: /m.gguf}", "path:/m.gguf"),
        ["4:10 'weights' expects a mapping, found the text 'path:/m.gguf'; write a space after the `:` [wrong-type]"],
    ),
    # values
    "name": (
        MODEL.replace("qwen", "Qwen 2.5"),
        [f"3:7 'Qwen 2.5' is not a name; {NAME_RULE}, as in 'qwen-2.5' [wrong-value]"],
    ),
    "name that cannot be mended": (MODEL.replace("qwen", "'-'"), [f"3:7 '-' is not a name; {NAME_RULE} [wrong-value]"]),
    "name of a variable": (
        MODEL + "  env: {1A: x}\n",
        [
            (
                "7:9 '1A' is not the name of an environment variable; "
                "use letters, digits and `_`, no digit first [wrong-value]"
            )
        ],
    ),
    "label": (
        SSH + "labels: {zone: a b}\n",
        [
            (
                "7:16 'a b' is not a label; use up to 63 letters, digits, `.`, `_`, `/`, `-`, "
                "with a letter or digit at both ends [wrong-value]"
            )
        ],
    ),
    "alias": (
        MODEL + "aliases: ['a b']\n",
        [
            (
                "7:11 'a b' is not an alias; use up to 127 letters, digits, `.`, `_`, `:`, `/`, `@`, `-`, "
                "with a letter or digit at both ends [wrong-value]"
            )
        ],
    ),
    "path": (
        SSH + "  identity_file: ~/.ssh/id\n",
        ["7:18 '~/.ssh/id' is not an absolute path; start it with `/` [wrong-value]"],
    ),
    "two keys of a node": (
        SSH + "  identity_file: /id\n  identity: {secret: ID}\n",
        [f"8:3 {TWO_KEYS}"],
    ),
    "host key": (
        SSH.replace("ssh-ed", "box ssh-ed"),
        [
            (
                "6:13 'box ssh-ed25519 AAAA' is not a public host key; write `TYPE BASE64`, "
                "as `ssh-keyscan HOST` prints it after the host's name [wrong-value]"
            )
        ],
    ),
    "empty text": (SSH + "  user: ''\n", ["7:9 'user' must not be empty; write a value or remove it [wrong-value]"]),
    "too low": (SSH + "  port: 0\n", ["7:9 'port' must be at least 1, found 0 [out-of-range]"]),
    "too high": (MODEL + "replicas: 1001\n", ["7:11 'replicas' must be at most 1000, found 1001 [out-of-range]"]),
    "too few": (MODEL + "  command: []\n", ["7:12 'command' needs 1 item or more, found 0 [out-of-range]"]),
    "unreachable": (NODE, [f"1:1 {REACH}"]),
    "commented out": (
        NODE + "ssh:\n#  host: a\n",
        ["4:1 key 'ssh' has no value; write one or remove the key [no-value]"],
    ),
    "two profiles": (
        MODEL + "- engine: llamacpp\n",
        ["7:3 profile 'default' is already on line 6; give each a name of its own [duplicate-profile]"],
    ),
    "unknown engine": (
        MODEL.replace("llamacpp", "llama.cpp"),
        ["6:11 unknown engine 'llama.cpp', did you mean 'llamacpp'? [unknown-engine]"],
    ),
    "alias twice": (
        MODEL + "aliases: [a, A]\n",
        ["7:14 alias 'A' repeats what line 7 says; remove it [duplicate-alias]"],
    ),
    "adapter that is an alias": (
        MODEL.replace("llamacpp", "vllm")
        + "  gpu: {class: c}\naliases: [A]\nadapters: [{name: a, weights: {path: x}}]\n",
        [
            "7:16 GPU class 'c' is not declared; the Cluster's `gpu_classes` is empty [unknown-gpu-class]",
            "9:19 adapter 'a' repeats what line 8 says; give it a name of its own [duplicate-adapter]",
        ],
    ),
    "alias that is the name": (
        MODEL + "aliases: [Qwen]\n",
        ["7:11 alias 'Qwen' repeats what line 3 says; remove it [duplicate-alias]"],
    ),
    "told once although merged": (
        MODEL + "- &p {name: b, engine: llamacpp, cpus: 0, cpu: 1}\n- {<<: *p, name: c}\n- {<<: *p, name: d}\n",
        [
            "7:40 'cpus' must be at least 1, found 0 [out-of-range]",
            "7:43 unknown key 'cpu', did you mean 'cpus'? [unknown-key]",
        ],
    ),
    "wrong where it is used": (
        MODEL + "  env: &e {A: b}\n- {name: b, engine: llamacpp, args: *e}\n",
        ["8:37 'args' expects a list, found a mapping; write each item after a `- ` [wrong-type]"],
    ),
    "everything at once": (
        MODEL.replace("llamacpp", "lamacpp") + "  cpus: four\nreplcas: 1\nreplicas: 1\nreplicas: 2\naliases: [~]\n",
        [
            "6:11 unknown engine 'lamacpp', did you mean 'llamacpp'? [unknown-engine]",
            "7:9 'cpus' expects a whole number, found the text 'four' [wrong-type]",
            "8:1 unknown key 'replcas', did you mean 'replicas'? [unknown-key]",
            "10:1 duplicate key 'replicas', first given on line 9; keep one of them [duplicate-key]",
            '11:11 `~` is no value; write one or remove it, or put "~" in quotes if it is text [no-value]',
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG.keys())
def test_one_wrong_file(text: str, expected: list[str]) -> None:
    assert told_of(text) == expected


BETWEEN = {
    "no file": (
        {},
        ["no YAML file in this directory; add one with `apiVersion: llmgw/v1` and `kind: Cluster` [no-files]"],
    ),
    "no cluster": ({"m": MODEL}, ["no Cluster object; add a file with `kind: Cluster` and a name [no-cluster]"]),
    "no word of a missing cluster while a file is unreadable": (
        {"m": MODEL, "x": "a: ["},
        ["x.yaml:1:5 a value is missing before the end; write it, or put what is text in quotes [syntax]"],
    ),
    "two clusters": (
        {"a": CLUSTER, "b": CLUSTER},
        ["b.yaml:2:7 a second Cluster object, the first is at a.yaml:2:7; keep one of them [second-cluster]"],
    ),
    "two of a name": (
        {"a": CLUSTER, "b": MODEL, "c": "# moved\n" + MODEL},
        ["c.yaml:4:7 Model 'qwen' is already defined at b.yaml:3:7; rename or remove one of them [duplicate-object]"],
    ),
    "a node and a model of one name": ({"a": CLUSTER, "b": MODEL, "c": SSH.replace("name: box", "name: qwen")}, []),
    "alias of another": (
        {"a": CLUSTER, "b": MODEL + "aliases: [GPT-4]\n", "c": MODEL.replace("qwen", "m") + "aliases: [gpt-4, Qwen]\n"},
        [
            "c.yaml:7:11 alias 'gpt-4' is already an alias of model 'qwen' at b.yaml:7:11; keep one [duplicate-alias]",
            "c.yaml:7:18 alias 'Qwen' is the name of model 'qwen' at b.yaml:3:7; keep one [duplicate-alias]",
        ],
    ),
    "an alias that is a later model's name": (
        {"a": CLUSTER, "b": MODEL + "aliases: [m]\n", "c": MODEL.replace("qwen", "m")},
        ["b.yaml:7:11 alias 'm' is the name of model 'm' at c.yaml:3:7; keep one [duplicate-alias]"],
    ),
    "engines of the cluster": (
        {"a": CLUSTER + "engines:\n- name: llamacpp\n- name: llamacpp\n- name: vlm\n"},
        [
            "a.yaml:6:9 engine 'llamacpp' is already given on line 5; merge the two [duplicate-engine]",
            "a.yaml:7:9 unknown engine 'vlm', did you mean 'vllm'? [unknown-engine]",
        ],
    ),
    "too few ports": (
        {"a": CLUSTER + "control: {ports: [20000, 20002]}\n", "b": MODEL + "replicas: 4\n"},
        [
            (
                "a.yaml:4:18 4 replicas in all, but `control.ports` 20000 to 20002 has only 3 ports; widen the range "
                "[too-few-ports]"
            )
        ],
    ),
    "too few ports on all nodes together": (
        {
            "a": CLUSTER + "control: {ports: [20000, 20002]}\n",
            "b": MODEL + "replicas: 7\n",
            "c": SSH,
            "d": SSH.replace("box", "den"),
        },
        [
            (
                "a.yaml:4:18 7 replicas in all, but `control.ports` 20000 to 20002 has only 3 ports on each of 2 nodes; "
                "widen the range [too-few-ports]"
            )
        ],
    ),
    "ports are given out on every node": (
        {
            "a": CLUSTER + "control: {ports: [20000, 20002]}\n",
            "b": MODEL + "replicas: 6\n",
            "c": SSH,
            "d": SSH.replace("box", "den"),
        },
        [],
    ),
    "just enough ports": ({"a": CLUSTER + "control: {ports: [20000, 20002]}\n", "b": MODEL + "replicas: 3\n"}, []),
    "ports the wrong way round": (
        {"a": CLUSTER + "control:\n  ports: [3, 2]\n"},
        ["a.yaml:5:10 the range ends at 2, before it begins at 3; write the lower port first [empty-range]"],
    ),
    "no node in the pool": (
        {"a": CLUSTER, "b": MODEL + "  pool: gpu\n"},
        ["b.yaml:7:9 no node is in pool 'gpu'; the profile cannot be placed until one is [empty-pool]"],
    ),
    "a pool of almost that name": (
        {"a": CLUSTER, "b": MODEL + "  pool: gpus\n", "c": SSH + "pool: gpu\n"},
        ["b.yaml:7:9 no node is in pool 'gpus', did you mean 'gpu'? [empty-pool]"],
    ),
    "no word of pools while a node is invalid": (
        {"a": CLUSTER, "b": MODEL + "  pool: gpu\n", "c": SSH + "pol: gpu\n"},
        ["c.yaml:7:1 unknown key 'pol', did you mean 'pool'? [unknown-key]"],
    ),
}


@pytest.mark.parametrize(("files", "expected"), BETWEEN.values(), ids=BETWEEN.keys())
def test_between_objects(files: dict[str, str], expected: list[str]) -> None:
    outcome = compile_tree(tree(**files))
    assert told(outcome) == expected
    only_warnings = all("[empty-pool]" in line for line in expected)
    assert isinstance(outcome, Accepted if only_warnings else Rejected)


UNSEEN = ", which is not read: objects in it would not be seen; put the files themselves here"


def test_what_is_not_a_file() -> None:
    refused = {
        "models/a.yaml": "symlink",
        ".git/x.yaml": "symlink",
        "README.md": "symlink",
        "LICENSE": "symlink to a file",
        ".models": "symlink to a directory",
        "models/more": "submodule",
        "models.d": "symlink to a directory",
        "shared": "symlink",
        "big.yaml": "file of more than 256 KiB",
        "big/a.yaml": "file beyond the first 32 MiB of the directory",
        "big/b.yaml": "file beyond the first 32 MiB of the directory",
    }
    outcome = compile_tree(SourceTree(Revision("r1"), {"c.yaml": CLUSTER.encode()}, refused))
    assert told(outcome) == [
        "big.yaml a file of more than 256 KiB, which is not read; is this an object's file? [file-too-large]",
        (
            "big/a.yaml a file beyond the first 32 MiB of the directory, which is not read (and 1 more); "
            "is this a cluster directory? [tree-too-large]"
        ),
        "models.d a symlink to a directory" + UNSEEN + " [not-a-file]",
        "models/a.yaml a symlink, which is not read; put the file itself here [not-a-file]",
        "models/more a submodule" + UNSEEN + " [not-a-file]",
        (
            "shared a symlink" + UNSEEN + ", or give the name an ending, as in shared.md, if it leads to no directory "
            "[not-a-file]"
        ),
    ]
    assert isinstance(outcome, Rejected)
    assert {problem.severity for problem in outcome.problems} == {"error"}


@pytest.mark.parametrize(
    ("path", "what"),
    [("README.md", "symlink"), ("LICENSE", "symlink to a file"), (".github", "symlink to a directory")],
)
def test_a_link_that_can_hold_no_object_is_of_no_account(path: str, what: str) -> None:
    linked = SourceTree(Revision("r1"), {"c.yaml": CLUSTER.encode()}, {path: what})
    assert told(compile_tree(linked)) == []
    assert tree_digest(linked) == tree_digest(replace(linked, refused={}))
    assert any("[no-cluster]" in line for line in told(compile_tree(replace(linked, files={"n.yaml": SSH.encode()}))))


def test_a_directory_of_nothing_but_a_symlink_is_rejected() -> None:
    outcome = compile_tree(SourceTree(Revision("r1"), {}, {"a.yaml": "symlink"}))
    assert told(outcome) == ["a.yaml a symlink, which is not read; put the file itself here [not-a-file]"]


def test_names_that_are_one_on_some_file_systems() -> None:
    files = {"c.yaml": CLUSTER, "N/\u00e9.yaml": SSH, "n/e\u0301.yaml": SSH.replace("box", "b2")}
    outcome = compile_tree(SourceTree(Revision("r1"), {path: text.encode() for path, text in files.items()}))
    assert told(outcome) == [
        (
            "n/e\u0301.yaml differs from N/\u00e9.yaml in case only, which some file systems ignore; "
            "rename one of them [case-collision]"
        ),
    ]


def test_problems_are_sorted_by_line_as_a_number_and_have_snippets() -> None:
    outcome = compile_tree(tree(c=CLUSTER, b=MODEL + "\n\n\n\nreplcas: 1\n" + "polices: 2\n", a=NODE + "lokal: true\n"))
    assert isinstance(outcome, Rejected)
    where = [(problem.path, problem.line, problem.snippet, problem.end_column) for problem in outcome.problems]
    assert where == [
        ("a.yaml", 4, "lokal: true", 6),
        ("b.yaml", 11, "replcas: 1", 8),
        ("b.yaml", 12, "polices: 2", 8),
    ]


def test_a_flood_is_cut_short() -> None:
    outcome = compile_tree(tree(c=CLUSTER, x=MODEL + "".join(f"k{n}: 1\n" for n in range(300))))
    assert isinstance(outcome, Rejected)
    assert len(outcome.problems) == 101
    assert told(outcome)[-1] == (
        "x.yaml:106:2 200 more problems in this file; mend those above first [too-many-problems]"
    )


def test_a_compiler_reads_again_only_what_changed_and_says_the_same() -> None:
    compiler = Compiler()
    first = tree(c=CLUSTER, a=MODEL, b=SSH)
    second = tree(c=CLUSTER, a=MODEL + "replcas: 2\n", d=SSH)
    for step in (first, second, first, tree(), first):
        assert compiler.compile(step) == compile_tree(step)
    before, after = compiler.compile(first), compiler.compile(tree(c=CLUSTER, a=MODEL, b=SSH + "pool: x\n"))
    assert isinstance(before, Accepted)
    assert isinstance(after, Accepted)
    assert after.catalog.models["qwen"] is before.catalog.models["qwen"]
    assert after.catalog.nodes["box"] is not before.catalog.nodes["box"]
