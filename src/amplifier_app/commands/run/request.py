"""The options of `run`, each declared once, as the field that holds its value.

A usual command line is read without Typer, whose import takes a tenth of a short run.
"""

# Without `from __future__ import annotations`, whose strings would be compiled at every start.
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from amplifier_app.base.errors import UsageError
from amplifier_app.base.stdio import is_dumb
from amplifier_app.commands.finish import OutputFormat
from amplifier_app.commands.option import Option, find_option, parse_duration
from amplifier_support.named_tuple import NamedTuple

_plan = partial(Option, group="What runs")
_session = partial(Option, group="Session")
_limit = partial(Option, group="Limits")
_permission = partial(Option, group="Permissions")
_check = partial(Option, group="Checked answers")
_output = partial(Option, group="Output")
_reproducible = partial(Option, group="Reproducible runs")

Screen = Literal["full", "plain", "answer"]
"""The use of a terminal: with a live region, as lines of text, or for the answer alone."""


class Request(NamedTuple):
    """The command line of `run`. For `show` and `screen`, None leaves it to settings.

    Attributes:
        prompt: The prompt argument; None if there is none.
        whole_stdin: Whether to read stdin to its end, however long that takes.
        is_set_up: Whether a provider was set up just before the run.
        module_mode: The mode of a module to switch to, see `amplifier_app.runtime.module_modes`.
        timeout: Seconds the prompt may take.
        folder: The folder that relative sources in `sets` start at; None for the current directory of the process.
    """

    prompt: str | None = None
    whole_stdin: bool = False
    is_set_up: bool = False
    module_mode: str | None = None
    folder: str | None = None
    profile: Annotated[str | None, _plan("-P, --profile NAME", "Profile to use.")] = None
    plan: Annotated[Path | None, _plan("-f, --plan FILE", "Plan file to use.")] = None
    provider: Annotated[str | None, _plan("-p, --provider NAME", "Provider to use.")] = None
    model: Annotated[str | None, _plan("-m, --model NAME", "Model to use.")] = None
    sets: Annotated[
        list[str] | None, _plan("--set PATH=VALUE", "Change a value of the plan; repeatable.")
    ] = None
    attach: Annotated[
        list[str] | None,
        _session(
            "--attach FILE",
            "Add an image (PNG, JPEG, GIF, WebP) or a text file to the prompt; repeatable.",
        ),
    ] = None
    session: Annotated[
        str | None,
        _session("--session ID", "Resume this session, or create it if it does not exist."),
    ] = None
    resume: Annotated[str | None, _session("--resume ID", "Resume this session.")] = None
    continue_last: Annotated[
        bool, _session("--continue", "Resume the last session of this directory.")
    ] = False
    fork: Annotated[
        str | None, _session("--fork ID", "Start a new session from a copy of this one.")
    ] = None
    no_save: Annotated[bool, _session("--no-save", "Do not save the session.")] = False
    max_steps: Annotated[
        int | None,
        _limit("--max-steps, --max-turns N", "Stop after N model calls per prompt.", min=1),
    ] = None
    max_tokens: Annotated[
        int | None,
        _limit(
            "--max-tokens-total N",
            "Stop when the session, including its sub-agents, has used N tokens.",
            min=1,
        ),
    ] = None
    max_cost: Annotated[
        float | None,
        _limit("--max-cost DOLLARS", "Stop when the session has cost this many US dollars."),
    ] = None
    timeout: Annotated[
        float | None,
        _limit("--timeout TIME", "Stop after this time: 90, 90s, 5m, 1h.", parser=parse_duration),
    ] = None
    approve: Annotated[
        Literal["ask", "deny", "allow", "policy", "park"] | None,
        _permission(
            "--approve",
            "How to handle tool calls that need approval; 'policy' uses each request's own "
            "default, 'park' ends with exit code 10 and waits for 'amplifier session approve'. [default: ask on a terminal, otherwise deny]",
        ),
    ] = None
    approve_with: Annotated[
        str | None,
        _permission(
            "--approve-with COMMAND",
            "Ask this program about each call that needs approval: it gets the call as JSON on stdin and "
            "answers allow, deny or ask (see 'amplifier docs scripts').",
        ),
    ] = None
    mode: Annotated[
        str | None,
        _permission(
            "--mode ask|edits|propose|read-only|auto|NAME",
            "Which tool calls need no approval: 'ask' reading only, 'edits' also changes of files "
            "here, 'auto' all but dangerous ones; 'propose' denies changes until you accept a proposal of "
            "the model, 'read-only' always. [default: the plan's] NAME "
            "is the mode of a module, such as the published hooks-mode; 'off' is none.",
        ),
    ] = None
    sandbox: Annotated[
        str | None,
        _permission(
            "--sandbox POLICY",
            "What commands may do: 'workspace' (change files here), 'read-only', 'off', or a mapping "
            "such as '{network: all}'. [default: the plan's, or workspace]",
        ),
    ] = None
    trust: Annotated[
        bool,
        _permission(
            "--trust", "Trust the project this once: its .amplifier folder and its AGENTS.md."
        ),
    ] = False
    no_project: Annotated[
        bool,
        _permission("--no-project", "Ignore the project's .amplifier folder and its AGENTS.md."),
    ] = False
    no_context_files: Annotated[
        bool,
        _plan(
            "--no-context-files",
            "Leave out hooks-context-files: read no AGENTS.md, not even your own.",
        ),
    ] = False
    no_web: Annotated[bool, _plan("--no-web", "Leave out tool-web: read no web pages.")] = False
    no_skills: Annotated[
        bool,
        _plan(
            "--no-skills", "Offer no skills: leave out tool-skills, and the skills of MCP servers."
        ),
    ] = False
    no_plugins: Annotated[
        bool, _plan("--no-plugins", "Leave out the plugins of plan and settings.")
    ] = False
    tools: Annotated[
        str | None,
        _permission(
            "--tools NAMES",
            "Offer only these tools of the plan, separated by commas; '' offers none.",
            empty=True,
        ),
    ] = None
    schema: Annotated[
        Path | None,
        _check(
            "--schema FILE", "Require an answer that is JSON and matches the JSON Schema in FILE."
        ),
    ] = None
    check: Annotated[
        list[str] | None,
        _check(
            "--check COMMAND", "Require this shell command to succeed after the answer; repeatable."
        ),
    ] = None
    retries: Annotated[
        int,
        _check(
            "--retries N",
            "How often the model may correct an answer that fails --schema or a check.",
            min=0,
            max=20,
        ),
    ] = 2
    report: Annotated[
        list[str] | None,
        _check(
            "--report KIND=FILE", "Write the checks to FILE; KIND is 'junit' or 'md'; repeatable."
        ),
    ] = None
    notify: Annotated[
        str | None,
        _output(
            "--notify COMMAND", "Run this shell command at the end, with the JSON result on stdin."
        ),
    ] = None
    stream: Annotated[
        bool,
        _output(
            "--stream",
            "Write all text of the model to a pipe as it comes, including remarks before "
            "tool calls. Without tools, answers always stream.",
        ),
    ] = False
    quiet: Annotated[bool, _output("-q, --quiet", "Print only warnings and errors to stderr.")] = (
        False
    )
    show: Annotated[
        Literal["user", "developer", "internal"] | None,
        _output(
            # typing returns an equal type that exists, such as the kernel's, in its order.
            "--show user|developer|internal",
            "Show answer blocks up to this visibility; 'internal' shows all. [default: user]",
        ),
    ] = None
    screen: Annotated[
        Screen | None,
        _output(
            # 'plain' is the value of the setting; here it is the same as --plain.
            "--screen full|answer",
            "Terminal output: 'answer' leaves the screen to a module, such as hooks-streaming-ui. "
            "[default: full]",
        ),
    ] = None
    locked: Annotated[
        bool,
        _reproducible(
            "--locked", "Require the versions in the plan's lock file (see 'amplifier plan lock')."
        ),
    ] = False
    lock: Annotated[
        Path | None, _reproducible("--lock FILE", "Like --locked, using the lock in FILE.")
    ] = None
    offline: Annotated[
        bool,
        _reproducible(
            "--offline",
            "Do not download anything; only the provider is contacted. [env: AMPLIFIER_OFFLINE=1]",
        ),
    ] = False
    record: Annotated[
        Path | None,
        _reproducible(
            "--record FILE",
            "Record all model requests and responses to FILE (must be new or empty).",
        ),
    ] = None
    replay: Annotated[
        Path | None,
        _reproducible(
            "--replay FILE",
            "Answer from a recording instead of asking a model; needs no key or network.",
        ),
    ] = None

    def as_data(self) -> dict[str, Any]:
        """The request as JSON data."""
        fields = self._asdict()
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in fields.items()
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Request":
        """The request that `as_data` returned."""
        hints = {name: hint for name, hint in cls.__annotations__.items() if find_option(hint)}
        paths = {name for name, hint in hints.items() if Path in get_args(get_args(hint)[0])}
        fields: dict[str, Any] = {
            name: Path(value) if name in paths and value is not None else value
            for name, value in data.items()
            if name in cls._fields
        }
        return cls(**fields)

    def as_words(self) -> list[str]:
        """The options of a command line that makes this request, without its prompt."""
        words: list[str] = []
        for name, default in self._field_defaults.items():
            option, value = find_option(self.__annotations__[name]), getattr(self, name)
            if option is not None and value != default:
                flag, values = option.flags[0], value if isinstance(value, list) else [value]
                words += [flag] if value is True else [f"{flag}={item}" for item in values]
        return words

    @property
    def without(self) -> list[str]:
        """The modules to leave out of the plan."""
        switches = {
            "hooks-context-files": self.no_context_files,
            "tool-skills": self.no_skills,
            "tool-web": self.no_web,
        }
        return [module for module, is_off in switches.items() if is_off]

    def screen_mode(self, display: Mapping[str, Any]) -> str:
        """`full`, `plain` or `answer`: as requested, or else as set."""
        return self.screen or display.get("screen") or "full"

    def draws(self, display: Mapping[str, Any]) -> bool:
        """Return True to draw on the terminal, False to write lines only."""
        return self.screen_mode(display) == "full" and not is_dumb()

    def validate(self) -> "Request":
        """The request, with what one option implies for another.

        Raises:
            UsageError: Two options contradict each other, a value is out of range, or the folder of a
                report does not exist.
        """
        options = {
            "--session": self.session is not None,
            "--resume": self.resume is not None,
            "--continue": self.continue_last,
            "--fork": self.fork is not None,
            "--no-save": self.no_save,
        }
        used = [option for option, is_given in options.items() if is_given]
        if len(used) > 1:
            raise UsageError(f"{', '.join(used[:-1])} and {used[-1]} are mutually exclusive")
        if self.approve == "park" and self.no_save:
            raise UsageError("--approve park and --no-save are mutually exclusive")
        if self.max_cost is not None and not 0 < self.max_cost < float("inf"):
            raise UsageError(f"--max-cost must be greater than 0 (got {self.max_cost:g})")
        if self.trust and self.no_project:
            raise UsageError("--trust and --no-project are mutually exclusive")
        if self.record is not None and self.replay is not None:
            raise UsageError("--record and --replay are mutually exclusive")
        if self.stream and (self.schema is not None or self.check):
            raise UsageError("--stream cannot be used with --schema or --check")
        for report in self.report or ():
            kind, _, file = report.partition("=")
            if kind not in ("junit", "md") or not file:
                raise UsageError(f"--report: expected junit=FILE or md=FILE, got {report!r}")
            if not (folder := Path(file).absolute().parent).is_dir():
                raise UsageError(f"--report: folder {folder} does not exist")
        return self._replace(locked=self.locked or self.lock is not None)


def read_words(words: Sequence[str]) -> Request | None:
    """Return the request of a command line; None if Typer has to read it.

    Only what needs no explanation is read: options in their usual spelling, each followed by its
    value, and at most one prompt. `--output` is not part of a request.

    Raises:
        UsageError: Two options contradict each other.
    """
    fields: dict[str, Any] = {}
    options = _options()
    rest = iter(words)
    for word in rest:
        name, kind, may_be_empty = options.get(word, ("prompt", str, True))
        if kind is bool:
            value: Any = True
        else:
            text = word if name == "prompt" else next(rest, "-")
            explained = text.startswith("-") or not (text or may_be_empty)
            value = None if explained else _value(kind, text)
        if get_origin(kind) is list and value is not None:
            value = [*fields.pop(name, []), value]
        if value is None or name in fields:
            return None
        fields[name] = value
    fields.pop("output", None)
    return Request(**fields).validate()


def _options() -> dict[str, tuple[str, Any, bool]]:
    """The field and type of each option, and whether it may be empty, by its spellings."""
    options: dict[str, tuple[str, Any, bool]] = {"--output": ("output", OutputFormat, False)}
    for name, hint in Request.__annotations__.items():
        option = find_option(hint)
        if option is not None:
            declared = get_args(hint)[0]
            kinds = [kind for kind in get_args(declared) if kind is not NoneType]
            kind = kinds[0] if get_origin(declared) is not Literal and kinds else declared
            options |= dict.fromkeys(option.flags, (name, kind, option.empty))
    return options


def _value(kind: Any, text: str) -> Any:
    """The value of an option; None for a type that Typer has to read."""
    if get_origin(kind) is Literal:
        return text if text in get_args(kind) else None
    if kind in (str, list[str]):
        return text
    return Path(text) if kind is Path else None
