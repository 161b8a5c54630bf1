"""`python -m llmgw.app.node`: a node's agent, started without the command line's libraries.

A node gets only what the agent imports (see `adapters/node_wheel.py`), so this program parses its few options with the
standard library. Options and defaults are those of `llmgw agent`.
"""

import argparse
import sys
from pathlib import Path

from llmgw import __version__
from llmgw.agent.main import CannotStart, default_socket, default_state_dir, run_agent
from llmgw.app.logs import configure


def main(arguments: list[str] | None = None) -> int:
    """Run an agent until it is told to stop; return the exit code."""
    parser = argparse.ArgumentParser(prog="llmgw-agent", description="Run a node's agent.")
    parser.add_argument("--socket", type=Path, help="Unix socket to listen on")
    parser.add_argument("--state-dir", type=Path, help="directory for state and engine logs")
    parser.add_argument("--weights-dir", type=Path, help="where relative weight paths start")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--version", action="version", version=__version__)
    given = parser.parse_args(arguments)
    configure("agent", given.log_level)
    try:
        run_agent(
            (given.socket or default_socket()).absolute(),
            (given.state_dir or default_state_dir()).absolute(),
            given.weights_dir.absolute() if given.weights_dir else None,
            ephemeral=False,
        )
    except CannotStart as error:
        sys.stderr.write(f"llmgw-agent: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
