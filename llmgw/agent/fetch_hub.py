"""Gets files of a repository: `python -m llmgw.agent.fetch_hub --repo ORG/NAME --commit HEX [--file GLOB]… --target DIR`.

A program of its own, and what it says, are as in `llmgw.agent.fetch`. Which hub, and what it is shown, say `HF_ENDPOINT` and
`HF_TOKEN` (or the file that a login left) in its environment, as for every program that uses `huggingface_hub`. That library
lists the commit's files; their bytes come as those of any URL do. Rejected: its own download, which since 2.0 begins anew after
every end of the process and looks at sizes alone: here a file goes on from where it was, and each is held against the digest
that the list gives, SHA-256 of what is large and git's own SHA-1 of the rest.

The directory is filled as `NAME.partial` and renamed once all is there, so that one with the final name is whole and right.
Without `--file`, what repeats the weights in other formats is left out where there are safetensors.
"""

import argparse
import hashlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import httpx2
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from llmgw.agent.fetch import (
    Digest,
    NotFetched,
    Progress,
    alone,
    download,
    flush_directory,
    require_room,
    run,
    sha256_of,
    size_of,
)
from llmgw.engines.weights import is_pattern

OTHER_FORMATS = ("*.bin", "*.pth", "*.pt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot", "original/*")
"""What repeats the weights of a repository that has them as safetensors."""


def fetch_repository(repo: str, commit: str, patterns: tuple[str, ...], target: Path, progress: Progress) -> None:
    """Have the commit's files below `target`, whole and verified. Raises NotFetched."""
    with alone(target, progress) as coming:
        if target.exists():
            return
        listed = _listed(repo, commit)
        files = chosen(listed, patterns)
        lacking = [one for one in patterns if not is_pattern(one) and all(file.path != one for file in files)]
        if lacking or not files:
            what = f"no file {', '.join(lacking or patterns)}" if patterns else "no files"
            raise NotFetched("no_such_file", f"{repo} has {what} at {commit[:12]}; correct the weights' `files`")
        _fill(repo, commit, files, coming, progress)
        coming.rename(target)
        flush_directory(target.parent)


def chosen(files: Iterable[RepoFile], patterns: tuple[str, ...]) -> list[RepoFile]:
    """Return the files that are wanted, in the order given."""
    files = list(files)
    if patterns:
        return [one for one in files if any(fnmatchcase(one.path, pattern) for pattern in patterns)]
    if not any(fnmatchcase(one.path, "*.safetensors") for one in files):
        return files
    return [one for one in files if not any(fnmatchcase(one.path, pattern) for pattern in OTHER_FORMATS)]


def _fill(repo: str, commit: str, files: list[RepoFile], directory: Path, progress: Progress) -> None:
    progress.of_all = sum(one.size for one in files)
    places = {one.path: _below(directory, one.path) for one in files}
    directory.mkdir(exist_ok=True)
    require_room(directory, progress.of_all - size_of(directory))
    token = get_token() or ""
    for one in files:
        place = places[one.path]
        if not place.exists():  # what has its own name was verified
            place.parent.mkdir(parents=True, exist_ok=True)
            coming = place.with_name(f"{place.name}.coming")
            url = f"{constants.ENDPOINT}/{repo}/resolve/{commit}/{quote(one.path)}"
            try:
                download(url, _digest(one), coming, progress, token)
            except NotFetched as error:
                raise _in_words(error, repo) from error
            coming.rename(place)
        progress.before += one.size


def _below(directory: Path, path: str) -> Path:
    """Return where a file of the list lies. Raises NotFetched for one that would lie elsewhere."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise NotFetched("hub_broken", f"the hub lists a file of the name {path!r}, which is not taken")
    return directory.joinpath(*parts)


def _digest(file: RepoFile) -> Digest:
    if file.lfs is not None:
        return sha256_of(file.lfs.sha256)
    header = f"blob {file.size}\0".encode()
    return Digest("git object id", file.blob_id, lambda: hashlib.sha1(header, usedforsecurity=False))


def _listed(repo: str, commit: str) -> list[RepoFile]:
    try:
        tree = HfApi(library_name="llmgw").list_repo_tree(repo, recursive=True, revision=commit)
        return [one for one in tree if isinstance(one, RepoFile)]
    except OfflineModeIsEnabled as error:
        raise NotFetched("hub_offline", "HF_HUB_OFFLINE is set where the agent runs, so no hub is asked") from error
    except GatedRepoError as error:
        raise NotFetched("hub_gated", f"{repo} is gated: ask for access on its page, and {_TOKEN}") from error
    except RevisionNotFoundError as error:
        raise NotFetched("no_such_revision", f"{repo} has no commit {commit[:12]}; correct `revision`") from error
    except HFValidationError as error:
        raise NotFetched("no_such_repository", f"{repo} is no name of a repository; correct `hf`") from error
    except RepositoryNotFoundError as error:
        text = f"{constants.ENDPOINT} shows no repository {repo}: correct `hf`, or, if it is private, {_TOKEN}"
        raise NotFetched("no_such_repository", text) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise _in_words(NotFetched(f"http_{status}", f"{constants.ENDPOINT} answers {status}"), repo) from error
    except httpx2.HTTPError as error:
        text = f"cannot reach {constants.ENDPOINT}: {str(error) or type(error).__name__}"
        raise NotFetched("unreachable", text) from error


_TOKEN = "give the model's profile `env: {HF_TOKEN: {secret: NAME}}` with a token that may read it"  # noqa: S105 - no token


def _in_words(error: NotFetched, repo: str) -> NotFetched:
    """Return an error with what to do about it, for answers that say that."""
    match error.code:
        case "http_401" | "http_403":
            return NotFetched(error.code, f"{repo}: {error.text}; {_TOKEN}")
        case "http_429":
            return NotFetched(
                error.code, f"{repo}: {error.text}, too many requests; with a token more are allowed: {_TOKEN}"
            )
        case _:
            return error


def main() -> None:
    """Fetch, and say how it went. Exit status 0 if the directory is there."""
    parser = argparse.ArgumentParser(prog="llmgw.agent.fetch_hub", allow_abbrev=False)
    parser.add_argument("--repo", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("--target", required=True, type=Path)
    options = parser.parse_args()
    run(partial(fetch_repository, options.repo, options.commit, tuple(options.file), options.target))


if __name__ == "__main__":
    main()
