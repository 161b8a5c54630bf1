"""What an operator may write: one module a kind, as frozen strict pydantic models; `schemas/` is generated from it."""
