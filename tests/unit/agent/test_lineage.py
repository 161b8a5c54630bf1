"""What the kernel does for an agent: its orphans come back to it."""

import subprocess
import sys

PROGRAM = """
import os, sys, time
from llmgw.agent.lineage import become_subreaper
if sys.argv[1] == "yes":
    become_subreaper()
told, tell = os.pipe()
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.01)
        os.write(tell, str(os.getppid()).encode())
    os._exit(0)
print(int(os.read(told, 20)) == os.getpid())
"""


def orphan_comes_back(subreaper: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, subreaper], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()


def test_an_orphaned_grandchild_is_given_to_the_agent() -> None:
    assert orphan_comes_back("yes") == "True"
    assert orphan_comes_back("no") == "False", "without it, the machine's init has it"
