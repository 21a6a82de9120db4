"""The command ``amplifier-core``: validate a module without an app.

    amplifier-core validate <provider|tool|hook|orchestrator|context> PATH [-e ENTRY] [-q]
    amplifier-core list-types

Exit codes: 0 the module is valid, 1 it is invalid, 2 usage error.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from amplifier_core import __version__
from amplifier_core.validation import ValidationCheck, ValidationResult
from amplifier_kit.validation.validators import VALIDATORS

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit.

    Args:
        arguments: the command line without the program's name; default: that of the process.

    Raises:
        SystemExit: always, with the exit code.
    """
    options = _parser().parse_args(arguments)
    if options.command == "list-types":
        print("\n".join(VALIDATORS))
        sys.exit(0)
    validator = VALIDATORS[options.type]()
    result = asyncio.run(validator.validate(options.path, entry_point=options.entry_point))
    _report(result, quiet=options.quiet)
    sys.exit(0 if result.passed else 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="amplifier-core", description="Check modules against the kernel's contracts."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("list-types", help="list the kinds of modules")
    validate = commands.add_parser("validate", help="import, mount and inspect a module")
    validate.add_argument("type", choices=tuple(VALIDATORS), help="kind of the module")
    validate.add_argument("path", help="package folder, Python file, or dotted name")
    validate.add_argument(
        "-e",
        "--entry-point",
        metavar="ENTRY",
        help="the mount function as FUNCTION or PACKAGE.MODULE:FUNCTION (default: mount)",
    )
    validate.add_argument("-q", "--quiet", action="store_true", help="print failed checks only")
    return parser


def _report(result: ValidationResult, *, quiet: bool) -> None:
    for check in result.checks:
        if not (quiet and check.passed):
            print(f"{_mark(check)} {check.name}: {check.message}")
    if not quiet:
        print(result.summary())


def _mark(check: ValidationCheck) -> str:
    if check.passed:
        return "ok     "
    return f"{check.severity:<7}"
