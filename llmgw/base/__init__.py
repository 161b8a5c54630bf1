"""The few words every part shares: ids, instants, causes. No asyncio, nothing of llmgw."""
