"""What there is on a node, as `Found`: one script that only looks, and the reading of what it prints.

The script is plain `sh`: it must run before anything of ours is there. It prints `key value` lines; a value that is a
path or a sentence is the rest of the line.
"""

import shlex

from llmgw.adapters.node_plan import LEAST_PYTHON, UNIT, Found, Manager

PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")
TOO_NEW = (3, 14)
_LOOK_AT_PYTHON = f"""\
import platform, sys
version = sys.version_info[:2]
text = "%d.%d" % version
if not {LEAST_PYTHON} <= version < {TOO_NEW}:
    print("trouble", "%s is Python %s, and the agent needs 3.11 to 3.13" % (sys.executable, text))
else:
    try:
        import ensurepip, venv
    except ImportError as error:
        print("trouble", "%s has no %s, which a private environment needs" % (sys.executable, error.name))
    else:
        print("python", text, platform.machine(), sys.executable)
"""


def script(prefix: str, unit_path: str, manager: Manager) -> str:
    """Return the script that looks. `prefix` and `unit_path` may begin with `~/`."""
    control = systemctl(manager)
    return f"""\
export LC_ALL=C
{USER_BUS}
echo "home $HOME"
echo "user $(id -un)"
echo "uid $(id -u)"
echo "runtime $XDG_RUNTIME_DIR"
for python in {" ".join(PYTHONS)}; do
  path=$(command -v "$python") || continue
  said=$("$path" -c {shlex.quote(_LOOK_AT_PYTHON)} 2>/dev/null) || said="trouble $path does not run"
  echo "$said"
  case $said in python*) break;; esac
done
prefix={_home(prefix)}
unit={_home(unit_path)}
at=$prefix
while [ ! -e "$at" ] && [ "$at" != / ]; do at=$(dirname "$at"); done
echo "free $(df -Pk "$at" | awk 'NR == 2 {{ print $4 }}')"
echo "current $(basename "$(readlink "$prefix/current" 2>/dev/null)")"
for venv in "$prefix"/venvs/*; do
  [ -d "$venv" ] || continue
  if [ -e "$venv/whole" ] && "$venv/bin/python" -c 'import llmgw.agent.main' >/dev/null 2>&1
  then echo "whole $(basename "$venv")"
  else echo "other $(basename "$venv")"
  fi
done
echo "applied $(cat "$prefix/applied" 2>/dev/null)"
if command -v systemctl >/dev/null; then
  echo "systemd $(systemctl --version | awk 'NR == 1 {{ print $2 }}')"
  echo "state $(systemctl is-system-running 2>/dev/null)"
  echo "user-state $(systemctl --user is-system-running 2>/dev/null)"
  {control} is-enabled --quiet {UNIT} 2>/dev/null && echo enabled yes
  {control} is-active --quiet {UNIT} 2>/dev/null && echo active yes
  [ "$(loginctl show-user "$(id -un)" --property=Linger --value 2>/dev/null)" = yes ] && echo lingers yes
fi
[ -f "$unit" ] && echo "unit $(sha256sum "$unit" | cut -d ' ' -f 1)"
command -v sudo >/dev/null && sudo -n true 2>/dev/null && echo sudo yes
exit 0
"""


USER_BUS = '[ -n "$XDG_RUNTIME_DIR" ] || export XDG_RUNTIME_DIR="/run/user/$(id -u)"'
"""A login without PAM has no `XDG_RUNTIME_DIR`, and without it the user's systemd is not found."""


def systemctl(manager: Manager) -> str:
    """Return the command that speaks to the manager."""
    return "systemctl --user" if manager == "user" else "systemctl"


def read(out: str, manager: Manager) -> Found:
    """Return what the script said. Raises ValueError if that was something else."""
    said: dict[str, list[str]] = {}
    for text in out.splitlines():
        key, _, value = text.partition(" ")
        said.setdefault(key, []).append(value.strip())
    one = {key: values[-1] for key, values in said.items()}
    if not {"home", "uid", "free"} <= one.keys():
        raise ValueError("it printed no facts")
    version, _, rest = one.get("python", "").partition(" ")
    machine, _, python = rest.partition(" ")
    number = one.get("systemd", "")
    lingers = "lingers" in one
    # the user's own systemd runs only while the user is logged in or lingers; it starts once lingering is on
    runs = _runs(one.get("user-state" if manager == "user" and lingers else "state", ""))
    return Found(
        home=one["home"],
        user=one.get("user", ""),
        uid=int(one["uid"]),
        python=python,
        python_trouble=said.get("trouble", ["python3 is not there"])[0],
        python_version=version,
        machine=machine,
        systemd=int(number) if number.isdigit() and runs else None,
        free=int(one["free"] or 0) << 10,
        current=one.get("current", ""),
        whole=tuple(said.get("whole", ())),
        others=tuple(said.get("other", ())),
        unit_digest=one.get("unit", ""),
        enabled="enabled" in one,
        active="active" in one,
        lingers=lingers,
        applied=one.get("applied", ""),
        sudo="sudo" in one,
        runtime_dir=one.get("runtime", ""),
    )


def _runs(state: str) -> bool:
    return state not in ("", "offline", "unknown")


def _home(path: str) -> str:
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}'
    return shlex.quote(path)
