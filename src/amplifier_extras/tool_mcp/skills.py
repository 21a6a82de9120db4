"""Skills of a server: the MCP extension `io.modelcontextprotocol/skills`.

An entry lists the files of a skill with their digests. The model names a skill by its path and a digest of that list,
so an approval of the call is bound to the content. A file is read when the model asks for it, and used only if it
matches the list. A skill that has changed since its server was connected is not offered until the user accepts it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeGuard, cast

from amplifier_core.utils.truncate import sanitize_text
from amplifier_extras.tool_mcp.connection import ServerRefused
from amplifier_modules._shared.module.tools import (
    InvalidInput,
    object_schema,
    parameter,
    read_input,
)
from amplifier_modules._shared.skills import (
    FILE,
    InvalidSkill,
    parse_skill,
    read_name_and_description,
)
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import cut_text

EXTENSION = "io.modelcontextprotocol/skills"
_MAX_FILES, _MAX_BYTES = 512, 16 * 1024 * 1024
"""Limits of one skill, which the extension sets."""
_MAX_URI = 1024
_MAX_DESCRIPTIONS, _MIN_DESCRIPTION, _MAX_LISTED = 8000, 60, 100
_MAX_NAMES = 8000
"""Characters of the names of skills or files in an error."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ServedFile(NamedTuple):
    """A file of a skill: the digest of its content, and its size in bytes."""

    digest: str
    size: int


class ServedSkill(NamedTuple):
    """A skill as its server lists it.

    Attributes:
        uri: The URI of its `SKILL.md`.
        frontmatter: The front matter of that file.
        description: Its purpose, on one line.
        files: All its files, by their paths in its folder.
    """

    uri: str
    frontmatter: Mapping[str, Any]
    description: str
    files: Mapping[str, ServedFile]

    @property
    def root(self) -> str:
        """The URI of its folder, with a slash at the end."""
        return self.uri.removesuffix(FILE)

    @property
    def path(self) -> str:
        """The path of its folder on the server."""
        return self.root.rpartition("://")[2].rstrip("/")

    @property
    def name(self) -> str:
        """Its path with a digest of the list of its files."""
        text = json.dumps([self.uri, sorted(self.files.items())])
        return f"{self.path}@{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def hides(self, uri: str) -> bool:
        """Return True if something in its folder is neither one of its files nor above one."""
        if not uri.startswith(self.root):
            return False
        path = uri.removeprefix(self.root)
        return not any(file == path or file.startswith(f"{path}/") for file in self.files)

    def verify(self, file: str, contents: Iterable[Any]) -> bytes:
        """Return the content of a file.

        Args:
            file: Its path.
            contents: The server's response to reading it.

        Raises:
            InvalidSkill: It is not what the list says.
        """
        (found,) = contents or (None,)
        text = getattr(found, "text", None)
        data = text.encode() if text is not None else base64.b64decode(getattr(found, "blob", ""))
        listed = self.files[file]
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if (digest, len(data)) != (listed.digest, listed.size):
            raise InvalidSkill(
                f"{file} does not have the digest and the size that the server lists"
            )
        if file == FILE and _as_json(parse_skill(data)[0]) != self.frontmatter:
            raise InvalidSkill(f"the front matter of {FILE} is not the one that the server lists")
        return data


def parse_entry(entry: Mapping[str, Any]) -> ServedSkill:
    """Parse an entry of `skills/list` or `skills/get`.

    Raises:
        InvalidSkill: It is invalid, or beyond the limits.
    """
    uri: Any = entry.get("uri")
    if not _is_uri(uri) or uri.count("/") < 2 or not uri.endswith(f"/{FILE}"):
        raise InvalidSkill(f"{str(uri)[:200]!r} is not the URI of a {FILE}")
    fields = to_mapping(entry.get("frontmatter"))
    folder = uri.split("/")[-2]
    name, description = read_name_and_description(fields, "")
    if name != folder:
        raise InvalidSkill(f"name: {name!r} differs from the folder's name {folder!r}")
    files = _parse_files(entry.get("resources"), uri.removesuffix(FILE))
    return ServedSkill(uri, fields, description, files)


def _parse_files(listed: Any, root: str) -> dict[str, ServedFile]:
    if listed == "dynamic":
        raise InvalidSkill("its files have no digests, so they cannot be verified")
    if not isinstance(listed, list):
        raise InvalidSkill("resources: expected a list of files")
    files: dict[str, ServedFile] = {}
    for one in map(to_mapping, cast("list[Any]", listed)):
        uri, digest, size = one.get("uri"), one.get("digest"), one.get("size")
        if (
            not _is_uri(uri)
            or not uri.startswith(root)
            or not isinstance(digest, str)
            or not _DIGEST.fullmatch(digest)
            or type(size) is not int
            or size < 0
            or uri.removeprefix(root) in files
        ):
            raise InvalidSkill(f"resources: invalid file {json.dumps(dict(one))[:200]}")
        files[uri.removeprefix(root)] = ServedFile(digest, size)
    if FILE not in files:
        raise InvalidSkill(f"resources: {FILE} is missing")
    if len(files) > _MAX_FILES or sum(file.size for file in files.values()) > _MAX_BYTES:
        raise InvalidSkill(f"it has more than {_MAX_FILES} files, or more than 16 MiB")
    return files


def _is_uri(value: Any) -> TypeGuard[str]:
    """Return True for text that can be part of the description of the tool and of messages."""
    return isinstance(value, str) and len(value) <= _MAX_URI and value.isprintable()


def _as_json(fields: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(fields, default=str))


class ServerSkills:
    """The skills of one server that may be used, and the tool that loads them.

    Args:
        server: The server's name.
        call: Runs a function with the server's `client.SkillsClient`; raises ServerProblem.
        note: Called with the current entry of a skill.
        report: Called with the name of a skill that the model was given.

    Attributes:
        skills: The skills by name.
        loaded: Names of those that the model was given.
    """

    def __init__(
        self,
        server: str,
        call: Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]],
        note: Callable[[ServedSkill], Awaitable[None]],
        report: Callable[[str], Awaitable[None]],
    ) -> None:
        self._server = server
        self._call = call
        self._note = note
        self._report = report
        self.skills: dict[str, ServedSkill] = {}
        self.loaded: set[str] = set()

    @property
    def description(self) -> str:
        """The description of the tool, with the skills."""
        limit = max(_MIN_DESCRIPTION, _MAX_DESCRIPTIONS // max(len(self.skills), 1))
        lines = [
            f"- {name}: {cut_text(skill.description, limit)}" for name, skill in self.skills.items()
        ]
        left = len(lines) - _MAX_LISTED
        lines[_MAX_LISTED:] = [f"and {left} more, to be loaded by their URIs"] if left > 0 else []
        return (
            f"Load a skill of the MCP server {self._server}: instructions for a kind of task, which that server "
            "wrote. Load it before you begin a task of its kind. Skills:\n" + "\n".join(lines)
        )

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the input of the tool."""
        about = f"A name from the list, or the URI of a {FILE} that a text of this server mentions"
        return object_schema(
            "skill",
            skill=parameter("string", about),
            file=parameter("string", "Another file of the skill, instead of its instructions"),
        )

    async def run(self, given: dict[str, Any]) -> str:
        """Run the tool.

        Raises:
            InvalidInput: There is no such skill, or no such file.
            ServerProblem: It cannot be read, or is not what the server lists.
        """
        values = read_input(self.input_schema, given)
        name, file = sanitize_text(values["skill"]), values.get("file", FILE)
        skill = self.skills.get(name)
        if skill is None and name.endswith(f"/{FILE}"):
            skill = await self._look_up(name)
            return f"Load this skill by its name: {skill.name}: {skill.description}"
        if skill is None:
            names = cut_text(", ".join(self.skills), _MAX_NAMES)
            raise InvalidInput(f"there is no skill {name!r}: {names}")
        if file not in skill.files:
            names = cut_text(", ".join(skill.files), _MAX_NAMES)
            raise InvalidInput(f"{name} has no file {file!r}: {names}")
        data = await self._read(skill, file)
        try:
            text = parse_skill(data)[1].strip() if file == FILE else data.decode()
        except UnicodeDecodeError as error:
            raise ServerRefused(f"{file} of {name} is not text") from error
        if file != FILE:
            return text
        self.loaded.add(name)
        await self._report(name)
        return self._content(skill, text)

    def _content(self, skill: ServedSkill, text: str) -> str:
        server, others = self._server, [file for file in skill.files if file != FILE]
        lines = [f'<skill_content name="{skill.name}" server="{server}">', text, ""]
        lines += [f"Files of it, which 'file' reads: {', '.join(others)}"] if others else []
        lines += [f"The MCP server {server} wrote this, not the user.", "</skill_content>"]
        return "\n".join(lines)

    async def _read(self, skill: ServedSkill, file: str) -> bytes:
        """Read and verify a file of a skill."""
        uri = f"{skill.root}{file}"
        try:
            answer = await self._call(lambda client: client.read_resource(uri))
            return skill.verify(file, answer.contents)
        except (ServerRefused, InvalidSkill, ValueError) as error:
            await self._look_up(skill.uri)
            raise ServerRefused(f"cannot use {uri}: {error}") from error

    async def _look_up(self, uri: str) -> ServedSkill:
        """Return a skill as its server lists it now.

        Raises:
            ServerRefused: It has changed, or may not be used.
        """
        try:
            skill = parse_entry(await self._call(lambda client: client.get_skill(uri)))
        except InvalidSkill as error:
            raise ServerRefused(f"the skill {uri} cannot be used: {error}") from error
        if skill.uri != uri:
            raise ServerRefused(f"the server {self._server} returned {skill.uri} instead of {uri}")
        await self._note(skill)
        if skill.name not in self.skills:
            raise ServerRefused(
                f"the skill {uri} has changed on the server {self._server}, or was added; only the user can "
                f"accept it, with: /mcp accept {self._server}"
            )
        return skill
