"""The control-agent and control-gateway protocols without a socket: messages, framing, session state machine."""
