"""Editing in place: for every way a value can be written, the exact bytes before and after."""

# ruff: noqa: E501 - a table is read line by line

import pytest

from llmgw.catalog.edit import edit
from llmgw.catalog.edit_paths import BadChange, Change, parse_change, parse_removal
from llmgw.catalog.edit_text import flow_text
from llmgw.catalog.problems import Problem
from llmgw.catalog.reader import read_document

HEAD = "apiVersion: llmgw/v1\nkind: Model\nname: m\n"


def change(text: str) -> Change:
    """A change as on the command line; `- PATH` is a removal."""
    return parse_removal(text[2:]) if text.startswith("- ") else parse_change(text)


def edited(body: str, *changes: str, head: str = HEAD) -> str:
    data = (head + body).encode()
    for each in changes:
        after = edit("m.yaml", data, change(each))
        assert isinstance(after, bytes), str(after)
        data = after
    text = data.decode()
    assert text.startswith(head)
    return text[len(head) :]


def refused(body: str, text: str, head: str = HEAD) -> str:
    answer = edit("m.yaml", (head + body).encode(), change(text))
    assert isinstance(answer, Problem), answer.decode()
    return str(answer)


# what is written: body, change, body afterwards

SCALARS = {
    "a number": ("replicas: 2\n", "replicas=3", "replicas: 3\n"),
    "a comment behind it": ("replicas: 2   # two\n# next\n", "replicas=30", "replicas: 30   # two\n# next\n"),
    "no line end": ("replicas: 2", "replicas=3", "replicas: 3"),
    "CRLF": ("replicas: 2 # a\r\npriority: 1\r\n", "replicas=3", "replicas: 3 # a\r\npriority: 1\r\n"),
    "CR": ("replicas: 2\rpriority: 1\r", "replicas=3", "replicas: 3\rpriority: 1\r"),
    "emoji before it": ("# 😀😀\nreplicas: 2 # 😀\n", "replicas=3", "# 😀😀\nreplicas: 3 # 😀\n"),
    "emoji as a value": ("env: {A: 😀x}\n", "env.A=y😀", "env: {A: y😀}\n"),
    "the same value": ("replicas:   0x2\n", "replicas=2", "replicas:   0x2\n"),
    "double quotes": ('placement: "pack"\n', "placement=spread", 'placement: "spread"\n'),
    "single quotes": ("placement: 'pack'\n", "placement=it's", "placement: 'it''s'\n"),
    "double quotes with escapes": (
        'placement: "\\u0041\\\n  b" # c\n',
        "placement=a\"b\\'",
        "placement: \"a\\\"b\\\\'\" # c\n",
    ),
    "quotes to a number": ('replicas: "2"\n', "replicas=2", "replicas: 2\n"),
    "a number to a text": ("priority: 2\n", "priority='2'", 'priority: "2"\n'),
    "needs quotes": ("placement: pack\n", "placement=a: b # c", 'placement: "a: b # c"\n'),
    "a word of YAML 1.1": ("placement: pack\n", "placement=off", 'placement: "off"\n'),
    "a template": ("placement: pack\n", "placement=a {{ b }}", 'placement: "a {{ b }}"\n'),
    "true": ("preempt: false # no\n", "preempt=true", "preempt: true # no\n"),
    "several lines": ("placement: pack\n  and\n\n  more  # c\nreplicas: 1\n", "placement=x", "placement: x  # c\nreplicas: 1\n"),
    "a block text": (
        "placement: | # why\n  a\n  # b\n\n# c\nreplicas: 1\n",
        "placement=x",
        "placement: x # why\n\n# c\nreplicas: 1\n",
    ),
    "a folded text at the end": ("placement: >-\n  a\n  b\n", "placement=x", "placement: x\n"),
    "to several lines": ('placement: x\n', 'placement="a\\nb"', 'placement: "a\\nb"\n'),
    "in a mapping": ("limits:\n    queue: 5 # q\n", "limits.queue=6", "limits:\n    queue: 6 # q\n"),
    "in braces": ("limits: { queue: 5 , inflight: 7 }\n", "limits.queue=66", "limits: { queue: 66 , inflight: 7 }\n"),
    "in braces as in JSON": ('limits: {"queue":5}\n', "limits.queue=6", 'limits: {"queue": 6}\n'),
    "on the next line": ("replicas:\n  2\n", "replicas=3", "replicas:\n  3\n"),
    "with an anchor": ("replicas: &r 2 # r\n", "replicas=3", "replicas: &r 3 # r\n"),
    "an alias": ("replicas: &r 2\npriority: *r # p\n", "priority=3", "replicas: &r 2\npriority: 3 # p\n"),
    "a quoted key": ('"replicas": 2\n', "replicas=3", '"replicas": 3\n'),
    "a key with a dot": ("env: {a.b: x}\n", 'env."a.b"=z', "env: {a.b: z}\n"),
    "a key with a question mark": ("? replicas\n: 2\n", "replicas=3", "? replicas\n: 3\n"),
}  # fmt: skip

LISTS = {
    "append in brackets": ("aliases: [a, b] # c\n", "aliases[+]=c", "aliases: [a, b, c] # c\n"),
    "append in brackets with a comma": ("aliases: [a, b, ]\n", "aliases[+]=c", "aliases: [a, b, c, ]\n"),
    "append to nothing": ("aliases: [] # none\n", "aliases[+]=c", "aliases: [c] # none\n"),
    "append to blanks": ("aliases: [  ]\n", "aliases[+]=c", "aliases: [c]\n"),
    "append to a comment": ("aliases: [ # c\n  ]\n", "aliases[+]=c", "aliases: [c # c\n  ]\n"),
    "append to a missing key": ("replicas: 2\n", "aliases[+]=c", "aliases: [c]\nreplicas: 2\n"),
    "append to lines": ("aliases:\n  - a # x\n# y\nreplicas: 2\n", "aliases[+]=b", "aliases:\n  - a # x\n  - b\n# y\nreplicas: 2\n"),
    "append to lines without indentation": ("aliases:\n- a\n", "aliases[+]=b", "aliases:\n- a\n- b\n"),
    "append to lines without a line end": ("aliases:\n-   a", "aliases[+]=b", "aliases:\n-   a\n-   b"),
    "append behind a comment of the list": ("aliases:\n  - a\n    # more\n\n    # and\nreplicas: 2\n", "aliases[+]=b", "aliases:\n  - a\n    # more\n\n    # and\n  - b\nreplicas: 2\n"),
    "append to CRLF": ("aliases:\r\n  - a # x\r\n", "aliases[+]=b", "aliases:\r\n  - a # x\r\n  - b\r\n"),
    "append to quoted": ("aliases: ['a', 'b']\n", "aliases[+]=c", "aliases: ['a', 'b', 'c']\n"),
    "append to mixed": ("aliases: [a, \"1\"]\n", "aliases[+]=c", "aliases: [a, \"1\", c]\n"),
    "append what needs quotes in brackets": ("aliases: [a]\n", "aliases[+]=b,c", 'aliases: [a, "b,c"]\n'),
    "append what needs none in lines": ("aliases:\n- a\n", "aliases[+]=b,c", "aliases:\n- a\n- b,c\n"),
    "append to several lines": ("aliases: [\n  a, # a\n  b # b\n]\n", "aliases[+]=c", "aliases: [\n  a, # a\n  b, # b\n  c\n]\n"),
    "append to several lines with a comma": ("aliases: [\n  a, # a\n  b, # b\n]\n", "aliases[+]=c", "aliases: [\n  a, # a\n  b, # b\n  c,\n]\n"),
    "append to several lines, closed early": ("aliases: [\n  a,\n  b]\n", "aliases[+]=c", "aliases: [\n  a,\n  b,\n  c]\n"),
    "append to an anchored list": ("aliases: &l # l\n  - a\n", "aliases[+]=b", "aliases: &l # l\n  - a\n  - b\n"),
    "append a mapping": ("profiles:\n  - name: a\n    engine: b\n", "profiles[+]={name: c, engine: d}", "profiles:\n  - name: a\n    engine: b\n  - {name: c, engine: d}\n"),
    "append a number as text": ("aliases: [a]\n", 'aliases[+]="1"', 'aliases: [a, "1"]\n'),
    "append an alias's sign": ("aliases: [a]\n", "aliases[+]=*.gguf", 'aliases: [a, "*.gguf"]\n'),
    "an item": ("aliases: [a, b, c]\n", "aliases[1]=x", "aliases: [a, x, c]\n"),
    "an item of lines": ("aliases:\n  - a # a\n  - 'b' # b\n", "aliases[1]=x", "aliases:\n  - a # a\n  - 'x' # b\n"),
    "an item by name": ("profiles:\n  - name: a\n    engine: b\n  - {engine: c, name: d}\n", "profiles[name=d].engine=e", "profiles:\n  - name: a\n    engine: b\n  - {engine: e, name: d}\n"),
    "an item by the name it has by default": ("profiles:\n  - engine: b\n", "profiles[name=default].engine=c", "profiles:\n  - engine: c\n"),
    "an item by something else": ("profiles: [{name: a, engine: b}, {nodes: 2, name: c}]\n", "profiles[nodes=2].name=d", "profiles: [{name: a, engine: b}, {nodes: 2, name: d}]\n"),
    "the whole list": ("aliases: [a, b] # c\n", "aliases=[x, b, z]", "aliases: [x, b, z] # c\n"),
    "the whole list of lines": ("aliases:\n  - a # a\n  - b # b\n  - c # c\nreplicas: 1\n", "aliases=[a, x]", "aliases:\n  - a # a\n  - x # b\nreplicas: 1\n"),
    "lines to nothing": ("aliases: # why\n  - a\n  # b\n  - c # c\n# d\nreplicas: 1\n", "aliases=[]", "aliases: [] # why\n# d\nreplicas: 1\n"),
    "anchored lines to nothing": ("aliases: &l # why\n  - a\nreplicas: 1\n", "aliases=[]", "aliases: &l [] # why\nreplicas: 1\n"),
    "nothing to a list": ("aliases: []\n", "aliases=[a, 'b']", "aliases: [a, b]\n"),
    "an alias to a list": ("aliases: &l [a]\nenv: {X: *l}\n", "env.X=[b]", "aliases: &l [a]\nenv: {X: [b]}\n"),
    "lists in a list": ("env:\n- - a\n  - b\n- c\n", "env[0][1]=x", "env:\n- - a\n  - x\n- c\n"),
    "append in a list in a list": ("env:\n- - a\n- c\n", "env[0][+]=b", "env:\n- - a\n  - b\n- c\n"),
    "a list in a list to nothing": ("env:\n- - a\n  - b\n- c\n", "env[0]=[]", "env:\n- []\n- c\n"),
}  # fmt: skip

CREATED = {
    "in the order of the language": ("weights: {path: x}\nprofiles: []\n", "replicas=3", "weights: {path: x}\nreplicas: 3\nprofiles: []\n"),
    "behind a comment": ("weights: {path: x} # w\n# p\nprofiles: []\n", "replicas=3", "weights: {path: x} # w\nreplicas: 3\n# p\nprofiles: []\n"),
    "at the end": ("weights: {path: x}\n", "protect=true", "weights: {path: x}\nprotect: true\n"),
    "at the end without a line end": ("weights: {path: x}", "protect=true", "weights: {path: x}\nprotect: true"),
    "before the end of the document": ("weights: {path: x}\n...\n", "protect=true", "weights: {path: x}\nprotect: true\n...\n"),
    "behind lines": ("weights:\n  path: x\n  # sha256: y\nprofiles: []\n", "replicas=3", "weights:\n  path: x\n  # sha256: y\nreplicas: 3\nprofiles: []\n"),
    "behind a text in lines": ("weights:\n  path: |\n    x\n\n# p\nprofiles: []\n", "replicas=3", "weights:\n  path: |\n    x\nreplicas: 3\n\n# p\nprofiles: []\n"),
    "in an order that is not the language's": ("profiles: []\nweights: {path: x}\n", "replicas=3", "profiles: []\nweights: {path: x}\nreplicas: 3\n"),
    "first in a mapping": ("limits:\n  inflight: 2 # i\n", "limits.queue=1", "limits:\n  queue: 1\n  inflight: 2 # i\n"),
    "first in an item": ("profiles:\n  - engine: e # e\n    args: []\n", "profiles[0].name=x", "profiles:\n  - name: x\n    engine: e # e\n    args: []\n"),
    "in an item": ("profiles:\n-   name: n\n    args: []\n", "profiles[0].engine=e", "profiles:\n-   name: n\n    engine: e\n    args: []\n"),
    "in braces": ("limits: {queue: 1}\n", "limits.inflight=2", "limits: {queue: 1, inflight: 2}\n"),
    "first in braces": ("limits: { inflight: 2 }\n", "limits.queue=1", "limits: { queue: 1, inflight: 2 }\n"),
    "in braces of lines": ("limits: {\n    inflight: 2, # i\n}\n", "limits.queue=1", "limits: {\n    queue: 1,\n    inflight: 2, # i\n}\n"),
    "in empty braces": ("limits: {}\n", "limits.queue=1", "limits: {queue: 1}\n"),
    "with the mapping around it": ("weights: {path: x}\n", "limits.queue=1", "weights: {path: x}\nlimits:\n  queue: 1\n"),
    "with the file's indentation": ("weights:\n    path: x\n", "limits.queue=1", "weights:\n    path: x\nlimits:\n    queue: 1\n"),
    "with CRLF": ("weights:\r\n path: x\r\n", "limits.queue=1", "weights:\r\n path: x\r\nlimits:\r\n queue: 1\r\n"),
    "with all around it in braces": ("profiles: [{name: a}]\n", "profiles[0].gpu.count=1", "profiles: [{name: a, gpu: {count: 1}}]\n"),
    "with a list around it": ("profiles:\n  - name: a\n", "profiles[0].args[+]=--x", "profiles:\n  - name: a\n    args: [--x]\n"),
    "free keys at the end": ("env:\n  Z: a\n", "env.A=b", "env:\n  Z: a\n  A: b\n"),
    "a key that needs quotes": ("env: {Z: a}\n", 'env."a: b"=c', 'env: {Z: a, "a: b": c}\n'),
    "a key of YAML 1.1": ("env:\n  Z: a\n", "env.on=c", 'env:\n  Z: a\n  "on": c\n'),
    "over a merged one": ("profiles:\n  - &b {name: a, engine: e}\n  - <<: *b\n    name: c\n", "profiles[1].engine=f", "profiles:\n  - &b {name: a, engine: e}\n  - <<: *b\n    name: c\n    engine: f\n"),
    "behind a merge alone": ("profiles:\n  - &b {name: a, engine: e}\n  - <<: *b\n", "profiles[1].name=f", "profiles:\n  - &b {name: a, engine: e}\n  - <<: *b\n    name: f\n"),
}  # fmt: skip

REMOVED = {
    "a line": ("weights: {path: x}\n# r\nreplicas: 2 # two\n# p\nprofiles: []\n", "- replicas", "weights: {path: x}\n# r\n# p\nprofiles: []\n"),
    "by an empty value": ("weights: {path: x}\nreplicas: 2\n", "replicas=", "weights: {path: x}\n"),
    "the last line": ("weights: {path: x}\nreplicas: 2", "- replicas", "weights: {path: x}\n"),
    "lines": ("weights:\n  path: x\n\n  url: y # y\n\nreplicas: 2\n", "- weights", "\nreplicas: 2\n"),
    "with CRLF": ("weights: {path: x}\r\nreplicas: 2\r\npriority: 1\r\n", "- replicas", "weights: {path: x}\r\npriority: 1\r\n"),
    "a text in lines": ("placement: |\n  a\n\nreplicas: 2\n", "- placement", "\nreplicas: 2\n"),
    "in braces": ("limits: {queue: 1, inflight: 2}\n", "- limits.queue", "limits: {inflight: 2}\n"),
    "last in braces": ("limits: {queue: 1, inflight: 2 }\n", "- limits.inflight", "limits: {queue: 1 }\n"),
    "in braces of lines": ("limits: {\n  queue: 1, # q\n  inflight: 2 # i\n}\n", "- limits.queue", "limits: {\n  inflight: 2 # i\n}\n"),
    "last in braces of lines": ("limits: {\n  queue: 1, # q\n  inflight: 2 # i\n}\n", "- limits.inflight", "limits: {\n  queue: 1, # q\n}\n"),
    "closed early": ("aliases: [a, # a\n  b]\n", "- aliases[1]", "aliases: [a, # a\n  ]\n"),
    "closed early behind a comma": ("aliases: [a, # a\n  b,]\n", "- aliases[1]", "aliases: [a, # a\n  ]\n"),
    "the only one": ("limits:\n  queue: 1 # q\nreplicas: 1\n", "- limits.queue", "limits: {}\nreplicas: 1\n"),
    "the only one in braces": ("limits: { queue: 1, } # l\n", "- limits.queue", "limits: {} # l\n"),
    "the only item": ("aliases: # a\n- x\nreplicas: 1\n", "- aliases[0]", "aliases: [] # a\nreplicas: 1\n"),
    "first in an item": ("profiles:\n  - name: a # a\n    engine: e # e\n", "- profiles[0].name", "profiles:\n  - engine: e # e\n"),
    "first in an item, a comment behind it": ("profiles:\n  - name: a\n    # e\n    engine: e\n", "- profiles[0].name", "profiles:\n  -\n    # e\n    engine: e\n"),
    "an item": ("aliases: [a, b, c]\n", "- aliases[1]", "aliases: [a, c]\n"),
    "an item of lines": ("aliases:\n  - a # a\n  # b\n  - b # b\n  - c\n", "- aliases[1]", "aliases:\n  - a # a\n  # b\n  - c\n"),
    "an item by name": ("profiles:\n  - name: a\n    engine: b\n  - name: c\n    engine: d\n", "- profiles[name=a]", "profiles:\n  - name: c\n    engine: d\n"),
    "what overrides a merge": ("env:\n  - &b {x: 1}\n  - <<: *b\n    y: 2\n", "- env[1].y", "env:\n  - &b {x: 1}\n  - <<: *b\n"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "text", "after"), SCALARS.values(), ids=list(SCALARS))
def test_scalars(before: str, text: str, after: str) -> None:
    assert edited(before, text) == after


@pytest.mark.parametrize(("before", "text", "after"), LISTS.values(), ids=list(LISTS))
def test_lists(before: str, text: str, after: str) -> None:
    assert edited(before, text) == after


@pytest.mark.parametrize(("before", "text", "after"), CREATED.values(), ids=list(CREATED))
def test_created(before: str, text: str, after: str) -> None:
    assert edited(before, text) == after


@pytest.mark.parametrize(("before", "text", "after"), REMOVED.values(), ids=list(REMOVED))
def test_removed(before: str, text: str, after: str) -> None:
    assert edited(before, text) == after


def test_a_byte_order_mark_and_line_ends_stay() -> None:
    before = b"\xef\xbb\xbf" + HEAD.replace("\n", "\r\n").encode() + "replicas: 1 # 😀\r\n".encode()
    after = edit("m.yaml", before, change("replicas=2"))
    assert after == before.replace(b"replicas: 1", b"replicas: 2")
    created = edit("m.yaml", before, change("aliases[+]=x"))
    assert created == before.replace(b"replicas", b"aliases: [x]\r\nreplicas")


def test_a_mapping_changes_key_by_key() -> None:
    before = "limits: # l\n  queue: 1 # q\n  inflight: 2 # i\n"
    assert edited(before, "limits={inflight: 3}") == "limits: # l\n  inflight: 3 # i\n"
    assert edited(before, "limits={}") == "limits: {} # l\n"
    assert edited("limits: {queue: 1}\n", "limits={inflight: 3, queue: 1}") == "limits: {queue: 1, inflight: 3}\n"


def test_changes_add_up() -> None:
    assert edited("replicas: 1\n", "replicas=2", "aliases[+]=a", "aliases[+]=b", "- replicas") == "aliases: [a, b]\n"


# what is refused: body, change, message

REFUSED = {
    "inside an alias": (
        "aliases: &l [a]\nenv: {X: *l}\n",
        "env.X[+]=b",
        "m.yaml:5:10 env.X is an alias of what is anchored on line 4; edit it there, or write the value out here",
    ),
    "inside an alias of a mapping": (
        "weights: &w\n  path: x\nlimits: *w\n",
        "limits.path=y",
        "m.yaml:6:9 limits is an alias of what is anchored on line 4; edit it there, or write the value out here",
    ),
    "what aliases share": (
        "replicas: &r 2\npriority: *r\n",
        "replicas=3",
        "m.yaml:4:11 priority on line 5 is an alias of it and would change too; write it out there first",
    ),
    "inside what aliases share": (
        "aliases: &l\n  - a\nenv: {X: *l}\n",
        "aliases[0]=b",
        "m.yaml:5:5 env.X[0] on line 6 is an alias of it and would change too; write it out there first",
    ),
    "an anchor that is used": (
        "aliases: [&x a, b]\nplacement: *x\n",
        "- aliases[0]",
        "m.yaml:4:11 aliases[0] holds an anchor that is used further below; write the value out there first",
    ),
    "inside what is merged": (
        "env:\n  - &b {x: {y: 1}}\n  - <<: *b\n",
        "env[1].x.y=2",
        "m.yaml:6:9 env[1].x comes through a `<<` of what is anchored on line 5; edit it there, or set env[1].x as a whole here",
    ),
    "a merged key cannot be removed": (
        "env:\n  - &b {x: 1}\n  - <<: *b\n",
        "- env[1].x",
        "m.yaml:6:9 env[1].x comes through a `<<` of what is anchored on line 5; edit it there, or set env[1].x as a whole here",
    ),
    "an unknown field": ("replicas: 1\n", "replcas=2", "m.yaml:1:1 a Model has no field 'replcas', did you mean 'replicas'?"),
    "an unknown field inside": ("limits:\n  queue: 1\n", "limits.inflght=2", "m.yaml:5:3 limits has no field 'inflght', did you mean 'inflight'?"),
    "an unknown field in what is missing": ("replicas: 1\n", "limits.foo=2", "m.yaml:1:1 limits has no field 'foo'; it has queue, inflight"),
    "no such item": ("profiles:\n- name: cpu\n- name: h100\n", "profiles[name=h10].engine=x", "m.yaml:5:1 no item of profiles has name=h10, did you mean 'h100'?"),
    "no item at all": ("profiles: []\n", "profiles[name=h10].engine=x", "m.yaml:4:11 no item of profiles has name=h10"),
    "two items": ("profiles:\n- {engine: a}\n- {engine: a}\n", "profiles[engine=a].nodes=2", "m.yaml:5:1 2 items of profiles have engine=a; name one by its position: profiles[0]"),
    "beyond the end": ("aliases: [a]\n", "aliases[1]=b", "m.yaml:4:10 aliases has 1 item, counted from 0; add one with aliases[+]=VALUE"),
    "an item of nothing": ("replicas: 1\n", "aliases[0]=b", "m.yaml:1:1 aliases is not set; set it, or append with aliases[+]=VALUE"),
    "a key of a number": ("replicas: 1\n", "replicas.min=1", "m.yaml:4:11 replicas is `1` and has no key 'min'"),
    "a key of a list": ("profiles: []\n", "profiles.name=1", "m.yaml:4:11 profiles is a list and has no key 'name'"),
    "an item of a mapping": ("limits: {}\n", "limits[+]=1", "m.yaml:4:9 limits is a mapping, not a list"),
    "nothing to remove": ("replicas: 1\n", "- replica", "m.yaml:1:1 key 'replica' is not set, there is nothing to remove, did you mean 'replicas'?"),
    "a file that cannot be read": ("replicas: [\n", "replicas=1", "m.yaml:5:1 a value is missing before the end; write it, or put what is text in quotes"),
    "a file with a mistake": ("replicas:\n", "replicas=1", "m.yaml:4:1 key 'replicas' has no value; write one or remove the key"),
    "a form that is not foreseen": ("env: [a: 1]\n", "env[0].b=1", "m.yaml:4:7 env[0] is written in a way that cannot be changed in place; edit it by hand"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "text", "message"), REFUSED.values(), ids=list(REFUSED))
def test_refused(body: str, text: str, message: str) -> None:
    assert refused(body, text) == message


# what is typed

BAD = {
    "replicas": "'replicas' has no value; write PATH=VALUE, or --unset PATH to remove it",
    "=3": "'=3' names no field; write PATH=VALUE, as in replicas=3",
    "a..b=1": "'a..b=1' cannot be read at character 3; a path is written like profiles[name=x].args[0] or args[+]",
    "[0]=1": "'[0]=1' cannot be read at character 1; a path is written like profiles[name=x].args[0] or args[+]",
    "a[-1]=1": "'a[-1]=1' cannot be read at character 2; a path is written like profiles[name=x].args[0] or args[+]",
    "a[+].b=1": "'a[+].b=1' goes on behind `[+]`; write the whole item, as in 'profiles[+]={name: x, engine: llamacpp}'",
    "a[+]=": "'a[+]=' has nothing to append; write the item behind the `=`",
    "a=null": '`null` is no value; use --unset to remove the field, or write "null" in quotes',
    "a=010": 'the value is `010`; write 10 without the leading zero, or 0o10 for the octal number, or "010" in quotes if it is text',
    "a=.inf": "`.inf` is not a number that any field takes; put it in quotes if it is text",
    "a=[1, 2": "the value '[1, 2' cannot be read: the `[` opened on line 1 is not closed here; add `,` or `]`",
    "a=[*x]": "the value '[*x]' cannot be read: alias `*x` has no anchor `&x` before it in this file; quote it if it is text",
    "a=[1]\nb: 2": "the value '[1]\\nb: 2' is more than one; write a single value",
    "a=\udcff": "'a=\\udcff' holds bytes that are not UTF-8; write it in UTF-8",
    "- a[+]": "'a[+]' names a new item; name the one to remove by its position, as in `args[0]`",
    "- a=1": "'a=1' is no path; --unset takes a path without a value",
}


@pytest.mark.parametrize(("text", "message"), BAD.items())
def test_what_is_no_change(text: str, message: str) -> None:
    with pytest.raises(BadChange) as refusal:
        change(text)
    assert str(refusal.value) == message


VALUES = {
    "3": 3, "3.5": 3.5, "0x10": 16, "true": True, "True": True, "no": "no", "10s": "10s", "a b": "a b", "'3'": "3",
    '"a\\tb"': "a\tb", "[a, 1, {b: c}]": ["a", 1, {"b": "c"}], "{}": {}, "--foo={x: 1}": "--foo={x: 1}", "a # b": "a # b",
    "*.gguf": "*.gguf", "&a b": "&a b", "!x": "!x", "a: b": "a: b", "- a": "- a", "a=b": "a=b", "''": "",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_what_a_value_means(text: str, value: object) -> None:
    found = parse_change(f"k={text}").value
    assert found == value
    assert type(found) is type(value)


TEXTS = [
    "", " ", "a", "a ", "1", "1.5", "-", "--", "- a", "?", ":", "a:", "a: b", "a:b", "#", "a #b", "a#b", "[", "a]", "a,b", "{}", "*a",
    "&a", "!a", "|", ">", "'", '"', "%a", "@a", "`a`", "~", "null", "true", "yes", "NO", "0644", "1_000", "22:22", "2024-01-01",
    "<<", "=", "=======", "---", "...", "a\nb", "a\tb", "\x07", "\u2028", "\ufeff", "😀", "{{ a }}", "a {{ b }}", "\\", "it's",
    "--ctx-size", "-1a", ".5", "1e3", "0x1F", "0b1", "a" * 2000, "é", "\x85", "0o7", ".inf", "http://x/y?z=1",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_every_text_reads_back(text: str, quote: str) -> None:
    for flow in (False, True):
        written = flow_text(text, flow=flow, quote=quote)
        line = f"v: [{written}\n  ]\n" if flow else f"v:\n- {written}\n"
        reading = read_document("x", line.encode())
        assert reading.problems == ()
        assert reading.document is not None
        assert reading.document.body["v"] == [text]
