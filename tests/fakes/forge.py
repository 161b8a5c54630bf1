"""GitHub, GitLab and Gitea as far as commit statuses go, over real HTTP, with the ways in which they fail."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKEN = "f0rge+token"


@dataclass
class StubForge:
    """Takes statuses; `answers` are given first, one a request: (status, headers, text), or None to say nothing at all."""

    answers: list[tuple[int, dict[str, str], str] | None] = field(default_factory=list)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    shown: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)

    async def start(self, port: int = 0) -> str:
        """Listen; return the URL."""
        app = web.Application()
        app.router.add_post("/repos/{owner}/{name}/statuses/{sha}", self._by_token("Authorization"))
        app.router.add_post("/projects/{project}/statuses/{sha}", self._by_token("PRIVATE-TOKEN"))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close."""
        await self._runner.cleanup()

    def _by_token(self, header: str) -> Any:
        async def post(request: web.Request) -> web.Response:
            body = await request.json()
            self.requests.append((request.raw_path, body))
            if self.answers:
                answer = self.answers.pop(0)
                if answer is None:
                    await asyncio.sleep(3600)
                    raise AssertionError
                return web.Response(status=answer[0], headers=answer[1], text=answer[2])
            if request.headers.get(header, "").split(" ")[-1] != TOKEN:
                return web.json_response({"message": "Bad credentials"}, status=401)
            if len(body["description"]) > 140:
                return web.json_response({"message": "description is too long"}, status=422)
            shown = self.shown.setdefault((request.match_info["sha"], body["context"]), [])
            if "PRIVATE" in header and shown and shown[-1][0] == body["state"]:
                return web.json_response({"message": "Cannot transition status via :enqueue from :pending"}, status=400)
            shown.append((body["state"], body["description"]))
            return web.json_response({}, status=201)

        return post
