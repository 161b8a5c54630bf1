"""The data plane: HTTP/1.1 in, engines out, streams passed through byte for byte."""
