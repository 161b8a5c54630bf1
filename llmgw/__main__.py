"""`python -m llmgw`: the command line."""

from llmgw.cli.main import main

main()
