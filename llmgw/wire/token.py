"""What a router shows for the secret that it shares with the control plane: any text may be a secret, not any is a header."""

import hashlib
import hmac


def router_token(secret: str) -> str:
    """Return 64 hexadecimal digits that only who knows the secret can make. Whoever overhears them can use them, too."""
    return hmac.new(secret.encode(errors="surrogateescape"), b"llmgw router", hashlib.sha256).hexdigest()
