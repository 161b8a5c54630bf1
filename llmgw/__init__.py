"""llmgw: a declarative GitOps reconciler and OpenAI-compatible gateway for self-hosted language models."""

__version__ = "0.1.0"
