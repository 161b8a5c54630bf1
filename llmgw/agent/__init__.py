"""The program on a node: its own small composition root, few dependencies."""
