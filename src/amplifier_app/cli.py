"""The console entry point.

Only the invoked command is imported. `--version`, `--help`, and a prompt with common options run
without importing Typer; the first two import almost nothing.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

# Not typing's: importing it takes as long as starting the interpreter.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from amplifier_app.base.outcome import Outcome
    from amplifier_app.base.stdio import Output
    from amplifier_app.commands.finish import Invocation

_HELP_FILE = ("commands", "help.txt")
"""The help pages, each after a form feed and the words of its command: `tests/meta/help_pages.py` writes it."""
_HELP_COLUMNS = 80
"""Terminals of this width or more get the stored help."""
_SIGNALLED = (130, 143)
"""Exit codes of commands that report a signal themselves."""
_OWN_OPTIONS = ("--help", "-h", "--version", "--install-completion", "--show-completion")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Without `argv`, as the console entry point, it reads `sys.argv` and exits the process.
    """
    if argv is not None:
        return _main(argv)
    text = _stored_answer(sys.argv[1:])
    if text and _print(text):
        leave(0)
    # Garbage collection takes a tenth of a short run, and start-up objects stay alive anyway.
    # `launch` enables it again once the session is open; other commands end soon.
    gc.disable()
    try:
        _find_code_in_one_file()
        from amplifier_app.base.stdio import open_standard_streams

        stdout = open_standard_streams()
        _keep_own_files_usable()
        _keep_keys_private()
        code = _main(sys.argv[1:], stdout)
        _let_signals_end_it()
    except KeyboardInterrupt as error:  # before or after what reports it
        code = _SIGNALLED[bool(error.args)]  # The interrupt for SIGTERM has the signal's name.
    leave(code)


def _stored_answer(argv: list[str]) -> str | None:
    """The answer to a command line that needs no command."""
    if argv in (["--version"], ["version"]):
        from amplifier_app.base.own_packages import version_line

        return version_line() + "\n"
    if argv[-1:] in (["--help"], ["-h"]) and _is_wide():
        return _stored_help(" ".join(argv[:-1]))
    return None


def _stored_help(words: str) -> str | None:
    """The help page of the command that `words` call; None if it is not stored."""
    with open(os.path.join(os.path.dirname(__file__), *_HELP_FILE), encoding="utf-8") as file:
        pages = file.read()
    _, found, rest = pages.partition(f"\f{words}\n")
    page = rest.partition("\f")[0]
    is_group = not words or "\nCommands:\n" in page
    return page if found and (not is_group or _has_only_own_commands()) else None


def _is_wide() -> bool:
    """Return True if help is laid out in lines of the usual length."""
    try:
        columns = int(os.environ.get("COLUMNS", 0))
    except ValueError:
        columns = 0
    try:
        return (columns or os.get_terminal_size(1).columns) >= _HELP_COLUMNS
    except OSError:  # not a terminal
        return True


def _has_only_own_commands() -> bool:
    """Return True if no other package adds commands, which the stored help would lack."""
    from amplifier_app.commands.entry_points import find_commands

    commands = find_commands().values()
    return bool(commands) and all(command.is_own for command in commands)


def _print(text: str) -> bool:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    # Closed, full or unable to encode it: the command itself reports that.
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _find_code_in_one_file() -> None:
    """Import modules from one file, which the first run writes when it ends."""
    from amplifier_support.code_cache import CodeCache

    cache = CodeCache(__file__)

    def save() -> None:
        content = cache.new_content()
        if content is not None:
            from amplifier_support.files import write_atomically

            try:
                write_atomically(cache.file, content, mode=0o644, durable=False)
            except OSError:
                pass  # As Python does where it cannot keep compiled code.

    if cache.use():
        atexit.register(save)


def _keep_own_files_usable() -> None:
    """Ignore a umask that takes the owner's permissions: new folders could not be entered."""
    mask = os.umask(0o077)
    os.umask(mask & 0o077)


def _let_signals_end_it() -> None:
    """End quietly by another signal from now on: all is written, and no one reports an interrupt."""
    import signal

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _keep_keys_private() -> None:
    """Keep commands started by this process from reading the keys in its memory."""
    from amplifier_support.sandbox.system_calls import forbid_inspection

    try:
        forbid_inspection()
    except OSError as error:
        from amplifier_app.base.stdio import to_stderr

        to_stderr(f"warning: commands may be able to read the keys in this process: {error}")


def leave(code: int) -> NoReturn:
    """Exit without the interpreter's shutdown; functions registered with `atexit` still run.

    The shutdown would wait for every thread stuck in a tool, and takes noticeable time. What these
    functions print goes to stderr: stdout is complete.
    """
    _flush_streams()
    try:
        os.dup2(2, 1)
    except OSError:  # closed
        pass
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] - as sys.exit would
    _flush_streams()
    os._exit(code)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        # A stream that was closed at start-up is None until a command runs.
        except (OSError, ValueError, AttributeError):
            pass


def _main(argv: list[str], stdout: Output | None = None) -> int:
    instruction = os.environ.get("_AMPLIFIER_COMPLETE", "")
    if instruction.startswith("complete_"):
        from amplifier_app.commands.completion import answer

        code = answer(instruction)
        if code is not None:
            return code
    if argv == ["--version"]:
        argv = ["version"]
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv[:1] == ["continue"] and not {"-h", "--help"} & {*argv[1:]}:
        argv = ["run", "--continue", *argv[1:]]
    # `amplifier` without a command is `amplifier run`.
    implied = not argv or (argv[0].startswith("-") and argv[0] not in _OWN_OPTIONS)
    if implied:
        argv = ["run", *argv]
    # `amplifier "a prompt"` begins a chat with it; one word is a command.
    is_prompt = len(argv[0].split()) > 1
    if is_prompt:
        argv = ["run", *argv]

    # Compiled code of pydantic imports it when it is loaded, and turns a Ctrl-C there into a crash.
    import datetime  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from contextlib import suppress

    from amplifier_app.base.signals import (
        hold_signals,
        raise_noted_signal,
        raise_on_signals,
        signal_behind,
    )
    from amplifier_app.base.slow_steps import report_slow_steps
    from amplifier_app.commands.finish import finish, guess_invocation

    invocation = guess_invocation(argv, stdout)
    report_slow_steps(not {"--quiet", "-q"} & set(argv))
    invocation.opens_chat = is_prompt
    with invocation.resources:
        try:
            raise_on_signals()
            ended = _invoke(argv, invocation)
            if (ended if isinstance(ended, int) else ended.exit_code) not in _SIGNALLED:
                raise_noted_signal()
        except SystemExit as stop:
            ended = stop.code if isinstance(stop.code, int) else 1
        # Last resort: every exception becomes an exit code and a message.
        except BaseException as error:
            ended = signal_behind(error)
        code = _SIGNALLED[0]
        # A closing terminal sends several signals: a later one must not cost the result.
        with suppress(KeyboardInterrupt), hold_signals():
            if isinstance(ended, BaseException):
                from amplifier_app.commands.usage_errors import usage_error

                ended = usage_error(ended, root=implied)
            code = finish(invocation, ended)
        return code


def _invoke(argv: list[str], invocation: Invocation) -> Outcome | int:
    if argv[0] == "run" and "_AMPLIFIER_COMPLETE" not in os.environ:
        from amplifier_app.commands.run.request import read_words

        request = read_words(argv[1:])
        if request is not None:
            from amplifier_app.commands.run.launch import launch

            return launch(request, invocation)
    if argv[0].endswith("-completion"):
        from amplifier_app.commands.completion import use_own_script

        use_own_script()
    import typer

    from amplifier_app.commands.group import amplifier_command

    command = amplifier_command()
    if "_AMPLIFIER_COMPLETE" in os.environ:
        command.main(argv, prog_name="amplifier")
    try:
        with command.make_context("amplifier", list(argv), obj=invocation) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return invocation.outcome


if __name__ == "__main__":
    sys.exit(main())
